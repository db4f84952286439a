"""The synthetic samples of a release: table rows as text, texts, or images, with their classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.errors import ReleaseError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Samples:
    """Synthetic samples: either a table (``columns`` and ``rows``) or ``images``, never both.

    classes:      (n,) int64, positions in ``class_names``
    class_names:  the plan's classes, in its order
    columns:      names of the table's columns, without the class; of texts the one that holds them
    rows:         n rows of text cells as released; "" is a missing value
    images:       (n, height, width) uint8 grey levels, or (n, height, width, 3) RGB

    Raises ReleaseError if the parts do not have one length. What the cells and pixels hold is the gate's to judge.
    """

    classes: NDArray[np.int64]
    class_names: tuple[str, ...]
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    images: NDArray[np.uint8] | None = None

    def __post_init__(self) -> None:
        """Refuse parts that do not fit one another."""
        if self.images is not None and (self.columns or self.rows):
            raise ReleaseError("samples with both a table and images found; expected one of them.")
        if self.images is None and not self.columns:
            raise ReleaseError("samples with neither columns nor images found; expected one of them.")
        records = len(self.rows) if self.images is None else len(self.images)
        if self.classes.shape != (records,):
            raise ReleaseError(f"classes of shape {self.classes.shape} found; expected ({records},), one per sample.")
        width = len(self.columns)
        ragged = next((row for row, cells in enumerate(self.rows) if len(cells) != width), None)
        if ragged is not None:
            raise ReleaseError(f"sample {ragged + 1} has {len(self.rows[ragged])} cells; expected {width}.")

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.classes)

    @property
    def is_table(self) -> bool:
        """Whether the samples are rows of a table or texts; otherwise they are images."""
        return self.images is None
