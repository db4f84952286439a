"""Records of one site in memory: values, classes and privacy units. They never leave the process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Records:
    """Private records.

    values:   (n, columns) int64 codes of a table, or (n, height, width) uint8 pixels, or (n, length) bytes of texts
    classes:  (n,) int64, positions in the plan's class list
    units:    (n,) unicode, the privacy unit (patient) of each record
    """

    values: NDArray[Any]
    classes: NDArray[np.int64]
    units: NDArray[np.str_]

    def __repr__(self) -> str:
        """Show nothing of the content: representations end up in logs."""
        return "Records(<withheld>)"

    def __reduce__(self) -> NoReturn:
        """Refuse pickling: private records stay in the site's process."""
        raise TypeError("private records cannot be serialised")

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.classes)

    def pick(self, which: NDArray[Any]) -> Records:
        """Return the records at these positions or under this mask."""
        return Records(values=self.values[which], classes=self.classes[which], units=self.units[which])
