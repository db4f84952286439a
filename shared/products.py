"""Inner products in which each row counts for itself alone.

A matrix product in floating point may round a row differently when the number of rows changes: libraries choose their
kernels by the shape. One more record could then turn the nearest candidate of every other record whose candidates lie
equally near, and no bound on one ballot would bound that. On integers that fit a double every order of summation gives
the same exact sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
BLOCK = 2**17  # coordinates of private rows made whole at a time: they stay in the cache


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pool:
    """Public vectors made ready for ``products``: whole numbers (P, d) of at most 2^bits, and their power of two."""

    whole: Floats
    exponent: NDArray[np.int32]
    bits: int


def pool_of(vectors: Floats) -> Pool:
    """Return public vectors (P, d) ready for any number of ``products``."""
    # |q| ≤ 2^bits on both sides, so every partial sum of d products is an integer of at most 2^52: exact in a double.
    bits = (52 - math.ceil(math.log2(max(vectors.shape[1], 1)))) // 2
    finite = _finite(vectors)
    whole, exponent = _snapped(finite, bits, np.abs(finite).max(initial=0.0))
    return Pool(whole=whole, exponent=exponent, bits=bits)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapped:
    """Private rows as whole numbers (n, d), each row with a power of two of its own (n, 1)."""

    whole: Floats
    exponent: NDArray[np.int32]


def snapped(rows: Floats, bits: int) -> Snapped:
    """Return private rows (n, d) as whole numbers of at most 2^bits. A non-finite coordinate counts as 0."""
    finite = _finite(rows)
    whole, exponent = _snapped(finite, bits, np.abs(finite).max(axis=1, initial=0.0)[:, None])
    return Snapped(whole=whole, exponent=exponent)


def products(rows: Floats, pool: Floats | Pool) -> Floats:
    """Return the (n, P) inner products of private rows (n, d) with public vectors (P, d), each to about 2⁻²⁰.

    Guarantee: row i of the result is a function of row i and of ``pool``, bit by bit. A non-finite coordinate counts
    as 0.
    """
    right = pool if isinstance(pool, Pool) else pool_of(pool)
    scaled, step = np.empty((len(rows), len(right.whole))), max(1, BLOCK // max(rows.shape[1], 1))
    for start in range(0, len(rows), step):
        products_of(snapped(rows[start : start + step], right.bits), right, out=scaled[start : start + step])
    return scaled


def products_of(rows: Snapped, pool: Pool, out: Floats | None = None) -> Floats:
    """Return the (n, P) inner products of rows that are snapped already, in ``out`` if it is given."""
    scaled: Floats = np.matmul(rows.whole, pool.whole.T, out=out)
    scaled *= np.ldexp(1.0, rows.exponent + pool.exponent - 2 * pool.bits)  # label: exact-products
    return scaled


def products_at(rows: Snapped, pool: Pool, pairs: tuple[NDArray[np.int64], NDArray[np.int64]]) -> Floats:
    """Return (m,) what ``products_of`` has at the rows and columns ``pairs``, bit by bit."""
    at, places = pairs
    scaled, step = np.empty(len(at)), max(1, BLOCK // max(rows.whole.shape[1], 1))
    for start in range(0, len(at), step):
        some = slice(start, start + step)
        scaled[some] = np.einsum("md,md->m", rows.whole[at[some]], pool.whole[places[some]])
    scaled *= np.ldexp(1.0, rows.exponent[at, 0] + pool.exponent - 2 * pool.bits)  # label: exact-pairs
    return scaled


def _finite(values: Floats) -> Floats:
    return np.where(np.isfinite(values), values, 0.0)


def _snapped(values: Floats, bits: int, largest: Floats | np.float64) -> tuple[Floats, NDArray[np.int32]]:
    """Return whole numbers of at most 2^bits and the power of two by which finite values were scaled."""
    _, exponent = np.frexp(largest)
    return np.rint(np.ldexp(values, bits - exponent)), exponent
