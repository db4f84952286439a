"""Smooth sensitivity of PATE's data-dependent cost, and the release of that cost with a charge of its own.

The data-dependent Rényi cost β(D) at one order is a function of the exact votes. It is published as
β(D) + S·N(0, σ²), S a b-smooth upper bound on its local sensitivity (Nissim 2007; Papernot 2018, Appendix B).

What the released figure says: the loss D(M(D) ‖ M(D')) on this site's data, not a bound for all data sets. It never
replaces the data-independent charge of the ledger.

Source: Papernot 2018 (arXiv 1802.08908), Algorithms 3 to 5, Propositions 10 and 13, Theorem 23, conditions C5 and C6.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from patevolve.shared import checks
from patevolve.shared.errors import ParameterError
from patevolve.shared.privacy import divergences, pate, tails
from patevolve.shared.privacy.site_only import SiteOnly

if TYPE_CHECKING:
    from collections.abc import Callable

    from patevolve.shared.privacy.tails import FloatArray

_GRID = 4096  # points at which the conditions C5 and C6 are checked
_DEPTH = 300.0  # the grid reaches down to log q0 − 300: below e^(−300) a query's cost is beyond notice


def _unchecked(log_q: FloatArray, sigma: float, order: float) -> FloatArray:
    """Theorem 6 without its conditions: valid where log_q < log q0, which callers ensure."""
    variance, less = sigma * sigma, order - 1.0
    mu2 = sigma * np.sqrt(-log_q)
    log_1q = tails.log1mexp(log_q)
    with np.errstate(all="ignore"):
        log_a = log_1q - tails.log1mexp((log_q + mu2 / variance) * (1.0 - 1.0 / mu2))
        log_b = (mu2 + 1.0) / variance - log_q / mu2
        base = log_1q + less * log_a
        return np.asarray((base + np.log1p(np.exp(log_q + less * log_b - base))) / less)


def _excess(log_q: float, sigma: float, order: float) -> float:
    return float(_unchecked(np.array(log_q), sigma, order)) - order / sigma**2


@lru_cache(maxsize=1024)
def log_q0(sigma: float, order: float) -> float:
    """Return the largest log q at which Theorem 6 holds and beats α/σ² (data-independent above it).

    Raises ParameterError where no such q exists within float range or the theorem's condition fails there.
    """
    checks.positive(sigma=sigma)
    if not checks.finite(order=order) > 1.0:
        raise ParameterError(f"order={order!r} found; expected a Rényi order > 1. Correct order.")
    # Natural bounds: mu2 > 1, mu1 > order and A > 0 must hold (Papernot 2018, B.4).
    high = min(-((1.0 + 1.0 / sigma) ** 2), -(((order - 0.99) / sigma) ** 2), -1.0 / sigma**2)
    if not _excess(high, sigma, order) < 0.0:
        high = _root(high, sigma, order)
    if not _lemma_9(high, sigma, order):
        raise ParameterError(
            f"sigma={sigma!r}, order={order!r} found; Lemma 9 fails at log q0={high!r}, so the smooth sensitivity "
            f"analysis does not hold. Choose a larger sigma or a smaller order."
        )
    return high


def _root(high: float, sigma: float, order: float) -> float:
    low = 2.0 * high
    while not _excess(low, sigma, order) <= 0.0:
        low *= 1.5
        if not low > -1e5:
            raise ParameterError(
                f"sigma={sigma!r}, order={order!r} found; the data-dependent bound never beats the data-independent "
                f"one. Choose a larger sigma or a smaller order."
            )
    for _ in range(200):
        middle = 0.5 * (low + high)
        if _excess(middle, sigma, order) <= 0.0:
            low = middle
        else:
            high = middle
    return low


def _lemma_9(log_q: float, sigma: float, order: float) -> bool:
    mu2 = sigma * math.sqrt(-log_q)
    largest = (mu2 - 1.0) * mu2 / sigma**2 - mu2 * (math.log1p(1.0 / mu2) + math.log1p(1.0 / (mu2 - 1.0)))
    return mu2 + 1.0 >= order and log_q <= largest


def cost(log_q: FloatArray, sigma: float, order: float) -> FloatArray:
    """Return β(q): Theorem 6 below q0, α/σ² from q0 on."""
    log_q = np.asarray(log_q, dtype=np.float64)
    independent = order / sigma**2
    below = log_q < log_q0(sigma, order)
    safe = np.where(below, log_q, -1.0)
    bound = _unchecked(safe, sigma, order)
    return np.asarray(np.where(below & (bound <= independent), bound, independent), dtype=np.float64)


def _moved(log_q: FloatArray, sigma: float, classes: int, direction: float) -> FloatArray:
    """Return log of the bound on q after one vote moved: down (direction +1, B_L) or up (−1, B_U, at most 1)."""
    half = math.log((classes - 1) / 2.0)
    x = tails.inverse_log_erfc(np.minimum(log_q - half, 0.0))
    return np.minimum(half + tails.log_erfc(x + direction / sigma), 0.0)


def log_q1(sigma: float, order: float, classes: int) -> float:
    """Return log q1 = log B_L(q0): between q1 and q0 the local sensitivity is at its plateau."""
    return float(_moved(np.array(log_q0(sigma, order)), sigma, classes, 1.0))


def local_sensitivity(log_q: ArrayLike, sigma: float, classes: int, order: float) -> FloatArray:
    """Return a bound on how far one moved vote changes the cost β(q) (Papernot 2018, Algorithm 3)."""
    upper, lower = log_q0(sigma, order), log_q1(sigma, order, classes)
    logs = np.asarray(log_q, dtype=np.float64)
    logs = np.where((logs >= lower) & (logs <= upper), lower, logs)
    here = cost(logs, sigma, order)
    up = cost(_moved(logs, sigma, classes, -1.0), sigma, order) - here
    down = here - cost(_moved(logs, sigma, classes, 1.0), sigma, order)
    return np.asarray(np.maximum(up, down), dtype=np.float64)


def gnmax_sensitivity(counts: ArrayLike, sigma: float, order: float) -> FloatArray:
    """Return bounds on the local sensitivity at distance d = 0 … K−1 of one histogram (Algorithms 4 and 5), (K,).

    K is the histogram's number of votes. Valid where ``conditions_hold``.
    """
    rows = pate.histograms(counts)
    if rows.shape[0] != 1 or rows.min() < 0:
        raise ParameterError(f"counts of shape {rows.shape} found; expected one histogram of non-negative counts.")
    votes, classes = np.sort(rows[0])[::-1], rows.shape[1]
    teachers = int(votes.sum())
    upper, lower = log_q0(sigma, order), log_q1(sigma, order, classes)
    result = np.full(teachers, float(local_sensitivity(lower, sigma, classes, order)))
    start = float(pate.log_q_gaussian(votes, sigma)[0])
    if lower <= start <= upper:
        return result
    path = _widen(votes) if start > upper else _narrow(votes)
    logs = pate.log_q_gaussian(path[:teachers], sigma)
    arrived = logs <= upper if start > upper else logs >= lower
    length = int(np.argmax(arrived)) + 1 if arrived.any() else logs.size
    result[:length] = local_sensitivity(logs[:length], sigma, classes, order)
    return result


def _widen(votes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Move votes one by one from the (current) runner-up to the winner until it has them all: (steps + 1, classes)."""
    path, current = [votes], votes
    while current[1] > 0:
        current = current.copy()
        current[0] += 1
        current[1] -= 1
        current[1:] = np.sort(current[1:])[::-1]
        path.append(current)
    return np.stack(path)


