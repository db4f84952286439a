"""Tables as columns of text, piece by piece: CSV and TSV as they are written, Parquet with its types kept.

Every Parquet value becomes the text that a person would write for it: a whole number stays whole beside nulls, a null
becomes an empty cell, a date its ISO form. Types without such a text (lists, structures, bytes) are refused by name.
"""

from __future__ import annotations

import csv
import datetime as dt
import decimal
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from patevolve.shared.data.names import shown
from patevolve.shared.errors import DataError

PIECE = 65_536  # rows in memory at once

Cells = dict[str, list[str]]


def cells(path: Path, wanted: Sequence[str], *, optional: Sequence[str] = ()) -> Cells:
    """Return the named columns of a table whole, as text. Raises DataError; see ``pieces``."""
    whole: Cells = {}
    for piece in pieces(path, wanted, optional=optional):
        for name, column in piece.items():
            whole.setdefault(name, []).extend(column)
    return whole


def pieces(path: Path, wanted: Sequence[str], *, optional: Sequence[str] = ()) -> Iterator[Cells]:
    """Yield the named columns of a CSV, TSV or Parquet table as text, some rows at a time.

    Raises DataError for an unreadable or empty file, a missing column, or a column of a type without a text.
    """
    if path.suffix.lower() in {".parquet", ".pq"}:
        yield from _parquet(path, wanted, optional)
        return
    yield from _csv(path, wanted, optional)


def _check_header(path: Path, header: list[str], wanted: Sequence[str]) -> None:
    if len(set(header)) != len(header):
        raise DataError(f"{shown(path.name)} has two columns of one name; expected distinct names in {header}.")
    absent = [name for name in wanted if name not in header]
    if absent:
        raise DataError(
            f"{shown(path.name)}: no column {', '.join(map(repr, absent))}; found {', '.join(header)}. Rename it."
        )


def _csv(path: Path, wanted: Sequence[str], optional: Sequence[str]) -> Iterator[Cells]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            rows = csv.reader(lines, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
            header, before = [name.strip() for name in next(rows, [])], 0
            names = [*wanted, *(name for name in optional if name in header)]
            while batch := list(itertools.islice(rows, PIECE)):
                _check_width(path, batch, len(header), before)
                if not before:
                    _check_header(path, header, wanted)
                yield {name: [row[header.index(name)] for row in batch] for name in names}
                before += len(batch)
    except (OSError, UnicodeDecodeError, csv.Error) as reason:
        raise DataError(f"{shown(path.name)} cannot be read as a UTF-8 table: {reason}. Check the file.") from reason
    if not before:
        raise DataError(f"{shown(path.name)} has no data rows; expected a header and at least one row.")


def _check_width(path: Path, rows: list[list[str]], width: int, before: int) -> None:
    ragged = next((place for place, row in enumerate(rows) if len(row) != width), None)
    if ragged is not None:
        raise DataError(
            f"{shown(path.name)}, data row {before + ragged + 1}: {len(rows[ragged])} cells found; expected {width}."
        )


def _parquet(path: Path, wanted: Sequence[str], optional: Sequence[str]) -> Iterator[Cells]:
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra
        from pyarrow import parquet  # noqa: PLC0415 - as above
    except ImportError as reason:
        raise DataError(
            f"{shown(path.name)}: Parquet needs pyarrow. Install it: pip install 'patevolve[demo]'."
        ) from reason
    try:
        with path.open("rb") as opened, parquet.ParquetFile(opened) as file:
            header = list(file.schema_arrow.names)
            _check_header(path, header, wanted)
            if file.metadata.num_rows == 0:
                raise DataError(f"{shown(path.name)} has no data rows; expected at least one row.")
            names = [*wanted, *(name for name in optional if name in header)]
            for name in names:
                _check_type(path, name, file.schema_arrow.field(name).type, pa)
            for batch in file.iter_batches(batch_size=PIECE, columns=names):
                yield {name: [_text(value) for value in batch.column(name).to_pylist()] for name in names}
    except (OSError, pa.ArrowException, ValueError, MemoryError, OverflowError) as reason:
        words = shown(str(reason).split("\n", 1)[0])
        raise DataError(f"{shown(path.name)} cannot be read as Parquet: {words}. Check the file.") from reason


def _check_type(path: Path, name: str, kind: Any, pa: Any) -> None:
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    known = (
        pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_string, pa.types.is_large_string,
        pa.types.is_string_view, pa.types.is_decimal, pa.types.is_date, pa.types.is_time, pa.types.is_timestamp,
        pa.types.is_null,
    )  # fmt: skip
    if not any(test(inner) for test in known):
        raise DataError(
            f"{shown(path.name)}: column {name!r} is of type {kind}; expected numbers, text, dates or true and false. "
            f"Convert it."
        )


def _text(value: Any) -> str:
    if value is None or value != value:  # noqa: PLR0124 - only NaN differs from itself
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):  # whole numbers that some tool made floats because of a gap become whole again
        return repr(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    return str(value)
