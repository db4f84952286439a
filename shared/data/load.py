"""Reading what a site has into memory: tables under a public schema, texts, and images under a public target.

Tables and texts are CSV, TSV or Parquet; images are an NPZ file without pickle, a folder per class, or a manifest of
files (PNG, TIFF, JPEG, DICOM, NIfTI). Everything here raises DataError before any budget is spent. Messages name rows,
columns and files: they stay at the site.
"""

from __future__ import annotations

import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.data.images import read_image
from patevolve.shared.data.layout import Layout
from patevolve.shared.data.manifest import UNIT_TAG, Item, find
from patevolve.shared.data.names import shown
from patevolve.shared.data.parquet import Cells, pieces
from patevolve.shared.data.records import Records
from patevolve.shared.data.shard import content
from patevolve.shared.data.target import Frame, Reading, Target, convert
from patevolve.shared.errors import DataError
from patevolve.shared.schema import Schema, encode_column
from patevolve.shared.texts import Rows, TextColumn, normal, packed

__all__ = ["Layout", "load_images", "load_table", "read_items"]
SHOWN = 3  # refused files named in one message


def load_table(path: Path, fields: Schema | TextColumn, layout: Layout) -> dict[str, Records]:
    """Return the records of each site in a CSV, TSV or Parquet file, keyed by site ("" without a site column).

    fields:  the columns of a public schema, or the one that holds a text

    Raises DataError for an unreadable or empty file, a missing column, a cell outside the schema, or an empty text.
    """
    parts, sites, before = [], [], 0
    for cells in pieces(path, columns_of(fields, layout)):
        parts.append(encode_piece(cells, fields, layout, before))
        sites.append(np.array(cells[layout.site]) if layout.site else np.empty(0, "U1"))
        before += len(parts[-1])
    records = Records(
        values=np.concatenate([part.values for part in parts]),
        classes=np.concatenate([part.classes for part in parts]),
        units=np.concatenate([part.units for part in parts]),
    )
    return _sites(records, layout, np.concatenate(sites) if layout.site else None)


def columns_of(fields: Schema | TextColumn, layout: Layout) -> list[str]:
    """Return the columns that a table must have."""
    own = [fields.name] if isinstance(fields, TextColumn) else [column.name for column in fields]
    return own + [name for name in (layout.label, layout.unit, layout.site) if name]


def encode_piece(cells: Cells, fields: Schema | TextColumn, layout: Layout, before: int) -> Records:
    """Return the records of some rows of a table, with ``before`` rows above them. Raises DataError naming the row."""
    count = len(cells[layout.label])
    if isinstance(fields, TextColumn):
        values: NDArray[Any] = _texts(cells[fields.name], fields, before)
    else:
        values = np.stack([encode_column(column, cells[column.name], first_row=before) for column in fields], axis=1)
    units = _units(cells[layout.unit] if layout.unit else None, count, before)
    return Records(values=values, classes=_classes(cells[layout.label], layout, before), units=units)


def _texts(cells: list[str], column: TextColumn, before: int) -> Rows:
    """Return (n, length) bytes of the texts in their normal form; an empty one is refused like a missing value."""
    texts = []
    for row, cell in enumerate(cells, before):
        try:
            text = normal(cell, column.length)
        except DataError as reason:
            raise DataError(f"column {column.name!r}, data row {row + 1}: {reason}") from reason
        if not text:
            raise DataError(
                f"column {column.name!r}, data row {row + 1}: an empty text found; expected words. Drop the row."
            )
        texts.append(text)
    return packed(texts, column.length)


def _classes(labels: list[str], layout: Layout, before: int = 0) -> NDArray[np.int64]:
    known = {name: position for position, name in enumerate(layout.classes)}
    for row, label in enumerate(labels, before):
        if label.strip() not in known:
            raise DataError(
                f"column {layout.label!r}, data row {row + 1}: class {label!r} found; the plan's classes are "
                f"{', '.join(layout.classes)}. Correct the label, or agree on a plan with that class."
            )
    return np.array([known[label.strip()] for label in labels], np.int64)


def _units(cells: list[str] | None, count: int, before: int = 0) -> NDArray[np.str_]:
    if cells is None:
        return np.full(count, "")  # named by content, site by site
    if any(not cell.strip() for cell in cells):
        row = next(i for i, cell in enumerate(cells) if not cell.strip())
        raise DataError(f"data row {before + row + 1}: an empty patient id found; expected one for every row.")
    return np.array([cell.strip() for cell in cells])


def _by_content(records: Records) -> Records:
    """Return a site's records, each its own unit, named by what it holds and not by its place in the file.

    A record that leaves must rename no other: names decide shards and hold-out. Of equal records it is the last that
    leaves, whichever it was.
    """
    seen: Counter[str] = Counter()
    names = []
    for value, cls in zip(records.values, records.classes, strict=True):
        digest = content(value, cls)
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


