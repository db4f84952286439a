"""Release a data-dependent PATE cost with noise and a charge of its own (the only way it leaves a site).

Two noisy values are drawn: the cost β(D) with Gaussian noise scaled by its smooth sensitivity S (Papernot 2018,
Theorem 23), and log S, whose global sensitivity is the smoothness b. From both follows a figure that exceeds β(D) with
stated confidence: the published noisy cost alone is too low half of the time. (The idea of an upper bound by a noisy
log S: Redberg and Wang 2021.)

The figure describes D(M(D) ‖ M(D')) on this site's data. It is no substitute for the charge of the ledger.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from patevolve.shared import checks
from patevolve.shared.errors import ParameterError
from patevolve.shared.noise import discrete_gaussian
from patevolve.shared.privacy import accountant, pate_smooth
from patevolve.shared.privacy.events import DiscreteGaussian, SmoothSensitivityRelease

if TYPE_CHECKING:
    from patevolve.shared.privacy.events import Event
    from patevolve.shared.privacy.site_only import SiteOnly
    from patevolve.shared.privacy.tails import FloatArray
    from patevolve.shared.randomness import NoiseSource

_LEAST_SENSITIVITY = 2.0**-60  # a constant floor keeps S smooth and its logarithm finite


@dataclass(frozen=True, slots=True, kw_only=True)
class SanitisedPlan:
    """How the cost will be released; every field is public and fixed before the votes are seen.

    order:       the one Rényi order at which the cost is released, 1 < order < 1/(2·smoothness)
    smoothness:  b of the smooth sensitivity
    noise:       standard deviation of the cost's noise in units of S
    log_noise:   standard deviation of the noise on log S in units of b (a discrete Gaussian, >= 0.25)
    failure:     probability with which the released upper figure is below the true cost
    """

    order: float
    smoothness: float
    noise: float
    log_noise: float = 20.0
    failure: float = 1e-2

    def __post_init__(self) -> None:
        """Refuse parameters outside the theorem's domain, before anything is charged."""
        pate_smooth.gnss_rdp(self.smoothness, self.noise, self.order)
        checks.positive(log_noise=self.log_noise)
        checks.open_unit(failure=self.failure)

    def events(self) -> tuple[Event, ...]:
        """Return the charges of the release: the cost's noise, and the noise on log S."""
        cost = SmoothSensitivityRelease(beta=self.smoothness, sigma=self.noise)
        return cost, DiscreteGaussian(sigma=self.log_noise, l2=1.0)

    def rdp(self) -> float:
        """Return what the release itself costs at its order."""
        return float(accountant.compose(self.events(), (self.order,))[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class SanitisedCost:
    """A released, noisy data-dependent cost. All fields are public.

    noisy:        the cost β(D) plus noise, unbiased
    upper:        exceeds β(D) with the plan's confidence; never above the data-independent cost
    release_rdp:  what the release cost
    epsilon:      (ε, δ) from upper + release_rdp at the one order
    """

    noisy: float
    upper: float
    release_rdp: float
    order: float
    delta: float
    epsilon: float


def sanitise(
    cost: SiteOnly[float],
    sensitivities: SiteOnly[FloatArray],
    plan: SanitisedPlan,
    *,
    sigmas: tuple[float, ...],
    classes: int,
    independent: float,
    delta: float,
    source: NoiseSource,
) -> SanitisedCost:
    """Return the released figure. Charge ``plan.events()`` and commit first.

    cost:           β(D), the data-dependent cost at the plan's order
    sensitivities:  bounds on its local sensitivity by distance (``pate_smooth.total_sensitivity``)
    sigmas:         the GNMax noise levels in the run; conditions C5 and C6 must hold for each
    independent:    the data-independent cost of the same run at that order (public)
    Raises ParameterError where a condition fails, before noise is drawn.
    """
    for sigma in sigmas:
        if not all(pate_smooth.conditions_hold(sigma, classes, plan.order)):
            raise ParameterError(
                f"sigma={sigma}, classes={classes}, order={plan.order} found; conditions C5 and C6 of the smooth "
                f"sensitivity do not hold there. Choose another order."
            )
    cap = checks.positive(independent=independent)
    smooth = pate_smooth.discounted_maximum(plan.smoothness, sensitivities.open_at_site())
    smooth = max(smooth, _LEAST_SENSITIVITY)
    noisy = cost.open_at_site() + smooth * plan.noise * _normal(source)
    noisy = _rounded(noisy, cap)
    # ⌈log S / b⌉ changes by at most 1 between neighbours: S is b-smooth, and ⌈·⌉ is monotone with ⌈x + 1⌉ = ⌈x⌉ + 1.
    steps = math.ceil(math.log(smooth) / plan.smoothness)
    steps += int(discrete_gaussian.sampler(plan.log_noise).draw(1, source)[0])
    # Both noises are subgaussian: Pr[Z > zσ] <= e^(−z²/2), and each may fail with half of the stated probability.
    z = math.sqrt(2.0 * math.log(2.0 / plan.failure))
    largest = math.exp(min(plan.smoothness * (steps + z * plan.log_noise), 700.0))
    upper = min(max(noisy + z * plan.noise * largest, 0.0), cap)
    total = upper + plan.rdp()
    epsilon = accountant.epsilon(np.array([total]), delta, (plan.order,)).epsilon
    return SanitisedCost(
        noisy=noisy, upper=upper, release_rdp=plan.rdp(), order=plan.order, delta=delta, epsilon=epsilon
    )


def _normal(source: NoiseSource) -> float:
    """Return a standard normal draw (Box-Muller) from 128 fresh bits. Not for votes: those are integers."""
    bits = int.from_bytes(source.read(16), "little")
    radius, angle = (bits >> 64) + 1, bits & (2**64 - 1)
    return math.sqrt(-2.0 * math.log(radius / 2**64)) * math.cos(2.0 * math.pi * angle / 2**64)


def _rounded(value: float, cap: float) -> float:
    """Round to a public grid, 2⁻²⁰ of the data-independent cost: the low bits of a float sum tell its summands apart.

    Theorem 23 is about real numbers. Rounding is post-processing of them; what remains beyond it is the error of
    double-precision Box-Muller, 2⁻⁵³ relative, far below the grid.
    """
    grid = cap * 2.0**-20
    return round(value / grid) * grid
