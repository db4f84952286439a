"""Rényi accounting of PATE's noisy-max aggregators: what holds for any votes, and what these votes cost.

Adjacency: one unit's record reaches one teacher, whose vote may move from one class to another, so two counts change
by one each (L1 = 2, L2 = √2). Data-dependent figures are functions of the exact votes: they come as ``SiteOnly``.
A data-dependent bound concerns D(M(D) ‖ M(D')) at the site's own D. Budgets are charged by the data-independent one.

Wherever a theorem's condition fails, or a number is NaN, the data-independent bound stands: every comparison is
written so that NaN fails it.

Sources: Papernot 2017 (arXiv 1610.05755), Papernot 2018 (arXiv 1802.08908), Bun and Steinke 2016.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from patevolve.shared import checks
from patevolve.shared.errors import ParameterError
from patevolve.shared.privacy import tails
from patevolve.shared.privacy.site_only import SiteOnly
from patevolve.shared.privacy.tails import FloatArray

_CHUNK = 1024  # queries at a time: the working arrays of 1,024 x 60 orders stay in the processor's cache


def _orders(orders: ArrayLike) -> FloatArray:
    vector = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    if vector.ndim != 1 or vector.size == 0 or not np.all((vector > 1.0) & (vector < np.inf)):
        raise ParameterError(f"orders={orders!r} found; expected one or more finite Rényi orders > 1. Correct orders.")
    return vector


def histograms(counts: ArrayLike) -> NDArray[np.int64]:
    """Return vote counts as (n, classes) int64. Raises ParameterError unless whole numbers of >= 2 classes.

    A single histogram (classes,) becomes one row. Entries may be negative (the interactive aggregator's differences).
    """
    array = np.asarray(counts)
    if array.dtype.kind not in "iuf" or (array.dtype.kind == "f" and not np.all(array == np.rint(array))):
        raise ParameterError(
            "vote counts that are not whole numbers found; expected integers. Count votes, not scores."
        )
    rows = np.atleast_2d(array).astype(np.int64)
    if rows.ndim != 2 or rows.shape[1] < 2:
        raise ParameterError(f"counts of shape {array.shape} found; expected (queries, classes) with >= 2 classes.")
    return rows


def gnmax_independent(sigma: float, orders: ArrayLike) -> FloatArray:
    """Return GNMax's RDP α/σ² for any votes (Papernot 2018, Proposition 8); also that of the whole noisy histogram."""
    return _orders(orders) / checks.positive(sigma=sigma) ** 2


def threshold_independent(sigma: float, orders: ArrayLike) -> FloatArray:
    """Return the RDP α/(2σ²) of the noisy maximum count: one vote moves it by at most one (Papernot 2018, B.2)."""
    return _orders(orders) / (2.0 * checks.positive(sigma=sigma) ** 2)


def lnmax_epsilon(scale: float) -> float:
    """Return LNMax's pure ε = 2/scale per answer: L1 sensitivity 2 over Laplace noise of this scale."""
    return 2.0 / checks.positive(scale=scale)


def lnmax_independent(scale: float, orders: ArrayLike) -> FloatArray:
    """Return LNMax's RDP min(ε, αε²/2), ε = 2/scale, for any votes (Bun and Steinke 2016, Proposition 3.3)."""
    epsilon = lnmax_epsilon(scale)
    return np.asarray(np.minimum(epsilon, 0.5 * epsilon**2 * _orders(orders)), dtype=np.float64)


def _gaps(counts: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.intp], int]:
    """Return how far each class lies behind the plurality, (classes, n), the (first) plurality, and the largest gap.

    Classes come first because reductions over few classes run along memory that way.
    """
    columns = np.ascontiguousarray(histograms(counts).T)
    gaps = columns.max(axis=0) - columns
    return gaps, columns.argmax(axis=0), int(gaps.max(initial=0))


