"""Auditing with one run (Steinke, Nasr and Jagielski 2023): many canaries, each in or out by a coin, then guessed.

A smoke test. One run costs little, but its bound is loose: the canaries stand in one another's way, and with r guesses
it can reach no more than the ε at which r right guesses in a row are still likely (``reach``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patevolve.shared import checks

_MOST = 60.0  # ε beyond which nobody asks


@dataclass(frozen=True, slots=True, kw_only=True)
class OneRun:
    """What one run says.

    canaries, guesses, right:  how many there were, how many were guessed, how many of these rightly
    lower:   bound on ε from below at the stated confidence
    reach:   the same if every guess had been right: the most that this audit could have said
    ledger:  what the ledger charges for one unit
    """

    canaries: int
    guesses: int
    right: int
    lower: float
    reach: float
    ledger: float
    confidence: float

    @property
    def alarm(self) -> bool:
        """Whether the bound from below exceeds what was charged."""
        return not self.lower <= self.ledger


def judged(
    scores: NDArray[np.float64], present: NDArray[np.bool_], *, ledger: float, delta: float, confidence: float
) -> OneRun:
    """Guess the half of the canaries with the largest scores, either way, and return the bound.

    scores:  (m,) positive for what looks present; the number of guesses is fixed beforehand, as the theorem wants
    """
    order = np.argsort(-np.abs(scores), kind="stable")[: max(1, len(scores) // 2)]
    right = int(np.sum((scores[order] > 0.0) == present[order]))
    tail = 1.0 - checks.open_unit(confidence=confidence)
    return OneRun(
        canaries=len(scores),
        guesses=len(order),
        right=right,
        lower=epsilon_lower(len(scores), len(order), right, delta=delta, tail=tail),
        reach=epsilon_lower(len(scores), len(order), len(order), delta=delta, tail=tail),
        ledger=checks.positive(ledger=ledger),
        confidence=confidence,
    )


def epsilon_lower(canaries: int, guesses: int, right: int, *, delta: float, tail: float) -> float:
    """Return the largest ε that so many right guesses refute, wrong with probability at most ``tail``; at least 0."""
    if chance(canaries, guesses, right, 0.0, delta) > tail:
        return 0.0
    low, high = 0.0, _MOST
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if chance(canaries, guesses, right, middle, delta) <= tail else (low, middle)
    return low


def chance(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Return a bound on the probability of so many right guesses under (ε, δ) (Theorem 5.2, as an upper bound)."""
    from scipy.stats import binom  # noqa: PLC0415 - an extra: only audits need it

    rate = 1.0 / (1.0 + math.exp(-epsilon))
    steps = np.arange(1, right + 1)
    gathered = np.cumsum(binom.pmf(right - steps, guesses, rate)) if right else np.zeros(1)
    slope = float(np.max(gathered / np.maximum(steps, 1))) if right else 0.0
    return min(1.0, float(binom.sf(right - 1, guesses, rate)) + 2.0 * canaries * delta * slope)
