"""Noise shares: each site adds a part, and the sum over the sites is what protects.

With n sites, at most d drop-outs and at most t colluders, n - d - t honest shares are certain to be in the sum that
anyone sees; each is sized S/sqrt(n - d - t) for a total of standard deviation S.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patevolve.shared import checks
from patevolve.shared.errors import ParameterError
from patevolve.shared.noise import discrete_gaussian
from patevolve.shared.noise.discrete_gaussian import MOST_SIGMA
from patevolve.shared.noise.mechanism import Sensitivity, add_noise, check_tally, delta_from_distance
from patevolve.shared.privacy import divergences, masses
from patevolve.shared.privacy.events import DiscreteGaussianSum
from patevolve.shared.randomness import NoiseSource
from patevolve.shared.tally import ExactTally, NoisyTally

LEAST_SHARE = 2.0  # lattice units; below it the sum's own cost is visibly above the Gaussian's
_NEGLIGIBLE_TAU = 1e-30


def honest_shares(*, sites: int, dropouts: int, colluders: int) -> int:
    """Return n - d - t, the shares that are in every sum and unknown to the colluders.

    Raises ParameterError unless at least one is left.
    """
    n = checks.integer(sites=sites, at_least=1)
    honest = n - checks.integer(dropouts=dropouts, at_least=0) - checks.integer(colluders=colluders, at_least=0)
    if honest < 1:
        raise ParameterError(
            f"{n} sites less {dropouts} drop-outs less {colluders} colluders leave {honest} honest; expected >= 1."
        )
    return honest


def share_sigma(*, total_sigma: float, sites: int, dropouts: int, colluders: int) -> float:
    """Return the standard deviation of one site's share: total_sigma/sqrt(n - d - t), lattice units.

    Raises ParameterError for shares below 2, where the sum of discrete Gaussians stops being like one.
    """
    honest = honest_shares(sites=sites, dropouts=dropouts, colluders=colluders)
    share = checks.positive(total_sigma=total_sigma) / math.sqrt(honest)  # label: share-size
    if not LEAST_SHARE <= share <= MOST_SIGMA:
        raise ParameterError(
            f"a noise share of {share:.4g} lattice units found ({total_sigma} over {honest} honest sites); expected "
            f"{LEAST_SHARE} to {MOST_SIGMA}. Use a finer lattice or fewer sites."
        )
    return share


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteGaussianShare:
    """One site's share of a discrete Gaussian sum, released only into a secure sum of at least n - d reporters.

    total_sigma:       what n - d - t honest shares add up to, lattice units
    l1, l2, dimension: bounds on one unit's ballot, and its length
    """

    total_sigma: float
    sites: int
    dropouts: int
    colluders: int
    l1: float
    l2: float
    dimension: int

    def __post_init__(self) -> None:
        """Refuse parameters outside the theorem's and the sampler's domain, before anything is charged."""
        self.share_sigma  # noqa: B018 - the property validates the shares
        checks.positive(l1=self.l1)
        checks.positive(l2=self.l2)
        checks.integer(dimension=self.dimension, at_least=1)

    @property
    def share_sigma(self) -> float:
        """Standard deviation of this site's share, lattice units."""
        return share_sigma(
            total_sigma=self.total_sigma, sites=self.sites, dropouts=self.dropouts, colluders=self.colluders
        )

    @property
    def least_reporters(self) -> int:
        """The number of reporters under which the sum must be abandoned."""
        return self.sites - self.dropouts

    @property
    def sensitivity(self) -> Sensitivity:
        """Both bounds enter the cost of a sum of discrete Gaussians."""
        return Sensitivity(l1=self.l1, l2=self.l2)

    @property
    def std(self) -> float:
        """Standard deviation of the one share that a release adds (not of the sum)."""
        return self.share_sigma

    @property
    def unsafe(self) -> bool:
        """It protects, as long as only the sum is seen."""
        return False

    def event(self, *, count: int = 1) -> DiscreteGaussianSum:
        """Return the cost of ``count`` sums to the coordinator with t colluders, at the least number of reporters."""
        honest = honest_shares(sites=self.sites, dropouts=self.dropouts, colluders=self.colluders)
        return self._sum(honest, count)  # label: share-worst-case

    def exposed_event(self, *, count: int = 1) -> DiscreteGaussianSum:
        """Return the cost when this site's share alone protects: a second cohort, or an unmasked value."""
        return self._sum(1, count)

    def delta(self, dimension: int, epsilon: float = 50.0) -> float:
        """Return what the biases of all honest shares add to δ, for guarantees up to ``epsilon``."""
        values = checks.integer(dimension=dimension, at_least=1)
        distance = values * self.sites * discrete_gaussian.sampler(self.share_sigma).distance
        return delta_from_distance(distance, epsilon)

    def release(self, exact: ExactTally, source: NoiseSource) -> NoisyTally:
        """Return the tally with one fresh share, to be masked before it leaves. Charge ``event()`` first."""
        check_tally(exact, self.sensitivity)
        if exact.values.size > self.dimension:
            raise ParameterError(f"a tally of {exact.values.size} values found; expected at most {self.dimension}.")
        draws = discrete_gaussian.sampler(self.share_sigma).draw(exact.values.size, source)  # label: share-draw
        return add_noise(exact, draws, self.std)

    def _sum(self, shares: int, count: int) -> DiscreteGaussianSum:
        return DiscreteGaussianSum(
            share_sigma=self.share_sigma,
            shares=shares,
            l2=self.l2,
            l1=self.l1,
            dimension=self.dimension,
            count=count,
        )


def exact_sum_rdp(*, share_sigma: float, shares: int, shift: int, orders: Sequence[float]) -> NDArray[np.float64]:
    """Return the Rényi divergence, from the convolved masses, between a sum of shares and itself shifted by ``shift``.

    One coordinate; the masses are kept to 8 standard deviations beyond order·shift, where the integrand peaks. Where
    τ < 1e-30 the sum is a discrete Gaussian to double precision and is evaluated as one.
    Raises ParameterError for orders <= 1 and for sums too wide to convolve.
    """
    if not all(checks.finite(order=order) > 1.0 for order in orders):
        raise ParameterError(f"orders={list(orders)} found; expected numbers > 1.")
    jump = checks.integer(shift=shift, at_least=1)
    total = checks.positive(share_sigma=share_sigma) * math.sqrt(checks.integer(shares=shares, at_least=1))
    radius = math.ceil(max(orders) * jump + 14 * total) + 60
    if divergences.kls_tau(share_sigma, shares) < _NEGLIGIBLE_TAU:
        logs = masses.discrete_gaussian(total, radius)
    else:
        logs = masses.gaussian_sum(share_sigma, shares, radius)
    return masses.shift_divergence(logs, jump, np.asarray(orders, dtype=np.float64))
