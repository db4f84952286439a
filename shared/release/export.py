"""A release in the form that other people's tools open: CSV, Parquet, or folders of PNG images.

Every export is itself a folder with the plan, the card, the guarantee and a manifest of its own.
"""

from __future__ import annotations

import csv
import difflib
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from patevolve.shared.errors import InputError, ReleaseError
from patevolve.shared.plan import Plan, read_plan
from patevolve.shared.release.card import as_parquet
from patevolve.shared.release.folder import MANIFEST, PROOF, SOURCE, verify_manifest, whole_folder, write_files
from patevolve.shared.release.package import optional
from patevolve.shared.schema import Column

Format = Literal["csv", "parquet", "imagefolder"]
FORMATS = ("csv", "parquet", "imagefolder")
UNFIT = {
    ("table", "imagefolder"): "a table has no images. Use csv or parquet",
    (
        "image",
        "csv",
    ): "images do not fit into cells of text. Use imagefolder, which has labels.csv beside it, or parquet",
}
INT64_BOUND = 2.0**63
BATCH = 1000  # images in memory at once


def export(release_folder: Path, out: Path, fmt: str) -> None:
    """Write the release in ``release_folder`` as ``fmt`` ("csv", "parquet" or "imagefolder") into a new folder ``out``.

    Parquet types follow the public schema: int64 for numbers without decimals, float64 for other numbers, dictionary
    of string for categories and the class; a missing value is null. Images are {"bytes", "path"} of PNG, with the class
    as number and as text, which the ``datasets`` library reads as Image and ClassLabel.

    Raises InputError for an unknown or unfit format, an ``out`` in use, or an extra that is not installed;
    ReleaseError if the release is not as it was written, or the disk fails: then nothing is left behind.
    """
    if fmt not in FORMATS:
        close = difflib.get_close_matches(fmt, FORMATS, n=1)
        raise InputError(
            f"format {fmt!r} found; expected one of {', '.join(FORMATS)}."
            + (f" Did you mean {close[0]!r}?" if close else "")
        )
    names = verify_manifest(release_folder)
    plan = read_plan(release_folder / "plan.toml").plan
    if (plan.data.kind, fmt) in UNFIT:
        raise InputError(
            f"format {fmt!r} found, but this release is of kind {plan.data.kind!r}: {UNFIT[plan.data.kind, fmt]}."
        )
    _check_out(release_folder, out)
    files = _parquet_files(release_folder, plan) if fmt == "parquet" else _copies(release_folder, names)
    with whole_folder(out) as aside:
        write_files(aside, files, seal=kept_proof(release_folder))


def kept_proof(release_folder: Path) -> Callable[[str], bytes] | None:
    """Return what puts the release's own proof into an export; None for a release without one."""
    path = release_folder / PROOF
    return (lambda _: path.read_bytes()) if path.exists() else None


def _check_out(release_folder: Path, out: Path) -> None:
    if out.is_symlink() or (out.exists() and (not out.is_dir() or any(out.iterdir()))):
        raise InputError(f"{out} exists and is not an empty folder; an export replaces nothing. Name a new folder.")
    if out.resolve().is_relative_to(release_folder.resolve()):
        raise InputError(f"{out} lies inside the release, which would change it. Name a folder elsewhere.")


