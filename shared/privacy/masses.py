"""Log-probabilities of integer noise in double precision, for exact divergences and privacy loss distributions.

Each returns the natural logs of the masses of -radius, ..., radius, (2·radius + 1,) float64, with the relative accuracy
of a double in the tails too (nothing underflows: all arithmetic is on logarithms).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from patevolve.shared import checks
from patevolve.shared.errors import ParameterError

LogMasses = NDArray[np.float64]

_LARGEST_CONVOLUTION = 20_001


def discrete_gaussian(sigma: float, radius: int) -> LogMasses:
    """Return the log-masses of N_Z(0, sigma²)."""
    k = _support(radius)
    weights = -((k / checks.positive(sigma=sigma)) ** 2) / 2
    return np.asarray(weights - np.logaddexp.reduce(weights))


def skellam(variance: float, radius: int) -> LogMasses:
    """Return the log-masses exp(-μ) I_|k|(μ) of the symmetric Skellam law of variance μ.

    Ratios I_k/I_(k-1) = 1/(2k/μ + I_(k+1)/I_k) run downward from beyond ``radius``, where the recurrence is stable
    (Miller's algorithm); the masses are then normalised to 1.
    """
    mu = checks.positive(variance=variance)
    ratio, logs = 0.0, np.zeros(radius + 1)
    for k in range(2 * radius + 64, 0, -1):
        ratio = 1.0 / (2.0 * k / mu + ratio)
        if k <= radius:
            logs[k] = np.log(ratio)
    half = np.cumsum(logs)
    both = np.concatenate([half[:0:-1], half])
    return np.asarray(both - np.logaddexp.reduce(both))


def gaussian_sum(share_sigma: float, shares: int, radius: int) -> LogMasses:
    """Return the log-masses of the sum of ``shares`` independent N_Z(0, share_sigma²), each cut at ±radius.

    Raises ParameterError for radii whose convolution would take too long.
    """
    count = checks.integer(shares=shares, at_least=1)
    if 2 * radius + 1 > _LARGEST_CONVOLUTION:
        raise ParameterError(f"radius={radius} found; exact convolution is offered up to {_LARGEST_CONVOLUTION // 2}.")
    square, total = discrete_gaussian(share_sigma, radius), None
    while True:  # binary powers of the convolution
        if count & 1:
            total = square if total is None else _convolve(total, square)
        count >>= 1
        if not count:
            return total if total is not None else square
        square = _convolve(square, square)


def _convolve(left: LogMasses, right: LogMasses) -> LogMasses:
    """Return the log of the convolution, cut to the length of the arguments."""
    radius = left.size // 2
    padded = np.full(3 * left.size, -np.inf)
    padded[left.size : 2 * left.size] = right
    windows = np.lib.stride_tricks.sliding_window_view(padded, left.size)
    out = np.empty_like(left)
    for i in range(left.size):
        # Σ_j left[j] · right[i + radius - j]
        row = left + windows[i + radius + 1][::-1]
        peak = row.max()
        out[i] = peak + np.log(np.sum(np.exp(row - peak)))
    return out


def _support(radius: int) -> NDArray[np.float64]:
    size = checks.integer(radius=radius, at_least=1)
    return np.arange(-size, size + 1, dtype=np.float64)


def shift_divergence(logs: LogMasses, shift: int, orders: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return D_α(law shifted by ``shift`` ‖ law) at each order, from symmetric log-masses (both directions agree)."""
    upper, lower = logs[:-shift], logs[shift:]  # P(k - shift) and P(k)
    return np.array(
        [max(0.0, float(np.logaddexp.reduce(a * upper + (1 - a) * lower))) / (a - 1) for a in orders.tolist()]
    )
