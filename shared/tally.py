"""Exact and noisy sums are different types, and only the noisy one can be written down."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

IntVector = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ExactTally:
    """The un-noised sum of a site's ballots. It lives inside the site's process and has no wire form.

    values:  (m,) int64, the sum over units of their ballots, on the integer lattice
    l1, l2:  bounds on one unit's ballot in lattice units: what adding or removing one unit can change
    linf:    the same for any single value, where a proof knows more of it than l1 and l2 say
    """

    values: IntVector
    l1: float
    l2: float
    linf: float = math.inf

    def __repr__(self) -> str:
        """Show the shape only: representations end up in logs."""
        return f"ExactTally(<{self.values.size} values withheld>)"

    def __reduce__(self) -> NoReturn:
        """Refuse pickling and copying: an exact tally never leaves the process."""
        raise TypeError("an ExactTally cannot be serialised; release it through a mechanism")

    def __reduce_ex__(self, protocol: object, /) -> NoReturn:
        """Refuse pickling and copying: an exact tally never leaves the process."""
        self.__reduce__()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NoisyTally:
    """A tally after its mechanism: the only private value that may leave a site.

    values:  (m,) int64 on the integer lattice
    std:     standard deviation of the noise in ``values``, lattice units (public)
    """

    values: IntVector
    std: float