def _union(table: FloatArray, gaps: NDArray[np.int64], winners: NDArray[np.intp]) -> FloatArray:
    """Return log of the union bound over the losing classes, at most log(1 − 1/classes)."""
    terms = table[gaps]
    terms[winners, np.arange(winners.size)] = -np.inf
    top = terms.max(axis=0)
    terms -= top
    with np.errstate(under="ignore"):
        log_q = top + np.log(np.exp(terms, out=terms).sum(axis=0))
    # The plurality is the likeliest outcome, so another one has probability at most 1 − 1/classes.
    return np.asarray(np.minimum(log_q, math.log1p(-1.0 / gaps.shape[0])), dtype=np.float64)


def log_q_gaussian(counts: ArrayLike, sigma: float) -> FloatArray:
    """Return log of a bound on Pr[outcome ≠ plurality] of GNMax, one per histogram (Papernot 2018, Proposition 7).

    The gaps are integers between 0 and the largest, so the normal tail is tabulated once for each.
    """
    gaps, winners, largest = _gaps(counts)
    scale = 2.0 * checks.positive(sigma=sigma)
    table = tails.log_erfc(np.arange(largest + 1) / scale) - math.log(2.0)
    return _union(table, gaps, winners)


def log_q_laplace(counts: ArrayLike, scale: float) -> FloatArray:
    """Return log of a bound on Pr[outcome ≠ plurality] of LNMax (Papernot 2017, Lemma 4): Σ (2 + g)/4 · e^(−g)."""
    gaps, winners, largest = _gaps(counts)
    g = np.arange(largest + 1) / checks.positive(scale=scale)
    return _union(np.log(0.5 + 0.25 * g) - g, gaps, winners)


def log_q_discrete_gaussian(counts: ArrayLike, sigma: float) -> FloatArray:
    """Return the same for the integer noise that we draw; a tie counts as a loss, so it exceeds the continuous one."""
    gaps, winners, largest = _gaps(counts)
    return _union(tails.discrete_gaussian_difference(checks.positive(sigma=sigma), largest), gaps, winners)


def log_q_discrete_laplace(counts: ArrayLike, scale: float) -> FloatArray:
    """Return the same as ``log_q_laplace`` for discrete Laplace noise; a tie counts as a loss."""
    gaps, winners, largest = _gaps(counts)
    return _union(tails.discrete_laplace_difference(checks.positive(scale=scale), largest), gaps, winners)


def gnmax_bound(log_q: ArrayLike, sigma: float, orders: ArrayLike) -> FloatArray:
    """Return GNMax's data-dependent RDP, (n, orders), never above α/σ² (Papernot 2018, Theorem 6 and Proposition 10).

    log_q:  (n,) bounds on log Pr[outcome ≠ plurality]; −inf (a certain outcome) costs 0
    The result is private: callers wrap it. Where a condition of Theorem 6 fails or log_q is NaN, the row is α/σ².
    """
    alphas, variance = _orders(orders), checks.positive(sigma=sigma) ** 2
    # Equal histograms cost the same; neighbours in log q profit at the same orders, so a chunk skips the others.
    distinct, place = np.unique(np.atleast_1d(np.asarray(log_q, dtype=np.float64)), return_inverse=True)
    table = np.empty((distinct.size, alphas.size))
    for start in range(0, distinct.size, _CHUNK):
        table[start : start + _CHUNK] = _rows(distinct[start : start + _CHUNK], variance, alphas)
    return table[place]


def gnmax_total(log_q: ArrayLike, sigma: float, orders: ArrayLike) -> FloatArray:
    """Return the sum of ``gnmax_bound`` over the queries, (orders,), without the table between. Private as well."""
    alphas, variance = _orders(orders), checks.positive(sigma=sigma) ** 2
    distinct, times = np.unique(np.atleast_1d(np.asarray(log_q, dtype=np.float64)), return_counts=True)
    total = np.zeros(alphas.size)
    for start in range(0, distinct.size, _CHUNK):
        chunk = slice(start, start + _CHUNK)
        total += times[chunk] @ _rows(distinct[chunk], variance, alphas)
    return total


