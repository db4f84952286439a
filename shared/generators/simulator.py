"""Handwriting from public glyphs: a genome bends, inks and centres a glyph's distance field.

Genome: face index, then 38 numbers in prior standard units: rotation, shear, log aspect, taper, pen radius, edge
softness, and 16 horizontal and 16 vertical displacements of a 4 × 4 elastic grid. With ``variation`` 144 more: the
displacements of an 8 × 8 grid, which bend single strokes, and 16 places where the pen presses harder or lighter. Every
step rounds the numbers to half precision, so that a number travels in two bytes.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.errors import PlanError
from patevolve.shared.generators import faces, fields
from patevolve.shared.generators.fields import CANVAS, HALF, Field
from patevolve.shared.protocols import Genomes

NUMBERS = 38
MEAN = np.array([0, 0, 0, 0, 1.3, 0.65])  # of rotation, shear, aspect, taper, pen radius (pixels), softness (pixels)
SPREAD = np.array([0.35, 0.35, 0.35, 0.25, 0.6, 0.15])
ELASTIC = 0.18  # standard deviation of a grid point's displacement, glyph units
FINE_KNOTS = 8  # of the finer grid along each side
FINE_ELASTIC = 0.15  # standard deviation of its points' displacement at variation 1, glyph units
THICKNESS = 0.1  # standard deviation of the pen's local thickening at variation 1, glyph units
FINE_NUMBERS = 2 * FINE_KNOTS**2 + 16
GRID = 32  # side of the first, uncentred rendering
REACH = 1.5  # it covers [−REACH, REACH]²
BOX = 20 / 28  # the glyph's longer side, as a share of the image: the convention of handwritten-digit sets
BATCH = 250  # images drawn at a time: what is made of them stays in the cache
FURTHEST = 30.0  # standard units: beyond what evolution reaches; rendering is total, whoever sent the genome
FACE_CHANGE = 0.4  # of mutation strength beyond 0.1: how often a mutant changes its face

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulator:
    """Images (side, side) uint8 of the glyphs that the classes name.

    asset:      SHA-256 of a public file of more faces; "": the fonts that matplotlib ships, and written strokes
    variation:  how far strokes bend and thicken by themselves, 0 to 1
    """

    glyphs: tuple[str, ...]
    side: int = 28
    asset: str = ""
    variation: float = 0.0

    @property
    def genome_size(self) -> int:
        """The face and its numbers."""
        return 1 + NUMBERS + FINE_NUMBERS * (self.variation > 0.0)

    @property
    def digest(self) -> str:
        """SHA-256 of all glyphs' fields, which fonts and drawing libraries decide, and of the variation if any."""
        state = hashlib.sha256()
        for cls in range(len(self.glyphs)):
            state.update(self.fields_of(cls).tobytes())
        if self.variation > 0.0:
            state.update(f"variation {self.variation!r}".encode())
        return state.hexdigest()

    def fields_of(self, cls: int) -> Field:
        """Return the (faces, CANVAS, CANVAS) fields of a class's glyph. Raises PlanError if the file lacks it."""
        glyph = self.glyphs[cls]
        if not self.asset:
            return fields.fields_of(glyph)
        known = faces.read(self.asset)
        if glyph not in known:
            raise PlanError(
                f"class {glyph!r} is no glyph of the file that generator.asset names; it has {' '.join(known)}."
            )
        return known[glyph]

    def draw(self, rng: np.random.Generator, cls: int, count: int) -> Genomes:
        """Return genomes of a random face and standard normal numbers."""
        face = rng.integers(len(self.fields_of(cls)), size=(count, 1))
        return _rounded(np.hstack([face.astype(np.float64), rng.normal(size=(count, self.genome_size - 1))]))

    def mutate(self, rng: np.random.Generator, genomes: Genomes, cls: int, strength: float) -> Genomes:
        """Return genomes with normal steps of ``strength`` on every number; some change their face."""
        mutants = genomes.copy()
        mutants[:, 1:] += strength * rng.normal(size=(len(genomes), self.genome_size - 1))
        fresh = rng.integers(len(self.fields_of(cls)), size=len(genomes))
        changed = rng.random(len(genomes)) < FACE_CHANGE * max(0.0, strength - 0.1)
        mutants[changed, 0] = fresh[changed]
        return _rounded(mutants)

    def cross(self, rng: np.random.Generator, mothers: Genomes, fathers: Genomes) -> Genomes:
        """Return z = α·mother + (1 − α)·father with α ~ Beta(2, 2); the face is that of the larger share."""
        alpha = rng.beta(2.0, 2.0, size=(len(mothers), 1))
        children = alpha * mothers + (1.0 - alpha) * fathers
        children[:, 0] = np.where(alpha[:, 0] > 0.5, mothers[:, 0], fathers[:, 0])
        return _rounded(children)

    def render(self, genomes: Genomes, classes: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return (P, side, side) uint8 images, white ink on black; a face out of range is the nearest one."""
        images = np.zeros((len(genomes), self.side, self.side), np.uint8)
        for cls in np.unique(classes):
            rows, own = np.flatnonzero(classes == cls), self.fields_of(cls)
            for start in range(0, len(rows), BATCH):
                some = rows[start : start + BATCH]
                images[some] = np.rint(255 * _ink(own, genomes[some], self.side, self.variation))
        return images


def _rounded(genomes: Genomes) -> Genomes:
    """Return the genomes, face by face as they are, with the nearest numbers of half precision within reach."""
    return np.hstack([genomes[:, :1], np.clip(genomes[:, 1:], -FURTHEST, FURTHEST).astype(np.float16)])


def _ink(own: Field, genomes: Genomes, side: int, variation: float) -> Floats:
    """Return (n, side, side) ink in [0, 1]: bend the field, find the glyph's box, sample it centred."""
    n, step = len(genomes), np.float32(2 * REACH / (GRID - 1))
    face = np.clip(np.rint(genomes[:, 0]), 0, len(own) - 1).astype(np.int64)
    genomes = np.clip(genomes, -FURTHEST, FURTHEST)
    numbers = (MEAN + SPREAD * genomes[:, 1:7]).astype(np.float32)
    pen, soft = np.clip(numbers[:, 4], 0.45, 3.0), np.clip(numbers[:, 5], 0.4, 1.5)
    coarse, fine, thick = np.split(genomes[:, 7:], [NUMBERS - 6, NUMBERS - 6 + 2 * FINE_KNOTS**2], axis=1)
    x, y = _bent(numbers, (ELASTIC * coarse).astype(np.float32))
    if variation > 0.0:
        moved = (FINE_ELASTIC * variation * fine).astype(np.float32)
        x, y = (a + half @ _basis(FINE_KNOTS) for a, half in zip((x, y), np.split(moved, 2, axis=1), strict=True))
    to_cell = np.float32(CANVAS / (2 * HALF))
    field = _sample(own[face], (x + HALF) * to_cell - 0.5, (y + HALF) * to_cell - 0.5, np.float32(1) / to_cell)
    if variation > 0.0:
        field -= (THICKNESS * variation * thick).astype(np.float32) @ _basis(4)
    field = field.reshape(n, GRID, GRID) / _stretch(x.reshape(n, GRID, GRID), y.reshape(n, GRID, GRID), step)
    cx, cy, size = _box(np.clip((pen[:, None, None] / 10 - field) / np.float32(0.1) + np.float32(0.5), 0, 1))
    zoom = (size / (BOX * side)).astype(np.float32)[:, None]  # grid cells per output pixel
    offset = np.arange(side, dtype=np.float32) - np.float32((side - 1) / 2)
    down, right = (v.ravel()[None] for v in np.meshgrid(offset, offset, indexing="ij"))
    distance = _sample(field, cx[:, None] + zoom * right, cy[:, None] + zoom * down, step) / (zoom * step)
    scale = np.float32(side / 28)  # pen radius and softness are given for 28 pixels
    ink = np.clip((pen[:, None] * scale - distance) / (2 * soft[:, None] * scale) + np.float32(0.5), 0, 1)
    return ink.reshape(n, side, side).astype(np.float32)


def _bent(numbers: Floats, elastic: Floats) -> tuple[Floats, Floats]:
    """Return where in the glyph each grid point lies: (n, GRID²) x and y after affine and elastic bending."""
    line = np.linspace(-REACH, REACH, GRID, dtype=np.float32)
    down, right = (v.ravel()[None] for v in np.meshgrid(line, line, indexing="ij"))
    rotation, shear, aspect, taper = (numbers[:, i : i + 1] for i in range(4))
    x = np.cos(rotation) * right + np.sin(rotation) * down
    y = np.cos(rotation) * down - np.sin(rotation) * right
    x = (x + shear * y) * np.exp(aspect + taper * y)
    basis = _basis(4)
    return x + elastic[:, :16] @ basis, y + elastic[:, 16:] @ basis


@functools.cache
def _basis(count: int) -> Floats:
    """Return (count², GRID²) smooth weights of the points of an elastic grid."""
    knots, line = np.linspace(-1, 1, count), np.linspace(-1, 1, GRID)
    near = np.exp(-0.5 * ((line[:, None] * 1.3 - knots) / (1.5 / (count - 1))) ** 2)
    near /= near.sum(axis=1, keepdims=True)
    basis: Floats = np.einsum("ai,bj->ijab", near, near).reshape(count**2, GRID * GRID).astype(np.float32)
    return basis


def _stretch(x: Floats, y: Floats, step: np.float32) -> Floats:
    """Return the local magnification of the bending, so that pens keep their width in the output."""
    xy, xx = np.gradient(x, step, axis=(1, 2))
    yy, yx = np.gradient(y, step, axis=(1, 2))
    magnification: Floats = np.sqrt(np.clip(xx * yy - xy * yx, 0.1, 10)).astype(np.float32)
    return magnification


def _box(ink: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the ink's centre of mass and the longer side of its box, in grid cells."""
    cells, shown = np.arange(GRID), ink > 0.3

    def extent(hit: Any) -> Any:
        return np.where(hit, cells, -1).max(axis=1) - np.where(hit, cells, 99).min(axis=1)

    size = np.maximum(np.maximum(extent(shown.any(axis=1)), extent(shown.any(axis=2))) + 1, 6)
    mass = ink.sum(axis=(1, 2)) + np.float32(1e-6)
    cy, cx = (ink.sum(axis=2) * cells).sum(axis=1) / mass, (ink.sum(axis=1) * cells).sum(axis=1) / mass
    return cx.astype(np.float32), cy.astype(np.float32), size.astype(np.float32)


def _sample(grids: Floats, x: Floats, y: Floats, unit: np.float32) -> Floats:
    """Return (n, m) bilinear samples; beyond the grid the distance grows by ``unit`` a cell."""
    n, height, width = grids.shape
    inside_x, inside_y = np.clip(x, 0, width - 1.001), np.clip(y, 0, height - 1.001)
    beyond = (np.abs(inside_x - x) + np.abs(inside_y - y)) * unit
    row, column = inside_y.astype(np.int32), inside_x.astype(np.int32)
    fy, fx = (inside_y - row).astype(np.float32), (inside_x - column).astype(np.float32)
    base = (np.arange(n, dtype=np.int32) * (height * width))[:, None] + row * width + column
    flat = grids.ravel()
    upper = flat[base] * (1 - fx) + flat[base + 1] * fx
    lower = flat[base + width] * (1 - fx) + flat[base + width + 1] * fx
    sampled: Floats = (upper * (1 - fy) + lower * fy + beyond).astype(np.float32)
    return sampled
