"""A discriminator of blurred images: a logistic regression on how strong an image's edges are, learnt in public.

It is trained on the generator's own images against blurred copies of them, so it knows what this kind of image looks
like when it is out of focus, and reads nothing private.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.luminance import luminance

PASSES = 3  # of the binomial filter: a blur of standard deviation sqrt(3/2) = 1.2 pixels
RIDGE = 1.0  # keeps the weights finite where sharp and blurred images can be told apart without error
STEPS = 25
_LEAST = 1e-6

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Discriminator:
    """Weights on standardised edge measures.

    false_alarm:  share of public images, not trained on, that it calls blurred
    caught:       share of their blurred copies that it calls blurred
    """

    mean: Floats
    scale: Floats
    weights: Floats
    false_alarm: float
    caught: float

    def blurred(self, images: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return which of (n, height, width[, 3]) uint8 images look more like blurred copies than like public ones."""
        found: NDArray[np.bool_] = _design(self, edges(_grey(images))) @ self.weights > 0.0
        return found


def _grey(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the (n, height, width) levels of images, in colour their luminance: an edge is where that changes."""
    return images if images.ndim == 3 else np.rint(luminance(images)).astype(np.uint8)


def blur(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return blurred copies of (n, height, width) images, mirrored at the border."""
    values = images.astype(np.float64)
    for _ in range(PASSES):
        for axis in (1, 2):
            wide = np.pad(values, [(1, 1) if side == axis else (0, 0) for side in range(3)], mode="edge")
            low, middle, high = (np.take(wide, range(start, start + values.shape[axis]), axis) for start in range(3))
            values = (low + 2.0 * middle + high) / 4.0
    return np.rint(values).astype(np.uint8)


def edges(images: NDArray[np.uint8]) -> Floats:
    """Return (n, 3) measures that do not depend on an image's brightness or contrast: logarithms of ratios.

    Second over first derivatives, the steepest edges over the range, and the mean edge over the spread.
    """
    values = images.astype(np.float64)
    down, right = np.gradient(values, axis=(1, 2))
    slope = np.hypot(down, right).reshape(len(values), -1)
    curve = np.abs(np.gradient(down, axis=1) + np.gradient(right, axis=2)).reshape(len(values), -1)
    flat = values.reshape(len(values), -1)
    ratios = [
        curve.mean(axis=1) / (slope.mean(axis=1) + _LEAST),
        np.quantile(slope, 0.99, axis=1) / (np.ptp(flat, axis=1) + _LEAST),
        slope.mean(axis=1) / (flat.std(axis=1) + _LEAST),
    ]
    return np.log(np.stack(ratios, axis=1) + _LEAST)


def train(public: NDArray[np.uint8]) -> Discriminator:
    """Return a discriminator trained on every second of (n, height, width) public images, and tried on the others.

    Of (n, height, width, 3) images it sees the luminance.
    """
    grey = _grey(public)
    sharp, soft = edges(grey), edges(blur(grey))
    both = np.concatenate([sharp[::2], soft[::2]])
    answers = np.concatenate([np.zeros(len(sharp[::2])), np.ones(len(soft[::2]))])
    mean, scale = both.mean(axis=0), both.std(axis=0) + _LEAST
    bare = Discriminator(mean=mean, scale=scale, weights=np.zeros(both.shape[1] + 1), false_alarm=0.0, caught=0.0)
    weights = _logistic(_design(bare, both), answers)

    def share(rows: Floats) -> float:
        return float(np.mean(_design(bare, rows) @ weights > 0.0))

    return Discriminator(
        mean=mean, scale=scale, weights=weights, false_alarm=share(sharp[1::2]), caught=share(soft[1::2])
    )


def _design(of: Discriminator, rows: Floats) -> Floats:
    return np.column_stack([np.ones(len(rows)), (rows - of.mean) / of.scale])


def _logistic(design: Floats, answers: Floats) -> Floats:
    """Return the weights of a ridge-penalised logistic regression, by Newton's method."""
    weights = np.zeros(design.shape[1])
    for _ in range(STEPS):
        probability = 1.0 / (1.0 + np.exp(-np.clip(design @ weights, -30.0, 30.0)))
        slope = design.T @ (answers - probability) - RIDGE * weights
        curvature = (design * (probability * (1.0 - probability))[:, None]).T @ design + RIDGE * np.eye(len(weights))
        weights = weights + np.linalg.solve(curvature, slope)
    return weights
