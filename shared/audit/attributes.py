"""Attribute inference on tables: who knows all of a record but one cell, can guess the cell from the release.

A release that says how columns go together lets anybody guess, also about people who took no part: that is what it is
for. What would betray members is a guess that is better for them than for others of the same sites.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.audit.membership import Group
from patevolve.shared.schema import Column

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
NEIGHBOURS = 5
_BLOCK = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """How often a column's cell is guessed right from all others.

    members, others:  shares that are right
    usual:            share of the others that the release's most frequent level of the class gets right
    gain:             members less others; z: the same in standard errors, 0 in expectation if membership does not show
    """

    column: str
    members: float
    others: float
    usual: float
    gain: float
    z: float


def guesses(schema: Sequence[Column], members: Group, others: Group, release: Group) -> list[Guess]:
    """Return the guess of every column, by the nearest released rows that agree best in all other columns.

    The groups' features are one-hot rows over the schema's levels.
    """
    found, start = [], 0
    for column in schema:
        part = slice(start, start + column.levels)
        right = [_right(group, release, part) for group in (members, others)]
        own, other = (float(hits.mean()) for hits in right)
        error = math.sqrt(sum(float(hits.var(ddof=1)) / hits.size for hits in right))
        usual = float(np.mean(_usual(others, release, part) == others.features[:, part].argmax(axis=1)))
        z = (own - other) / error if error > 0.0 else 0.0
        found.append(Guess(column=column.name, members=own, others=other, usual=usual, gain=own - other, z=z))
        start = part.stop
    return found


def _right(targets: Group, release: Group, part: slice) -> Floats:
    """Return 1.0 for every target whose cell is guessed right, (n,)."""
    mask = np.ones(release.features.shape[1])
    mask[part] = 0.0
    hits = np.zeros(len(targets))
    for cls in np.unique(targets.classes):
        pool = release.features[release.classes == cls]
        rows = np.flatnonzero(targets.classes == cls)
        if not len(pool):
            continue
        for begin in range(0, len(rows), _BLOCK):
            own = targets.features[rows[begin : begin + _BLOCK]]
            alike = (own * mask) @ pool.T  # cells that agree
            most = min(NEIGHBOURS, len(pool))
            nearest = np.argpartition(-alike, most - 1, axis=1)[:, :most]
            votes = pool[:, part][nearest].sum(axis=1)
            hits[rows[begin : begin + _BLOCK]] = votes.argmax(axis=1) == own[:, part].argmax(axis=1)
    return hits


def _usual(targets: Group, release: Group, part: slice) -> Labels:
    """Return, for every target, the most frequent released level of its class."""
    found = np.zeros(len(targets), np.int64)
    for cls in np.unique(targets.classes):
        pool = release.features[release.classes == cls]
        found[targets.classes == cls] = int(pool[:, part].sum(axis=0).argmax()) if len(pool) else 0
    return found
