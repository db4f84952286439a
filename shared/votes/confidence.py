"""The seed article's fitness: how sure a site's classifiers are of each candidate, as bounded whole numbers."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.tally import ExactTally
from patevolve.shared.votes.lattice import Bounds

STEPS = 16  # lattice steps per unit of confidence: the noise is wider than one step wherever the budget is not huge


def confidence_bounds(candidates: int) -> Bounds:
    """Return the bounds of ``confidence``: a unit changes one classifier, whose confidence in each moves by at most 1.

    L1 is ``candidates``, not 1: the article's Laplace(1/ε) per score covers one candidate once.
    """
    return Bounds(
        size=candidates, support=candidates, l2=math.sqrt(candidates), steps=STEPS
    )  # label: confidence-bounds


def confidence(found: NDArray[np.float64], bounds: Bounds) -> ExactTally:
    """Tally the classifiers' confidences.

    found: (teachers, P) probability that each classifier gives the candidate's own class; clipped to [0, 1], NaN is 0.
    Each classifier saw the units of one shard alone.
    """
    clipped = np.clip(np.nan_to_num(found, nan=0.0), 0.0, 1.0)  # label: confidence-clip
    total = np.rint(clipped * STEPS).astype(np.int64).sum(axis=0)
    return ExactTally(values=total, l1=bounds.lattice_l1, l2=bounds.lattice_l2, linf=STEPS)
