"""One choice in each of several groups of scores, as an answer: PCEvolve's selection as a mechanism like any other.

The answer is a vector with a 1 at every chosen score and 0 elsewhere. Its randomness lies in which index is chosen;
nothing is added to it, so its stated standard deviation is 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from patevolve.shared import checks
from patevolve.shared.errors import ParameterError
from patevolve.shared.noise.exponential import ExponentialMechanism
from patevolve.shared.noise.mechanism import Sensitivity
from patevolve.shared.privacy.events import Exponential
from patevolve.shared.randomness import NoiseSource
from patevolve.shared.tally import ExactTally, NoisyTally


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceMechanism:
    """Choose one score of each group by the exponential mechanism; a unit may change the scores of all groups.

    epsilon:  pure-DP parameter of one choice
    change:   what one unit can change any single score by
    groups:   sizes of the groups, in the order of the scores
    """

    epsilon: float
    change: float
    groups: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse parameters outside their domain, before anything is charged."""
        checks.positive(epsilon=self.epsilon)
        checks.positive(change=self.change)
        if not self.groups:
            raise ParameterError("groups=() found; expected the size of at least one group.")
        for size in self.groups:
            checks.integer(group=size, at_least=1)

    @property
    def sensitivity(self) -> Sensitivity:
        """The bound is on single scores: ``change``, which each choice checks."""
        return Sensitivity(l1=math.inf, l2=math.inf)

    @property
    def std(self) -> float:
        """No noise is added to the answer."""
        return 0.0

    @property
    def unsafe(self) -> bool:
        """It protects."""
        return False

    def event(self, *, count: int = 1) -> Exponential:
        """Return the cost of ``count`` answers: one choice per group each, all of which one unit may sway."""
        return Exponential(epsilon=self.epsilon, count=count * len(self.groups))

    def delta(self, dimension: int, epsilon: float = 50.0) -> float:
        """Return what rounding adds to δ for choices among ``dimension`` scores in all."""
        return ExponentialMechanism(epsilon=self.epsilon, change=self.change).delta(dimension, epsilon)

    def release(self, exact: ExactTally, source: NoiseSource) -> NoisyTally:
        """Return 1 at one score of each group. Charge ``event()`` first. Raises ParameterError beyond the bounds."""
        if exact.values.size != sum(self.groups):
            raise ParameterError(f"{exact.values.size} scores found; expected {sum(self.groups)}, as the groups say.")
        mechanism = ExponentialMechanism(epsilon=self.epsilon, change=self.change)
        chosen, start = np.zeros(exact.values.size, np.int64), 0
        for size in self.groups:
            part = ExactTally(
                values=exact.values[start : start + size], l1=exact.l1, l2=exact.l2, linf=exact.linf
            )  # label: choice-groups
            chosen[start + mechanism.choose(part, source)] = 1
            start += size
        return NoisyTally(values=chosen, std=self.std)
