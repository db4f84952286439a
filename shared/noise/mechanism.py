"""What a mechanism is: the sensitivity it assumes, the event it costs, and the release.

A caller charges ``event()`` to the ledger and commits it before it calls ``release``; a mechanism knows no ledger.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import NoReturn, Protocol

import numpy as np

from patevolve.shared import checks
from patevolve.shared.errors import ParameterError, UnsupportedEventError
from patevolve.shared.privacy.events import Event
from patevolve.shared.randomness import NoiseSource
from patevolve.shared.tally import ExactTally, IntVector, NoisyTally

_LOG = logging.getLogger(__name__)
_LARGEST_EXPONENT = 700.0  # exp of more is near the end of double precision
_HALF_RANGE = 2**62  # exact values and noise below this cannot overflow int64 together
# A bound rounded to the nearest float may exceed the same bound computed along another path by a few ulp.
_ROUNDING = 1 + 2**-40


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """Bounds on one unit's ballot, lattice units: what a mechanism assumes. Infinity: the mechanism does not care."""

    l1: float
    l2: float


class Mechanism(Protocol):
    """Integer noise for one tally. Implementations are frozen values; secret randomness is an argument."""

    @property
    def sensitivity(self) -> Sensitivity:
        """Bounds on one unit's ballot that the cost assumes."""

    @property
    def std(self) -> float:
        """Standard deviation of the noise that one release adds to each value, lattice units."""

    @property
    def unsafe(self) -> bool:
        """Whether the mechanism protects nobody."""

    def event(self, *, count: int = 1) -> Event:
        """Return the cost of ``count`` releases."""

    def delta(self, dimension: int, epsilon: float = 50.0) -> float:
        """Return what the sampler's distance from its ideal law adds to δ, for guarantees up to ``epsilon``."""

    def release(self, exact: ExactTally, source: NoiseSource) -> NoisyTally:
        """Return the tally with fresh noise. Charge first. Raises ParameterError for a tally beyond the bounds."""


def check_tally(exact: ExactTally, assumed: Sensitivity) -> None:
    """Refuse a tally whose stated ballot bounds exceed what the mechanism was calibrated for.

    Written so that a NaN bound is refused. Raises ParameterError.
    """
    within = exact.l1 <= assumed.l1 * _ROUNDING and exact.l2 <= assumed.l2 * _ROUNDING  # label: noise-precondition
    if not (within and exact.l1 >= 0 and exact.l2 >= 0):
        raise ParameterError(
            f"a tally with ballot bounds l1={exact.l1}, l2={exact.l2} found; the mechanism assumes at most "
            f"l1={assumed.l1}, l2={assumed.l2}. Bound the ballots or calibrate the mechanism for them."
        )
    if exact.values.dtype != np.int64 or exact.values.ndim != 1:
        raise ParameterError(
            f"tally values of type {exact.values.dtype}, {exact.values.ndim} axes found; expected one int64 vector."
        )
    if exact.values.size and max(-int(exact.values.min()), int(exact.values.max())) >= _HALF_RANGE:
        raise ParameterError("tally values of 2**62 or more found; use a coarser lattice.")


def add_noise(exact: ExactTally, noise: IntVector, std: float) -> NoisyTally:
    """Return exact + noise as a new tally; ``exact`` is left as it was.

    Raises ParameterError where noise could overflow int64 (it would wrap, and no proof covers that).
    """
    if noise.shape != exact.values.shape:
        raise ParameterError(f"noise of shape {noise.shape} found; expected {exact.values.shape}.")
    if noise.size and max(-int(noise.min()), int(noise.max())) >= _HALF_RANGE:
        raise ParameterError("noise of 2**62 or more found; use a coarser lattice.")
    return NoisyTally(values=exact.values + noise, std=std)  # label: noise-add


def delta_from_distance(distance: float, epsilon: float) -> float:
    """Return (1 + exp(ε))·distance: the δ that a total variation distance between real and ideal noise costs.

    If M is (ε, δ)-DP and M' lies within ``distance`` of it on every data set, M' is (ε, δ + (1 + exp(ε))·distance)-DP.
    Never above 1, which promises nothing.
    """
    if checks.non_negative(epsilon=epsilon) > _LARGEST_EXPONENT:
        return 1.0 if distance > 0.0 else 0.0
    return min(1.0, float((1.0 + np.exp(epsilon)) * distance))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsafeNoNoise:
    """No noise at all, for tests and for measuring what noise costs. It protects nobody and says so each time."""

    @property
    def sensitivity(self) -> Sensitivity:
        """No bound would help."""
        return Sensitivity(l1=np.inf, l2=np.inf)

    @property
    def std(self) -> float:
        """There is no noise."""
        return 0.0

    @property
    def unsafe(self) -> bool:
        """Reports carry a mark when this is true."""
        return True

    def event(self, *, count: int = 1) -> NoReturn:
        """Raise UnsupportedEventError: the cost is infinite, and no ledger may hold it."""
        raise UnsupportedEventError(
            f"UnsafeNoNoise asked for the cost of {count} releases; it is infinite. Use a mechanism with noise."
        )

    def delta(self, dimension: int, epsilon: float = 50.0) -> float:
        """Return 1: no guarantee of any δ."""
        del dimension, epsilon
        return 1.0

    def release(self, exact: ExactTally, source: NoiseSource) -> NoisyTally:
        """Return the exact values unprotected, and log a warning."""
        del source
        check_tally(exact, self.sensitivity)
        _LOG.warning("UnsafeNoNoise released %d exact values: nobody is protected", exact.values.size)
        return NoisyTally(values=exact.values.copy(), std=self.std)
