"""What a site's data say of candidates under PCEvolve's own selection: scores for an exponential mechanism."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from patevolve.shared import contrast
from patevolve.shared.tally import ExactTally
from patevolve.shared.votes.lattice import LATTICE, Bounds


def choices_bounds(candidates: int, classes: int) -> Bounds:
    """Return the bounds of ``choices``: one chosen candidate per class, so a unit moves at most one vote in each."""
    return Bounds(size=candidates, support=min(candidates, 2 * classes), l2=math.sqrt(2 * classes), steps=1)


def choice_scores(
    features: NDArray[np.float64],
    classes: NDArray[np.int64],
    candidates: tuple[NDArray[np.float64], NDArray[np.int64]],
    *,
    count: int,
    tau: float,
) -> ExactTally:
    """Return each candidate's contrastive score around this site's own class means, in whole steps of 1/LATTICE.

    features:    (n, d) of the site's records; classes (n,); ``count`` classes in all
    candidates:  ((P, d) features, (P,) classes)
    A unit can move every centre and turn the filter over, so any score can change, but none by more than LATTICE: the
    scores of any data at all lie between 0 and LATTICE (SENSITIVITY.md, lemma 6).
    """
    candidate_features, candidate_classes = candidates
    centres = np.full((count, features.shape[1]), np.nan)
    for cls in np.unique(classes):
        centres[cls] = features[classes == cls].mean(axis=0)
    apart = contrast.distances(candidate_features, centres)
    found = np.nan_to_num(contrast.scores(apart, candidate_classes, tau), nan=0.0)
    values = np.clip(np.rint(found * LATTICE), 0, LATTICE).astype(np.int64)  # label: choice-range
    return ExactTally(values=values, l1=LATTICE * len(values), l2=LATTICE * math.sqrt(len(values)), linf=LATTICE)
