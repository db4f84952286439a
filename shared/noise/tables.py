"""Sampling from a finite integer distribution with 128-bit probabilities and a fixed sequence of operations.

Method: Walker's alias method (1977) with Vose's construction (1991), carried out exactly on integers. A table has
2^b columns of equal weight 2^(128-b); a column holds a threshold and an alias. A draw takes 128 uniform bits: b of
them choose the column, the other 128-b are compared with its threshold. The integer masses, which sum to exactly
2^128, are reproduced exactly; what separates them from the ideal law is the tail that was cut and rounding, and
``AliasTable.distance`` bounds the total variation of both.

Time: a draw is the same numpy operations on arrays of the same size whatever comes out; there is no rejection and no
search, and the choice between column and alias is arithmetic, not a branch. Not covered: a process that shares the
processor's cache may observe which cache lines the gathers touch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from patevolve.shared import checks
from patevolve.shared.errors import ParameterError
from patevolve.shared.randomness import NoiseSource
from patevolve.shared.tally import IntVector

PRECISION = 256  # fractional bits of the fixed-point arithmetic that computes masses
ONE = 1 << PRECISION
MASS_BITS = 128
MOST_ENTRIES = 2**20
MOST_EXPONENT = 128
_CHUNK = 1 << 15  # draws at a time: the working arrays stay in the second-level cache

Words = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AliasTable:
    """An integer distribution ready to be drawn from.

    high, low:  (2^bits,) uint64, the thresholds' words
    alias:      (2^bits,) int64, column to fall back on
    offset:     value of column 0
    distance:   bound on the total variation between one draw and the ideal law
    """

    high: Words
    low: Words
    alias: IntVector
    bits: int
    offset: int
    distance: float

    def draw(self, size: int, source: NoiseSource) -> IntVector:
        """Return ``size`` independent draws, (size,) int64, from 16 bytes of ``source`` each."""
        values: IntVector = np.empty(checks.integer(size=size, at_least=0), dtype=np.int64)
        for start in range(0, size, _CHUNK):
            part = values[start : start + _CHUNK]
            words = uniform_words(2 * part.size, source)
            part[:] = self._pick(words[: part.size], words[part.size :])
        return values

    def _pick(self, upper: Words, lower: Words) -> IntVector:
        rest_bits = np.uint64(64 - self.bits)
        column = (upper >> rest_bits).view(np.int64)
        rest = upper & np.uint64((1 << (64 - self.bits)) - 1)
        high, low, alias = self.high[column], self.low[column], self.alias[column]
        below = (rest < high) | ((rest == high) & (lower < low))
        mask = -below.view(np.int8).astype(np.int64)  # all ones where the column itself is drawn
        chosen: IntVector = alias ^ ((alias ^ column) & mask)
        return chosen + self.offset


def uniform_words(count: int, source: NoiseSource) -> Words:
    """Return ``count`` uniform 64-bit words. Raises ParameterError when the source returns too few bytes."""
    raw = source.read(8 * count)
    if len(raw) != 8 * count:
        raise ParameterError(f"a noise source returned {len(raw)} bytes; expected {8 * count}. Use SystemNoise().")
    return np.frombuffer(raw, dtype="<u8").astype(np.uint64, copy=False)


def build(weights: Sequence[int], *, offset: int, lost: float) -> AliasTable:
    """Return the table of the distribution proportional to ``weights`` on offset, offset + 1, ...

    weights:  integers >= 0, not all zero
    lost:     bound on the total variation between ``weights`` and the ideal law (tail and rounding)
    Raises ParameterError for more than 2^20 entries.
    """
    entries = len(weights)
    if not 2 <= entries <= MOST_ENTRIES:
        raise ParameterError(f"a table of {entries} entries asked for; at most {MOST_ENTRIES} are built.")
    masses = exact_masses(weights)
    bits = max(1, (entries - 1).bit_length())
    thresholds, alias = _vose(masses + [0] * ((1 << bits) - entries), 1 << (MASS_BITS - bits))
    return AliasTable(
        high=np.array([threshold >> 64 for threshold in thresholds], dtype=np.uint64),
        low=np.array([threshold & (2**64 - 1) for threshold in thresholds], dtype=np.uint64),
        alias=np.array(alias, dtype=np.int64),
        bits=bits,
        offset=offset,
        distance=lost + entries * 2.0**-MASS_BITS,
    )


def mirrored(half: Sequence[int], lost: float) -> AliasTable:
    """Return the table of a symmetric distribution from the weights of 0, 1, 2, ..."""
    return build([*half[:0:-1], *half], offset=1 - len(half), lost=lost)


def fixed_exp(exponent: Fraction) -> int:
    """Return exp(-exponent)·2^PRECISION for 0 <= exponent <= 128, with absolute error below 2^-240.

    Every term of the series of exp(+exponent) is rounded down by less than one unit, over at most 1024 terms.
    Raises ParameterError outside [0, 128].
    """
    if not 0 <= exponent <= MOST_EXPONENT:
        raise ParameterError(f"exp(-{float(exponent)}) asked for; expected an exponent in [0, 128].")
    term, total, n = ONE, ONE, 0
    while term:
        n += 1
        term = term * exponent.numerator // (exponent.denominator * n)
        total += term
    return (ONE << PRECISION) // total


def gaussian_tail(radius: int, variance: float) -> float:
    """Return a bound on P(|X| > radius) of N_Z(0, variance): 2 exp(-(radius+1)²/2σ²) (sub-Gaussian).

    E[exp(tX)] = exp(t²σ²/2) Σ_k exp(-(k-tσ²)²/2σ²) / Σ_k exp(-k²/2σ²), and a sum of Gaussian values over shifted
    integers is largest unshifted (Poisson summation), so E[exp(tX)] <= exp(t²σ²/2) (Canonne-Kamath-Steinke 2020).
    """
    return 2.0 * math.exp(-((radius + 1) ** 2) / (2.0 * variance))


def exact_masses(weights: Sequence[int]) -> list[int]:
    """Scale the weights to integers of sum exactly 2^128; what rounding down loses goes to the largest."""
    total = sum(weights)
    masses = [(weight << MASS_BITS) // total for weight in weights]
    largest = max(range(len(masses)), key=masses.__getitem__)
    masses[largest] += (1 << MASS_BITS) - sum(masses)
    return masses


def _vose(masses: list[int], capacity: int) -> tuple[list[int], list[int]]:
    """Split masses of sum len(masses)·capacity into columns of one threshold and one alias each, exactly."""
    left = list(masses)
    thresholds, alias = [0] * len(left), list(range(len(left)))
    small = [i for i, mass in enumerate(left) if mass < capacity]
    large = [i for i, mass in enumerate(left) if mass >= capacity]
    # Exact sums: while a column is short, another has more than its share, so ``large`` never runs out first.
    while small:
        short, donor = small.pop(), large[-1]
        thresholds[short], alias[short] = left[short], donor
        left[donor] -= capacity - left[short]
        if left[donor] < capacity:
            small.append(large.pop())
    return thresholds, alias
