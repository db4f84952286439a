"""Two worlds that differ in one planted record, and what telling them apart says about ε from below.

The canary is the strongest record there is for this question: its ballot is known to the attacker, and so is everything
else in both worlds. The first quarter of the trials chooses the threshold, the others are counted, so the bounds hold
whatever was chosen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patevolve.shared import checks
from patevolve.shared.audit import bounds
from patevolve.shared.audit.bounds import Interval

Score = Callable[[bool, int], float]  # (is the canary in?, number of the trial) -> the attacker's score


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What the trials say.

    lower:           bound on ε from below for any mechanism, at the stated confidence
    lower_gaussian:  the same if the noise is Gaussian, which the plan says
    ledger:          what the ledger charges for one unit
    """

    trials: int
    hit: Interval
    false: Interval
    lower: float
    lower_gaussian: float
    ledger: float
    confidence: float

    @property
    def alarm(self) -> bool:
        """Whether a bound from below exceeds what was charged: then something is wrong."""
        return not max(self.lower, self.lower_gaussian) <= self.ledger


def two_worlds(score: Score, *, trials: int, ledger: float, delta: float, confidence: float) -> Finding:
    """Run ``trials`` of each world and return the bounds on ε from the three quarters that are counted.

    Guarantee: on a mechanism that keeps (``ledger``, δ), ``alarm`` is raised with probability at most 1 − confidence
    for each of the two bounds.
    """
    count = checks.integer(trials=trials, at_least=8)
    inside = np.array([score(True, number) for number in range(count)])
    outside = np.array([score(False, number) for number in range(count)])
    threshold = best_threshold(inside[: count // 4], outside[: count // 4])
    hits, false = (int(np.sum(scores[count // 4 :] > threshold)) for scores in (inside, outside))
    return judged(hits, false, count - count // 4, ledger=ledger, delta=delta, confidence=confidence)


def best_threshold(inside: NDArray[np.float64], outside: NDArray[np.float64]) -> float:
    """Return the threshold with the largest TPR − FPR, in the middle of the gap that it lies in."""
    ordered = np.unique(np.concatenate([inside, outside]))
    middles = (ordered[1:] + ordered[:-1]) / 2.0 if ordered.size > 1 else ordered
    gains = (inside[:, None] > middles).mean(axis=0) - (outside[:, None] > middles).mean(axis=0)
    return float(middles[int(np.argmax(gains))])


def judged(hits: int, false: int, trials: int, *, ledger: float, delta: float, confidence: float) -> Finding:
    """Return the finding for these counts; each rate's one-sided limit gets half of the error probability."""
    hit, wrong = bounds.rate(hits, trials, confidence), bounds.rate(false, trials, confidence)
    return Finding(
        trials=trials,
        hit=hit,
        false=wrong,
        lower=bounds.epsilon_lower(hit, wrong, delta),
        lower_gaussian=bounds.gaussian_epsilon_lower(hit, wrong, delta),
        ledger=checks.positive(ledger=ledger),
        confidence=confidence,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Probe:
    """The attacker's optimal score on noisy tallies with Gaussian noise: a likelihood ratio, linear in the tallies.

    base, canary:  exact tallies without the canary, and of the canary alone, per question (lattice units)
    std:           standard deviation of the noise in each question's sum
    """

    base: tuple[NDArray[np.int64], ...]
    canary: tuple[NDArray[np.int64], ...]
    std: tuple[float, ...]

    def score(self, noisy: tuple[NDArray[np.int64], ...]) -> float:
        """Return log P(noisy | canary) − log P(noisy | no canary), up to a constant."""
        return float(sum(
            (seen - base).astype(float) @ own / std**2
            for seen, base, own, std in zip(noisy, self.base, self.canary, self.std, strict=True)
        ))  # fmt: skip

    @property
    def separation(self) -> float:
        """Expected score with the canary less that without: μ², as the noise is promised."""
        return float(sum(own.astype(float) @ own / std**2 for own, std in zip(self.canary, self.std, strict=True)))


def summary(finding: Finding) -> dict[str, object]:
    """Return the finding as a JSON object."""
    return {**dataclasses.asdict(finding), "alarm": finding.alarm}
