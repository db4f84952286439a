"""Tables to vectors by the public schema alone: one-hot columns, each row of norm 1."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.schema import Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEncoder:
    """One-hot over the levels of every column, divided by √columns."""

    schema: Schema

    @property
    def dimension(self) -> int:
        """Levels of all columns together."""
        return sum(column.levels for column in self.schema)

    @property
    def embedding_size(self) -> int:
        """The features are the embedding."""
        return self.dimension

    def embed(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the features: a class mean of one-hot rows is the class's marginals."""
        return features

    def encode(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Return (n, dimension) rows of norm 1 from (n, columns) codes."""
        offsets = np.cumsum([0] + [column.levels for column in self.schema[:-1]])
        rows = np.zeros((len(values), self.dimension))
        np.put_along_axis(rows, values.astype(np.int64) + offsets, 1.0 / math.sqrt(len(self.schema)), axis=1)
        return rows

    def clean(self, prototypes: NDArray[np.float64], noise: NDArray[np.float64]) -> NDArray[np.float64]:  # noqa: ARG002
        """Return prototypes whose every column is a distribution over its levels (nearest point of the simplex)."""
        root, cleaned, start = math.sqrt(len(self.schema)), np.empty_like(prototypes), 0
        for column in self.schema:
            part = slice(start, start + column.levels)
            cleaned[:, part] = np.stack([simplex(row) for row in prototypes[:, part] * root]) / root
            start += column.levels
        return cleaned


def simplex(point: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the nearest distribution to a point (Duchi et al. 2008, Figure 1)."""
    ordered = np.sort(point)[::-1]
    excess = (np.cumsum(ordered) - 1.0) / np.arange(1, len(point) + 1)
    distribution: NDArray[np.float64] = np.maximum(point - excess[np.flatnonzero(ordered > excess)[-1]], 0.0)
    return distribution
