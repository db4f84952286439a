"""The ballots: what one unit answers to each kind of question.

Every function returns the exact tally of a site's units. A unit with several records averages their ballots, so its
norm stays at most 1 (convexity). Class slots follow the plan's class list, whatever classes a site has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.tally import ExactTally
from patevolve.shared.votes.lattice import Bounds, Entries, sum_ballots
from patevolve.shared.votes.nearest import blocks, field_of, nearest_candidates

ENTRIES = 2**22  # coordinates of prototypes held at a time: bounds their memory


class Electorate:
    """A site's units as voters: which records belong to which unit, and the weight 1/records of each record."""

    def __init__(self, units: NDArray[np.str_]) -> None:
        """Number the units of (n,) names."""
        names, inverse = np.unique(units, return_inverse=True)
        self.size = len(names)
        self.unit = inverse.astype(np.int64)
        self.weight = 1.0 / np.bincount(inverse, minlength=self.size)[inverse] if len(units) else np.zeros(0)


def counts_bounds(classes: int, records_per_unit: int) -> Bounds:
    """Return the bounds of ``counts``: one slot per class."""
    return Bounds(size=classes, support=min(classes, records_per_unit))


def counts(voters: Electorate, classes: NDArray[np.int64], bounds: Bounds) -> ExactTally:
    """Tally each unit's class. Ballot: 1 in its class (averaged over its records)."""
    return sum_ballots(Entries(units=voters.unit, coordinates=classes, values=voters.weight), bounds)  # label: counts


def class_code(classes: int, contrast: float) -> NDArray[np.float64]:
    """Return (classes, classes) unit rows: what a ballot of each class multiplies its features by.

    contrast: share of a ballot's squared norm that tells the classes apart, in (0, 1); the rest goes to what they have
    in common. 1 − 1/classes gives one slot per class; 0 stands for that.
    """
    if contrast == 0.0:
        return np.eye(classes)
    apart = (np.eye(classes) - 1.0 / classes) / math.sqrt(1.0 - 1.0 / classes)
    return math.sqrt(1.0 - contrast) / math.sqrt(classes) + math.sqrt(contrast) * apart  # label: class-code


def prototypes_bounds(classes: int, dimension: int, records_per_unit: int, contrast: float) -> Bounds:
    """Return the bounds of ``prototypes``: ``dimension`` numbers per class."""
    slots = classes if contrast else min(classes, records_per_unit)
    return Bounds(size=classes * dimension, support=dimension * slots)


