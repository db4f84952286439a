"""Tables with how their columns go together: level shares of every column and of every pair of columns.

The embedding of a row is that of ``TableEncoder`` beside the products of its centred columns, pair by pair, at norm
exactly 1; ``share`` of the squared norm goes to the pairs. So one ``prototypes`` question measures every two-way table
of every class, within the bound that it has anyway. From the noisy sums the model of a class is a tree (Chow and Liu
1968): the pairs of most mutual information, as far as they stand out of the noise, the other columns independent.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.encoder.table import TableEncoder
from patevolve.shared.protocols import Sums

RAREST = 0.05  # a cell of a pair is taken as at least this fraction of what independent columns would give
FITTINGS = 50  # rounds of iterative proportional fitting

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairEncoder:
    """``TableEncoder`` with a share of each embedding's squared norm for the pairs of columns."""

    table: TableEncoder
    share: float

    @property
    def dimension(self) -> int:
        """Levels of all columns together: features are one-hot rows, without the pairs."""
        return self.table.dimension

    @property
    def pairs(self) -> list[tuple[slice, slice]]:
        """Return where in a one-hot row the two columns of each pair stand; columns of one level have no pairs."""
        ends = np.cumsum(self.table.levels).tolist()
        parts = [slice(end - size, end) for end, size in zip(ends, self.table.levels.tolist(), strict=True) if size > 1]
        return list(itertools.combinations(parts, 2))

    @property
    def embedding_size(self) -> int:
        """Levels of all columns, and cells of all pairs."""
        return self.dimension + sum(_size(one) * _size(two) for one, two in self.pairs)

    def encode(self, values: NDArray[Any]) -> Floats:
        """Return (n, dimension) one-hot rows of (n, columns) codes."""
        return self.table.encode(values)

    def embed(self, features: Floats) -> Floats:
        """Return (n, embedding_size) rows of norm 1: each is made of its own codes alone, product by product."""
        centred = features - np.repeat(1.0 / self.table.levels, self.table.levels)
        single = np.sqrt(1.0 - self.share) * self.table.embed(features)
        return self._with_products(single, centred, self._weight)  # label: own-pairs

    def statistic(self, features: Floats) -> Floats:
        """Return one-hot rows and, pair by pair, one-hot cells: their class mean is what ``model`` estimates."""
        return self._with_products(features, features, 1.0)

    def model(self, sums: Sums) -> Floats:
        """Return (classes, m) level shares of columns and of pairs, from the noisy sums of embeddings.

        A pair's covariance, what all classes have in common and each class's deviation from it, is shrunk as far as it
        is noise (as in ``TableEncoder.model``); the table is fitted to the shares of its two columns (Deming and
        Stephan 1940). Every share is positive.
        """
        wide, lone = self.dimension, 1.0 / np.sqrt(1.0 - self.share)
        shares = self.table.model(_scaled(sums, lone, slice(0, wide)))
        apart, start = _scaled(sums, 1.0 / self._weight, slice(wide, None)), 0
        uniform, tables = np.repeat(1.0 / self.table.levels, self.table.levels), []
        for one, two in self.pairs:
            shape = (len(shares), _size(one), _size(two))
            noisy = apart.values[:, start : start + shape[1] * shape[2]].reshape(shape) / apart.counts[:, None, None]
            start += shape[1] * shape[2]
            known = (shares - uniform)[:, one, None] * (shares - uniform)[:, None, two]
            moved = _shrunk_together(_doubly_centred(noisy) - known, apart)
            tables.append(np.stack([_fitted(row[one], row[two], own) for row, own in zip(shares, moved, strict=True)]))
        return np.hstack([shares, *(table.reshape(len(shares), -1) for table in tables)])

    def log_likelihood(self, features: Floats, model: Floats) -> Floats:
        """Return (n,) log-likelihoods of one-hot rows under one class's tree."""
        likelihood: Floats = features @ np.log(model[: self.dimension])
        for one, two, ratio in self.tree(model):
            likelihood += np.einsum("ni,ij,nj->n", features[:, one], ratio, features[:, two], optimize=True)
        return likelihood

    def sample(self, rng: np.random.Generator, model: Floats, count: int) -> NDArray[np.int64]:
        """Return (count, columns) codes drawn from one class's tree: each column given the one it hangs on."""
        ends = np.cumsum(self.table.levels).tolist()
        column = {end - size: number for number, (end, size) in enumerate(zip(ends, self.table.levels, strict=True))}
        shares = {start: model[start : start + int(self.table.levels[number])] for start, number in column.items()}
        codes, open_ends = np.full((count, len(column)), -1), self.tree(model)
        for start, number in column.items():
            if count and codes[0, number] >= 0:
                continue
            codes[:, number] = _drawn(rng, np.broadcast_to(shares[start], (count, len(shares[start]))))
            reached = [start]
            while reached:
                here = reached.pop()
                hanging = [edge for edge in open_ends if here in (edge[0].start, edge[1].start)]
                open_ends = [edge for edge in open_ends if here not in (edge[0].start, edge[1].start)]
                for one, two, ratio in hanging:
                    other, log = (two.start, ratio) if one.start == here else (one.start, ratio.T)
                    codes[:, column[other]] = _drawn(rng, (np.exp(log) * shares[other])[codes[:, column[here]]])
                    reached.append(other)
        return codes

    def tree(self, model: Floats) -> list[tuple[slice, slice, Floats]]:
        """Return the pairs of one class's tree, each with log p(a, b) / p(a)p(b): the heaviest first (Kruskal 1956)."""
        found, start, information = [], self.dimension, []
        for one, two in self.pairs:
            joint = model[start : start + _size(one) * _size(two)].reshape(_size(one), _size(two))
            start += joint.size
            ratio = np.log(joint / np.outer(model[one], model[two]))
            found.append((one, two, ratio))
            information.append(float(np.sum(joint * ratio)))
        component = {part.start: part.start for pair in self.pairs for part in pair}
        kept = []
        for position in np.argsort(-np.array(information), kind="stable").tolist():
            one, two, _ = found[position]
            here, there = component[one.start], component[two.start]
            if information[position] > 1e-12 and here != there:
                component = {part: here if root == there else root for part, root in component.items()}
                kept.append(found[position])
        return kept

    @property
    def _weight(self) -> float:
        """Return what a product of centred columns is multiplied by, so that all of a row's have norm √share."""
        rest = 1.0 - 1.0 / self.table.levels
        total = (rest.sum() ** 2 - np.sum(rest**2)) / 2.0  # over pairs of columns
        return float(np.sqrt(self.share / total))

    def _with_products(self, single: Floats, rows: Floats, weight: float) -> Floats:
        """Return ``single`` and beside it the products of each row's own columns, pair by pair, times ``weight``."""
        whole = np.empty((len(rows), self.embedding_size))
        whole[:, : self.dimension], start = single, self.dimension
        for one, two in self.pairs:
            cells = (weight * rows[:, one, None]) * rows[:, None, two]
            end = start + cells.shape[1] * cells.shape[2]
            whole[:, start:end] = cells.reshape(len(rows), end - start)
            start = end
        return whole