def _rows(log_q: FloatArray, variance: float, alphas: FloatArray) -> FloatArray:
    """Return min(α/σ², Theorem 6) for ascending log_q, (n, orders)."""
    table = np.empty((log_q.size, alphas.size))
    table[:] = alphas / variance
    table[log_q == -np.inf] = 0.0
    holds = _theorem_6_holds(log_q, variance)
    if holds.any():
        table[holds] = _theorem_6(log_q[holds, None], variance, alphas)
    return table


def _theorem_6_holds(log_q: FloatArray, variance: float) -> NDArray[np.bool_]:
    """Test the conditions of Theorem 6 with μ₂ = σ√(−log q), μ₁ = μ₂ + 1; NaN fails each of them."""
    with np.errstate(all="ignore"):
        mu2 = np.sqrt(variance * -log_q)
        eps2 = mu2 / variance
        # Lemma 9: q <= exp((μ₂ − 1)ε₂) / (μ₁/(μ₁ − 1) · μ₂/(μ₂ − 1))^μ₂, and A > 0
        largest = (mu2 - 1.0) * eps2 - mu2 * (np.log1p(1.0 / mu2) + np.log1p(1.0 / (mu2 - 1.0)))
        return np.asarray((mu2 > 1.0) & (log_q <= largest) & (-log_q > eps2) & (log_q > -np.inf), dtype=np.bool_)


def _theorem_6(log_q: FloatArray, variance: float, alphas: FloatArray) -> FloatArray:
    """Return log((1−q)A^(α−1) + qB^(α−1))/(α−1) where α < μ₁ and it is below α/σ², else α/σ²; log_q ascends, (n, 1)."""
    mu2 = np.sqrt(variance * -log_q)
    log_b = (mu2 + 1.0) / variance - log_q / mu2
    less, result = alphas - 1.0, np.broadcast_to(alphas / variance, (log_q.size, alphas.size)).copy()
    # log(qB^(α−1)) is concave in √(−log q), so its least value in the chunk is at one of the two ends; where even
    # that is not below the data-independent bound, no row profits.
    ends = np.array([0, -1])
    hopeful = (log_q[ends] + log_b[ends] * less < result[0] * less).any(axis=0) & (alphas < mu2.max() + 1.0)
    if not hopeful.any():
        return result
    useful = np.flatnonzero(hopeful)
    columns = slice(int(useful[0]), int(useful[-1]) + 1)
    less, independent = less[columns], result[0, columns].copy()
    log_1q = tails.log1mexp(log_q)
    log_a = log_1q - tails.log1mexp((log_q + mu2 / variance) * (1.0 - 1.0 / mu2))
    base = log_a * less
    base += log_1q
    bound = log_b * less
    bound += log_q
    bound -= base
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        np.log1p(np.exp(bound, out=bound), out=bound)
        bound += base
        bound /= less
    # NaN fails both comparisons, and what fails keeps the data-independent bound.
    np.copyto(result[:, columns], bound, where=(bound < independent) & (bound >= 0.0) & (alphas[columns] < mu2 + 1.0))
    return result


def pure_bound(log_q: ArrayLike, epsilon: float, orders: ArrayLike) -> FloatArray:
    """Return the data-dependent RDP, (n, orders), of an ε-DP answer (Papernot 2017, Theorem 3; LNMax: ε = 2/scale).

    It is the least of αε²/2, ε, and the theorem's bound where q <= 1/(e^ε + 1). The result is private.
    """
    alphas, epsilon = _orders(orders), checks.positive(epsilon=epsilon)
    logs = np.atleast_1d(np.asarray(log_q, dtype=np.float64))[:, None]
    less = alphas - 1.0
    independent = np.minimum(epsilon, 0.5 * epsilon**2 * alphas)
    holds = logs <= -np.logaddexp(epsilon, 0.0)
    with np.errstate(all="ignore"):
        log_1q = tails.log1mexp(logs)
        stays = log_1q + (log_1q - tails.log1mexp(epsilon + logs)) * less
        bound = np.logaddexp(stays, logs + epsilon * less) / less
    return np.where(holds & (bound < independent) & (bound >= 0.0), bound, independent)


