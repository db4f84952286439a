"""From a budget to noise: the largest zCDP cost, the least noise, and the most queries that fit (ε, δ).

Every answer is verified by the accountant that will charge it, so that no rounding ends above the budget.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from patevolve.shared import checks
from patevolve.shared.errors import ParameterError
from patevolve.shared.privacy import accountant
from patevolve.shared.privacy.accountant import ORDERS
from patevolve.shared.privacy.events import DiscreteGaussian, Event

_MOST = 10**15  # a count beyond which the budget is no constraint


def rho_for(epsilon: float, delta: float, orders: Sequence[float] = ORDERS) -> float:
    """Return the largest zCDP parameter whose converted ε is at most ``epsilon``; always > 0.

    The conversion is a minimum over orders of lines in ρ, so the answer is a maximum over orders.
    Raises ParameterError for ε <= 0 or δ outside (0, 1).
    """
    budget, target = checks.positive(epsilon=epsilon), checks.open_unit(delta=delta)
    grid = np.asarray(orders, dtype=np.float64)
    lines = (budget - accountant.conversion_offset(target, grid)) / grid
    rho = max(float(lines.max()), -math.log1p(-(target**2)) / float(grid.min()))
    while not accountant.epsilon(grid * rho, target, orders).epsilon <= budget:
        rho = math.nextafter(rho, 0.0)
    return rho


def gaussian_noise_multiplier(rho: float) -> float:
    """Return the least σ/Δ₂ of a Gaussian mechanism that costs at most ``rho`` in zCDP: sqrt(1/(2ρ))."""
    multiplier = math.sqrt(1.0 / (2.0 * checks.positive(rho=rho)))
    while not 1.0 / (2.0 * multiplier**2) <= rho:
        multiplier = math.nextafter(multiplier, math.inf)
    return multiplier


def sigma_for(epsilon: float, delta: float, l2: float, count: int = 1) -> float:
    """Return the least discrete Gaussian σ, lattice units, for ``count`` answers of sensitivity ``l2`` in (ε, δ)."""
    times = checks.integer(count=count, at_least=1)
    sigma = checks.positive(l2=l2) * gaussian_noise_multiplier(rho_for(epsilon, delta) / times)
    while not _epsilon_of(DiscreteGaussian(sigma=sigma, l2=l2, count=times), delta) <= epsilon:
        sigma *= 1 + 2**-50
    return sigma


def q_max(event: Event, epsilon: float, delta: float) -> int:
    """Return how many repetitions of ``event`` (its own count taken as 1) fit (ε, δ) by RDP; 0 if not even one.

    Raises ParameterError when the event is so cheap that more than 10¹⁵ fit.
    """
    budget, target = checks.positive(epsilon=epsilon), checks.open_unit(delta=delta)
    low, high = 0, 1
    while _fits(event, high, budget, target):
        low, high = high, 2 * high
        if high > _MOST:
            raise ParameterError(f"more than {_MOST} repetitions of {event!r} fit; the budget is no constraint.")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _fits(event, middle, budget, target) else (low, middle)
    return low


def q_max_naive(event: Event, epsilon: float, delta: float) -> int:
    """Return ε/ε₁, the count by adding up the ε of single queries (the seed article's rule; it wastes most of it)."""
    single = _epsilon_of(dataclasses.replace(event, count=1), delta)
    if not single > 0.0:
        raise ParameterError(f"a single {event!r} costs ε=0 at δ={delta}; the naive count is unbounded.")
    return math.floor(checks.positive(epsilon=epsilon) / single)


def _fits(event: Event, count: int, budget: float, target: float) -> bool:
    return _epsilon_of(dataclasses.replace(event, count=count), target) <= budget


def _epsilon_of(event: Event, delta: float) -> float:
    return accountant.epsilon(accountant.compose([event]), delta).epsilon
