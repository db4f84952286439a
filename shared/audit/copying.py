"""Is a private record in the release, or nearly? Exact copies, nearest distances, and records that several units hold.

Distances are a sanity check, not a guarantee: a release can be far from every private record and still betray one, and
near to many because the data are common. Only exact copies beyond chance are a finding by themselves.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patevolve.shared import checks
from patevolve.shared.schema import Column

CAVEAT = (
    "Distances are a sanity check, not a guarantee: what protects a record is the noise on the sums, which no distance "
    "measures."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearness:
    """Median distances to the nearest released sample; a ratio well below 1 says that private records are hugged."""

    private: float
    held_out: float
    ratio: float
    closer: float  # share of private records that are nearer than the held-out median; ½ is chance


def nearness(private: NDArray[np.float64], held_out: NDArray[np.float64]) -> Nearness:
    """Compare private with held-out records' nearest distances, each (n,)."""
    own, other = float(np.median(private)), float(np.median(held_out))
    ratio = own / other if other > 0.0 else (1.0 if own == 0.0 else math.inf)
    below, level = np.mean(private < other), np.mean(private == other)
    return Nearness(private=own, held_out=other, ratio=ratio, closer=float(below + level / 2.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Private records that the release repeats cell by cell.

    expected:  how many would be by chance, if cells were drawn as the release's generator draws them
    p:         probability of as many or more by chance
    """

    found: int
    expected: float
    p: float


def copies(found: int, expected: float) -> Copies:
    """Judge a number of copies against the number expected by chance (Poisson: matches are rare)."""
    from scipy.stats import poisson  # noqa: PLC0415 - an extra: only audits need it

    k, mean = checks.integer(found=found, at_least=0), checks.non_negative(expected=expected)
    return Copies(found=k, expected=mean, p=float(poisson.sf(k - 1, mean)) if k else 1.0)


def matches(private: Sequence[Hashable], release: Sequence[Hashable]) -> int:
    """Return how many private records occur in the release."""
    published = set(release)
    return sum(record in published for record in private)


def table_chance(schema: Sequence[Column], private: NDArray[np.int64], pairs: Counter[bytes]) -> float:
    """Return the expected number of cell-by-cell matches, given which released rows share a private row's codes.

    private:  (n, columns) codes;  pairs: released rows by the bytes of their codes (and class)
    A released number lies evenly on the grid of its bin, whatever the private number was, so that two rows with equal
    codes agree in a numeric cell with one over the bin's number of values.
    """
    total = 0.0
    for row in private:
        same = pairs.get(np.ascontiguousarray(row).tobytes(), 0)
        if same:
            total += same * math.prod(_chance(column, int(code)) for column, code in zip(schema, row, strict=False))
    return total


def _chance(column: Column, code: int) -> float:
    if column.kind != "numeric" or code >= len(column.edges) - 1:
        return 1.0
    width = (column.edges[code + 1] - column.edges[code]) * 10.0**column.decimals
    return 1.0 / max(1.0, math.floor(width))


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """The record that the most units hold, and the next most.

    The guarantee is per unit: a record that several units hold is protected as a group, at that multiple of ε.
    """

    most: int
    next: int

    @property
    def alarm(self) -> bool:
        """Whether one record stands out: held by 5 units or more, and by 3 times as many as any other."""
        return self.most >= 5 and self.most >= 3 * self.next


def repeats(values: NDArray[np.int64], classes: NDArray[np.int64], units: NDArray[np.str_]) -> Repeats:
    """Count in how many units each distinct (values, class) occurs."""
    holders: dict[bytes, set[str]] = {}
    for value, cls, unit in zip(values, classes, units, strict=True):
        holders.setdefault(np.ascontiguousarray(value).tobytes() + bytes([int(cls) % 256]), set()).add(str(unit))
    counts = sorted((len(held) for held in holders.values()), reverse=True)
    return Repeats(most=counts[0] if counts else 0, next=counts[1] if len(counts) > 1 else 0)
