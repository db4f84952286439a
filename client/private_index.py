"""A site's records, ready to vote: bounded per unit, split, encoded once by the public encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.data.records import Records
from patevolve.shared.data.shard import bounded, held_out
from patevolve.shared.errors import DataError
from patevolve.shared.plan import Plan
from patevolve.shared.protocols import Encoder
from patevolve.shared.votes.ballots import Electorate


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Voters:
    """One part of a site's records with their features and units."""

    records: Records
    features: NDArray[np.float64]
    electorate: Electorate

    def __reduce__(self) -> NoReturn:
        """Refuse pickling: private features stay in the site's process."""
        raise TypeError("private features cannot be serialised")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PrivateIndex:
    """What a site votes with: ``members`` for every question but ``score``, which asks ``held_out`` alone."""

    members: Voters
    held_out: Voters
    units: int


def build_index(records: Records, plan: Plan, encoder: Encoder, secret: bytes) -> PrivateIndex:
    """Bound, split and encode a site's records. Raises DataError, before any charge, if they cannot take part."""
    kept = bounded(secret, records, plan.privacy.records_per_unit)
    units = checked_units(kept.units, plan)
    apart = held_out(secret, kept.units, plan.data.hold_out)
    return PrivateIndex(
        members=_voters(kept.pick(~apart), encoder), held_out=_voters(kept.pick(apart), encoder), units=units
    )


def checked_units(names: NDArray[np.str_], plan: Plan) -> int:
    """Return the number of units. Raises DataError for none, or for more than δ allows."""
    units = len(np.unique(names))
    if units == 0:
        raise DataError("no record found; expected at least one. Check the file and the site's name in it.")
    if not plan.privacy.delta < 1.0 / units:
        raise DataError(
            f"δ = {plan.privacy.delta} found with {units} units; expected δ below 1/{units}. Use a smaller δ."
        )
    return units


def _voters(records: Records, encoder: Encoder) -> Voters:
    features = encoder.encode(records.values) if len(records) else np.zeros((0, encoder.dimension))
    if not np.isfinite(features).all():
        raise DataError("a record whose features are not finite found; expected clean values. Run the inspection.")
    return Voters(records=records, features=features, electorate=Electorate(records.units))
