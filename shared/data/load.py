"""Reading what a site has: CSV tables under a public schema, and NPZ images without pickle.

Everything here raises DataError before any budget is spent. Messages name rows and columns: they stay at the site.
"""

from __future__ import annotations

import csv
import hashlib
import zipfile
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.data.records import Records
from patevolve.shared.errors import DataError
from patevolve.shared.schema import Schema, encode_column


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Which columns (of a table) or arrays (of an NPZ file) hold the class, the privacy unit and the site.

    unit:  empty if every record is its own unit
    site:  empty if the file holds one site
    """

    classes: tuple[str, ...]
    label: str
    unit: str = ""
    site: str = ""


def load_table(path: Path, schema: Schema, layout: Layout) -> dict[str, Records]:
    """Return the records of each site in a CSV or TSV file, keyed by the site's name ("" without a site column).

    Raises DataError for an unreadable or empty file, a missing column, or a cell outside the schema.
    """
    header, rows = _read_rows(path)
    wanted = [column.name for column in schema] + [name for name in (layout.label, layout.unit, layout.site) if name]
    absent = [name for name in wanted if name not in header]
    if absent:
        raise DataError(f"{path.name}: no column {', '.join(map(repr, absent))}; found {', '.join(header)}. Rename it.")
    cells = {name: [row[header.index(name)] for row in rows] for name in wanted}
    codes = np.stack([encode_column(column, cells[column.name]) for column in schema], axis=1)
    units = _units(cells[layout.unit] if layout.unit else None, len(rows))
    records = Records(values=codes, classes=_classes(cells[layout.label], layout), units=units)
    return _sites(records, layout, np.array(cells[layout.site]) if layout.site else None)


def _read_rows(path: Path) -> tuple[list[str], list[list[str]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            table = list(csv.reader(lines, delimiter="\t" if path.suffix == ".tsv" else ",", strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as reason:
        raise DataError(f"{path.name} cannot be read as a UTF-8 table: {reason}. Check the file.") from reason
    if len(table) < 2:
        raise DataError(f"{path.name} has no data rows; expected a header and at least one row.")
    header = [name.strip() for name in table[0]]
    if len(set(header)) != len(header):
        raise DataError(f"{path.name} has two columns of one name; expected distinct names in {header}.")
    ragged = next((i for i, row in enumerate(table[1:], 1) if len(row) != len(header)), None)
    if ragged is not None:
        raise DataError(f"{path.name}, data row {ragged}: {len(table[ragged])} cells found; expected {len(header)}.")
    return header, table[1:]


def _classes(labels: list[str], layout: Layout) -> NDArray[np.int64]:
    known = {name: position for position, name in enumerate(layout.classes)}
    for row, label in enumerate(labels):
        if label.strip() not in known:
            raise DataError(
                f"column {layout.label!r}, data row {row + 1}: class {label!r} found; the plan's classes are "
                f"{', '.join(layout.classes)}. Correct the label, or agree on a plan with that class."
            )
    return np.array([known[label.strip()] for label in labels], np.int64)


def _units(cells: list[str] | None, count: int) -> NDArray[np.str_]:
    if cells is None:
        return np.full(count, "")  # named by content, site by site
    if any(not cell.strip() for cell in cells):
        row = next(i for i, cell in enumerate(cells) if not cell.strip())
        raise DataError(f"data row {row + 1}: an empty patient id found; expected one for every row.")
    return np.array([cell.strip() for cell in cells])


def _by_content(records: Records) -> Records:
    """Return a site's records, each its own unit, named by what it holds and not by its place in the file.

    A record that leaves must rename no other: names decide shards and hold-out. Of equal records it is the last that
    leaves, whichever it was.
    """
    seen: Counter[str] = Counter()
    names = []
    for value, cls in zip(records.values, records.classes, strict=True):
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes() + int(cls).to_bytes(8, "little")).hexdigest()
        names.append(f"{digest}-{seen[digest]}")
        seen[digest] += 1  # label: record-name
    return Records(values=records.values, classes=records.classes, units=np.array(names))


def _sites(records: Records, layout: Layout, sites: NDArray[np.str_] | None) -> dict[str, Records]:
    found = _by_site(records, sites)
    return found if layout.unit else {site: _by_content(own) for site, own in found.items()}


def _by_site(records: Records, sites: NDArray[np.str_] | None) -> dict[str, Records]:
    if sites is None:
        return {"": records}
    names = np.char.strip(sites)
    if not np.all(names != ""):
        raise DataError("a record without a site's name found; expected one for every record. Fill in the column.")
    return {str(site): records.pick(names == site) for site in sorted(set(names.tolist()))}


# What zipfile, zlib and numpy raise on damaged, truncated, encrypted or hostile archives.
_UNREADABLE = (OSError, ValueError, EOFError, KeyError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error)


def load_images(path: Path, shape: tuple[int, int], layout: Layout) -> dict[str, Records]:
    """Return the records of each site in an NPZ file with ``images`` (n, height, width) uint8 and label arrays.

    Raises DataError for a file that is not NPZ, holds objects, lacks an array or has other shapes.
    """
    try:
        with zipfile.ZipFile(path), np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except _UNREADABLE as reason:
        raise DataError(f"{path.name} cannot be read as NPZ without objects: {reason}. Save plain arrays.") from reason
    wanted = ["images", layout.label, *(name for name in (layout.unit, layout.site) if name)]
    absent = [name for name in wanted if name not in arrays]
    if absent:
        raise DataError(f"{path.name}: no array {', '.join(map(repr, absent))}; found {', '.join(sorted(arrays))}.")
    images = arrays["images"]
    if images.dtype != np.uint8 or images.ndim != 3 or images.shape[1:] != shape or len(images) == 0:
        raise DataError(
            f"{path.name}: images {images.dtype} {images.shape} found; expected uint8 (n ≥ 1, {shape[0]}, {shape[1]})."
        )
    if any(arrays[name].shape != (len(images),) for name in wanted[1:]):
        raise DataError(f"{path.name}: label arrays of other length than the {len(images)} images found.")
    cells = {name: [str(value) for value in arrays[name].tolist()] for name in wanted[1:]}
    units = _units(cells[layout.unit] if layout.unit else None, len(images))
    records = Records(values=images, classes=_classes(cells[layout.label], layout), units=units)
    return _sites(records, layout, np.array(cells[layout.site]) if layout.site else None)
