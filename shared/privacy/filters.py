"""Privacy filters: budgets for charges that are chosen while running, so that no minimum over orders is peeked at.

An RDP filter holds one order fixed in advance (Feldman-Zrnic 2021, Theorem 1); a zCDP filter adds up ρ (Whitehouse
2023). Each stays valid whatever the next charge depends on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from patevolve.shared import checks
from patevolve.shared.errors import ParameterError, UnsupportedEventError
from patevolve.shared.privacy import accountant, calibrate
from patevolve.shared.privacy.accountant import ORDERS
from patevolve.shared.privacy.events import DiscreteGaussian, Event, Exponential, SubsampledGaussian


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedOrderFilter:
    """The budget at one Rényi order that guarantees (epsilon, delta)-DP for adaptively chosen charges.

    order:  the order of ORDERS at which Gaussian charges can spend the largest zCDP ρ; it depends on ε and δ alone
    budget: how much Rényi divergence, in nats, may be spent at that order
    """

    epsilon: float
    delta: float
    order: float = field(init=False)
    budget: float = field(init=False)

    def __post_init__(self) -> None:
        """Choose the order. Raises ParameterError for ε <= 0, δ outside (0, 1), or no order that leaves a budget."""
        grid = np.asarray(ORDERS, dtype=np.float64)
        offsets = accountant.conversion_offset(checks.open_unit(delta=self.delta), grid)
        budgets = checks.positive(epsilon=self.epsilon) - offsets
        best = int(np.argmax(budgets / grid))
        if not budgets[best] > 0.0:
            raise ParameterError(
                f"epsilon={self.epsilon!r} at delta={self.delta!r} found; no order leaves anything to spend. Raise one."
            )
        order, budget = float(grid[best]), float(budgets[best])
        # Verified by the conversion that reports will use; rounding goes down.
        while not accountant.epsilon(np.array([budget]), self.delta, [order]).epsilon <= self.epsilon:
            budget = math.nextafter(budget, 0.0)
        object.__setattr__(self, "order", order)
        object.__setattr__(self, "budget", budget)

    def cost(self, event: Event) -> float:
        """Return the Rényi divergence of the event at the filter's order."""
        return float(accountant.rdp(event, [self.order])[0])

    def allows(self, spent: float, event: Event) -> bool:
        """Return whether ``event`` fits after ``spent`` nats at ``order``. NaN or infinity never fit.

        Raises UnsupportedEventError for an unknown event, ParameterError for a negative ``spent``.
        """
        if spent < 0.0:
            raise ParameterError(f"spent={spent!r} found; expected a number >= 0. Nothing is ever refunded.")
        # Rounded up, so that float addition never ends above the budget.
        return math.nextafter(spent + self.cost(event), math.inf) <= self.budget

    def spend(self, spent: float, event: Event) -> float:
        """Return ``spent`` plus the event's cost, rounded up."""
        return math.nextafter(spent + self.cost(event), math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZcdpFilter:
    """A budget in ρ for adaptively chosen charges that satisfy zCDP. ``budget`` is in nats per order."""

    budget: float

    def __post_init__(self) -> None:
        """Refuse budgets that are not positive numbers."""
        checks.positive(budget=self.budget)

    def allows(self, spent: float, event: Event) -> bool:
        """Return whether ``event`` fits after ``spent``. Raises UnsupportedEventError for an event without a ρ."""
        return self.spend(spent, event) <= self.budget

    def spend(self, spent: float, event: Event) -> float:
        """Return ``spent`` plus the event's ρ, rounded up."""
        if spent < 0.0:
            raise ParameterError(f"spent={spent!r} found; expected a number >= 0. Nothing is ever refunded.")
        return math.nextafter(spent + rho(event), math.inf)


def zcdp_filter(epsilon: float, delta: float) -> ZcdpFilter:
    """Return the filter whose whole budget converts to at most ``epsilon`` at ``delta``."""
    return ZcdpFilter(budget=calibrate.rho_for(epsilon, delta))


def rho(event: Event) -> float:
    """Return the zCDP parameter of an event (Bun-Steinke 2016): its Rényi divergence is at most ρα at every order α.

    Raises UnsupportedEventError for events whose curve is no such line.
    """
    match event:
        case DiscreteGaussian(sigma=sigma, l2=l2, count=count):
            return count * (l2 / sigma) ** 2 / 2
        case Exponential(epsilon=pure_epsilon, count=count):
            return count * pure_epsilon**2 / 8
        case SubsampledGaussian(noise_multiplier=multiplier, sample_rate=rate, steps=steps, count=count) if rate == 1.0:
            return steps * count / (2 * multiplier**2)
        case _:
            raise UnsupportedEventError(
                f"a {type(event).__name__} event found; its zCDP parameter is not known. Use FixedOrderFilter."
            )
