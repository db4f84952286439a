"""Tight figures beside the RDP ones: exact Gaussian composition, and privacy loss distributions (PLD).

They are for reports. A ledger enforces the RDP figure; nothing here is ever used to admit a charge. The Gaussian
(CLT, "GDP") approximation of other mechanisms is refused: it can be below the true ε.
"""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from patevolve.shared import checks
from patevolve.shared.errors import ParameterError
from patevolve.shared.privacy import accountant, divergences, masses
from patevolve.shared.privacy.events import (
    DiscreteGaussian,
    DiscreteGaussianSum,
    Event,
    Skellam,
    SubsampledGaussian,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_STEPS = 100_000  # compositions that a PLD is asked for
_MOST_LOSS = 60.0  # largest (approximate) ε worth a PLD: its grid grows with it
_MOST_SIGMA = 500.0  # widest discrete noise whose masses are listed
_GRID_CELLS = 1_000_000
_LEAST_LOG_MASS = -300.0  # lighter outcomes count as certain loss: below 1e-130 in δ, and no subnormal arithmetic
_CONTINUOUS = "computed for continuous Gaussian noise of the same σ"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """An ε and the accountant that it comes from.

    accountant: "gaussian" (exact for continuous noise), "pld" (an upper bound on a fine grid) or "rdp" (an upper bound)
    version:    what computed it
    reason:     why a tighter accountant was not used, or what the figure leaves out; "" where nothing is to be said
    """

    epsilon: float
    accountant: str
    version: str
    reason: str = ""


def gaussian_delta(noise_multiplier: float, epsilon: float) -> float:
    """Return the exact δ of one Gaussian mechanism with this σ/Δ₂ (Balle-Wang 2018, Theorem 8)."""
    mu = 1.0 / checks.positive(noise_multiplier=noise_multiplier)
    budget = checks.non_negative(epsilon=epsilon)
    return max(0.0, _upper_tail(budget / mu - mu / 2) - math.exp(budget + _log_upper_tail(budget / mu + mu / 2)))


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Return the exact ε at this δ of a Gaussian mechanism with this σ/Δ₂; q of them act as one of σ/sqrt(q).

    Found by bisection to double precision and rounded up. Raises ParameterError for δ outside (0, 1).
    """
    target = checks.open_unit(delta=delta)
    if gaussian_delta(noise_multiplier, 0.0) <= target:
        return 0.0
    low, high = 0.0, 1.0
    while gaussian_delta(noise_multiplier, high) > target:
        low, high = high, 2.0 * high
    while True:
        middle = (low + high) / 2
        if not low < middle < high:
            return high
        low, high = (middle, high) if gaussian_delta(noise_multiplier, middle) > target else (low, middle)


def gaussian_q_max(sigma: float, l2: float, epsilon: float, delta: float) -> int:
    """Return how many answers of one Gaussian mechanism fit (ε, δ) exactly."""
    ratio, budget = checks.positive(sigma=sigma) / checks.positive(l2=l2), checks.positive(epsilon=epsilon)
    low, high = 0, 1
    while gaussian_epsilon(ratio / math.sqrt(high), delta) <= budget:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        fits = gaussian_epsilon(ratio / math.sqrt(middle), delta) <= budget
        low, high = (middle, high) if fits else (low, middle)
    return low


def figure(events: Sequence[Event], delta: float) -> Figure:
    """Return the tightest ε that is known for these events, in bounded time, and which accountant gave it.

    Gaussian events alone compose exactly; events whose ballots change at most three coordinates by one go through the
    PLD of their true discrete noise where dp-accounting is installed and the size is bounded; everything else is the
    RDP figure with the reason. The discrete Gaussian's own ε differs from the continuous one's by O(1/σ²), either way.
    """
    target = checks.open_unit(delta=delta)
    fallback = accountant.epsilon(accountant.compose(events), target).epsilon
    if all(_is_gaussian(event) for event in events):
        cost = math.fsum(_gaussian_cost(event) for event in events)
        exact = gaussian_epsilon(1.0 / math.sqrt(cost), target) if cost > 0 else 0.0
        return Figure(epsilon=exact, accountant="gaussian", version="balle-wang-2018/1", reason=_CONTINUOUS)
    reason = _pld_refusal(events, fallback)
    if not reason:
        tight = _pld_epsilon(events, target, _interval(events, fallback))
        if tight <= fallback:
            continuous = any(isinstance(event, DiscreteGaussian) for event in events)
            note = _CONTINUOUS if continuous else ""
            return Figure(epsilon=tight, accountant="pld", version=_pld_version(), reason=note)
        reason = "the privacy loss distribution's grid gave no smaller figure"
    return Figure(epsilon=fallback, accountant="rdp", version=accountant.CONVERSION, reason=reason)


def gaussian_approximation(events: Sequence[Event], delta: float) -> Figure:
    """Refuse: the CLT ("GDP") figure of mechanisms that are not Gaussian is no bound. Raises ParameterError always."""
    raise ParameterError(
        f"the Gaussian approximation of {len(events)} events at delta={delta} asked for; it can lie below the true ε "
        f"(1.62 against 1.83 for DP-SGD with noise 1, rate 0.01, 1000 steps). Use figure() or accountant.epsilon()."
    )


def pld_of_masses(logs: NDArray[np.float64], shift: int, interval: float = 1e-4) -> Any:
    """Return dp-accounting's pessimistic privacy loss distribution of integer noise and a shift of one coordinate.

    logs: symmetric log-masses as ``masses`` returns them. Raises ParameterError without dp-accounting.
    """
    distribution = _library("dp_accounting.pld.privacy_loss_distribution")
    radius = logs.size // 2
    lower = {k - radius: float(log) for k, log in enumerate(logs)}
    upper = {k + shift: log for k, log in lower.items()}
    return distribution.from_two_probability_mass_functions(
        lower,
        upper,
        value_discretization_interval=interval,
        log_mass_truncation_bound=_LEAST_LOG_MASS,
        symmetric=True,
    )


def _is_gaussian(event: Event) -> bool:
    return isinstance(event, DiscreteGaussian) or (isinstance(event, SubsampledGaussian) and event.sample_rate == 1.0)


def _gaussian_cost(event: Event) -> float:
    """Return Σ (Δ₂/σ)², what adds up under composition of Gaussian mechanisms."""
    match event:
        case DiscreteGaussian(sigma=sigma, l2=l2, count=count):
            return count * (l2 / sigma) ** 2
        case SubsampledGaussian(noise_multiplier=multiplier, steps=steps, count=count):
            return steps * count / multiplier**2
        case _:
            raise ParameterError(f"{event!r} is not Gaussian; its cost does not add up as 1/σ².")


def _pld_refusal(events: Sequence[Event], fallback: float) -> str:
    """Return why no PLD is computed for these events, or "" where one is."""
    if not fallback <= _MOST_LOSS:
        return f"ε is above {_MOST_LOSS:g}: a privacy loss distribution would not be bounded in time"
    for event in events:
        match event:
            case DiscreteGaussian() | SubsampledGaussian():
                pass
            case Skellam(variance=variance) if _unit_shifts(event) and variance <= _MOST_SIGMA**2:
                pass
            case DiscreteGaussianSum(share_sigma=share, shares=shares) if (
                _unit_shifts(event) and share * math.sqrt(shares) <= _MOST_SIGMA
            ):
                pass
            case _:
                return f"no privacy loss distribution is known for {event!r}"
    if _compositions(events) > _MOST_STEPS:
        return f"{_compositions(events)} compositions are more than {_MOST_STEPS}, the most that is bounded in time"
    try:
        _library("dp_accounting.pld.privacy_loss_distribution")
    except ParameterError as error:
        return str(error)
    return ""


def _unit_shifts(event: Skellam | DiscreteGaussianSum) -> int:
    """Return how many coordinates a ballot can change by one, or 0 where a coordinate may change by more.

    An integer vector of squared length below 4 has entries in {-1, 0, 1}, so its loss is that of so many unit shifts.
    """
    squared = math.floor(event.l2**2 * (1 + 1e-12))
    return max(1, min(squared, math.floor(event.l1))) if squared <= 3 else 0


def _compositions(events: Sequence[Event]) -> int:
    return sum(event.count * (event.steps if isinstance(event, SubsampledGaussian) else 1) for event in events)


def _interval(events: Sequence[Event], fallback: float) -> float:
    """Return a grid step: rounding up adds about half a step per composition, and the grid's size is bounded.

    Continuous noise is rounded without that loss (Doroshenko 2022), so it takes the library's usual step.
    """
    discrete = [event for event in events if isinstance(event, Skellam | DiscreteGaussianSum)]
    coarse = min(1e-4, max(fallback * 1e-3, 1e-9))
    if not discrete:
        return coarse
    fine = max(fallback * 1e-3 / _compositions(discrete), fallback / _GRID_CELLS, 1e-9)
    return fine if len(discrete) == len(events) else max(fine, coarse / 10)


def _pld_epsilon(events: Sequence[Event], delta: float, interval: float) -> float:
    total: Any = None
    for event in events:
        one = _event_pld(event, interval)
        total = one if total is None else total.compose(one)
    return float(total.get_epsilon_for_delta(delta))


def _event_pld(event: Event, interval: float) -> Any:
    library = _library("dp_accounting.pld.privacy_loss_distribution")
    match event:
        case DiscreteGaussian():
            sigma = 1.0 / math.sqrt(_gaussian_cost(event))
            return library.from_gaussian_mechanism(sigma, value_discretization_interval=interval)
        case SubsampledGaussian(noise_multiplier=multiplier, sample_rate=rate, steps=steps, count=count):
            single = library.from_gaussian_mechanism(
                multiplier, value_discretization_interval=interval, sampling_prob=rate
            )
            return single.self_compose(steps * count)
        case Skellam(variance=variance, count=count):
            radius = math.ceil(14 * math.sqrt(variance)) + 60
            single = pld_of_masses(masses.skellam(variance, radius), 1, interval)
            return single.self_compose(count * _unit_shifts(event))
        case DiscreteGaussianSum(share_sigma=share, shares=shares, count=count):
            total = share * math.sqrt(shares)
            radius = math.ceil(14 * total) + 60
            near = divergences.kls_tau(share, shares) < 1e-30
            logs = masses.discrete_gaussian(total, radius) if near else masses.gaussian_sum(share, shares, radius)
            return pld_of_masses(logs, 1, interval).self_compose(count * _unit_shifts(event))
        case _:
            raise ParameterError(f"no privacy loss distribution is known for {event!r}.")


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ParameterError(
            "dp-accounting is not installed; install patevolve[accounting] for PLD figures."
        ) from error


def _pld_version() -> str:
    return f"dp-accounting {importlib.metadata.version('dp-accounting')} pld"


def _upper_tail(x: float) -> float:
    return 0.5 * math.erfc(x / math.sqrt(2.0))


def _log_upper_tail(x: float) -> float:
    """Return log P(N(0,1) > x); beyond 30 by the asymptotic series, whose error there is below 1e-12."""
    if x < 30.0:
        return math.log(_upper_tail(x))
    y = x * x
    return -y / 2 - math.log(x * math.sqrt(2 * math.pi)) + math.log1p(-1 / y + 3 / y**2 - 15 / y**3 + 105 / y**4)
