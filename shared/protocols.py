"""The two public seams of the algorithm: a generator of candidates and an encoder of values.

A genome is a row of float64; a candidate is its rendered genome. Nothing here reads private data: ``steer`` is a
released, noised statistic or nothing.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Genomes = NDArray[np.float64]


class Generator(Protocol):
    """Random draw, mutation by strength, crossover and rendering of candidates of one class at a time."""

    @property
    def genome_size(self) -> int:
        """Length of a genome."""

    @property
    def digest(self) -> str:
        """SHA-256 of everything that decides how a genome is rendered."""

    def draw(self, rng: np.random.Generator, cls: int, count: int, steer: NDArray[np.float64] | None) -> Genomes:
        """Return (count, G) fresh genomes of a class; ``steer`` is the class's released prototype, if there is one."""

    def mutate(self, rng: np.random.Generator, genomes: Genomes, cls: int, strength: float) -> Genomes:
        """Return genomes moved by ``strength`` in (0, 1]: 1 forgets the parent as far as the kind allows."""

    def cross(self, rng: np.random.Generator, mothers: Genomes, fathers: Genomes) -> Genomes:
        """Return one child per pair."""

    def render(self, genomes: Genomes, classes: NDArray[np.int64]) -> NDArray[Any]:
        """Return the candidates' values: (P, columns) int64 codes or (P, height, width) uint8 pixels."""


class Encoder(Protocol):
    """A public encoder: table codes or pixels to feature vectors."""

    @property
    def dimension(self) -> int:
        """Length of a feature vector: what nearest neighbours, teachers and students read."""

    @property
    def embedding_size(self) -> int:
        """Length of an embedding: what a prototype is the class mean of."""

    def encode(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Return (n, dimension) features of (n, ...) values."""

    def embed(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return (n, embedding_size) embeddings of norm at most 1."""

    def clean(self, prototypes: NDArray[np.float64], noise: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return (classes, e) prototypes with what is publicly known about class means put back in.

        noise: (classes,) standard deviation of the noise in each prototype's coordinates. Free post-processing.
        """
