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


def products(rows: Floats, pool: Floats | Pool) -> Floats:
    """Return the (n, P) inner products of private rows (n, d) with public vectors (P, d), each to about 2⁻²⁰.

    Guarantee: row i of the result is a function of row i and of ``pool``, bit by bit. A non-finite coordinate counts
    as 0.
    """
    right = pool if isinstance(pool, Pool) else pool_of(pool)
    scaled, step = np.empty((len(rows), len(right.whole))), max(1, BLOCK // max(rows.shape[1], 1))
    for start in range(0, len(rows), step):
        finite, some = _finite(rows[start : start + step]), scaled[start : start + step]
        left, up = _snapped(finite, right.bits, np.abs(finite).max(axis=1, initial=0.0)[:, None])
        np.matmul(left, right.whole.T, out=some)
        some *= np.ldexp(1.0, up + right.exponent - 2 * right.bits)  # label: exact-products
    return scaled


def _finite(values: Floats) -> Floats:
    return np.where(np.isfinite(values), values, 0.0)


def _snapped(values: Floats, bits: int, largest: Floats | np.float64) -> tuple[Floats, NDArray[np.int32]]:
    """Return whole numbers of at most 2^bits and the power of two by which finite values were scaled."""
    _, exponent = np.frexp(largest)
    return np.rint(np.ldexp(values, bits - exponent)), exponent
