"""Symmetric Skellam noise: the difference of two Poisson variables, closed under sums (Agarwal-Kairouz-Liu 2021).

The sum of n shares of variance μ/n is exactly Skellam of variance μ, which discrete Gaussians achieve only nearly.
Masses exp(-μ) I_|k|(μ) come from Miller's downward recurrence I_{k-1} = I_{k+1} + (2k/μ) I_k in exact integers.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction

from patevolve.shared import checks
from patevolve.shared.errors import ParameterError
from patevolve.shared.noise import tables
from patevolve.shared.noise.mechanism import Sensitivity, add_noise, check_tally, delta_from_distance
from patevolve.shared.noise.tables import AliasTable
from patevolve.shared.privacy.events import Skellam
from patevolve.shared.randomness import NoiseSource
from patevolve.shared.tally import ExactTally, IntVector, NoisyTally

LEAST_VARIANCE = 0.25
MOST_VARIANCE = 3.0e4**2
_TAIL = 2.0**-130


def sample(variance: float, size: int, source: NoiseSource) -> IntVector:
    """Return ``size`` independent Skellam draws of this variance, (size,) int64, lattice units."""
    return sampler(variance).draw(size, source)


@functools.lru_cache(maxsize=64, typed=True)  # True is not 1.0
def sampler(variance: float) -> AliasTable:
    """Return the table of the Skellam law of this variance (built once and kept).

    Started at 0 for K+1 and 1 for K, the recurrence yields, up to a common factor, I_k ± I_{K+1} K_k(μ)/K_{K+1}(μ): the
    second solution K_k grows with k, so each mass is off by less than that of K+1. Rounding loses less than one of at
    least 2^256 units in each of at most 2^19 steps.
    Raises ParameterError for variances outside [0.25, 9e8].
    """
    mu = _checked_variance(variance)
    radius = _radius(mu)
    step = 2 / Fraction(mu)
    beyond, current = 0, tables.ONE
    weights = [current]
    for k in range(radius, 0, -1):
        beyond, current = current, beyond + current * (step.numerator * k) // step.denominator
        weights.append(current)
    # One bound serves for the mass cut on both sides and for the recurrence's own error at each entry.
    lost = _tail(radius, mu) * (2 + 2 * radius) + 2.0**-150
    return tables.mirrored(_shortened(weights[::-1]), lost)


def _shortened(weights: list[int]) -> list[int]:
    """Drop low bits that the masses cannot use: weights grow to thousands of bits on the way to the centre."""
    surplus = max(0, weights[0].bit_length() - tables.PRECISION)
    return [weight >> surplus for weight in weights]


def _tail(radius: int, mu: float) -> float:
    """Return the Chernoff bound on P(|X| > radius), 2 exp(-μ h(k/μ)), h(u) = u asinh(u) - sqrt(1+u²) + 1."""
    u = (radius + 1) / mu
    # sqrt(1+u²) - 1 without cancellation for small u
    exponent = mu * (u * math.asinh(u) - u * u / (math.sqrt(1.0 + u * u) + 1.0))
    return 2.0 * math.exp(-exponent)


def _radius(mu: float) -> int:
    """Return the least multiple of σ/4 (at least 1) beyond which the mass is below 2^-130."""
    step = max(1, int(math.sqrt(mu) / 4))
    radius = step
    while _tail(radius, mu) > _TAIL / (4 * radius):
        radius += step
    return radius


def _checked_variance(variance: float) -> float:
    if not LEAST_VARIANCE <= checks.positive(variance=variance) <= MOST_VARIANCE:
        raise ParameterError(f"variance={variance!r} found; expected {LEAST_VARIANCE} to {MOST_VARIANCE}.")
    return float(variance)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkellamMechanism:
    """Add Skellam noise of this variance to every value.

    variance: lattice units squared, 0.25 to 9e8;  l1, l2: bounds on one unit's ballot, lattice units
    """

    variance: float
    l1: float
    l2: float

    def __post_init__(self) -> None:
        """Refuse parameters outside the sampler's domain, before anything is charged."""
        checks.positive(l1=self.l1)
        checks.positive(l2=self.l2)
        _checked_variance(self.variance)

    @property
    def sensitivity(self) -> Sensitivity:
        """Both bounds enter the cost."""
        return Sensitivity(l1=self.l1, l2=self.l2)

    @property
    def std(self) -> float:
        """Return the square root of the variance, lattice units."""
        return math.sqrt(self.variance)

    @property
    def unsafe(self) -> bool:
        """It protects."""
        return False

    def event(self, *, count: int = 1) -> Skellam:
        """Return the cost of ``count`` releases."""
        return Skellam(variance=self.variance, l1=self.l1, l2=self.l2, count=count)

    def delta(self, dimension: int, epsilon: float = 50.0) -> float:
        """Return what the sampler's bias adds to δ for ``dimension`` values, for guarantees up to ``epsilon``."""
        values = checks.integer(dimension=dimension, at_least=1)
        return delta_from_distance(values * sampler(self.variance).distance, epsilon)

    def release(self, exact: ExactTally, source: NoiseSource) -> NoisyTally:
        """Return the tally with fresh noise. Charge ``event()`` first. Raises ParameterError beyond the bounds."""
        check_tally(exact, self.sensitivity)
        return add_noise(exact, sampler(self.variance).draw(exact.values.size, source), self.std)
