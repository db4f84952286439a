"""The discrete Laplace law, P(k) proportional to exp(-|k|/scale): tables, an exact decomposition, the mechanism.

Decomposition. Let q = exp(-1/scale). The law is that of G - G' for independent geometric G, G' with
P(G = g) = (1-q) q^g. And G = sA + B exactly, with independent A, P(A = a) proportional to q^(sa), and B in 0..s-1,
P(B = b) proportional to q^b: the factors of q^(sa+b). So two small tables serve any scale.
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
from patevolve.shared.privacy.events import DiscreteLaplace
from patevolve.shared.randomness import NoiseSource
from patevolve.shared.tally import ExactTally, IntVector, NoisyTally

LEAST_SCALE = 0.05
MOST_SCALE = 2.0**20
_DIRECT = 64.0  # the largest scale with a table of its own
_CUT = 90.0  # scales kept: the tail is below exp(-90) < 1e-39


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaplaceSampler:
    """Draws of the discrete Laplace law from one table, or as the difference of two geometric draws."""

    fine: AliasTable
    coarse: AliasTable | None
    stretch: int
    distance: float

    def draw(self, size: int, source: NoiseSource) -> IntVector:
        """Return ``size`` independent draws, (size,) int64, lattice units."""
        if self.coarse is None:
            return self.fine.draw(size, source)
        both = self.fine.draw(2 * size, source) + self.stretch * self.coarse.draw(2 * size, source)
        return both[:size] - both[size:]


def sample(scale: float, size: int, source: NoiseSource) -> IntVector:
    """Return ``size`` independent draws of the discrete Laplace law, (size,) int64, lattice units."""
    return sampler(scale).draw(size, source)


@functools.lru_cache(maxsize=64, typed=True)  # True is not 1.0
def sampler(scale: float) -> LaplaceSampler:
    """Return the sampler of this scale (its tables are built once and kept).

    Raises ParameterError for scales outside [0.05, 2^20] lattice units.
    """
    rate = 1 / Fraction(_checked_scale(scale))
    if scale <= _DIRECT:
        weights = _geometric(rate, math.ceil(_CUT * scale) + 2)
        table = tables.mirrored(weights, _lost(len(weights), scale))
        return LaplaceSampler(fine=table, coarse=None, stretch=0, distance=table.distance)
    stretch = math.ceil(math.sqrt(_CUT * scale))
    fine = tables.build(_geometric(rate, stretch), offset=0, lost=2.0**-150)
    coarse_scale = scale / stretch
    weights = _geometric(rate * stretch, math.ceil(_CUT * coarse_scale) + 2)
    coarse = tables.build(weights, offset=0, lost=_lost(len(weights), coarse_scale))
    distance = 2.0 * (fine.distance + coarse.distance)
    return LaplaceSampler(fine=fine, coarse=coarse, stretch=stretch, distance=distance)


def _geometric(rate: Fraction, size: int) -> list[int]:
    """Return exp(-rate·k) for k = 0 .. size-1 in fixed point; entry k is low by less than k + 1 units."""
    step, weight, weights = tables.fixed_exp(rate), ONE, []
    for _ in range(size):
        weights.append(weight)
        weight = weight * step >> PRECISION
    return weights


def _lost(size: int, scale: float) -> float:
    """Return a bound on the mass beyond the table, exp(-size/scale) on each side, and on rounding."""
    return 2.0 * math.exp(-size / scale) + 2.0**-150


def _checked_scale(scale: float) -> float:
    if not LEAST_SCALE <= checks.positive(scale=scale) <= MOST_SCALE:
        raise ParameterError(f"scale={scale!r} found; expected {LEAST_SCALE} to {MOST_SCALE} lattice units.")
    return float(scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteLaplaceMechanism:
    """Add discrete Laplace noise to every value: pure DP with ε = l1/scale (Ghosh-Roughgarden-Sundararajan 2009).

    scale: lattice units, 0.05 to 2^20;  l1: bound on one unit's ballot, lattice units
    """

    scale: float
    l1: float

    def __post_init__(self) -> None:
        """Refuse parameters outside the sampler's domain, before anything is charged."""
        checks.positive(l1=self.l1)
        _checked_scale(self.scale)

    @property
    def sensitivity(self) -> Sensitivity:
        """The L1 bound alone matters."""
        return Sensitivity(l1=self.l1, l2=math.inf)

    @property
    def std(self) -> float:
        """Return sqrt(2q)/(1-q), q = exp(-1/scale), lattice units."""
        return math.sqrt(2.0 * math.exp(-1.0 / self.scale)) / -math.expm1(-1.0 / self.scale)

    @property
    def unsafe(self) -> bool:
        """It protects."""
        return False

    def event(self, *, count: int = 1) -> DiscreteLaplace:
        """Return the cost of ``count`` releases."""
        return DiscreteLaplace(scale=self.scale, l1=self.l1, count=count)

    def delta(self, dimension: int, epsilon: float = 50.0) -> float:
        """Return what the sampler's bias adds to δ for ``dimension`` values, for guarantees up to ``epsilon``."""
        values = checks.integer(dimension=dimension, at_least=1)
        return delta_from_distance(values * sampler(self.scale).distance, epsilon)

    def release(self, exact: ExactTally, source: NoiseSource) -> NoisyTally:
        """Return the tally with fresh noise. Charge ``event()`` first. Raises ParameterError beyond the bounds."""
        check_tally(exact, self.sensitivity)
        return add_noise(exact, sampler(self.scale).draw(exact.values.size, source), self.std)
