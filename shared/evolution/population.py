"""A population of candidate genomes; public, since it is made of public choices and released tallies alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Population:
    """Candidates of all classes.

    genomes:  (P, G) float64
    classes:  (P,) int64, the class for which each candidate was bred
    """

    genomes: NDArray[np.float64]
    classes: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of candidates."""
        return len(self.classes)

    def pick(self, which: NDArray[np.int64] | NDArray[np.bool_]) -> Population:
        """Return the candidates at these positions or under this mask."""
        return Population(genomes=self.genomes[which], classes=self.classes[which])

    def of_class(self, position: int) -> Population:
        """Return the candidates of one class."""
        return self.pick(self.classes == position)


def join(parts: list[Population]) -> Population:
    """Return the candidates of all parts, in order."""
    return Population(
        genomes=np.concatenate([part.genomes for part in parts]),
        classes=np.concatenate([part.classes for part in parts]),
    )


def shares(total: int, classes: int) -> list[int]:
    """Return how many of ``total`` candidates each class gets: equal, the first ones taking the remainder."""
    return [total // classes + (position < total % classes) for position in range(classes)]
