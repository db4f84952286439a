"""A public schema: what a table's columns may hold, from documentation and never from private values."""

from __future__ import annotations

import bisect
import itertools
import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.errors import DataError, PlanError

MISSING_WORDS = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of the public schema.

    kind:     "numeric" (with ``edges``) or "categorical" (with ``values``)
    edges:    increasing public bin edges; the first and last are the public bounds, values beyond them are clipped
    values:   the public categories, as text
    missing:  whether a value may be missing; missing is then a category of its own
    decimals: digits after the point in released values
    """

    name: str
    kind: Literal["numeric", "categorical"]
    edges: tuple[float, ...] = ()
    values: tuple[str, ...] = ()
    missing: bool = False
    decimals: int = 0

    def __post_init__(self) -> None:
        """Refuse a column whose parts contradict one another."""
        where = f"column {self.name!r}"
        if not 0 <= self.decimals <= 9:
            raise PlanError(f"{where} has decimals={self.decimals}; expected 0 to 9.")
        if self.kind == "numeric":
            if len(self.edges) < 2 or self.values or not all(math.isfinite(e) for e in self.edges):
                raise PlanError(
                    f"{where} is numeric with edges {self.edges}; expected two or more finite edges, no values."
                )
            if not all(a < b for a, b in itertools.pairwise(self.edges)):
                raise PlanError(f"{where} has edges {self.edges}; expected them increasing. Sort them.")
            _check_grid(self)
        elif not self.values or self.edges:
            raise PlanError(f"{where} is categorical with values {self.values}; expected values and no edges.")
        elif len({value.casefold() for value in self.values}) != len(self.values):
            raise PlanError(f"{where} has values {self.values}; expected them distinct, whatever their case.")
        elif any(value != value.strip() for value in self.values):
            raise PlanError(f"{where} has values {self.values}; expected no space around them. Remove it.")
        if self.missing and "" in self.values:
            raise PlanError(f"{where} has the category '' and missing = true; an empty cell can mean one of them only.")

    @property
    def levels(self) -> int:
        """Number of codes: bins or categories, and one more if values may be missing."""
        return (len(self.edges) - 1 if self.kind == "numeric" else len(self.values)) + self.missing


Schema = tuple[Column, ...]


def _check_grid(column: Column) -> None:
    """Refuse a bin that no released value could fall into, and edges that doubles cannot tell from their neighbours."""
    where = f"column {column.name!r}"
    if not max(map(abs, column.edges)) * 10.0**column.decimals < 2.0**53:
        raise PlanError(f"{where} has edges {column.edges} with {column.decimals} decimals; expected 15 digits in all.")
    for low, high in itertools.pairwise(column.edges):
        if not _ticks(low, column.decimals) < _ticks(high, column.decimals):
            raise PlanError(
                f"{where} has the bin from {low} to {high}, which holds no number of {column.decimals} decimals. "
                f"Raise decimals or widen the bin."
            )


def _ticks(edge: float, decimals: int) -> int:
    """Return the first multiple of 10^-decimals at or above an edge as it was written, counted in that unit."""
    ticks: int = math.ceil(Fraction(repr(float(edge))) * 10**decimals)
    return ticks


def encode_column(column: Column, texts: list[str], *, first_row: int = 0) -> NDArray[np.int64]:
    """Return the code of each cell. Raises DataError naming the row of a cell outside the schema.

    first_row: number of data rows before these, where a long table is read in pieces
    """
    codes = np.empty(len(texts), np.int64)
    known = {value.casefold(): code for code, value in enumerate(column.values)}
    for place, text in enumerate(texts):
        cell, row = text.strip(), first_row + place
        if cell.casefold() in MISSING_WORDS and cell.casefold() not in known:
            codes[place] = _missing_code(column, row)
        elif column.kind == "categorical":
            codes[place] = _category(column, known, cell, row)
        else:
            codes[place] = _bin(column, cell, row)
    return codes


def _missing_code(column: Column, row: int) -> int:
    if not column.missing:
        raise DataError(
            f"column {column.name!r}, data row {row + 1}: a missing value found; the schema says that the column is "
            f"complete. Fill it in, drop the row, or set missing = true in the plan."
        )
    return column.levels - 1


def _category(column: Column, known: dict[str, int], cell: str, row: int) -> int:
    if cell.casefold() not in known:
        raise DataError(
            f"column {column.name!r}, data row {row + 1}: {cell!r} found; expected one of {', '.join(column.values)}. "
            f"Correct the cell or add the value to the plan's schema (from documentation, not from the data)."
        )
    return known[cell.casefold()]


def _bin(column: Column, cell: str, row: int) -> int:
    try:
        number = float(cell) if "_" not in cell else math.inf  # Python reads 1_0 as 10
    except ValueError:
        number = math.inf
    if not math.isfinite(number):
        raise DataError(f"column {column.name!r}, data row {row + 1}: {cell!r} found; expected a finite number.")
    # Values outside the public bounds fall into the outermost bins.
    return min(max(bisect.bisect_right(column.edges, number) - 1, 0), len(column.edges) - 2)


def decode_column(column: Column, codes: NDArray[np.int64], uniforms: NDArray[np.float64]) -> list[str]:
    """Return one released cell per code; a numeric cell lies within its bin, placed by ``uniforms`` in [0, 1)."""
    ticks = [_ticks(edge, column.decimals) for edge in column.edges]
    cells = []
    for code, u in zip(codes.tolist(), uniforms.tolist(), strict=True):
        if column.missing and code == column.levels - 1:
            cells.append("")
        elif column.kind == "categorical":
            cells.append(column.values[code])
        else:
            # A multiple of 10^-decimals inside [low, high), so that the released cell falls into its own bin again.
            first, end = ticks[code], ticks[code + 1]
            tick = first + min(int(u * (end - first)), end - first - 1)
            cells.append(f"{Decimal(tick).scaleb(-column.decimals):f}")
    return cells