def _drawn(rng: np.random.Generator, weights: Floats) -> NDArray[np.int64]:
    """Return (n,) positions, each drawn by its own row of positive weights (n, levels)."""
    edges = np.cumsum(weights, axis=1)
    points = rng.random(len(weights)) * edges[:, -1]
    drawn: NDArray[np.int64] = np.minimum((points[:, None] >= edges).sum(axis=1), weights.shape[1] - 1)
    return drawn


def _size(part: slice) -> int:
    return int(part.stop - part.start)


def _scaled(sums: Sums, factor: float, part: slice) -> Sums:
    return replace(
        sums,
        values=factor * sums.values[:, part],
        std=factor * sums.std,
        apart_std=factor * sums.apart_std,
        pooled_std=factor * sums.pooled_std,
    )


def _doubly_centred(tables: Floats) -> Floats:
    """Return tables (classes, a, b) whose rows and columns add up to 0, which noise alone had changed."""
    rows, columns = tables.mean(axis=2, keepdims=True), tables.mean(axis=1, keepdims=True)
    centred: Floats = tables - rows - columns + tables.mean(axis=(1, 2), keepdims=True)
    return centred


def _shrunk_together(covariances: Floats, sums: Sums) -> Floats:
    """Return the covariances (classes, a, b) with what is common and what is apart shrunk by its own noise."""
    share = (sums.counts / sums.counts.sum())[:, None, None]
    common = np.sum(share * covariances, axis=0)
    freedom = (covariances.shape[1] - 1) * (covariances.shape[2] - 1)
    apart = [_shrunk(own - common, std, freedom) for own, std in zip(covariances, sums.apart_std.tolist(), strict=True)]
    return _shrunk(common, sums.pooled_std, freedom) + np.stack(apart)


def _shrunk(part: Floats, std: float, freedom: int) -> Floats:
    """Return a table shrunk towards 0 by the share of its square that noise explains (James and Stein 1961)."""
    square = float(np.sum(part**2))
    return part * max(0.0, 1.0 - std**2 * freedom / square) if square > 0.0 else part


def _fitted(one: Floats, two: Floats, covariance: Floats) -> Floats:
    """Return the positive table with these two margins that starts from their product and the covariance."""
    alone = np.outer(one, two)
    table = np.maximum(alone + covariance, RAREST * alone)
    for _ in range(FITTINGS):
        table *= (one / table.sum(axis=1))[:, None]
        table *= two / table.sum(axis=0)
    return table
