"""Tables to vectors by the public schema alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.protocols import Sums
from patevolve.shared.schema import Schema

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEncoder:
    """One-hot over the levels of every column (a missing value is a level of its own).

    An embedding is the one-hot row less its public mean 1/levels, scaled so that every row has norm exactly 1. The
    constant part of a one-hot row says only how many units there are; ``counts`` asks that once, so no column pays for
    it again.
    """

    schema: Schema

    @property
    def levels(self) -> NDArray[np.int64]:
        """Number of levels of each column."""
        return np.array([column.levels for column in self.schema])

    @property
    def dimension(self) -> int:
        """Levels of all columns together."""
        return int(self.levels.sum())

    @property
    def embedding_size(self) -> int:
        """As many as there are levels."""
        return self.dimension

    @property
    def _scale(self) -> float:
        return 1.0 / math.sqrt(float(np.sum(1.0 - 1.0 / self.levels)))

    def encode(self, values: NDArray[Any]) -> Floats:
        """Return (n, dimension) one-hot rows of (n, columns) codes."""
        rows = np.zeros((len(values), self.dimension))
        np.put_along_axis(rows, values.astype(np.int64) + self._starts(), 1.0, axis=1)
        return rows

    def embed(self, features: Floats) -> Floats:
        """Return the centred rows, each of norm 1."""
        return self._scale * (features - np.repeat(1.0 / self.levels, self.levels))

    def statistic(self, features: Floats) -> Floats:
        """Return the one-hot rows: their class mean is what ``model`` estimates, the classes' level shares."""
        return features

    def model(self, sums: Sums) -> Floats:
        """Return (classes, dimension) level shares of every column from the noisy sums of embeddings.

        What all classes have in common, and each class's deviation from it, is shrunk as far as it is noise
        (positive-part James and Stein 1961), column by column, so that pure noise leaves the uniform distribution. The
        result is moved to the nearest distribution, plus a pseudo-count of one standard deviation of the noise, so that
        no level is ruled out by noise. Every share is positive.
        """
        pooled = sums.values.sum(axis=0) / sums.counts.sum()
        apart = sums.values / sums.counts[:, None] - pooled
        shares, start = np.empty_like(sums.values), 0
        for levels in self.levels.tolist():
            part = slice(start, start + levels)
            common = _shrunk(_centred(pooled[part]), sums.pooled_std)
            for cls, count in enumerate(sums.counts.tolist()):
                level = common + _shrunk(_centred(apart[cls, part]), float(sums.apart_std[cls]))
                counts = count * simplex(level / self._scale + 1.0 / levels)
                counts += float(sums.std[cls]) / self._scale + 0.5
                shares[cls, part] = counts / counts.sum()
            start += levels
        return shares

    def log_likelihood(self, features: Floats, model: Floats) -> Floats:
        """Return (n,) log-likelihoods of one-hot rows under one class's level shares, columns taken as independent."""
        likelihood: Floats = features @ np.log(model)
        return likelihood

    def _starts(self) -> NDArray[np.int64]:
        return np.cumsum(self.levels) - self.levels


def _centred(values: Floats) -> Floats:
    centred: Floats = values - values.mean()
    return centred


def _shrunk(apart: Floats, std: float) -> Floats:
    """Return the deviation shrunk towards 0 by the share of its square that noise of ``std`` explains."""
    square = float(apart @ apart)
    return apart * max(0.0, 1.0 - std**2 * (len(apart) - 1) / square) if square > 0.0 else apart


def simplex(point: Floats) -> Floats:
    """Return the nearest distribution to a point (Duchi et al. 2008, Figure 1)."""
    ordered = np.sort(point)[::-1]
    excess = (np.cumsum(ordered) - 1.0) / np.arange(1, len(point) + 1)
    distribution: Floats = np.maximum(point - excess[np.flatnonzero(ordered > excess)[-1]], 0.0)
    return distribution
