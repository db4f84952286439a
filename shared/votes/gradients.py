"""The steps of a classifier: the sum of the records' gradients at public weights (Song, Chaudhuri, Sarwate 2013).

A linear classifier on public embeddings, trained over all sites at once by full-batch gradient steps. Each record's
gradient has a bound of its own, so that nothing needs clipping, and the sum is one product of whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.errors import DataError, PlanError
from patevolve.shared.products import products
from patevolve.shared.tally import ExactTally
from patevolve.shared.votes.ballots import Electorate
from patevolve.shared.votes.lattice import LATTICE, Bounds

LONGEST = math.sqrt(2.0)  # of a residual: a distribution over the classes less one class; a ballot is divided by it
FINE = 2**15 - 1  # steps of an embedding's and of a residual's unit length
_WHOLE = math.ceil(LONGEST * 2**30)  # no shorter than a unit's whole ballot in products of fine steps
_STEEPEST = 1e6  # of a logit: beyond a thousand nothing changes
_ROWS = 4096  # records whose embeddings are held at a time
_MOST_NUMBERS = (LATTICE // 4) ** 2  # rounding takes a quarter of the noise's worth at most
_MOST_RECORDS = 2**22  # times 2³⁰ fine steps times LATTICE: sums stay within 63 bits

Floats = NDArray[np.float64]
Embedded = Callable[[slice], Floats]  # some of the records -> (n, e) their embeddings, each made of its record alone


def gradients_bounds(classes: int, dimension: int) -> Bounds:
    """Return the bounds of ``gradients``: ``dimension`` numbers per class, rounded once in each site's sum.

    Raises PlanError where so many numbers leave rounding no room.
    """
    size = classes * dimension
    if size > _MOST_NUMBERS:
        raise PlanError(
            f"a classifier of {classes} × {dimension} numbers found; a question for its gradients carries at most "
            f"{_MOST_NUMBERS:,}. Use fewer classes, encoder.embedding = 'linear', or for a table encoder.pairs = 0."
        )
    steps = LATTICE - 1 - math.isqrt(size)  # label: gradient-room
    return Bounds(size=size, support=size, l2=LATTICE / steps, steps=steps)


def gradients(
    voters: Electorate, embedded: Embedded, classes: NDArray[np.int64], weights: Floats, bounds: Bounds
) -> ExactTally:
    """Tally (p − y) ⊗ embedding / √2: the gradient of the logistic loss of a record of class y (one-hot).

    embedded:  gives embeddings part by part; rows longer than 1 are shortened to norm 1
    classes:   (n,) of the records
    weights:   (classes, e) public; p = softmax(weights · embedding)
    A unit's ballot is the mean of its records', of norm at most 1 (lemma 10). Raises DataError beyond 2²² records.
    """
    if len(classes) > _MOST_RECORDS:
        raise DataError(f"{len(classes):,} records at one site found; gradients are summed over at most 2²².")
    total = np.zeros(weights.shape, np.int64)
    for start in range(0, len(classes), _ROWS):
        some = slice(start, start + _ROWS)
        clean = np.nan_to_num(embedded(some), nan=0.0, posinf=0.0, neginf=0.0)
        own = clean / np.maximum(1.0, np.linalg.norm(clean, axis=1))[:, None]  # label: gradient-embedding
        share = _residuals(own, classes[some], weights) * voters.weight[some, None]  # label: gradient-share
        # Truncation shortens, and whole numbers add up exactly in any order.
        whole = np.trunc(share * FINE).T @ np.trunc(own * FINE)  # label: gradient-whole
        total += whole.astype(np.int64)
    rounded = (total.ravel() * bounds.steps + _WHOLE // 2) // _WHOLE  # label: whole-round
    return ExactTally(values=rounded, l1=bounds.lattice_l1, l2=bounds.lattice_l2)


def _residuals(embeddings: Floats, classes: NDArray[np.int64], weights: Floats) -> Floats:
    """Return (n, classes) probabilities less the record's own class, each row of norm at most √2."""
    # Weights come from outside: whatever they are, a difference of logits stays finite and a residual a number.
    logits = np.clip(np.nan_to_num(products(embeddings, weights)), -_STEEPEST, _STEEPEST)  # label: own-logits
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    residuals: Floats = odds / odds.sum(axis=1, keepdims=True)
    residuals[np.arange(len(classes)), classes] -= 1.0
    long = np.linalg.norm(residuals, axis=1, keepdims=True) / LONGEST
    shortened: Floats = residuals / np.maximum(long, 1.0)  # label: gradient-residual
    return shortened


def gradient_of(values: Floats | float, classes: int) -> Floats:
    """Return the (classes, e) gradient of the summed loss from a tally in units of ballots, or its noise alike."""
    whole: Floats = LONGEST * np.reshape(values, (classes, -1))
    return whole
