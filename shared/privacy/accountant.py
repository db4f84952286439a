"""Rényi differential privacy of events, their composition, and its conversion to (ε, δ).

Every curve in the project lives on the one grid ``ORDERS``. A curve is an array of Rényi divergence bounds, in nats,
one per order; curves of mechanisms on the same data add up (Mironov 2017, Proposition 1). Orders at which a bound does
not hold carry infinity. Conversion: Canonne-Kamath-Steinke 2020, Proposition 12, and Bretagnolle-Huber for tiny costs,
as ``dp_accounting.rdp.compute_epsilon`` 0.6 has it (CONVERSION names it for reports).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patevolve.shared import checks
from patevolve.shared.errors import ParameterError, UnsupportedEventError
from patevolve.shared.privacy import divergences
from patevolve.shared.privacy.events import (
    DiscreteGaussian,
    DiscreteGaussianSum,
    DiscreteLaplace,
    Event,
    Exponential,
    LaplaceNoisyMax,
    Skellam,
    SmoothSensitivityRelease,
    SubsampledGaussian,
)

Curve = NDArray[np.float64]

CONVERSION = "rdp/canonne-kamath-steinke-2020-prop12/1"


def _grid() -> tuple[float, ...]:
    """Return tenths up to 11, whole orders up to 63, then steps of about 4 % up to 10⁵ (for costs down to 1e-9)."""
    fine = [1.0625, 1.125, 1.25, *(1 + i / 10 for i in range(1, 100))]
    steep = {round(64 * 1.04**i) for i in range(188)}
    return tuple(sorted({*fine, *(float(a) for a in range(11, 64)), *(float(a) for a in steep)}))


ORDERS: tuple[float, ...] = _grid()


@dataclass(frozen=True, slots=True, kw_only=True)
class Epsilon:
    """An ε and the Rényi order at which the conversion reached it."""

    epsilon: float
    order: float


def rdp(event: Event, orders: Sequence[float] = ORDERS) -> Curve:
    """Return the Rényi divergence bound of one event (its ``count`` and ``steps`` included) at each order.

    Raises ParameterError for orders outside (1, ∞), UnsupportedEventError for anything that is not an event.
    """
    unit, times = _unit(event)
    return times * _unit_curve(unit, _checked(orders))


def compose(events: Iterable[Event], orders: Sequence[float] = ORDERS) -> Curve:
    """Return the curve of all events together; the work is linear in the number of distinct events.

    No events compose to exactly zero. Raises as ``rdp`` does, before anything is added up.
    """
    grid = _checked(orders)
    totals: Counter[Event] = Counter()
    for event in events:
        unit, times = _unit(event)
        totals[unit] += times
    return sum((times * _unit_curve(unit, grid) for unit, times in totals.items()), np.zeros(len(grid)))


def epsilon(curve: Curve, delta: float, orders: Sequence[float] = ORDERS) -> Epsilon:
    """Return the least ε over the orders at which the curve implies (ε, ``delta``)-DP; never below 0.

    Valid when the events were fixed beforehand; anything chosen while running goes through ``filters``.
    Source: Canonne-Kamath-Steinke 2020, Proposition 12; where 1 - exp(-KL) <= δ², ε = 0 (Bretagnolle-Huber).
    Raises ParameterError for δ outside (0, 1), an empty or invalid grid, or a curve with NaN or negative values.
    """
    grid, values = _paired(curve, orders)
    target = checks.open_unit(delta=delta)
    converted = np.where(-np.expm1(-values) <= target**2, 0.0, values + conversion_offset(target, grid))
    best = int(np.argmin(converted))
    return Epsilon(epsilon=max(0.0, float(converted[best])), order=float(grid[best]))


def epsilon_classic(curve: Curve, delta: float, orders: Sequence[float] = ORDERS) -> Epsilon:
    """Return ε by the classic conversion of Mironov 2017, Proposition 3, as PATE 2018 reports it (looser)."""
    grid, values = _paired(curve, orders)
    converted = values - math.log(checks.open_unit(delta=delta)) / (grid - 1)
    best = int(np.argmin(converted))
    return Epsilon(epsilon=max(0.0, float(converted[best])), order=float(grid[best]))


def delta(curve: Curve, target_epsilon: float, orders: Sequence[float] = ORDERS) -> float:
    """Return the least δ in [0, 1] over the orders at which the curve implies (``target_epsilon``, δ)-DP.

    Source: Canonne-Kamath-Steinke 2020, Proposition 12, and δ <= sqrt(1 - exp(-KL)) (Bretagnolle-Huber).
    """
    grid, values = _paired(curve, orders)
    budget = checks.non_negative(target_epsilon=target_epsilon)
    hinge = np.sqrt(-np.expm1(-values))
    with np.errstate(over="ignore"):
        moment = np.exp((grid - 1) * (values - budget + np.log1p(-1 / grid)) - np.log(grid))
    return float(min(1.0, hinge.min(), moment.min()))


def conversion_offset(target: float, grid: Curve) -> Curve:
    """Return what Proposition 12 adds to a Rényi divergence at each order to make it an ε at this δ."""
    return np.log1p(-1 / grid) - np.log(target * grid) / (grid - 1)


def _unit(event: Event) -> tuple[Event, int]:
    """Return the single repetition of an event and how often it happened."""
    match event:
        case SubsampledGaussian():
            return dataclasses.replace(event, steps=1, count=1), event.steps * event.count
        case (
            DiscreteGaussian()
            | DiscreteGaussianSum()
            | Skellam()
            | DiscreteLaplace()
            | LaplaceNoisyMax()
            | Exponential()
            | SmoothSensitivityRelease()
        ):
            return dataclasses.replace(event, count=1), event.count
        case _:
            raise UnsupportedEventError(f"{type(event).__name__} found; expected a privacy event of a known kind.")


@functools.lru_cache(maxsize=1024)
def _unit_curve(event: Event, orders: tuple[float, ...]) -> Curve:
    """Return the curve of one repetition; cached, since ledgers repeat the same few events."""
    curve = _dispatch(event, np.asarray(orders, dtype=np.float64))
    if not bool(np.all(curve >= 0.0)):
        raise ParameterError(f"the Rényi divergence of {event!r} is not a number; its parameters are too extreme.")
    curve.setflags(write=False)
    return curve


def _dispatch(event: Event, orders: Curve) -> Curve:  # noqa: PLR0911 - one return per kind is the table itself
    match event:
        case DiscreteGaussian(sigma=sigma, l2=l2):
            # Canonne-Kamath-Steinke 2020: the discrete Gaussian costs what the continuous one does.
            return orders * (l2 / sigma) ** 2 / 2
        case DiscreteGaussianSum(share_sigma=share, shares=shares, l2=l2, l1=l1, dimension=dimension):
            # Untouched coordinates cost nothing, and an integer vector has at most l1 coordinates that are not 0.
            touched = max(1, min(dimension, math.floor(l1)))
            return divergences.gaussian_sum(orders, share_sigma=share, shares=shares, l2=l2, l1=l1, dimension=touched)
        case Skellam(variance=variance, l1=l1, l2=l2):
            return divergences.skellam(orders, variance=variance, l1=l1, l2=l2)
        case DiscreteLaplace(scale=scale, l1=l1):
            return divergences.discrete_laplace(orders, scale=scale, l1=l1)
        case LaplaceNoisyMax(scale=scale):
            return divergences.pure(orders, pure_epsilon=2 / scale)
        case Exponential(epsilon=pure_epsilon):
            return divergences.bounded_range(orders, range_epsilon=pure_epsilon)
        case SubsampledGaussian(noise_multiplier=multiplier, sample_rate=rate):
            return divergences.subsampled_gaussian(orders, noise_multiplier=multiplier, sample_rate=rate)
        case SmoothSensitivityRelease(beta=beta, sigma=sigma):
            return divergences.smooth_sensitivity(orders, beta=beta, sigma=sigma)


@functools.lru_cache(maxsize=64)
def _checked_tuple(orders: tuple[float, ...]) -> tuple[float, ...]:
    if not orders or not all(checks.finite(order=order) > 1.0 for order in orders):
        raise ParameterError(f"orders={list(orders)} found; expected one or more finite numbers > 1. Use ORDERS.")
    return tuple(float(order) for order in orders)


def _checked(orders: Sequence[float]) -> tuple[float, ...]:
    return ORDERS if orders is ORDERS else _checked_tuple(tuple(orders))


def _paired(curve: Curve, orders: Sequence[float]) -> tuple[Curve, Curve]:
    grid = np.asarray(_checked(orders), dtype=np.float64)
    values = np.asarray(curve, dtype=np.float64)
    if values.shape != grid.shape or not bool(np.all(values >= 0.0)):
        raise ParameterError(
            f"a curve of shape {values.shape} found; expected {grid.shape} values >= 0 (infinity allowed, NaN not)."
        )
    return grid, values