def _narrow(votes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Move votes one by one from the winner to the runner-up until they meet: (steps + 1, classes)."""
    steps = np.arange((int(votes[0]) - int(votes[1])) // 2 + 2)
    path = np.repeat(votes[None], steps.size, axis=0)
    path[:, 0] -= steps
    path[:, 1] += steps
    return path


def threshold_sensitivity(counts: ArrayLike, threshold: float, sigma: float, order: float) -> FloatArray:
    """Return bounds on the local sensitivity at distance d of the threshold test's cost: (K,), K votes in all."""
    rows = pate.histograms(counts)
    if rows.shape[0] != 1 or rows.min() < 0:
        raise ParameterError(f"counts of shape {rows.shape} found; expected one histogram of non-negative counts.")
    teachers, top = int(rows.sum()), int(rows.max())
    margin = (checks.finite(threshold=threshold) - np.arange(teachers + 1)) / checks.positive(sigma=sigma)
    costs = pate.threshold_bound(tails.log_normal_sf(margin), sigma, [order])[:, 0]
    steps = np.abs(np.diff(costs))
    by_maximum = np.maximum(np.append(steps, 0.0), np.append(0.0, steps))
    result = np.zeros(teachers)
    distances = np.arange(teachers)
    for reached in (top + distances, top - distances):
        inside = (reached >= 0) & (reached <= teachers) & (distances < max(top, teachers - top))
        result[inside] = np.maximum(result[inside], by_maximum[reached[inside]])
    return result


def discounted_maximum(smoothness: float, sensitivities: ArrayLike) -> float:
    """Return max over d of e^(−b·d)·LS(d): a b-smooth bound on the sensitivity (Nissim 2007, Definition 2.2)."""
    levels = np.asarray(sensitivities, dtype=np.float64)
    return float(np.max(levels * np.exp(-checks.positive(smoothness=smoothness) * np.arange(levels.size))))


@lru_cache(maxsize=1024)
def conditions_hold(sigma: float, classes: int, order: float) -> tuple[bool, bool]:
    """Check conditions C5 and C6 of Papernot 2018, B.4.2, on a grid of 4,096 values of log q.

    C5: the cost β does not fall as q grows to q0. C6: neither does β(B_U(q)) − β(q) up to B_L(q0).
    A numerical check, as in the paper, and not a proof between the grid points. (False, False) where q0 is undefined.
    """
    try:
        upper, lower = log_q0(sigma, order), log_q1(sigma, order, classes)
    except ParameterError:
        return False, False
    rising = _non_decreasing(lambda logs: _unchecked(logs, sigma, order), upper)
    if not rising:
        return False, False
    return True, _non_decreasing(lambda logs: _step_up(logs, sigma, classes, order), lower)


def _step_up(logs: FloatArray, sigma: float, classes: int, order: float) -> FloatArray:
    return _unchecked(_moved(logs, sigma, classes, -1.0), sigma, order) - _unchecked(logs, sigma, order)


def _non_decreasing(function: Callable[[FloatArray], FloatArray], end: float) -> bool:
    logs = end - 1e-9 - _DEPTH * np.linspace(1.0, 0.0, _GRID) ** 3  # denser towards the end, where a peak can hide
    values = function(logs)
    slack = 1e-11 * float(np.max(np.abs(values)))
    return bool(np.all(np.diff(values) >= -slack))


def gnss_rdp(smoothness: float, noise: float, order: float) -> float:
    """Return the RDP at ``order`` of f(D) + S·N(0, noise²), S a b-smooth sensitivity (Papernot 2018, Theorem 23).

    Raises ParameterError unless 1 < order < 1/(2b).
    """
    b, sigma = checks.positive(smoothness=smoothness), checks.positive(noise=noise)
    alpha = checks.finite(order=order)
    if not 1.0 < alpha < 1.0 / (2.0 * b):
        raise ParameterError(f"order={order!r} found; expected 1 < order < 1/(2·smoothness) = {1 / (2 * b):g}.")
    return float(divergences.smooth_sensitivity(np.array([alpha]), beta=b, sigma=sigma)[0])


def total_sensitivity(
    counts: ArrayLike,
    answered: ArrayLike,
    *,
    sigma: float,
    order: float,
    threshold: float | None = None,
    sigma_threshold: float | None = None,
) -> SiteOnly[FloatArray]:
    """Return the summed local-sensitivity bounds by distance of a whole run: (K,), for the site alone.

    counts:    (n, classes) histograms of K votes each
    answered:  (n,) bool; every histogram was tested (if a threshold is given), the answered ones cost GNMax too
    """
    rows, mask = pate.histograms(counts), np.asarray(answered, dtype=bool)
    votes = rows.sum(axis=1)
    if mask.shape != votes.shape or not np.all(votes == votes[0]):
        raise ParameterError("histograms of unequal size, or not one answered flag each, found; expected K votes each.")
    total = np.zeros(int(votes[0]))
    for row in rows[mask]:
        total += gnmax_sensitivity(row, sigma, order)
    if threshold is not None and sigma_threshold is not None:
        for row in rows:
            total += threshold_sensitivity(row, threshold, sigma_threshold, order)
    return SiteOnly(total)
