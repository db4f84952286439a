"""A public encoder of small images, grey or RGB: a description, its principal components, their Fourier features.

The description is orientation histograms (numpy alone) or what a public network says (encoder/onnx.py). Statistics come
from public images, never from private ones. Texts are encoded alike from descriptions of their own (encoder/ngrams.py,
encoder/sentences.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.luminance import luminance
from patevolve.shared.products import pool_of, products
from patevolve.shared.protocols import Sums

ORIENTATIONS, CELLS = 8, 6
THUMBNAIL = 0.15  # weight of a blurred, halved image beside the histograms of norm 1
COLOUR = 0.5  # weight of the mean colours of the cells
CONSTANT = 0.3  # beside the components of a linear embedding, so that a discriminant has an intercept
BATCH = 500

Floats = NDArray[np.float64]
Describe = Callable[[NDArray[Any]], NDArray[np.float32]]  # (n, ...) images or texts to (n, r), each alone


def hog(images: NDArray[Any]) -> NDArray[np.float32]:
    """Return (n, 288) histograms of oriented gradients, each of norm 1 (Dalal and Triggs 2005, Hellinger-normalised).

    images: (n, height, width) in [0, 1]; 6 × 6 overlapping cells of 8 signed orientations.
    """
    rows, columns = (_cells(size) for size in images.shape[1:])
    parts = []
    for start in range(0, len(images), BATCH):
        smooth = _blur(images[start : start + BATCH], 0.7)
        down, right = np.gradient(smooth, axis=(1, 2))
        strength, angle = np.hypot(down, right), np.arctan2(down, right) * np.float32(ORIENTATIONS / (2 * np.pi))
        below = np.floor(angle)
        part, lower = angle - below, below.astype(np.int64)[:, None]
        channels = np.zeros((len(smooth), ORIENTATIONS, *smooth.shape[1:]), np.float32)
        # A gradient counts for the two orientations beside it, in proportion.
        np.put_along_axis(channels, lower % ORIENTATIONS, (strength * (1 - part))[:, None], axis=1)
        np.put_along_axis(channels, (lower + 1) % ORIENTATIONS, (strength * part)[:, None], axis=1)
        pooled = (rows @ channels @ columns.T).reshape(len(smooth), -1)
        parts.append(np.sqrt(pooled / (pooled.sum(axis=1, keepdims=True) + 1e-6)).astype(np.float32))
    return np.concatenate(parts) if parts else np.zeros((0, ORIENTATIONS * CELLS * CELLS), np.float32)


def _cells(size: int) -> NDArray[np.float32]:
    """Return (CELLS, size) triangular windows that cover an axis."""
    centres = np.linspace(4.5, 22.5, CELLS) * size / 28
    reach = centres[1] - centres[0]
    windows: NDArray[np.float32] = np.clip(1 - np.abs(np.arange(size) - centres[:, None]) / reach, 0, None).astype(
        np.float32
    )
    return windows


def _blur(images: NDArray[Any], sigma: float) -> NDArray[np.float32]:
    """Return images blurred by a Gaussian of ``sigma`` pixels, mirrored at the border."""
    blurred: NDArray[np.float32] = _kernel(images.shape[1], sigma) @ images @ _kernel(images.shape[2], sigma).T
    return blurred


def _kernel(size: int, sigma: float) -> NDArray[np.float32]:
    reach = int(4 * sigma + 0.5)
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    matrix = np.zeros((size, size))
    for offset, weight in zip(range(-reach, reach + 1), weights / weights.sum(), strict=True):
        mirrored = np.arange(size) + offset
        mirrored = np.where(mirrored < 0, -mirrored - 1, mirrored)
        mirrored = np.where(mirrored >= size, 2 * size - 1 - mirrored, mirrored)
        np.add.at(matrix, (np.arange(size), mirrored), weight)
    return matrix.astype(np.float32)


def histograms(values: NDArray[Any]) -> NDArray[np.float32]:
    """Return (n, r) histograms and a thumbnail of each of (n, height, width) images of levels 0 to 255.

    Of (n, height, width, 3) images both are of the luminance, and the cells' mean colours stand beside them.
    """
    bright = luminance(values) if values.ndim == 4 else values.astype(np.float32)
    images = bright / np.float32(255)
    thumbnails = _blur(images, 1.0)[:, 1::2, 1::2].reshape(len(images), -1)
    parts = [hog(images), np.float32(THUMBNAIL) * thumbnails]
    return np.hstack([*parts, np.float32(COLOUR) * _colours(values, images)] if values.ndim == 4 else parts)


def _colours(values: NDArray[Any], bright: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return (n, 72) means of red and of blue, less the luminance, over the 6 × 6 cells."""
    rows, columns = (_cells(size) for size in bright.shape[1:])
    rows, columns = (windows / windows.sum(axis=1, keepdims=True) for windows in (rows, columns))
    planes = [values[..., channel].astype(np.float32) / np.float32(255) - bright for channel in (0, 2)]
    means = [(rows @ plane @ columns.T).reshape(len(plane), CELLS * CELLS) for plane in planes]  # label: own-colours
    return np.hstack(means)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImageEncoder:
    """Principal components of public images, half whitened, root mean square norm 1; embedded by Fourier features.

    A class mean of Fourier features is the class's kernel mean embedding (Rahimi and Recht 2007; Muandet 2017): as
    much of the whole distribution as their number holds, at the cost of one bounded vector per unit.

    mean, axes:   (r,) and (r, d) from public images
    frequencies:  (d, e/2) from the plan's public stream
    describe:     images or texts to (n, r) rows, each a function of its record alone
    embedding:    "fourier", or "linear": the components themselves, shortened to norm 1, whose class means are fewer
                  numbers and so carry less noise
    """

    mean: Floats
    axes: Floats
    frequencies: Floats
    describe: Describe = histograms
    embedding: Literal["fourier", "linear"] = "fourier"

    @property
    def dimension(self) -> int:
        """Number of components."""
        return int(self.axes.shape[1])

    @property
    def embedding_size(self) -> int:
        """Two Fourier features per frequency, or the components and a constant."""
        return self.dimension + 1 if self.embedding == "linear" else 2 * int(self.frequencies.shape[1])

    def encode(self, values: NDArray[Any]) -> Floats:
        """Return (n, d) components of (n, height, width) or (n, height, width, 3) uint8 images."""
        if len(values) == 0:
            return np.zeros((0, self.dimension))
        # Each image by itself, bit by bit: what a record votes must not hang on who stands beside it.
        axes, parts = pool_of(self.axes.T), []
        for start in range(0, len(values), BATCH):  # what is made of a batch stays in the cache
            described = self.describe(values[start : start + BATCH]) - self.mean
            parts.append(products(described, axes))  # label: own-components
        return np.concatenate(parts)

    def embed(self, features: Floats) -> Floats:
        """Return Fourier features, each row of norm exactly 1, or components, each row of norm at most 1."""
        if self.embedding == "linear":
            rows: Floats = np.hstack([features, np.full((len(features), 1), CONSTANT)])
            shortened: Floats = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)  # label: own-length
            return shortened
        phase = products(features, self.frequencies.T)  # label: own-embedding
        waves: Floats = np.hstack([np.cos(phase), np.sin(phase)]) / math.sqrt(self.frequencies.shape[1])
        return waves

    def statistic(self, features: Floats) -> Floats:
        """Return the embedding: a class mean of it is what ``model`` estimates."""
        return self.embed(features)

    def model(self, sums: Sums) -> Floats:
        """Return the class means of the embedding."""
        return sums.values / sums.counts[:, None]

    def log_likelihood(self, features: Floats, model: Floats) -> None:
        """Return None: a mean embedding is no distribution over images."""
        del features, model


def fit(
    public: NDArray[np.uint8],
    rng: np.random.Generator,
    *,
    dimension: int = 64,
    embedding: int = 1000,
    widths: tuple[float, ...] = (0.25, 0.5),
    describe: Describe = histograms,
) -> ImageEncoder:
    """Return the encoder fitted to public images, grey or RGB uint8, with kernels of these widths."""
    described = describe(public).astype(np.float64)
    mean = described.mean(axis=0)
    _, scales, axes = np.linalg.svd(described - mean, full_matrices=False)
    whitened = axes[:dimension].T / np.sqrt(scales[:dimension] / scales[0])
    size = np.sqrt(np.mean(np.sum(((described - mean) @ whitened) ** 2, axis=1)))
    each = embedding // 2 // len(widths)
    frequencies = np.hstack([rng.normal(size=(whitened.shape[1], each)) / width for width in widths])
    return ImageEncoder(mean=mean, axes=whitened / size, frequencies=frequencies, describe=describe)
