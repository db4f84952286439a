"""The plan's section on a private head: what each site trains on its own records before it votes, and at what cost."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from patevolve.shared import checks
from patevolve.shared.errors import PlanError

MOST_STEPS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadPlan:
    """A linear map of the public features, trained at each site by DP-SGD and never sent; absent means none.

    share:        of the plan's budget ρ, kept back from the questions
    steps:        of DP-SGD, in equal stretches for the schedules below
    batch:        expected units in a step's sample, along the run; empty: every unit in every step
    clip:         L2 bound on a unit's gradient, 0.1 or more
    temperature:  of the loss, along the run; empty: searched on public data
    rate:         learning rate
    supervised:   weight of the loss against class prototypes beside that against public negatives, 0 to 1
    views:        public changes of view of each record
    """

    share: float = 0.0
    steps: int = 10
    batch: tuple[int, ...] = ()
    clip: float = 1.0
    temperature: tuple[float, ...] = (0.15,)
    rate: float = 1.0
    supervised: float = 1.0
    views: int = 6

    def __post_init__(self) -> None:
        """Refuse numbers outside their domains."""
        if not checks.non_negative(share=self.share) < 1.0:
            raise PlanError(f"encoder.head.share = {self.share} found; expected a fraction from 0 to below 1.")
        checks.integer(steps=self.steps, at_least=1, at_most=MOST_STEPS)
        if not checks.positive(clip=self.clip) >= 0.1:
            raise PlanError(f"encoder.head.clip = {self.clip} found; expected 0.1 or more.")
        checks.positive(rate=self.rate)
        checks.integer(views=self.views, at_least=2, at_most=64)
        if not checks.non_negative(supervised=self.supervised) <= 1.0:
            raise PlanError(f"encoder.head.supervised = {self.supervised} found; expected a weight from 0 to 1.")
        for size in self.batch:
            checks.integer(batch=size, at_least=1)
        if not all(0.05 <= checks.positive(temperature=value) <= 10.0 for value in self.temperature):
            raise PlanError(f"encoder.head.temperature = {list(self.temperature)} found; expected 0.05 to 10.")
        if max(len(self.batch), len(self.temperature)) > self.steps:
            raise PlanError(f"encoder.head has schedules longer than its {self.steps} steps. Shorten them.")
        if not self.share and any(getattr(self, key.name) != key.default for key in dataclasses.fields(self)):
            raise PlanError("encoder.head without a share found; give it one, or remove the section.")


def scheduled(values: tuple[float, ...], step: int, steps: int) -> float:
    """Return a schedule's value at a step: its values hold for equal stretches, first to last."""
    return values[step * len(values) // steps]
