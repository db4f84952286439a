"""From real-valued ballots to bounded integers: the one place where a unit's ballot gets its bound.

A unit's ballot is a sparse real vector of L2 norm at most 1. It is scaled and rounded so that the integer vector has
norm at most LATTICE, whatever the records hold; SENSITIVITY.md proves it, tests measure it on adversarial neighbours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patevolve.shared import checks
from patevolve.shared.tally import ExactTally, NoisyTally

LATTICE = (
    1024  # integer steps per unit of ballot norm: fine against the noise, and 2³² holds the sum of 2 million units
)
_HUGE = 1e100  # squares of sums of such values are still finite


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What one unit can change in a tally, all of it public.

    size:     length of the tally
    support:  most coordinates that one unit's ballot can touch
    l2:       bound on its L2 norm, in units of whole ballots (1 for add/remove of one bounded ballot)
    steps:    lattice steps per unit of ballot, where ballots are whole numbers of them by construction; 0: LATTICE
              less the room that rounding takes
    """

    size: int
    support: int
    l2: float = 1.0
    steps: int = 0

    @property
    def lattice_l2(self) -> float:
        """L2 sensitivity in lattice units."""
        return (self.steps or LATTICE) * self.l2

    @property
    def lattice_l1(self) -> float:
        """L1 sensitivity in lattice units, by Cauchy-Schwarz over the support."""
        return self.lattice_l2 * math.sqrt(self.support)

    @property
    def scale(self) -> int:
        """Lattice steps per unit of ballot: LATTICE less the worst rounding error of ``support`` coordinates."""
        return self.steps or math.floor(LATTICE - math.sqrt(self.support) / 2)  # label: rounding-room

    def __post_init__(self) -> None:
        """Refuse a support so wide that rounding would leave no room."""
        checks.integer(size=self.size, at_least=1)
        checks.integer(steps=self.steps, at_least=0, at_most=LATTICE)
        checks.integer(support=self.support, at_least=1, at_most=LATTICE * LATTICE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entries:
    """Real-valued ballots as (unit, coordinate, value) triples; several triples of one place add up.

    units:        (e,) int64 in 0 .. number of units − 1
    coordinates:  (e,) int64; those outside 0 .. size − 1 count for nothing
    values:       (e,) float64
    """

    units: NDArray[np.int64]
    coordinates: NDArray[np.int64]
    values: NDArray[np.float64]


def sum_ballots(entries: Entries, bounds: Bounds) -> ExactTally:
    """Return the integer sum of the units' ballots.

    Guarantee: each unit's integer ballot has L2 norm ≤ LATTICE and touches ≤ ``support`` coordinates, for any entries
    at all: a non-finite value or one without a place counts as 0, and a longer ballot is scaled down (SENSITIVITY.md,
    lemma 1).
    """
    inside = (entries.coordinates >= 0) & (entries.coordinates < bounds.size)  # label: ballot-inside
    places = (entries.units * bounds.size + entries.coordinates)[inside]
    values = np.clip(np.nan_to_num(entries.values[inside], nan=0.0, posinf=0.0, neginf=0.0), -_HUGE, _HUGE)
    if not np.all(places[1:] > places[:-1]):  # in order, each place once: nothing to sort or to add up
        places, inverse = np.unique(places, return_inverse=True)
        values = np.bincount(inverse, weights=values).astype(np.float64)
    units, coordinates = np.divmod(places, bounds.size)
    values = _keep_support(units, values, bounds.support)
    norms = np.sqrt(np.bincount(units, weights=values * values))
    clipped = values / np.maximum(1.0, norms)[units]  # label: ballot-clip
    integers = np.rint(clipped * bounds.scale).astype(np.int64)  # label: ballot-round
    total = np.zeros(bounds.size, np.int64)
    np.add.at(total, coordinates, integers)
    return ExactTally(values=total, l1=bounds.lattice_l1, l2=bounds.lattice_l2)


def _keep_support(units: NDArray[np.int64], values: NDArray[np.float64], support: int) -> NDArray[np.float64]:
    """Zero all but the first ``support`` coordinates of a unit; honest ballots never have more."""
    if not len(units) or int(np.bincount(units).max()) <= support:
        return values
    starts = np.searchsorted(units, units, side="left")  # units are sorted: places were
    rank = np.arange(len(units)) - starts
    return np.where(rank < support, values, 0.0)  # label: ballot-support


def estimate(tally: NoisyTally, bounds: Bounds) -> NDArray[np.float64]:
    """Return the unbiased real-valued tally: what the sum of real ballots would be, plus noise."""
    return tally.values / bounds.scale


def noise_std(tally: NoisyTally, bounds: Bounds) -> float:
    """Return the standard deviation of the noise in ``estimate``."""
    return tally.std / bounds.scale
