"""Telling a public pool's images apart from released class means: a linear discriminant, free post-processing.

The pool is public and unlabelled, so the second moments of the embedding are public; the noisy prototypes are its cross
moments with the classes. Together they are the normal equations of least squares, of which only the right-hand side
was private (linear discriminant analysis, Fisher 1936, with public covariance).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RIDGE = 50.0  # of the equations: × the noise in one cross moment × the root mean square of a coordinate
LEAST = 1e-5  # and at least this: the second moments of a small pool are not exact
ANEW = 1e-4  # of the equations without noise, fitted to the pool's own classes


def discriminant(embeddings: Floats, joint: Floats, noise: float) -> Floats:
    """Return (P, classes) least-squares estimates of each candidate's class.

    embeddings:  (P, e) of the public pool
    joint:       (classes, e) noisy means of embedding × class indicator
    noise:       standard deviation of the noise in one coordinate of ``joint``
    """
    scale = float(np.sqrt(np.mean(embeddings**2)))
    return embeddings @ _solved(embeddings, joint.T, max(RIDGE * noise * scale, LEAST))


def refined(embeddings: Floats, scores: Floats) -> Floats:
    """Return scores fitted anew to the classes that the first ones chose (self-training, Scudder 1965).

    It averages the noise in ``scores`` out over the pool, at the price of its own bias.
    """
    told = np.eye(scores.shape[1])[scores.argmax(axis=1)]
    return embeddings @ _solved(embeddings, embeddings.T @ told / len(embeddings), ANEW)


def surest(scores: Floats, counts: list[int]) -> list[NDArray[np.int64]]:
    """Return per class the positions of those of its candidates that are told apart best, at most ``counts`` of each.

    A candidate belongs to its highest score; how sure that is, is the distance to the second. A class that no candidate
    is nearest to gets the one with its highest score.
    """
    chosen = scores.argmax(axis=1)
    ordered = np.sort(scores, axis=1)
    margin = ordered[:, -1] - ordered[:, -2]
    found = []
    for cls, count in enumerate(counts):
        own = np.flatnonzero(chosen == cls)
        if len(own) == 0:
            own = np.array([int(scores[:, cls].argmax())])
        found.append(own[np.argsort(-margin[own], kind="stable")[:count]])
    return found


def _solved(embeddings: Floats, right: Floats, ridge: float) -> Floats:
    second = embeddings.T @ embeddings / len(embeddings)
    return np.asarray(np.linalg.solve(second + ridge * np.eye(len(second)), right), np.float64)