def _copies(folder: Path, names: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    yield from ((name, (folder / name).read_bytes()) for name in names)


def _parquet_files(folder: Path, plan: Plan) -> Iterator[tuple[str, bytes]]:
    card = (folder / "README.md").read_bytes().decode()
    yield "README.md", as_parquet(card, plan.data.kind).encode()
    yield from papers(folder)
    yield "data.parquet", _table(folder, plan) if plan.data.kind == "table" else _images(folder, plan)


def papers(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield what every export takes over as it is: the guarantee, the plan, and the manifest that the proof signs."""
    yield from _copies(folder, ("guarantee.json", "plan.toml"))
    yield SOURCE, (folder / MANIFEST).read_bytes()


def _read_csv(path: Path) -> list[list[str]]:
    return list(csv.reader(io.StringIO(path.read_bytes().decode(), newline=""), strict=True))[1:]


def _table(folder: Path, plan: Plan) -> bytes:
    arrow = optional("pyarrow", "pyarrow")
    rows = _read_csv(folder / "data.csv")
    columns = [*plan.data.columns, Column(name=plan.data.label, kind="categorical", values=plan.data.classes)]
    cells = [[row[position] for row in rows] for position in range(len(columns))]
    arrays = [_array(arrow, column, column_cells) for column, column_cells in zip(columns, cells, strict=True)]
    fields = [arrow.field(column.name, array.type) for column, array in zip(columns, arrays, strict=True)]
    schema = arrow.schema(fields, metadata={"pandas": json.dumps(_pandas(columns))})
    return _written(schema, [arrow.Table.from_arrays(arrays, schema=schema)])


def _is_whole(column: Column) -> bool:
    return column.decimals == 0 and max(abs(edge) for edge in column.edges) < INT64_BOUND


def _array(arrow: Any, column: Column, cells: list[str]) -> Any:
    # A cell "" is a missing value where the schema has missing values, and otherwise a category of that name.
    present = [None if cell == "" and column.missing else cell for cell in cells]
    try:
        if column.kind == "numeric":
            convert: Callable[[str], float] = int if _is_whole(column) else float
            dtype = arrow.int64() if _is_whole(column) else arrow.float64()
            return arrow.array([None if cell is None else convert(cell) for cell in present], dtype)
        codes = {value: code for code, value in enumerate(column.values)}
        numbers = arrow.array([None if cell is None else codes[cell] for cell in present], arrow.int32())
    except (ValueError, KeyError) as reason:
        raise ReleaseError(f"column {column.name!r} holds a cell outside the plan's schema ({reason}).") from reason
    return arrow.DictionaryArray.from_arrays(numbers, arrow.array(column.values, arrow.string()))


def _pandas(columns: list[Column]) -> dict[str, Any]:
    """Return the metadata by which pandas keeps whole numbers with missing values whole (its Int64)."""
    entries = []
    for column in columns:
        entry: dict[str, Any] = {"name": column.name, "field_name": column.name, "metadata": None}
        if column.kind == "categorical":
            entry |= {"pandas_type": "categorical", "numpy_type": "int32"}
            entry["metadata"] = {"num_categories": len(column.values), "ordered": False}
        elif _is_whole(column):
            entry |= {"pandas_type": "int64", "numpy_type": "Int64"}
        else:
            entry |= {"pandas_type": "float64", "numpy_type": "float64"}
        entries.append(entry)
    return {"index_columns": [], "column_indexes": [], "columns": entries, "pandas_version": "2.2.0"}


def _images(folder: Path, plan: Plan) -> bytes:
    arrow = optional("pyarrow", "pyarrow")
    features = {
        "image": {"_type": "Image"},
        "label": {"names": list(plan.data.classes), "_type": "ClassLabel"},
        "class": {"dtype": "string", "_type": "Value"},
    }
    image = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
    schema = arrow.schema(
        [("image", image), ("label", arrow.int64()), ("class", arrow.string())],
        metadata={"huggingface": json.dumps({"info": {"features": features}})},
    )
    return _written(schema, _image_batches(arrow, schema, folder, plan))


def _image_batches(arrow: Any, schema: Any, folder: Path, plan: Plan) -> Iterator[Any]:
    numbers = {name: number for number, name in enumerate(plan.data.classes)}
    rows = _read_csv(folder / "labels.csv")
    for start in range(0, len(rows), BATCH):
        batch = [
            {
                "image": {"bytes": (folder / name).read_bytes(), "path": Path(name).name},
                "label": numbers[label],
                "class": label,
            }
            for name, label in rows[start : start + BATCH]
        ]
        yield arrow.Table.from_pylist(batch, schema=schema)


def _written(schema: Any, tables: list[Any] | Iterator[Any]) -> bytes:
    buffer = io.BytesIO()
    with optional("pyarrow.parquet", "pyarrow").ParquetWriter(buffer, schema, compression="zstd") as writer:
        for table in tables:
            writer.write_table(table)
    return buffer.getvalue()
