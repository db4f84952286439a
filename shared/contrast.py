"""PCEvolve's contrastive score of a candidate against class centres, private or released (Zhang et al. 2025).

A candidate of class c is kept if no other class's centre lies nearer than its own; of those kept, the distance to the
own centre is scaled to [0, 1] and sharpened by the calibrator τ. Nothing here draws noise: around private centres the
scores are private, around released ones they are free.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def distances(points: Floats, centres: Floats) -> Floats:
    """Return (P, C) Euclidean distances of points (P, d) from centres (C, d); infinite from a centre that is NaN."""
    found = np.full((len(points), len(centres)), np.inf)
    for position, centre in enumerate(centres):
        if np.isfinite(centre).all():
            found[:, position] = np.linalg.norm(points - centre, axis=1)
    return found


def margins(apart: Floats, classes: NDArray[np.int64]) -> Floats:
    """Return (P,) how much nearer the own centre lies than the nearest other one; negative where another is nearer.

    apart: (P, C) from ``distances``, C ≥ 2
    """
    rows = np.arange(len(apart))
    others = apart.copy()
    others[rows, classes] = np.inf
    with np.errstate(invalid="ignore"):
        found: Floats = others.min(axis=1) - apart[rows, classes]
    return np.where(np.isnan(found), -np.inf, found)  # without any centre nothing is known to be nearer


def scores(apart: Floats, classes: NDArray[np.int64], tau: float) -> Floats:
    """Return (P,) scores in [0, 1], each class scaled by itself: 0 where the filter rejects, 1 for the nearest one.

    exp(−τ·(distance − least)/(most − least)) over those kept; a class none of whose candidates is kept scores 1
    throughout, so that a choice by these scores is uniform.
    """
    own = apart[np.arange(len(apart)), classes]
    kept = np.isfinite(own) & (margins(apart, classes) >= 0.0)
    found = np.zeros(len(apart))
    for cls in np.unique(classes):
        here = classes == cls
        rows = np.flatnonzero(here & kept)
        if not len(rows):
            found[here] = 1.0
            continue
        least, most = own[rows].min(), own[rows].max()
        scaled = (own[rows] - least) / (most - least) if most > least else np.zeros(len(rows))
        found[rows] = np.exp(-tau * scaled)
    return found