def prototypes(
    voters: Electorate,
    features: NDArray[np.float64],
    classes: NDArray[np.int64],
    *,
    code: NDArray[np.float64],
    bounds: Bounds,
) -> ExactTally:
    """Tally public features by class.

    features: (n, d); rows longer than 1 are clipped to norm 1
    code:     (classes, classes) unit rows; a ballot is its class's row times the clipped features, norm at most 1
    """
    dimension, total = features.shape[1], np.zeros(bounds.size, np.int64)
    for some in _whole_units(voters.unit, max(1, ENTRIES // (dimension * len(code)))):
        clean = np.nan_to_num(features[some], nan=0.0, posinf=0.0, neginf=0.0)
        clipped = clean / np.maximum(1.0, np.linalg.norm(clean, axis=1))[:, None]  # label: prototype-clip
        weighted, codes = clipped * voters.weight[some, None], code[classes[some]]
        rows, slots = np.nonzero(codes)
        numbered = np.cumsum(np.diff(voters.unit[some], prepend=voters.unit[some[0]]) != 0)  # units lie together
        entries = Entries(
            units=np.repeat(numbered[rows], dimension),
            coordinates=(slots[:, None] * dimension + np.arange(dimension)).ravel(),
            values=(weighted[rows] * codes[rows, slots][:, None]).ravel(),
        )
        total += sum_ballots(entries, bounds).values
    return ExactTally(values=total, l1=bounds.lattice_l1, l2=bounds.lattice_l2)


def _whole_units(unit: NDArray[np.int64], most: int) -> Iterator[NDArray[np.int64]]:
    """Yield the positions of about ``most`` records at a time, unit by unit, none of them in two parts."""
    order = np.argsort(unit, kind="stable")
    firsts = np.flatnonzero(np.diff(unit[order], prepend=-1))  # where the next unit begins
    start = 0
    while start < len(order):
        later = firsts[firsts >= start + most]
        end = int(later[0]) if len(later) else len(order)
        yield order[start:end]  # label: whole-units
        start = end


def neighbours_bounds(candidates: int, nearest: int, records_per_unit: int) -> Bounds:
    """Return the bounds of ``neighbours``: one place per candidate."""
    return Bounds(size=candidates, support=min(candidates, nearest * records_per_unit))


def neighbours(
    voters: Electorate,
    features: NDArray[np.float64],
    classes: NDArray[np.int64],
    candidates: tuple[NDArray[np.float64], NDArray[np.int64]],
    *,
    nearest: int,
    bounds: Bounds,
) -> ExactTally:
    """Tally soft votes for the candidates that lie nearest.

    features:    (n, d) of the site's records; classes (n,)
    candidates:  ((P, d) features, (P,) classes)
    Ballot: ``rank_weights`` on the k nearest candidates of its class (fewer if the class has fewer), L2 norm 1;
    k = 1 is Private Evolution's histogram (Lin et al. 2024).
    """
    candidate_features, candidate_classes = candidates
    units, places, values = [], [], []
    for cls in np.unique(classes):
        own = np.flatnonzero(candidate_classes == cls)
        if not len(own):
            continue
        k, pool = min(nearest, len(own)), field_of(candidate_features[own])
        for rows in blocks(np.flatnonzero(classes == cls), pool):
            units.append(np.repeat(voters.unit[rows], k))
            places.append(own[nearest_candidates(features[rows], pool, k)].ravel())
            values.append((voters.weight[rows, None] * rank_weights(k)).ravel())
    if not units:
        return sum_ballots(Entries(units=np.zeros(0, int), coordinates=np.zeros(0, int), values=np.zeros(0)), bounds)
    entries = Entries(units=np.concatenate(units), coordinates=np.concatenate(places), values=np.concatenate(values))
    return sum_ballots(entries, bounds)


def rank_weights(k: int) -> NDArray[np.float64]:
    """Return (k,) weights of the nearest, second nearest, ...: falling to e⁻² of the first, of L2 norm 1.

    Ranks, not distances: the weights are public constants, so a unit decides only which candidates get them.
    """
    weights = np.exp(-2.0 * np.arange(k) / max(k - 1, 1))
    unit: NDArray[np.float64] = weights / np.linalg.norm(weights)  # label: soft-vote
    return unit


def labels_bounds(candidates: int, classes: int) -> Bounds:
    """Return the bounds of ``labels``: a unit changes one teacher, whose vote on each candidate moves by at most √2."""
    return Bounds(size=candidates * classes, support=2 * candidates, l2=math.sqrt(2 * candidates))  # label: labels-l2


def labels(votes: NDArray[np.int64], classes: int, bounds: Bounds) -> ExactTally:
    """Tally the teachers' classes.

    votes: (teachers, P) int64 class of each candidate, −1 to abstain. Each teacher saw the units of one shard alone.
    """
    candidates = votes.shape[1]
    places = np.arange(candidates) * classes + votes
    total = np.bincount(places[votes >= 0].ravel(), minlength=candidates * classes)
    return ExactTally(values=total * bounds.scale, l1=bounds.lattice_l1, l2=bounds.lattice_l2)


def score_bounds(records_per_unit: int) -> Bounds:
    """Return the bounds of ``score``: right and wrong."""
    return Bounds(size=2, support=min(2, records_per_unit))


def score(voters: Electorate, correct: NDArray[np.bool_], bounds: Bounds) -> ExactTally:
    """Tally whether the student was right on each held-out record. Ballot: 1 in ``right`` or ``wrong``."""
    place = np.where(correct, 0, 1).astype(np.int64)
    return sum_ballots(Entries(units=voters.unit, coordinates=place, values=voters.weight), bounds)  # label: score
