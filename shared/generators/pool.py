"""Public unlabelled images as candidates: a genome names one, its variation goes to near neighbours.

The pool is one public file, named by its hash. Its images have no classes, so the same pool serves every class, and
the sites' answers alone decide which image stands for which. This is the public unlabelled data of PATE (Papernot et
al. 2017): what is released are public images with new labels. A pool of public texts is the same, without variation.

Genome: the image's number; with ``variation`` also 34 numbers in standard units: a shift (down, right), and 16
downward and 16 rightward displacements of a 4 × 4 elastic grid. Rendering is integer arithmetic throughout, so that it
is the same at every site, bit for bit.
"""

from __future__ import annotations

import functools
import hashlib
import zipfile
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.shared import assets
from patevolve.shared.errors import DataError, PlanError
from patevolve.shared.protocols import Genomes
from patevolve.shared.texts import normal, packed, unpacked

NUMBERS = 34
KNOTS = 4  # of the elastic grid along each side
SHIFT, ELASTIC = 1.5, 1.0  # standard deviations at variation 1, in pixels of an image of 28
UNITS = 64  # a genome's number is read in 1/64 standard units, a knot's weight in 1/64
FURTHEST = 3 * UNITS  # and no further than 3
PIXEL = 256  # places are counted in 1/256 pixel
BATCH = 500
MADE_BY = {"images": "patevolve assets pool IMAGES", "texts": "patevolve assets texts FILE"}
# What zipfile, zlib and numpy raise on archives that are damaged or hold objects.
UNREADABLE = (OSError, ValueError, EOFError, KeyError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error)

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pool:
    """Images (height, width) uint8, or (height, width, 3) in colour, or texts (length,) of a public pool.

    images:      (n, height, width) or (n, height, width, 3) uint8, without labels; or (n, length) packed texts
    neighbours:  (n, k) int32, the numbers of the images most like each, nearest first, itself left out
    sha256:      of the file that both came from
    variation:   0: images as they are; up to 1: each candidate a little shifted and bent
    """

    images: NDArray[np.uint8]
    neighbours: NDArray[np.int32]
    sha256: str
    variation: float = 0.0

    @property
    def genome_size(self) -> int:
        """The image's number, and those of its variation."""
        return 1 + NUMBERS * (self.variation > 0.0)

    @property
    def digest(self) -> str:
        """SHA-256 of the file's hash and of the variation."""
        return hashlib.sha256(f"pool {self.sha256} {self.variation!r}".encode()).hexdigest()

    def everything(self) -> Genomes:
        """Return the genome of every image of the pool, unvaried: (n, G)."""
        return self._with_numbers(np.arange(len(self.images)))

    def draw(self, rng: np.random.Generator, cls: int, count: int) -> Genomes:  # noqa: ARG002 - one pool serves every class
        """Return genomes of random images; no image comes twice before each came once."""
        rounds = -(-count // len(self.images))
        chosen = np.concatenate([rng.permutation(len(self.images)) for _ in range(rounds)] or [np.zeros(0, np.int64)])
        genomes = self._with_numbers(chosen[:count])
        genomes[:, 1:] = rng.normal(size=(count, self.genome_size - 1))
        return genomes

    def mutate(self, rng: np.random.Generator, genomes: Genomes, cls: int, strength: float) -> Genomes:  # noqa: ARG002 - as above
        """Return each image's neighbour of a random rank up to n^strength, so that 1 means any image of the pool.

        A rank beyond the table of neighbours is drawn from the whole pool. Numbers take normal steps of ``strength``.
        """
        known, count = self.neighbours.shape[1], len(self.images)
        rank = rng.integers(1, 1 + max(1, round(count**strength)), size=len(genomes))
        anywhere = rng.integers(count, size=len(genomes))
        near = self.neighbours[self.numbers_of(genomes), np.minimum(rank, known) - 1]
        mutants = genomes.copy()
        mutants[:, 0] = np.where(rank <= known, near, anywhere)
        mutants[:, 1:] += strength * rng.normal(size=(len(genomes), self.genome_size - 1))
        return mutants

    def cross(self, rng: np.random.Generator, mothers: Genomes, fathers: Genomes) -> Genomes:
        """Return images between their parents: neighbours of both, nearer to the larger share α ~ Beta(2, 2).

        Of the common ones it is that of least α·rank² + (1 − α)·rank², as a mean is of least squared distances.
        Parents without a common neighbour have a child like the one with the larger share. Numbers are blended.
        """
        alpha = rng.beta(2.0, 2.0, size=(len(mothers), 1))
        children = alpha * mothers + (1.0 - alpha) * fathers
        pairs = np.stack([self.numbers_of(mothers), self.numbers_of(fathers)], axis=1)
        for start in range(0, len(pairs), BATCH):
            part = slice(start, start + BATCH)
            children[part, 0] = self._between(pairs[part], alpha[part])
        return children

    def render(self, genomes: Genomes, classes: NDArray[np.int64]) -> NDArray[np.uint8]:  # noqa: ARG002 - an image looks the same in every class
        """Return (P, ...) uint8 images of the pool's shape; a number out of range is the nearest one."""
        images = self.images[self.numbers_of(genomes)]
        if self.variation > 0.0:
            for start in range(0, len(images), BATCH):
                part = slice(start, start + BATCH)
                images[part] = _bent(images[part], genomes[part, 1:], self.variation)
        return images

    def _with_numbers(self, chosen: Integers) -> Genomes:
        genomes = np.zeros((len(chosen), self.genome_size))
        genomes[:, 0] = chosen
        return genomes

    def numbers_of(self, genomes: Genomes) -> Integers:
        """Return (P,) numbers of the images that genomes name; out of range: the nearest one."""
        return np.clip(np.rint(genomes[:, 0]), 0, len(self.images) - 1).astype(np.int64)

    def _between(self, pairs: Integers, alpha: NDArray[np.float64]) -> Integers:
        """Return (m,) the common neighbours of least weighted squares of ranks, else the parent of the larger share."""
        ours, theirs = (self.neighbours[pairs[:, side]] for side in (0, 1))
        square = np.arange(1.0, 1.0 + ours.shape[1]) ** 2
        same = ours[:, :, None] == theirs[:, None, :]
        far = alpha[:, :, None] * square[:, None] + (1.0 - alpha[:, :, None]) * square
        best = np.where(same, far, np.inf).reshape(len(pairs), -1).argmin(axis=1)
        child = ours[np.arange(len(pairs)), best // len(square)]
        alone = np.where(alpha[:, 0] > 0.5, pairs[:, 0], pairs[:, 1])
        found = same.any(axis=(1, 2)) & (pairs[:, 0] != pairs[:, 1])
        return np.where(found, child, alone)


def _bent(images: NDArray[np.uint8], numbers: Genomes, variation: float) -> NDArray[np.uint8]:
    """Return images (m, h, w) or (m, h, w, 3) sampled at displaced places, bilinear, each channel at the same ones.

    Beyond the border is as at the border.
    """
    height, width = images.shape[1:3]
    q = np.clip(np.rint(numbers * UNITS), -FURTHEST, FURTHEST).astype(np.int64)
    basis, places = _basis(height, width), []
    for axis, side in enumerate((height, width)):
        shift, elastic = (round(std * variation * side / 28 * PIXEL) for std in (SHIFT, ELASTIC))
        grid = q[:, 2 + 16 * axis : 18 + 16 * axis] @ basis
        moved = (q[:, axis, None] * (shift * UNITS) + grid * elastic) // (UNITS * UNITS)
        own = PIXEL * np.indices((height, width))[axis].ravel()
        places.append(np.clip(own + moved, 0, PIXEL * (side - 1)))
    (row, down), (column, right) = (np.divmod(place, PIXEL) for place in places)
    below, beside = np.minimum(row + 1, height - 1), np.minimum(column + 1, width - 1)
    flat, one = images.reshape(len(images), height * width, -1).astype(np.int64), np.arange(len(images))[:, None]
    down, right = down[:, :, None], right[:, :, None]
    upper = flat[one, row * width + column] * (PIXEL - right) + flat[one, row * width + beside] * right
    lower = flat[one, below * width + column] * (PIXEL - right) + flat[one, below * width + beside] * right
    sampled = (upper * (PIXEL - down) + lower * down + PIXEL * PIXEL // 2) // (PIXEL * PIXEL)
    bent: NDArray[np.uint8] = sampled.reshape(images.shape).astype(np.uint8)
    return bent


@functools.lru_cache(maxsize=4)
def _basis(height: int, width: int) -> Integers:
    """Return (16, height · width) weights of the grid's knots at each pixel, in 1/64; bilinear between knots."""
    rows, columns = (
        np.maximum(0.0, 1.0 - np.abs(np.arange(side) * (KNOTS - 1) / (side - 1) - np.arange(KNOTS)[:, None]))
        for side in (height, width)
    )
    weights = np.rint(UNITS * rows[:, None, :, None] * columns[None, :, None, :])
    basis: Integers = weights.astype(np.int64).reshape(KNOTS**2, height * width)
    return basis


def load(sha256: str, shape: tuple[int, ...], variation: float = 0.0) -> Pool:
    """Return the pool in the public file of this hash. Raises PlanError if there is none, or of another shape."""
    images, neighbours = _arrays(sha256, "images")
    if images.dtype != np.uint8 or images.shape[1:] != shape or len(images) < 2:
        raise PlanError(
            f"generator.asset: images {images.dtype} {images.shape} found; expected uint8 (n ≥ 2, "
            f"{', '.join(map(str, shape))}), as data.height, width and channels say. Make another pool, or change the "
            f"plan."
        )
    return Pool(images=images, neighbours=neighbours, sha256=sha256, variation=variation)


def load_texts(sha256: str, length: int) -> Pool:
    """Return the pool of texts in the public file of this hash, as rows of ``length`` bytes.

    Raises PlanError if there is none, if a text of it is longer, or not in its normal form.
    """
    held, neighbours = _arrays(sha256, "texts")
    if held.dtype != np.uint8 or held.ndim != 2 or len(held) < 2:
        raise PlanError(f"generator.asset: texts {held.dtype} {held.shape} found; expected uint8 (n ≥ 2, bytes).")
    try:
        texts = unpacked(held)
        rows = packed([normal(text, held.shape[1]) for text in texts], length)
    except DataError as reason:
        raise PlanError(
            f"generator.asset: {reason} A pool's texts are at most data.length = {length} bytes. Make another pool "
            f"with --length {length}, or change the plan."
        ) from reason
    if not all(texts) or unpacked(rows) != texts:
        raise PlanError(
            f"generator.asset: texts that are not in their normal form found. Make it again with: {MADE_BY['texts']}."
        )
    return Pool(images=rows, neighbours=neighbours, sha256=sha256)


def _arrays(sha256: str, name: str) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """Return a pool's records, called ``name`` in the file, and the neighbours of each. Raises PlanError."""
    path = assets.find(sha256)
    try:
        with np.load(path, allow_pickle=False) as file:
            records, neighbours = file[name], file["neighbours"]
    except UNREADABLE as reason:
        raise PlanError(
            f"{path} is no pool of {name} ({type(reason).__name__}); expected the arrays {name} and neighbours. Make "
            f"it with: {MADE_BY[name]}."
        ) from reason
    count = len(records) if records.ndim else 0
    known = neighbours.dtype == np.int32 and neighbours.ndim == 2 and 1 <= neighbours.shape[1] < count
    if not (known and len(neighbours) == count and neighbours.min() >= 0 and neighbours.max() < count):
        raise PlanError(
            f"generator.asset: neighbours {neighbours.dtype} {neighbours.shape} found; expected int32 numbers of the "
            f"{count} {name}. Make it again with: {MADE_BY[name]}."
        )
    return records, neighbours
