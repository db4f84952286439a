"""Tables from a public schema: a genome is one code per column (a bin, a category, or missing)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.protocols import Genomes
from patevolve.shared.schema import Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Tabular:
    """Rows of a public schema."""

    schema: Schema

    @property
    def genome_size(self) -> int:
        """One number per column."""
        return len(self.schema)

    @property
    def digest(self) -> str:
        """SHA-256 of the schema."""
        return hashlib.sha256(repr(self.schema).encode()).hexdigest()

    def draw(self, rng: np.random.Generator, cls: int, count: int) -> Genomes:  # noqa: ARG002 - one schema serves every class
        """Return rows whose every cell is uniform over its column's levels."""
        columns = [rng.integers(column.levels, size=count) for column in self.schema]
        return np.stack(columns, axis=1).astype(np.float64)

    def mutate(self, rng: np.random.Generator, genomes: Genomes, cls: int, strength: float) -> Genomes:
        """Return rows in which each cell is redrawn uniformly with probability ``strength``."""
        return np.where(rng.random(genomes.shape) < strength, self.draw(rng, cls, len(genomes)), genomes)

    def cross(self, rng: np.random.Generator, mothers: Genomes, fathers: Genomes) -> Genomes:
        """Return children with one segment of columns from the father and the rest from the mother."""
        cuts = np.sort(rng.integers(self.genome_size + 1, size=(len(mothers), 2)), axis=1)
        position = np.arange(self.genome_size)
        segment = (position >= cuts[:, :1]) & (position < cuts[:, 1:])
        return np.where(segment, fathers, mothers)

    def render(self, genomes: Genomes, classes: NDArray[np.int64]) -> NDArray[np.int64]:  # noqa: ARG002 - a row looks the same in every class
        """Return the codes, each within its column's levels."""
        highest = np.array([column.levels - 1 for column in self.schema])
        return np.clip(np.rint(genomes), 0, highest).astype(np.int64)
