"""Inner products in which each row counts for itself alone.

A matrix product in floating point may round a row differently when the number of rows changes: libraries choose their
kernels by the shape. One more record could then turn the nearest candidate of every other record whose candidates lie
equally near, and no bound on one ballot would bound that. On integers that fit a double every order of summation gives
the same exact sum.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def products(rows: Floats, pool: Floats) -> Floats:
    """Return the (n, P) inner products of private rows (n, d) with public vectors (P, d), each to about 2⁻²⁰.

    Guarantee: row i of the result is a function of row i and of ``pool``, bit by bit. A non-finite coordinate counts
    as 0.
    """
    # |q| ≤ 2^bits on both sides, so every partial sum of d products is an integer of at most 2^52: exact in a double.
    bits = (52 - math.ceil(math.log2(max(rows.shape[1], 1)))) // 2
    left, up = _snapped(rows, bits, np.abs(_finite(rows)).max(axis=1, initial=0.0)[:, None])
    right, over = _snapped(pool, bits, np.abs(_finite(pool)).max(initial=0.0))
    scaled: Floats = (left @ right.T) * np.ldexp(1.0, up + over - 2 * bits)  # label: exact-products
    return scaled


def _finite(values: Floats) -> Floats:
    return np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


def _snapped(values: Floats, bits: int, largest: Floats | np.float64) -> tuple[Floats, NDArray[np.int32]]:
    """Return whole numbers of at most 2^bits and the power of two by which they were scaled."""
    _, exponent = np.frexp(largest)
    return np.rint(np.ldexp(_finite(values), bits - exponent)), exponent
