"""From counts to bounds that hold with stated confidence: rates, AUC, a mechanism's ε from below, its noise.

A lower bound on ε that exceeds what the ledger charged is a fault. One that does not exceed it proves nothing: it is
limited by the number of trials and by the attack.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patevolve.shared import checks
from patevolve.shared.errors import ParameterError
from patevolve.shared.privacy import tight

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate between two confidence limits."""

    value: float
    low: float
    high: float


def rate(successes: int, trials: int, confidence: float = 0.95) -> Interval:
    """Return a binomial rate with its two-sided interval (Clopper and Pearson 1934).

    Guarantee: the interval misses the true rate with probability at most 1 − ``confidence``, half on each side.
    """
    from scipy.stats import beta  # noqa: PLC0415 - an extra: only audits need it

    n = checks.integer(trials=trials, at_least=1)
    k = checks.integer(successes=successes, at_least=0, at_most=n)
    tail = (1.0 - checks.open_unit(confidence=confidence)) / 2.0
    low = float(beta.ppf(tail, k, n - k + 1)) if k else 0.0
    high = float(beta.isf(tail, k + 1, n - k)) if k < n else 1.0
    return Interval(value=k / n, low=low, high=high)


def epsilon_lower(hit: Interval, false: Interval, delta: float) -> float:
    """Return a lower bound on ε of any mechanism for which a test has these rates in two neighbouring worlds.

    (ε, δ)-DP implies TPR <= e^ε FPR + δ and TNR <= e^ε FNR + δ (Kairouz, Oh and Viswanath 2015). Never below 0.
    """
    target = checks.open_unit(delta=delta)
    pairs = ((hit.low, false.high), (1.0 - false.high, 1.0 - hit.low))
    return max(0.0, *(_log_ratio(true - target, wrong) for true, wrong in pairs))


def _log_ratio(true: float, wrong: float) -> float:
    return math.log(true / wrong) if true > 0.0 and wrong > 0.0 else 0.0


def gaussian_epsilon_lower(hit: Interval, false: Interval, delta: float) -> float:
    """Return the lower bound on ε if the noise is Gaussian: tighter, since the shape of its trade-off is known.

    μ >= Φ⁻¹(TPR) − Φ⁻¹(FPR) for a μ-Gaussian mechanism (Dong, Roth and Su 2022; Nasr et al. 2023).
    """
    from scipy.special import ndtri  # noqa: PLC0415 - an extra: only audits need it

    mu = float(ndtri(hit.low) - ndtri(false.high))
    return tight.gaussian_epsilon(1.0 / mu, delta) if mu > 1e-3 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseCheck:
    """Whether residuals have the promised noise.

    ratio:  their mean square in units of the promised variance; 1 is right, ¼ is half the noise, 0 is none
    p:      probability of a ratio at least this far on its side, doubled, for the promised noise
    """

    values: int
    ratio: float
    p: float


def noise_check(residuals: Floats) -> NoiseCheck:
    """Test residuals, each divided by its promised standard deviation, by their sum of squares (χ²).

    The discrete Gaussian's kurtosis equals the normal one's to many digits for σ >= 2 lattice steps, which shares have.
    """
    from scipy.stats import chi2  # noqa: PLC0415 - an extra: only audits need it

    if residuals.size == 0 or not np.isfinite(residuals).all():
        raise ParameterError(f"{residuals.size} residuals found, not all finite or none; expected one per value.")
    total = float(residuals @ residuals)
    p = 2.0 * min(float(chi2.cdf(total, residuals.size)), float(chi2.sf(total, residuals.size)))
    return NoiseCheck(values=residuals.size, ratio=total / residuals.size, p=min(1.0, p))


def noise_power(values: int, fraction: float, alarm: float) -> float:
    """Return the probability that ``noise_check`` alarms (p < alarm) when ``fraction`` of the noise is drawn."""
    from scipy.stats import chi2  # noqa: PLC0415 - an extra: only audits need it

    low, high = chi2.ppf(alarm / 2.0, values), chi2.isf(alarm / 2.0, values)
    square = checks.positive(fraction=fraction) ** 2
    return float(chi2.cdf(low / square, values) + chi2.sf(high / square, values))


def auc(members: Floats, others: Floats, confidence: float = 0.95) -> Interval:
    """Return P(member's score > other's), ties counted half, with its interval (DeLong, DeLong and Clarke-P. 1988).

    Chance is 0.5. Both samples need at least two records.
    """
    from scipy.special import ndtri  # noqa: PLC0415 - an extra: only audits need it

    if min(members.size, others.size) < 2:
        raise ParameterError(f"{members.size} members and {others.size} others found; expected at least 2 of each.")
    above = _placements(members, others)
    below = 1.0 - _placements(others, members)
    value = float(above.mean())
    spread = math.sqrt(above.var(ddof=1) / members.size + below.var(ddof=1) / others.size)
    reach = float(ndtri(0.5 + checks.open_unit(confidence=confidence) / 2.0)) * spread
    return Interval(value=value, low=max(0.0, value - reach), high=min(1.0, value + reach))


def _placements(scores: Floats, against: Floats) -> Floats:
    """Return, for each score, the share of ``against`` below it, ties counted half."""
    ordered = np.sort(against)
    left, right = np.searchsorted(ordered, scores, "left"), np.searchsorted(ordered, scores, "right")
    return np.asarray((left + right) / (2.0 * against.size), dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class LowFalse:
    """How many members are found at a low false-positive rate.

    fpr:   the rate asked for, which is also chance
    real:  the largest reachable rate not above it: k/n for n non-members. 0 means that n is too small to tell
    tpr:   the share of members above the threshold
    """

    fpr: float
    real: float
    tpr: Interval


def tpr_at(members: Floats, others: Floats, fpr: float, confidence: float = 0.95) -> LowFalse:
    """Return the true-positive rate at the threshold that ``fpr`` of the others exceed (Carlini et al. 2022)."""
    allowed = math.floor(checks.open_unit(fpr=fpr) * others.size + 1e-9)
    threshold = np.sort(others)[others.size - 1 - allowed]
    found = int(np.sum(members > threshold))
    return LowFalse(fpr=fpr, real=allowed / others.size, tpr=rate(found, members.size, confidence))
