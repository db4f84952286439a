"""One step of DP-SGD: a secret Poisson sample of the units, clipped vectors, integer Gaussian noise on their sum.

At whole orders α the Rényi divergence of this step is exactly that of the continuous subsampled Gaussian (Mironov,
Talwar and Zhang 2019): expanded by the binomial theorem, each term is a moment Σₓ exp(−x²/2σ² + k(2xΔ − Δ²)/2σ²), and
shifting the lattice by the whole number kΔ leaves the sum unchanged. Between whole orders the difference is
exp(−2π²σ²), beyond any float for σ of thousands of lattice steps. Everything is drawn from the operating system's
generator: a sample that can be guessed amplifies nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patevolve.shared import checks
from patevolve.shared.errors import ParameterError
from patevolve.shared.noise.discrete_gaussian import sample
from patevolve.shared.noise.mechanism import Sensitivity
from patevolve.shared.privacy.events import SubsampledGaussian
from patevolve.shared.randomness import NoiseSource

LATTICE = 1 << 20  # integer steps per clipping bound
SLACK = 2.0**-10  # of a clipping bound: what the arithmetic of a sum formed elsewhere may move it beyond the bound
MOST_UNITS = 1 << 30  # in one sum: its lattice steps stay whole numbers that a double holds exactly


@dataclass(frozen=True, slots=True, kw_only=True)
class SubsampledGaussianStep:
    """A step of DP-SGD on one vector per unit.

    noise_multiplier:  noise standard deviation per clipping bound
    sample_rate:       probability with which each unit enters the step
    clip:              L2 bound to which each unit's vector is clipped
    """

    noise_multiplier: float
    sample_rate: float
    clip: float

    def __post_init__(self) -> None:
        """Refuse parameters outside their domains, before anything is charged."""
        checks.positive(noise_multiplier=self.noise_multiplier)
        checks.positive(clip=self.clip)
        if not checks.positive(sample_rate=self.sample_rate) <= 1.0:
            raise ParameterError(f"sample_rate={self.sample_rate!r} found; expected a number in (0, 1].")

    @property
    def sensitivity(self) -> Sensitivity:
        """What one unit can change in the sum, in lattice steps."""
        return Sensitivity(l1=math.inf, l2=float(LATTICE))

    @property
    def std(self) -> float:
        """Standard deviation of the noise in each coordinate of a released sum."""
        return self.noise_multiplier * self.clip

    def event(self, *, count: int = 1) -> SubsampledGaussian:
        """Return the cost of ``count`` steps; charge it before the sample is drawn."""
        return SubsampledGaussian(noise_multiplier=self.noise_multiplier, sample_rate=self.sample_rate, steps=count)

    def sample(self, units: int, source: NoiseSource) -> NDArray[np.bool_]:
        """Return which of (units,) enter this step, each independently; possibly none. The sample stays at the site.

        The rate is rounded down to 64 bits, which can only lower the cost.
        """
        count = checks.integer(units=units, at_least=0)
        words = np.frombuffer(source.read(8 * count), np.uint64)
        threshold = int(self.sample_rate * 2.0**64)
        if threshold >= 1 << 64:
            return np.ones(count, bool)
        return words < np.uint64(threshold)  # label: poisson-sample

    def release(self, vectors: NDArray[np.float64], source: NoiseSource) -> NDArray[np.float64]:
        """Return the noisy sum (d,) of the sampled units' vectors (b, d); b = 0 is a legal step of noise alone.

        A vector longer than ``clip`` is scaled down; a vector with a number that is not finite counts as zero.
        """
        if vectors.ndim != 2 or vectors.shape[1] < 1:
            raise ParameterError(
                f"vectors of shape {vectors.shape} found; expected one row per sampled unit (b, d ≥ 1)."
            )
        room = LATTICE - 1 - math.sqrt(vectors.shape[1]) / 2  # 1: far more than the float error of the division
        if not room >= LATTICE / 2:
            raise ParameterError(f"vectors of {vectors.shape[1]} numbers found; expected at most {LATTICE**2}.")
        finite = np.where(np.isfinite(vectors).all(axis=1, keepdims=True), vectors, 0.0)
        # Scaled by the largest entry first: the square of a huge number must not overflow into a norm of infinity.
        largest = np.maximum(np.abs(finite).max(axis=1, initial=0.0, keepdims=True), self.clip)
        norms = np.linalg.norm(finite / largest, axis=1, keepdims=True)
        unit = finite / largest / np.maximum(norms, self.clip / largest)  # label: gradient-clip
        steps = np.rint(unit * room).astype(np.int64)  # label: gradient-round
        noise = sample(self.noise_multiplier * LATTICE, vectors.shape[1], source)
        released: NDArray[np.float64] = (steps.sum(axis=0) + noise) * (self.clip / room)
        return released

    def release_sum(self, total: NDArray[np.float64], units: int, source: NoiseSource) -> NDArray[np.float64]:
        """Return the noisy sum (d,) of vectors that were clipped and added up before, as ghost clipping does.

        total:  (d,) the sum over the ``units`` sampled units; zeros for none of them
        Precondition: one unit more or less moves ``total`` by at most ``clip`` times 1 + SLACK in L2 norm.

        Raises ParameterError, before any noise is drawn, for a sum that no such vectors can have.
        """
        count = checks.integer(units=units, at_least=0, at_most=MOST_UNITS)
        if total.ndim != 1 or not 1 <= len(total) <= LATTICE**2 // 4:
            raise ParameterError(f"a sum of shape {total.shape} found; expected (d,) with 1 ≤ d ≤ {LATTICE**2 // 4}.")
        norm = float(np.linalg.norm(total))
        if not norm <= self.clip * count * (1 + 2 * SLACK):  # NaN and infinity are at most nothing
            raise ParameterError(
                f"a sum of norm {norm:.3g} found; {count} vectors clipped to {self.clip:g} "
                f"cannot have it. Clip each unit's gradient."
            )
        room = (LATTICE - 1 - math.sqrt(len(total))) / (1 + SLACK)
        steps = np.rint(total * (room / self.clip)).astype(np.int64)  # label: sum-round
        noise = sample(self.noise_multiplier * LATTICE, len(total), source)
        return np.asarray((steps + noise) * (self.clip / room), np.float64)
