"""A linear classifier from noisy gradients: free post-processing between one question and the next.

Logistic regression over all sites' records by full-batch steps (Song, Chaudhuri and Sarwate 2013). The embeddings of
public candidates say how steep the loss is in each direction, so that steps are long where it is flat (Amari 1998), as
far as the noise allows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RATE = 0.5  # of a whole step
CURVATURE = 0.1  # p(1 − p) at p = .9 or .1: how steep the loss is, per second moment of the embedding
WANDER = 0.1  # how far, root mean square over public candidates, the noise of one step may move a logit
LEAST = 1e-6  # of the ridge: no direction is believed to be flatter, whatever public candidates show
_HALVINGS = 60


def preconditioner(embeddings: Floats, noise: float) -> Floats:
    """Return (e, e): the inverse of the public curvature with the least ridge under which noise moves logits little.

    embeddings:  (P, e) of public candidates
    noise:       standard deviation of the noise in each number of the mean gradient
    """
    second, axes = np.linalg.eigh(embeddings.T @ embeddings / len(embeddings))
    second = np.maximum(second, 0.0)

    def wander(ridge: float) -> float:
        return RATE * noise * float(np.sqrt(np.sum(second / (CURVATURE * second + ridge) ** 2)))

    low, high = LEAST, max(1.0, RATE * noise / WANDER)  # at the upper one every logit moves less than that
    for _ in range(_HALVINGS):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if wander(middle) > WANDER else (low, middle)
    inverse: Floats = (axes / (CURVATURE * second + high)) @ axes.T
    return inverse


def stepped(weights: Floats, gradient: Floats, inverse: Floats) -> Floats:
    """Return the weights (classes, e) after one step against the mean gradient, as single precision holds them."""
    moved: Floats = (weights - RATE * gradient @ inverse).astype(np.float32).astype(np.float64)
    return moved


def averaged(path: list[Floats]) -> Floats:
    """Return the mean of the later half of the weights: noise averages out (Polyak and Juditsky 1992)."""
    later: Floats = np.mean(path[len(path) // 2 :], axis=0)
    return later


def classified(embeddings: Floats, weights: Floats) -> NDArray[np.int64]:
    """Return (P,) the class of the largest logit."""
    found: NDArray[np.int64] = np.argmax(embeddings @ weights.T, axis=1).astype(np.int64)
    return found
