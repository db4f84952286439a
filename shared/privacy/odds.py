"""Odds of noisy votes: who wins a vote, which candidates are recovered, and what pooling sites is worth.

All of it is computed from public numbers (a plan, a guess of the cohort) for continuous Gaussian noise; the discrete
noise of the votes has 1024 lattice steps per vote and differs from it by less than any figure shown.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patevolve.shared import checks
from patevolve.shared.errors import ParameterError

# The trapezoidal rule with this step is exact to double precision: the integrand is analytic and ends as exp(-z²/2).
_NODES = np.arange(-9.0, 9.0 + 1 / 32, 1 / 16)
_DENSITY = np.exp(-(_NODES**2) / 2) / math.sqrt(2 * math.pi) / 16
_erfc = np.vectorize(math.erfc, otypes=[np.float64])  # numpy has none, and scipy is not needed elsewhere here


def normal_cdf(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return P(N(0,1) <= x), elementwise."""
    return np.asarray(0.5 * _erfc(-x / math.sqrt(2.0)))


def upper_tail(x: float) -> float:
    """Return P(N(0,1) > x)."""
    return 0.5 * math.erfc(x / math.sqrt(2.0))


def win_probability(leads: Sequence[tuple[float, int]], std: float) -> float:
    """Return the probability that a class keeps the largest count under Gaussian noise of ``std`` on every count.

    leads: (votes ahead of a rival, how many such rivals); a lead may be negative
    Value: ∫ φ(z) Π Φ(lead/std + z) dz, exact up to rounding (no union bound).
    """
    scale = checks.positive(std=std)
    product = np.ones_like(_NODES)
    for lead, rivals in leads:
        if checks.integer(rivals=rivals, at_least=0):
            product *= normal_cdf(checks.finite(lead=lead) / scale + _NODES) ** rivals
    return min(1.0, float(_DENSITY @ product))


def unanimous(votes: float, std: float, classes: int) -> float:
    """Return the probability that a class with all of the votes wins."""
    return win_probability([(votes, classes - 1)], std)


def sixty_forty(votes: float, std: float, classes: int) -> float:
    """Return the probability that a class with 60 % of the votes wins when one rival has the other 40 %."""
    return win_probability([(0.2 * votes, 1), (0.6 * votes, classes - 2)], std)


@functools.lru_cache(maxsize=256, typed=True)
def ratio_for(target: float, classes: int, *, contested: bool) -> float:
    """Return the least votes/std at which a unanimous (or 60:40) class wins with probability ``target``.

    Raises ParameterError for a target that noise alone reaches (1/classes) or that no ratio below 10⁶ reaches.
    """
    wins = sixty_forty if contested else unanimous
    low, high = 0.0, 1.0
    if not 1.0 / checks.integer(classes=classes, at_least=2) < target < 1.0:
        raise ParameterError(f"target={target!r} found; expected a probability above 1/{classes} and below 1.")
    while wins(high, 1.0, classes) < target:
        low, high = high, 2 * high
        if high > 1e6:
            raise ParameterError(f"target={target!r} is too close to 1; expected at most 1 − 1e-12.")
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if wins(middle, 1.0, classes) < target else (low, middle)
    return high


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """How votes fall on candidates of one class, on average: a model for planning, not a promise.

    Each of ``units`` votes for ``nearest`` of ``candidates``, evenly over the ``good`` ones first and over the others
    with what is left. Weights fall to e⁻² from the nearest to the last and have L2 norm 1, as ballots do.
    """

    units: float
    candidates: int
    good: int
    nearest: int

    @property
    def votes(self) -> int:
        """Candidates that one unit votes for."""
        return min(self.nearest, self.candidates)

    @property
    def chances(self) -> tuple[float, float]:
        """Probability that one unit votes for a given good candidate, and for a given other one."""
        k, others = self.votes, self.candidates - self.good
        return min(1.0, k / self.good), max(0, k - self.good) / others if others else 0.0

    @property
    def weight(self) -> float:
        """Mean weight of one vote; the mean of its square is 1/votes."""
        ranks = np.exp(-2.0 * np.arange(self.votes) / max(self.votes - 1, 1))
        return float(ranks.mean() / np.linalg.norm(ranks))

    @property
    def gap(self) -> float:
        """Votes by which a good candidate leads another, in expectation."""
        good, other = self.chances
        return self.units * self.weight * (good - other)

    def spreads(self, std: float) -> tuple[float, float]:
        """Return the standard deviation of a good and of another candidate's votes, noise of ``std`` included."""
        weight = self.weight
        good, other = (self.units * (p / self.votes - (p * weight) ** 2) for p in self.chances)
        return math.sqrt(good + std**2), math.sqrt(other + std**2)

    def beats(self, std: float) -> float:
        """Return the probability that a good candidate gets more noisy votes than another one; ½ is a coin."""
        return 1.0 - upper_tail(self.gap / math.hypot(*self.spreads(std)))

    def recovered(self, std: float) -> float:
        """Return the expected share of the good candidates among as many with the most noisy votes.

        Votes are taken as normal, and the cut where as many candidates lie above it as there are good ones, in
        expectation.
        """
        gap, others, (spread, other) = self.gap, self.candidates - self.good, self.spreads(std)
        low, high = -9.0 * other, gap + 9.0 * max(spread, other)
        for _ in range(60):
            cut = (low + high) / 2
            above = self.good * upper_tail((cut - gap) / spread) + others * upper_tail(cut / other)
            low, high = (cut, high) if above > self.good else (low, cut)
        return upper_tail(((low + high) / 2 - gap) / spread)


def pooling(noise_multiplier: float, pool: Pool, sites: Sequence[int] = (1, 5, 10, 20)) -> list[dict[str, float]]:
    """Return, for each number of sites, the share of good candidates recovered under each trust model.

    noise_multiplier: σ of the question, in whole ballots;  pool: what one site alone contributes
    "each_site" sums a whole noise of every site, "secure_sum" one noise in all (no drop-outs, no colluders).
    """
    std, rows = checks.positive(noise_multiplier=noise_multiplier), []
    for count in sites:
        here = dataclasses.replace(pool, units=pool.units * checks.integer(sites=count, at_least=1))
        each = here.recovered(std * math.sqrt(count))
        rows.append({"sites": count, "each_site": each, "secure_sum": here.recovered(std)})
    return rows