def log_answered(counts: ArrayLike, threshold: float, sigma: float) -> FloatArray:
    """Return log Pr[max count + N(0, σ²) >= threshold], one per histogram (Papernot 2018, Algorithm 1)."""
    gap = checks.finite(threshold=threshold) - histograms(counts).max(axis=1)
    return tails.log_normal_sf(gap / checks.positive(sigma=sigma))


def threshold_bound(log_pr: ArrayLike, sigma: float, orders: ArrayLike) -> FloatArray:
    """Return the threshold test's data-dependent RDP, (n, orders), from log Pr[answered]. The result is private.

    The test is a noisy maximum of sensitivity 1 with two outcomes, so Theorem 6 holds with σ√2 in the place of σ.
    """
    logs = np.atleast_1d(np.asarray(log_pr, dtype=np.float64))
    log_q = np.minimum(logs, tails.log1mexp(logs))
    return gnmax_bound(log_q, math.sqrt(2.0) * checks.positive(sigma=sigma), orders)


def gnmax_dependent(
    counts: ArrayLike, sigma: float, orders: ArrayLike, *, integer: bool = True
) -> SiteOnly[FloatArray]:
    """Return the data-dependent RDP curve of answering every histogram by GNMax: (orders,), for the site alone.

    integer:  the noise is the discrete Gaussian that patevolve draws; False for the continuous noise of the papers
    """
    log_q = log_q_discrete_gaussian(counts, sigma) if integer else log_q_gaussian(counts, sigma)
    return SiteOnly(gnmax_total(log_q, sigma, orders))


def lnmax_dependent(
    counts: ArrayLike, scale: float, orders: ArrayLike, *, integer: bool = True
) -> SiteOnly[FloatArray]:
    """Return the data-dependent RDP curve of answering every histogram by LNMax: (orders,), for the site alone."""
    log_q = log_q_discrete_laplace(counts, scale) if integer else log_q_laplace(counts, scale)
    return SiteOnly(_sum(pure_bound(log_q, lnmax_epsilon(scale), orders)))


def confident_dependent(
    counts: ArrayLike,
    answered: ArrayLike,
    *,
    threshold: float,
    sigma_threshold: float,
    sigma: float,
    orders: ArrayLike,
) -> SiteOnly[FloatArray]:
    """Return the data-dependent RDP curve of a Confident-GNMax run: every test, and each answer that was given.

    counts:    (n, classes) histograms tested (for the interactive aggregator: pass its two parts separately)
    answered:  (n,) bool, which passed the test (public: it was released)
    """
    rows, mask = histograms(counts), np.asarray(answered, dtype=bool)
    if mask.shape != (rows.shape[0],):
        raise ParameterError(f"answered of shape {mask.shape} found; expected ({rows.shape[0]},), one per histogram.")
    tests = threshold_bound(log_answered(rows, threshold, sigma_threshold), sigma_threshold, orders)
    answers = gnmax_bound(log_q_discrete_gaussian(rows[mask], sigma), sigma, orders) if mask.any() else tests[:0]
    return SiteOnly(_sum(tests) + _sum(answers))


def confident_independent(
    *, tests: int, answers: int, sigma_threshold: float, sigma: float, orders: ArrayLike
) -> FloatArray:
    """Return the RDP of a Confident-GNMax run for any votes: tests·α/(2σ₁²) + answers·α/σ₂² (Papernot 2018, B.2)."""
    asked = checks.integer(tests=tests, at_least=0)
    given = checks.integer(answers=answers, at_least=0)
    return asked * threshold_independent(sigma_threshold, orders) + given * gnmax_independent(sigma, orders)


def _sum(rows: FloatArray) -> FloatArray:
    return np.asarray(rows.sum(axis=0), dtype=np.float64)