def load_images(path: Path, shape: tuple[int, int], layout: Layout, target: Target | None = None) -> dict[str, Records]:
    """Return the records of each site in a folder per class, a manifest, or an NPZ file, keyed by the site's name.

    shape:   (height, width) of every record
    target:  how files of other sizes and types become that; None converts nothing

    Raises DataError for what cannot be read, a label outside the classes, or an image outside the target.
    """
    target = target or Target(height=shape[0], width=shape[1])
    if path.suffix.lower() == ".npz" and not path.is_dir():
        return _load_npz(path, target, layout)
    return _load_files(path, target, layout)


def _load_files(path: Path, target: Target, layout: Layout) -> dict[str, Records]:
    found = find(path, layout)
    refused = [f"{name}: {reason}" for name, reason in found.refused]
    values: list[NDArray[np.uint8]] = []
    labels, units, sites = [], [], []
    for item, reading in read_items(found.items, target, layout):
        if isinstance(reading, DataError):
            refused.append(str(reading))
            continue
        values += reading.images
        labels += [item.label] * len(reading.images)
        units += [item.unit or reading.unit] * len(reading.images)
        sites += [item.site] * len(reading.images)
    if refused:
        more = f"; and {len(refused) - SHOWN} more" if len(refused) > SHOWN else ""
        raise DataError(
            f"{len(refused)} file(s) of {shown(path.name)} refused: {'; '.join(refused[:SHOWN])}{more}. "
            f"`patevolve client inspect` lists them all."
        )
    if not values:
        raise DataError(f"{shown(path.name)} holds no image; expected at least one.")
    records = Records(
        values=np.stack(values),
        classes=_classes(labels, layout),
        units=_units(units if layout.unit else None, len(values)),
    )
    return _sites(records, layout, np.array(sites) if layout.site else None)


def read_items(items: tuple[Item, ...], target: Target, layout: Layout) -> Iterator[tuple[Item, Reading | DataError]]:
    """Yield each file with its converted images, or with the reason why it is refused; one file in memory at once."""
    for item in items:
        try:
            yield item, _read_item(item, target, layout)
        except DataError as reason:
            yield item, reason


def _read_item(item: Item, target: Target, layout: Layout) -> Reading:
    if item.label not in layout.classes:
        raise DataError(
            f"{shown(item.path.name)}: class {item.label!r} found; the plan's classes are "
            f"{', '.join(layout.classes)}. Correct the label, or agree on a plan with that class."
        )
    reading = read_image(item.path, target, unit_tag=layout.unit == UNIT_TAG and not item.unit)
    if layout.unit and not (item.unit or reading.unit):
        raise DataError(f"{shown(item.path.name)}: an empty patient id found; expected one for every image.")
    return reading


def _load_npz(path: Path, target: Target, layout: Layout) -> dict[str, Records]:
    arrays = read_npz(path, layout)
    images = npz_images(path, arrays["images"], target)
    wanted = [name for name in (layout.label, layout.unit, layout.site) if name]
    if any(arrays[name].shape != (len(images),) for name in wanted):
        raise DataError(f"{shown(path.name)}: label arrays of other length than the {len(images)} images found.")
    cells = {name: [str(value) for value in arrays[name].tolist()] for name in wanted}
    units = _units(cells[layout.unit] if layout.unit else None, len(images))
    records = Records(values=images, classes=_classes(cells[layout.label], layout), units=units)
    return _sites(records, layout, np.array(cells[layout.site]) if layout.site else None)


def read_npz(path: Path, layout: Layout) -> dict[str, NDArray[np.generic]]:
    """Return the arrays of an NPZ file, never unpickling. Raises DataError for objects or a missing array."""
    try:
        with zipfile.ZipFile(path), np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except _UNREADABLE as reason:
        raise DataError(
            f"{shown(path.name)} cannot be read as NPZ without objects: {shown(str(reason))}. Save plain arrays."
        ) from reason
    wanted = ["images", layout.label, *(name for name in (layout.unit, layout.site) if name)]
    absent = [name for name in wanted if name not in arrays]
    if absent:
        raise DataError(
            f"{shown(path.name)}: no array {', '.join(map(repr, absent))}; found {', '.join(sorted(arrays))}."
        )
    return arrays


def npz_images(path: Path, images: NDArray[np.generic], target: Target) -> NDArray[np.uint8]:
    """Return the images of an NPZ file as the target wants them; only what the plan declares is converted."""
    shape = target.shape
    whole = images.dtype == np.uint8 or (target.value_range and images.dtype.kind in "uif")
    like = images.ndim == len(shape) + 1 and images.shape[3:] == shape[2:]  # grey stays grey, and RGB RGB
    sized = like and len(images) > 0 and (images.shape[1:] == shape or target.fit != "exact")
    if not (whole and sized):
        raise DataError(
            f"{shown(path.name)}: images {images.dtype} {images.shape} found; expected uint8 (n ≥ 1, "
            f"{', '.join(map(str, shape))}), or the plan's data.value_range and data.fit for others."
        )
    if images.dtype == np.uint8 and images.shape[1:] == shape and not target.value_range:
        return np.asarray(images, np.uint8)
    where = f"{shown(path.name)}, image "
    return np.stack(
        [convert(Frame(values=one, span=None), target, f"{where}{i}")[0] for i, one in enumerate(images, 1)]
    )
