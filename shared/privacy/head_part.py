"""What training a private head may spend: the noise of its steps, from the plan alone.

The questions get at most the share of ρ that the head leaves them, which costs at most a Gaussian mechanism of that ρ.
The head's noise is the least with which that mechanism and all steps of the head fit a ledger whose cap is the plan's
ε: the subsampled Gaussian's curve is no line in the order, so a share of ρ alone would not say it.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

from patevolve.shared.errors import PlanError
from patevolve.shared.plan import Plan
from patevolve.shared.plan_head import HeadPlan, scheduled
from patevolve.shared.plan_sections import Privacy
from patevolve.shared.privacy import accountant
from patevolve.shared.privacy.budget import Cap, budget_at, choose_order
from patevolve.shared.privacy.calibrate import gaussian_noise_multiplier, rho_for
from patevolve.shared.privacy.events import DiscreteGaussian, Event, SubsampledGaussian

NAME = "head/"  # begins the name of a stretch of steps in a release's proof
_WITHIN = 1 + 1e-6  # relative width at which the search for the least noise stops
_MOST = 1e6  # a noise multiplier beyond which there is no signal to speak of


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadPart:
    """The head's part of the budget.

    noise_multiplier:  noise standard deviation / clip, the same in every step
    rates:             (steps,) probability with which each unit enters the step
    batches:           (steps,) expected units of a site in the step, by the plan's public guess of its size
    """

    share: float
    noise_multiplier: float
    rates: tuple[float, ...]
    batches: tuple[float, ...]

    @property
    def events(self) -> tuple[SubsampledGaussian, ...]:
        """The cost of all steps, one event for each stretch of equal ones."""
        return _events(self.rates, self.noise_multiplier)

    @property
    def charges(self) -> tuple[SubsampledGaussian, ...]:
        """The cost of every step by itself, as it is charged."""
        return tuple(_step(rate, self.noise_multiplier, 1) for rate in self.rates)


def head_part(plan: Plan) -> HeadPart | None:
    """Return what the head may spend, or None for a plan without one.

    Guarantee: with all questions that fit the remaining shares, the accountant's ε is at most the plan's.
    Raises PlanError if even enormous noise does not fit.
    """
    if not plan.encoder.head.share:
        return None
    return _part(plan.privacy, plan.encoder.head, plan.sites.expected_units)


@functools.lru_cache(maxsize=64)
def _part(privacy: Privacy, head: HeadPlan, units: int) -> HeadPart:
    sizes = [scheduled(head.batch or (units,), step, head.steps) for step in range(head.steps)]
    rates = tuple(min(1.0, size / units) for size in sizes)
    rho = rho_for(privacy.epsilon, privacy.delta)
    others = DiscreteGaussian(sigma=gaussian_noise_multiplier(rho * (1.0 - head.share)), l2=1.0)

    cap = Cap(epsilon=privacy.epsilon, delta=privacy.delta)
    order = choose_order(cap)

    def fits(multiplier: float) -> bool:
        # At the one order of a ledger whose cap is the plan's ε, not at the best order: the site must be able to pay.
        curve = accountant.compose([others, *_events(rates, multiplier)], (order,))
        return float(curve[0]) <= budget_at(order, cap)

    high = 1.0
    while not fits(high):
        high *= 2.0
        if high > _MOST:
            raise PlanError(f"encoder.head.share = {head.share} affords no step at ε = {privacy.epsilon}. Raise it.")
    low = high / 2.0
    while low > 1e-3 and fits(low):
        low, high = low / 2.0, low
    while high / low > _WITHIN:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if fits(middle) else (middle, high)
    return HeadPart(share=head.share, noise_multiplier=high, rates=rates, batches=tuple(rate * units for rate in rates))


def head_events(plan: Plan) -> tuple[Event, ...]:
    """Return what training the plan's head costs a site's units; nothing without a head."""
    part = head_part(plan)
    return () if part is None else part.events


def head_items(plan: Plan) -> tuple[tuple[str, Event], ...]:
    """Return (name, event) of each stretch of the head's steps, as a release lists what was charged."""
    return tuple((f"{NAME}{number}", event) for number, event in enumerate(head_events(plan), 1))


def _events(rates: tuple[float, ...], multiplier: float) -> tuple[SubsampledGaussian, ...]:
    return tuple(_step(rate, multiplier, len(list(group))) for rate, group in itertools.groupby(rates))


def _step(rate: float, multiplier: float, steps: int) -> SubsampledGaussian:
    return SubsampledGaussian(noise_multiplier=multiplier, sample_rate=rate, steps=steps)
