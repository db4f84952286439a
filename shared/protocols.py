"""The two public seams of the algorithm: a generator of candidates and an encoder of values.

A genome is a row of float64; a candidate is its rendered genome. Nothing here reads private data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Genomes = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sums:
    """Noisy sums of embeddings per class, as ``model`` receives them.

    values:     (classes, e) unbiased sums
    counts:     (classes,) noisy class sizes, positive
    std:        (classes,) standard deviation of the noise in each coordinate of a class's sum
    apart_std:  (classes,) the same for a class's mean less the mean over all classes
    pooled_std: the same for the mean over all classes
    """

    values: NDArray[np.float64]
    counts: NDArray[np.float64]
    std: NDArray[np.float64]
    apart_std: NDArray[np.float64]
    pooled_std: float = 0.0


class Generator(Protocol):
    """Random draw, mutation by strength, crossover and rendering of candidates of one class at a time."""

    @property
    def genome_size(self) -> int:
        """Length of a genome."""

    @property
    def digest(self) -> str:
        """SHA-256 of everything that decides how a genome is rendered."""

    def draw(self, rng: np.random.Generator, cls: int, count: int) -> Genomes:
        """Return (count, G) fresh genomes of a class."""

    def mutate(self, rng: np.random.Generator, genomes: Genomes, cls: int, strength: float) -> Genomes:
        """Return genomes moved by ``strength`` in (0, 1]: 1 forgets the parent as far as the kind allows."""

    def cross(self, rng: np.random.Generator, mothers: Genomes, fathers: Genomes) -> Genomes:
        """Return one child per pair."""

    def render(self, genomes: Genomes, classes: NDArray[np.int64]) -> NDArray[Any]:
        """Return the candidates' values: (P, columns) int64 codes or (P, height, width[, 3]) uint8 pixels."""


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

    def statistic(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return (n, m) rows whose class mean is what ``model`` estimates: how a population is compared with it."""

    def model(self, sums: Sums) -> NDArray[np.float64]:
        """Return (classes, m) what the classes look like, from noisy sums of embeddings; free post-processing."""

    def log_likelihood(self, features: NDArray[np.float64], model: NDArray[np.float64]) -> NDArray[np.float64] | None:
        """Return (n,) log-likelihoods under one class's model, or None if the model is no distribution."""
