"""What a site's cap affords: the arithmetic between a ledger's event totals and the accountant.

A cap (ε, δ) holds for the life of a ledger, over plans that are chosen after earlier answers were seen. Spending is
therefore stopped by a filter at ONE order α that is fixed before the first charge: while the RDP of all accepted
events sums to at most B at order α, the whole adaptive interaction is (α, B)-RDP, whatever the rule that chose the
events (the Rényi filter of Feldman and Zrnic 2021). ``B(cap)`` is the largest budget that order α converts to ε at δ.

When the policy changes the cap, α stays and B is recomputed. That is sound: at every moment the accepted sum is at
most the largest B ever in force, and the theorem holds for that B; (α, B)-RDP then gives every (ε, δ) pair whose
budget at α is at least B. Choosing a new α would not be: its value could depend on what was answered.
"""

from __future__ import annotations

import functools
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from patevolve.shared import checks
from patevolve.shared.errors import BudgetError, ParameterError
from patevolve.shared.privacy import accountant, events
from patevolve.shared.privacy.filters import FixedOrderFilter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from patevolve.shared.privacy.accountant import Epsilon


@dataclass(frozen=True, slots=True, kw_only=True)
class Cap:
    """The site policy's bound on all that its ledger may ever spend. Raises ParameterError outside ε > 0, 0 < δ < 1."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        """Refuse NaN, infinities, zero, negative and subnormal values, bools and texts."""
        object.__setattr__(self, "epsilon", checks.positive(epsilon=self.epsilon))
        object.__setattr__(self, "delta", checks.open_unit(delta=self.delta))


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """What is left of a cap, in nats of Rényi divergence at the ledger's one ``order``.

    epsilon: the ε at the cap's δ that the adaptive interaction has reached so far, at that order (0 before a charge)
    """

    order: float
    budget: float
    used: float
    left: float
    epsilon: float


def choose_order(cap: Cap) -> float:
    """Return the order of ``FixedOrderFilter`` for ``cap``; it depends on the cap alone.

    For events whose cost is proportional to the order (Gaussian noise) the filter then loses nothing: it accepts
    exactly the plans whose smallest ε over ``ORDERS`` is within the cap.
    Raises BudgetError when the cap affords nothing at any order.
    """
    try:
        return FixedOrderFilter(epsilon=cap.epsilon, delta=cap.delta).order
    except ParameterError as error:
        raise BudgetError(f"ε={cap.epsilon:g}, δ={cap.delta:g} affords nothing at any order; raise the cap") from error


@functools.lru_cache(maxsize=1024)
def budget_at(order: float, cap: Cap) -> float:
    """Return B: the most Rényi divergence at ``order`` that still converts to ``cap``; negative or 0 affords nothing.

    Source: Canonne-Kamath-Steinke 2020, Proposition 12, solved for the divergence; rounded down.
    """
    budget = cap.epsilon - float(accountant.conversion_offset(cap.delta, np.asarray([order]))[0])
    while budget > 0.0 and not accountant.epsilon(np.array([budget]), cap.delta, [order]).epsilon <= cap.epsilon:
        budget = math.nextafter(budget, 0.0)
    return budget


def fits(used: float, cost: float, budget: float) -> bool:
    """Return whether ``cost`` fits beside ``used``. NaN and infinity never fit; the sum is rounded up."""
    return math.nextafter(used + cost, math.inf) <= budget


@functools.lru_cache(maxsize=4096)
def cost_at(text: str, order: float) -> float:
    """Return the Rényi divergence of the event with this canonical text at ``order``, in nats.

    Raises UnsupportedEventError or ParameterError for what the accountant does not know.
    """
    try:
        cost = float(accountant.rdp(events.from_record(json.loads(text)), (order,))[0])
    except OverflowError as error:
        raise ParameterError(f"the event {text} is too large to account; split it into smaller events") from error
    if not cost >= 0.0:
        raise ParameterError(f"the event {text} has no known cost; correct its parameters")
    return cost


def used_at(totals: Iterable[tuple[str, int]], order: float) -> float:
    """Return the Rényi divergence of all charges at ``order``. The sum doesn't depend on the order of the terms."""
    return math.fsum(charges * cost_at(text, order) for text, charges in totals)


def remaining(totals: Iterable[tuple[str, int]], cap: Cap, order: float | None) -> Remaining:
    """Return what ``cap`` leaves after ``totals`` (canonical event text, number of charges)."""
    fixed = choose_order(cap) if order is None else order
    budget, used = budget_at(fixed, cap), used_at(totals, fixed)
    reached = max(0.0, cap.epsilon - budget + used) if used > 0.0 else 0.0
    return Remaining(order=fixed, budget=budget, used=used, left=max(0.0, budget - used), epsilon=reached)


def curve_of(totals: Iterable[tuple[str, int]]) -> accountant.Curve:
    """Return the Rényi curve of ``totals`` on the accountant's grid; exactly 0 for no charges."""
    curve = np.zeros(len(accountant.ORDERS))
    for text, charges in totals:
        curve = curve + charges * accountant.rdp(events.from_record(json.loads(text)))
    return curve


def epsilon_of(totals: Iterable[tuple[str, int]], delta: float) -> Epsilon:
    """Return the smallest ε over the orders for ``totals``; 0 for no charges. One step per distinct event."""
    return accountant.epsilon(curve_of(totals), delta)
