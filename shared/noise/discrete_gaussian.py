"""The discrete Gaussian N_Z(0, σ²): exact-law tables, a convolution for large σ, and the mechanism.

Convolution (after Micciancio-Walter 2017). Let X ~ N_Z(0, a²), Y ~ N_Z(0, b²), s an integer, σ² = s²a² + b². Then

    P(sX + Y = z)  ∝  Σ_j exp(-j²/2a²) exp(-(z-sj)²/2b²)  =  exp(-z²/2σ²) Σ_j exp(-(j-c)²/2τ²),

with τ = ab/σ and c = s a² z/σ². By Poisson summation the last sum is τ sqrt(2π) (1 + e(z)) with
|e(z)| <= 2 Σ_{m>=1} exp(-2π²τ²m²) < 3 exp(-2π²τ²). So the law of sX + Y is N_Z(0, σ²) up to factors within
(1 ± 3 exp(-2π²τ²)), and its total variation distance from it is below 6 exp(-2π²τ²). Here b = 3s and a > 3, so that
τ > 2.9 and the distance is below 1e-70.
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
from patevolve.shared.noise.tables import ONE, PRECISION, AliasTable
from patevolve.shared.privacy.events import DiscreteGaussian
from patevolve.shared.randomness import NoiseSource
from patevolve.shared.tally import ExactTally, IntVector, NoisyTally

LEAST_SIGMA = 0.25
MOST_SIGMA = 2.0**28
_DIRECT = 200.0  # the largest σ with a table of its own; beyond it two small tables are convolved
_CUT = 13.5  # standard deviations kept: the tail is below 1e-39


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GaussianSampler:
    """Draws of N_Z(0, σ²) as stretch·coarse + fine (or as fine alone). ``distance``: total variation per draw."""

    fine: AliasTable
    coarse: AliasTable | None
    stretch: int
    distance: float

    def draw(self, size: int, source: NoiseSource) -> IntVector:
        """Return ``size`` independent draws, (size,) int64, lattice units."""
        fine = self.fine.draw(size, source)
        return fine if self.coarse is None else fine + self.stretch * self.coarse.draw(size, source)


def sample(sigma: float, size: int, source: NoiseSource) -> IntVector:
    """Return ``size`` independent draws of N_Z(0, sigma²), (size,) int64, lattice units."""
    return sampler(sigma).draw(size, source)


@functools.lru_cache(maxsize=64, typed=True)  # True is not 1.0
def sampler(sigma: float) -> GaussianSampler:
    """Return the sampler of this σ (its tables are built once and kept).

    Raises ParameterError for σ outside [0.25, 2^28] lattice units.
    """
    if not LEAST_SIGMA <= checks.positive(sigma=sigma) <= MOST_SIGMA:
        raise ParameterError(f"sigma={sigma!r} found; expected {LEAST_SIGMA} to {MOST_SIGMA} lattice units.")
    variance = Fraction(sigma) ** 2
    if sigma <= _DIRECT:
        table = _table(variance)
        return GaussianSampler(fine=table, coarse=None, stretch=0, distance=table.distance)
    stretch = math.isqrt(int(sigma / 3))
    fine_variance = Fraction(9 * stretch**2)
    coarse_variance = (variance - fine_variance) / stretch**2
    tau_squared = float(fine_variance * coarse_variance / variance)
    fine, coarse = _table(fine_variance), _table(coarse_variance)
    smoothing = 6.0 * math.exp(-2.0 * math.pi**2 * tau_squared)
    distance = fine.distance + coarse.distance + smoothing
    return GaussianSampler(fine=fine, coarse=coarse, stretch=stretch, distance=distance)


def _table(variance: Fraction) -> AliasTable:
    """Return the table of N_Z(0, variance) cut at 13.5 standard deviations."""
    radius = math.ceil(_CUT * math.sqrt(variance)) + 1
    # w(k) = w(k-1)·r(k), r(k) = r(k-1)·exp(-1/σ²): each product is rounded down by less than one unit, so the error
    # of w(k) is below (k² + 2k) units; a table of 2^20 entries is right to 2^-(256-40) of the weight of 0.
    ratio, step = tables.fixed_exp(1 / (2 * variance)), tables.fixed_exp(1 / variance)
    weight, weights = ONE, [ONE]
    for _ in range(radius):
        weight = weight * ratio >> PRECISION
        ratio = ratio * step >> PRECISION
        weights.append(weight)
    return tables.mirrored(weights, tables.gaussian_tail(radius, float(variance)) + 2.0**-150)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteGaussianMechanism:
    """Add N_Z(0, sigma²) to every value. Costs ρ = l2²/2σ² (Canonne-Kamath-Steinke 2020, multivariate case).

    sigma: lattice units, 0.25 to 2^28;  l2: bound on one unit's ballot, lattice units
    """

    sigma: float
    l2: float

    def __post_init__(self) -> None:
        """Refuse parameters outside the sampler's domain, before anything is charged."""
        checks.positive(l2=self.l2)
        if not LEAST_SIGMA <= checks.positive(sigma=self.sigma) <= MOST_SIGMA:
            raise ParameterError(f"sigma={self.sigma!r} found; expected {LEAST_SIGMA} to {MOST_SIGMA} lattice units.")

    @property
    def sensitivity(self) -> Sensitivity:
        """The L2 bound alone matters."""
        return Sensitivity(l1=math.inf, l2=self.l2)

    @property
    def std(self) -> float:
        """σ: above σ = 1 the discrete Gaussian's standard deviation equals it to eight digits, and never exceeds it."""
        return self.sigma

    @property
    def unsafe(self) -> bool:
        """It protects."""
        return False

    def event(self, *, count: int = 1) -> DiscreteGaussian:
        """Return the cost of ``count`` releases."""
        return DiscreteGaussian(sigma=self.sigma, l2=self.l2, count=count)

    def delta(self, dimension: int, epsilon: float = 50.0) -> float:
        """Return what the sampler's bias adds to δ for ``dimension`` values, for guarantees up to ``epsilon``."""
        values = checks.integer(dimension=dimension, at_least=1)
        return delta_from_distance(values * sampler(self.sigma).distance, epsilon)

    def release(self, exact: ExactTally, source: NoiseSource) -> NoisyTally:
        """Return the tally with fresh noise. Charge ``event()`` first. Raises ParameterError beyond the bounds."""
        check_tally(exact, self.sensitivity)
        return add_noise(exact, sampler(self.sigma).draw(exact.values.size, source), self.std)
