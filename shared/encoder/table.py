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
