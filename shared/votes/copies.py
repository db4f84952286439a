"""The near-duplicate question: how many units have a record that lies very close to a candidate."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.tally import ExactTally
from patevolve.shared.votes.ballots import Electorate
from patevolve.shared.votes.lattice import Bounds, Entries, sum_ballots
from patevolve.shared.votes.nearest import blocks, field_of, nearest_candidates


def copies_bounds(candidates: int) -> Bounds:
    """Return the bounds of ``copies``: a unit votes for one candidate, or for none."""
    return Bounds(size=candidates, support=1)


def copies(
    voters: Electorate,
    features: NDArray[np.float64],
    candidates: NDArray[np.float64],
    *,
    within: float,
    bounds: Bounds,
) -> ExactTally:
    """Tally, for each candidate, the units whose nearest candidate it is, no further away than ``within``.

    features:    (n, d) of the site's records
    candidates:  (P, d), of every class: a copy with another label is a copy
    Ballot: 1 at the candidate that lies nearest to any of the unit's records, if that is near enough, else nothing.
    """
    if not len(features):
        return sum_ballots(Entries(units=np.zeros(0, int), coordinates=np.zeros(0, int), values=np.zeros(0)), bounds)
    field = field_of(candidates)
    parts = blocks(np.arange(len(features)), field)
    places = np.concatenate([nearest_candidates(features[rows], field, 1)[:, 0] for rows in parts])
    # Exact sums, one record at a time: what a record says does not hang on who stands beside it (lemma 5).
    apart = np.array([math.fsum(row) for row in (features - candidates[places]) ** 2])  # label: own-closeness
    order = np.lexsort((apart, voters.unit))
    first = order[np.unique(voters.unit[order], return_index=True)[1]]  # the unit's closest record
    near = first[apart[first] <= within**2]
    entries = Entries(units=voters.unit[near], coordinates=places[near], values=np.ones(len(near)))
    return sum_ballots(entries, bounds)  # label: copies
