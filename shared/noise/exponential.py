"""The exponential mechanism: choose an index with probability proportional to exp(ε·score/2Δ) (McSherry-Talwar 2007).

Report-noisy-max with Gumbel noise of scale 2Δ/ε has exactly this law, and taking its k largest is k choices without
replacement (Durfee-Rogers 2019). The law is therefore drawn directly, from integer scores with 128-bit probabilities:
no logarithm of a floating-point uniform stands between the proof and the draw. Unlike the noise tables, the time of a
choice depends on the scores (big-integer arithmetic): let nobody outside the site observe it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from patevolve.shared import checks
from patevolve.shared.errors import ParameterError
from patevolve.shared.noise import tables
from patevolve.shared.noise.mechanism import Sensitivity, check_tally, delta_from_distance
from patevolve.shared.privacy.events import Exponential
from patevolve.shared.randomness import NoiseSource
from patevolve.shared.tally import ExactTally, IntVector

_CUT = 96  # a candidate whose weight is below exp(-96) of the best one's gets none; charged to δ


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialMechanism:
    """Choose the index of a high score, at ε-bounded range: ε pure DP and ρ = ε²/8 (Cesar-Rogers 2021).

    epsilon:  pure-DP parameter of one choice
    change:   what one unit can change any single score by (Δ∞), in units of the scores
    monotone: True where adding a unit never lowers a score (non-negative ballots): the exponent is then ε·score/Δ
    """

    epsilon: float
    change: float = 1.0
    monotone: bool = False

    def __post_init__(self) -> None:
        """Refuse parameters outside their domain, before anything is charged."""
        checks.positive(epsilon=self.epsilon)
        checks.positive(change=self.change)
        if not isinstance(self.monotone, bool):
            raise ParameterError(f"monotone={self.monotone!r} found; expected True or False.")

    @property
    def sensitivity(self) -> Sensitivity:
        """The bound is on single scores: ``change``, which ``choose`` checks."""
        return Sensitivity(l1=math.inf, l2=math.inf)

    def event(self, *, count: int = 1) -> Exponential:
        """Return the cost of ``count`` choices."""
        return Exponential(epsilon=self.epsilon, count=count)

    def delta(self, dimension: int, epsilon: float = 50.0) -> float:
        """Return what rounding adds to δ per choice among ``dimension`` scores, for guarantees up to ``epsilon``."""
        entries = checks.integer(dimension=dimension, at_least=1)
        return delta_from_distance(entries * (math.exp(-_CUT) + 2.0**-126), epsilon)

    def choose(self, exact: ExactTally, source: NoiseSource) -> int:
        """Return the index of one score. Charge ``event()`` first.

        Raises ParameterError for an empty tally, or one whose every bound on a ballot exceeds ``change``.
        """
        return int(self.choose_many(exact, 1, source)[0])

    def choose_many(self, exact: ExactTally, count: int, source: NoiseSource) -> IntVector:
        """Return ``count`` different indices, (count,) int64. Charge ``event(count=count)`` first."""
        check_tally(exact, self.sensitivity)
        if not min(exact.l1, exact.l2, exact.linf) <= self.change:  # label: score-change
            raise ParameterError(
                f"a tally with ballot bounds l1={exact.l1}, l2={exact.l2}, linf={exact.linf} found; the mechanism "
                f"assumes that no score changes by more than {self.change}."
            )
        wanted = checks.integer(count=count, at_least=1, at_most=exact.values.size)
        left = list(range(exact.values.size))
        scores = exact.values.tolist()
        # Each choice leaves ``left`` before the next is made.
        return np.array(
            [left.pop(self._pick([scores[i] for i in left], source)) for _ in range(wanted)], dtype=np.int64
        )

    def _pick(self, scores: list[int], source: NoiseSource) -> int:
        rate = Fraction(self.epsilon) / Fraction(self.change) / (1 if self.monotone else 2)
        best = max(scores)
        weights = {score: _weight(rate * (best - score)) for score in set(scores)}
        masses = tables.exact_masses([weights[score] for score in scores])
        uniform = int.from_bytes(source.read(16), "little")
        # Every candidate is looked at, whichever is drawn.
        reached, index = 0, 0
        for mass in masses:
            reached += mass
            index += uniform >= reached
        return index


def _weight(exponent: Fraction) -> int:
    return tables.fixed_exp(exponent) if exponent <= _CUT else 0
