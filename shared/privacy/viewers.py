"""Who sees what, and whose loss it is: curves for records, patients and institutions, to two viewers.

The coordinator with up to t colluding sites sees the sums before anyone else and knows the colluders' own noise; the
public sees what was released. The public's curve never exceeds the coordinator's: it sees a function of the same sums.
Shared tallies concern every site, so their costs add up. Mechanisms that touch one site's data alone run on disjoint
data: the curve is the pointwise maximum over sites, or the sum of the k largest for patients known to k sites.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patevolve.shared import checks
from patevolve.shared.errors import ParameterError
from patevolve.shared.privacy import accountant
from patevolve.shared.privacy.events import DiscreteGaussianSum, Event, Exponential, SubsampledGaussian

Curve = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """What a run exposed, all of it one ballot per unit.

    shared: events whose noised sum spans all sites, as the coordinator with its colluders sees them
    local:  events of each site's own data, by site
    """

    shared: tuple[Event, ...]
    local: Mapping[str, tuple[Event, ...]]


def coordinator_view(event: Event) -> Event:
    """Return the event as the coordinator and its t colluders see it: as charged."""
    return event


def public_view(event: Event, *, colluders: int) -> Event:
    """Return the event as someone without a share sees it: the colluders' shares protect too.

    Sums of shares gain ``colluders`` shares; every other event costs the same to both viewers.
    """
    extra = checks.integer(colluders=colluders, at_least=0)
    match event:
        case DiscreteGaussianSum(shares=shares):
            return dataclasses.replace(event, shares=shares + extra)
        case _:
            return event


def parallel(curves: Sequence[Curve], *, overlap: int = 1) -> Curve:
    """Return the curve of mechanisms on disjoint sites: at each order the sum of the ``overlap`` largest.

    overlap: in how many sites one unit may occur; 1 is disjoint data (parallel composition, McSherry 2009).
    Raises ParameterError for no curves or curves of different lengths.
    """
    depth = checks.integer(overlap=overlap, at_least=1)
    if not curves or len({curve.shape for curve in curves}) != 1:
        raise ParameterError(f"{len(curves)} curves of unequal or no length found; expected one or more of one grid.")
    stacked = np.sort(np.stack(curves), axis=0)[::-1]
    return np.asarray(stacked[:depth].sum(axis=0))


def record_curve(exposure: Exposure) -> Curve:
    """Return the curve of one record, which lies at one site."""
    return patient_curve(exposure, sites=1)


def patient_curve(exposure: Exposure, *, sites: int) -> Curve:
    """Return the curve of one patient with a ballot at each of up to ``sites`` institutions.

    In a shared sum such a patient changes up to ``sites`` ballots, so lengths grow ``sites``-fold there.
    """
    most = checks.integer(sites=sites, at_least=1)
    shared = accountant.compose([scaled(event, most) for event in exposure.shared])
    locals_ = [accountant.compose(events) for events in exposure.local.values()]
    return shared + parallel(locals_, overlap=most) if locals_ else shared


def institution_curve(exposure: Exposure, *, units: int) -> Curve:
    """Return the curve of a whole institution of ``units`` units: every ballot of it added or removed at once.

    For Gaussian events this is the group bound of the L2 length; it is usually large, and says so honestly.
    """
    size = checks.integer(units=units, at_least=1)
    shared = accountant.compose([scaled(event, size) for event in exposure.shared])
    locals_ = [accountant.compose([scaled(event, size) for event in events]) for events in exposure.local.values()]
    return shared + parallel(locals_) if locals_ else shared


def scaled(event: Event, times: int) -> Event:
    """Return the event for a change of ``times`` ballots at once: every sensitivity it states grows ``times``-fold.

    A choice by the exponential mechanism states its range, which grows the same way: the loss between data sets that
    are ``times`` units apart is a sum of as many losses, and so are their ranges. A sampled step is taken as one
    without sampling: whatever part of the units the sample takes moves its sum by at most ``times`` bounds, and a
    mixture of such steps diverges no further than the worst of them.
    Raises ParameterError for events that state no sensitivity (their group cost is not computed here).
    """
    factor = checks.integer(times=times, at_least=1)
    if factor == 1:
        return event
    lengths = {f.name: getattr(event, f.name) * factor for f in dataclasses.fields(event) if f.name in {"l1", "l2"}}
    if isinstance(event, Exponential):
        lengths = {"epsilon": event.epsilon * factor}
    if isinstance(event, SubsampledGaussian):
        return dataclasses.replace(event, noise_multiplier=event.noise_multiplier / factor, sample_rate=1.0)
    if not lengths:
        raise ParameterError(
            f"the cost of {factor} changed ballots under {type(event).__name__} asked for; it states no sensitivity."
        )
    return dataclasses.replace(event, **lengths)
