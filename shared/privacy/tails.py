"""Tail probabilities in logarithms, exact where the plain ones underflow (numpy and the standard library only)."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]

_SWITCH = 20.0  # above it erfc nears the subnormal numbers, and nine terms of the series are exact to 1e-14
_HALF_LOG_PI = 0.5 * math.log(math.pi)


def log1mexp(x: ArrayLike) -> FloatArray:
    """Return log(1 − eˣ) for x <= 0 without cancellation (Mächler 2012); −inf at 0, NaN for x > 0 or NaN."""
    values = np.asarray(x, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(values < -math.log(2), np.log1p(-np.exp(np.minimum(values, 0.0))), np.log(-np.expm1(values)))


def log_erfc(x: ArrayLike) -> FloatArray:
    """Return log erfc(x) with an absolute error below 1e-12 relative to max(1, |result|), for any finite x.

    Below 20 it is the C library's erfc; above, the asymptotic series erfc(x) = e^(−x²)/(x√π)·Σ (−1)ᵏ(2k−1)!!/(2x²)ᵏ
    (Abramowitz and Stegun 1964, 7.1.23), which alternates, so that its error is below the first term left out.
    """
    values = np.asarray(x, dtype=np.float64)
    near = np.minimum(values, _SWITCH)
    erfc = np.fromiter(map(math.erfc, near.ravel().tolist()), dtype=np.float64, count=near.size)
    result = np.log(erfc).reshape(values.shape)
    far = values > _SWITCH
    if far.any():
        result[far] = _log_erfc_far(values[far])
    return result


def _log_erfc_far(x: FloatArray) -> FloatArray:
    inverse = 0.5 / (x * x)
    series, term = np.zeros_like(x), np.ones_like(x)
    for k in range(1, 10):
        term = -term * (2 * k - 1) * inverse
        series = series + term
    return -x * x - np.log(x) - _HALF_LOG_PI + np.log1p(series)


def log_normal_sf(z: ArrayLike) -> FloatArray:
    """Return log Pr[N(0, 1) > z], with full relative accuracy at both ends (a certain event is −Pr[the other])."""
    values = np.asarray(z, dtype=np.float64)
    upper = log_erfc(np.abs(values) / math.sqrt(2.0)) - math.log(2.0)
    return np.where(values < 0.0, np.log1p(-np.exp(upper)), upper)


def inverse_log_erfc(log_p: ArrayLike) -> FloatArray:
    """Return x >= 0 with log erfc(x) = log_p, for log_p <= 0.

    log erfc is concave and decreasing, and erfc(x) <= e^(−x²), so Newton's steps from √(−log_p) fall to the root from
    the right without passing it.
    """
    target = np.asarray(log_p, dtype=np.float64)
    x = np.sqrt(-target)
    for _ in range(60):
        value = log_erfc(x)
        step = (value - target) * np.exp(x * x + value) * (math.sqrt(math.pi) / 2.0)
        following = np.maximum(x + step, 0.0)
        if np.all(np.abs(following - x) <= 1e-15 * np.maximum(1.0, x)):
            return following
        x = following
    return x


@lru_cache(maxsize=64)
def discrete_gaussian_difference(sigma: float, largest_gap: int) -> FloatArray:
    """Return log Pr[X − Y >= g] for g = 0 … largest_gap and X, Y independent discrete Gaussians on the integers.

    sigma is the scale of Pr[X = k] ∝ exp(−k²/2σ²). Each entry sums Pr[X = k]·Pr[Y <= k − g] in logarithms over
    |k| <= largest_gap + 14σ + 20, beyond which the mass is below e^(−98) of what is kept.
    """
    reach = largest_gap + math.ceil(14 * sigma) + 20
    support = np.arange(-reach, reach + 1, dtype=np.float64)
    return _difference_tail(-(support**2) / (2.0 * sigma * sigma), largest_gap)


@lru_cache(maxsize=64)
def discrete_laplace_difference(scale: float, largest_gap: int) -> FloatArray:
    """Return log Pr[X − Y >= g] for g = 0 … largest_gap, X and Y with Pr[k] ∝ exp(−|k|/scale) on the integers."""
    reach = largest_gap + math.ceil(100 * scale) + 20
    support = np.arange(-reach, reach + 1, dtype=np.float64)
    return _difference_tail(-np.abs(support) / scale, largest_gap)


def _difference_tail(log_weights: FloatArray, largest_gap: int) -> FloatArray:
    log_pmf = log_weights - np.logaddexp.reduce(log_weights)
    log_cdf = np.logaddexp.accumulate(log_pmf)
    table = [np.logaddexp.reduce(log_pmf[g:] + log_cdf[: log_pmf.size - g]) for g in range(largest_gap + 1)]
    result = np.minimum(np.array(table, dtype=np.float64), 0.0)
    result.flags.writeable = False
    return result
