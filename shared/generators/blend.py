"""Candidates that lie between two of another generator: mixed images without mixed labels (Zhang et al. 2018).

A student learns where classes part from images that are neither quite one nor quite the other. What such an image is to
be called is for a released classifier to say (``release.labels = "classifier"``): the class it was drawn for means
nothing.

Genome: two genomes of the other generator, the class of the second, and its weight; weight 0 is the first one alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.protocols import Generator, Genomes

LEAST, MOST = 0.3, 0.7  # weight of the second in a blend


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blended:
    """A generator of images of which a fraction are means of two.

    base:     draws what is blended
    classes:  how many classes it draws
    share:    fraction of the draws that are blends, in (0, 1]
    """

    base: Generator
    classes: int
    share: float

    @property
    def genome_size(self) -> int:
        """Two genomes of the base, a class and a weight."""
        return 2 * self.base.genome_size + 2

    @property
    def digest(self) -> str:
        """SHA-256 of the base's digest and of the fraction."""
        return hashlib.sha256(f"blend {self.base.digest} {self.classes} {self.share!r}".encode()).hexdigest()

    def mixed(self, genomes: Genomes) -> NDArray[np.bool_]:
        """Return (P,) which candidates are blends."""
        found: NDArray[np.bool_] = genomes[:, -1] > 0.0
        return found

    def draw(self, rng: np.random.Generator, cls: int, count: int) -> Genomes:
        """Return fresh genomes of the class, each with a second one of any class, which most often has no weight."""
        size, genomes = self.base.genome_size, np.zeros((count, self.genome_size))
        genomes[:, :size] = self.base.draw(rng, cls, count)
        others = rng.integers(self.classes, size=count)
        for other in range(self.classes):
            rows = np.flatnonzero(others == other)
            genomes[rows, size : 2 * size] = self.base.draw(rng, other, len(rows))
        weights = np.rint(256 * rng.uniform(LEAST, MOST, count)) / 256
        genomes[:, -2], genomes[:, -1] = others, np.where(rng.random(count) < self.share, weights, 0.0)
        return genomes

    def mutate(self, rng: np.random.Generator, genomes: Genomes, cls: int, strength: float) -> Genomes:
        """Return genomes whose two parts each moved; class and weight of the second stay."""
        size, mutants = self.base.genome_size, genomes.copy()
        mutants[:, :size] = self.base.mutate(rng, genomes[:, :size], cls, strength)
        for other in range(self.classes):
            rows = np.flatnonzero(self._others(genomes) == other)
            mutants[rows, size : 2 * size] = self.base.mutate(rng, genomes[rows, size : 2 * size], other, strength)
        return mutants

    def cross(self, rng: np.random.Generator, mothers: Genomes, fathers: Genomes) -> Genomes:
        """Return children of the first parts, each with its mother's second part."""
        size, children = self.base.genome_size, mothers.copy()
        children[:, :size] = self.base.cross(rng, mothers[:, :size], fathers[:, :size])
        return children

    def render(self, genomes: Genomes, classes: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return (P, height, width[, 3]) images: each pixel the weighted mean of the two."""
        size = self.base.genome_size
        images: NDArray[np.uint8] = self.base.render(genomes[:, :size], classes)
        mixed = np.flatnonzero(self.mixed(genomes))
        if not len(mixed):
            return images
        seconds = self.base.render(genomes[mixed, size : 2 * size], self._others(genomes[mixed]))
        weights = np.clip(genomes[mixed, -1], 0.0, 1.0).reshape(-1, *[1] * (images.ndim - 1))
        images[mixed] = np.rint((1.0 - weights) * images[mixed] + weights * seconds)
        return images

    def _others(self, genomes: Genomes) -> NDArray[np.int64]:
        others: NDArray[np.int64] = np.clip(np.rint(genomes[:, -2]), 0, self.classes - 1).astype(np.int64)
        return others
