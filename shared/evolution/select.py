"""Selection from released statistics: free post-processing, so it may look as often as it likes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MOST = 4096  # candidates that are all compared with each other
BLOCK = 256  # candidates on each side whose kernel is made at a time: it stays in the cache

Weights = NDArray[np.float64]


def match_mean(features: NDArray[np.float64], target: NDArray[np.float64], *, steps: int = 300) -> Weights:
    """Return weights on the simplex whose weighted mean feature comes close to ``target``.

    features: (P, d); target: (d,), a released prototype. Minimises ‖Σ w φ − target‖² by exponentiated gradient
    (Kivinen and Warmuth 1997), whose early stop keeps the weights spread out where the target is noisy.
    """
    weights = np.full(len(features), 1.0 / len(features))
    gram, pull = features @ features.T, features @ target
    drawn, rate = gram @ weights, 4.0
    for _ in range(steps):
        gradient = 2.0 * (drawn - pull)
        gradient -= gradient @ weights
        moved = np.maximum(weights * np.exp(np.clip(-rate * gradient, -1.0, 1.0)), 1e-12)  # denormals are slow
        moved /= moved.sum()
        further = gram @ moved
        if moved @ (further - 2.0 * pull) <= weights @ (drawn - 2.0 * pull):
            weights, drawn, rate = moved, further, min(rate * 1.05, 200.0)
        else:  # too far: a step that leads away from the target is not taken
            rate /= 2.0
    return weights


def resample(rng: np.random.Generator, weights: Weights, count: int) -> NDArray[np.int64]:
    """Return ``count`` positions drawn by systematic resampling; uniform if no weight is positive."""
    positive = np.maximum(np.nan_to_num(weights), 0.0)
    if not positive.sum() > 0.0:  # every noisy vote fell below zero: nothing was learnt
        positive = np.ones(len(weights))
    edges = np.cumsum(positive) / positive.sum()
    points = (np.arange(count) + rng.random()) / count
    return np.minimum(np.searchsorted(edges, points, side="right"), len(weights) - 1)


def smooth(features: NDArray[np.float64], votes: Weights, bandwidth: float) -> Weights:
    """Return votes averaged over neighbouring candidates by a Gaussian kernel: noise averages out, structure stays.

    features: (P, d); votes: (P,). Up to MOST candidates are averaged over all of them (Nadaraya 1964; Watson 1964).
    More are halved first where they spread most (Bentley 1975), so that the time for each stays bounded; a candidate
    is then averaged over those on its side.
    """
    found = np.empty(len(votes))
    for some in _halved(features, np.arange(len(votes))):
        found[some] = _averaged(features[some] / bandwidth, votes[some])
    return found


def _halved(features: NDArray[np.float64], rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the rows in groups of at most MOST, cut at the median of the coordinate that varies most."""
    if len(rows) <= MOST:
        return [rows]
    own = features[rows]
    order = rows[np.argsort(own[:, np.argmax(own.var(axis=0))], kind="stable")]
    middle = len(rows) // 2
    return [*_halved(features, order[:middle]), *_halved(features, order[middle:])]


def _averaged(points: NDArray[np.float64], votes: Weights) -> Weights:
    """Return votes (P,) averaged by the kernel exp(−½‖x − y‖²), each pair of blocks weighed once."""
    norms, pairs = 0.5 * np.einsum("pd,pd->p", points, points), np.stack([votes, np.ones(len(votes))], axis=1)
    sums = np.zeros_like(pairs)
    blocks = [slice(start, start + BLOCK) for start in range(0, len(votes), BLOCK)]
    for number, rows in enumerate(blocks):
        for columns in blocks[number:]:
            kernel = points[rows] @ points[columns].T
            kernel -= norms[rows, None]
            kernel -= norms[columns]
            np.exp(np.minimum(kernel, 0.0, out=kernel), out=kernel)
            sums[rows] += kernel @ pairs[columns]
            if columns != rows:
                sums[columns] += kernel.T @ pairs[rows]
    averages: Weights = sums[:, 0] / sums[:, 1]
    return averages


def histogram(votes: Weights, threshold: float) -> Weights:
    """Return Private Evolution's weights (Lin et al. 2024, Algorithm 2): max(0, votes − threshold)."""
    return np.maximum(votes - threshold, 0.0)


def diverse(
    scores: Weights, features: NDArray[np.float64], count: int, *, weight: float, elites: int = 0
) -> NDArray[np.int64]:
    """Return ``count`` different positions, best first: ``elites`` by score alone, then each next one by

        score + weight · (1 − largest cosine similarity to those already kept, at least 0).

    scores: (P,); features: (P, d); ties go to the earlier position. With weight 0 it is a plain ranking.
    """
    order = np.argsort(-scores, kind="stable")
    if weight == 0.0:
        return order[:count]
    lengths = np.linalg.norm(features, axis=1)
    unit = features / np.where(lengths > 0.0, lengths, 1.0)[:, None]
    chosen = order[: max(1, min(elites, count))].tolist()
    similar = np.maximum(unit @ unit[chosen].T, 0.0).max(axis=1)
    left = np.ones(len(scores), bool)
    left[chosen] = False
    while len(chosen) < min(count, len(scores)):
        worth = np.where(left, scores + weight * (1.0 - similar), -np.inf)
        following = int(np.argmax(worth))
        chosen.append(following)
        left[following] = False
        similar = np.maximum(similar, unit @ unit[following])
    return np.array(chosen, np.int64)
