"""Changes of view for contrastive training: small public shifts, turns and zooms, the same for every record."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

SHIFT, TURN, ZOOM, BEND = 0.07, 0.17, 0.1, 0.1  # of a side; radians; relative; shear: standard deviations


def changed_views(images: NDArray[np.uint8], rng: np.random.Generator, count: int) -> NDArray[np.uint8]:
    """Return (count, n, h, w[, 3]) uint8: the images as they are, then ``count`` − 1 affine changes of all of them.

    A change is public and the same for every image, and a pixel is a function of its own image alone.
    """
    height, width = images.shape[1:3]
    down, right = np.meshgrid(np.linspace(-1.0, 1.0, height), np.linspace(-1.0, 1.0, width), indexing="ij")
    views = [images]
    for _ in range(count - 1):
        turn, shear, dy, dx = rng.normal(size=4) * (TURN, BEND, 2 * SHIFT, 2 * SHIFT)
        zoom = math.exp(ZOOM * rng.normal())
        across = zoom * (math.cos(turn) * right + (math.sin(turn) + shear) * down) + dx
        along = zoom * (math.cos(turn) * down - math.sin(turn) * right) + dy
        views.append(_sampled(images, (along + 1) * (height - 1) / 2, (across + 1) * (width - 1) / 2))
    return np.stack(views)


def _sampled(images: NDArray[np.uint8], rows: NDArray[np.float64], columns: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return bilinear samples at (h, w) places of every image and channel; beyond the border is black."""
    if images.ndim == 4:
        return np.stack([_sampled(images[..., channel], rows, columns) for channel in range(3)], axis=3)
    framed = np.pad(images, ((0, 0), (1, 2), (1, 2)))
    height, width = images.shape[1:]
    y, x = np.clip(rows + 1, 0, height + 1), np.clip(columns + 1, 0, width + 1)
    top, left = np.floor(y).astype(np.int64), np.floor(x).astype(np.int64)
    fy, fx = (y - top).astype(np.float32), (x - left).astype(np.float32)
    upper = framed[:, top, left] * (1 - fx) + framed[:, top, left + 1] * fx
    lower = framed[:, top + 1, left] * (1 - fx) + framed[:, top + 1, left + 1] * fx
    sampled: NDArray[np.uint8] = np.rint(upper * (1 - fy) + lower * fy).astype(np.uint8)
    return sampled
