"""A release as one Parquet table, with types that follow the public schema."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from patevolve.shared.errors import ReleaseError
from patevolve.shared.plan import Plan
from patevolve.shared.release.package import optional
from patevolve.shared.release.source import Picture, pictures, read_csv
from patevolve.shared.schema import Column

INT64_BOUND = 2.0**63
BATCH = 1000  # images in memory at once


def parquet_bytes(folder: Path, plan: Plan) -> bytes:
    """Return the release's table, or its images with their classes, as Parquet.

    int64 for numbers without decimals, float64 for other numbers, dictionary of string for categories and the class; a
    missing value is null. Texts are strings. Images are {"bytes", "path"} of PNG, with the class as number and as text,
    which the ``datasets`` library reads as Image and ClassLabel.

    Raises InputError if pyarrow is not installed, ReleaseError for a cell outside the schema.
    """
    if plan.data.kind == "text":
        return _texts(folder, plan)
    return _table(folder, plan) if plan.data.kind == "table" else _images(folder, plan)


def _texts(folder: Path, plan: Plan) -> bytes:
    arrow = optional("pyarrow", "pyarrow")
    texts, labels = zip(*read_csv(folder / "data.csv"), strict=True)
    label = _array(arrow, Column(name=plan.data.label, kind="categorical", values=plan.data.classes), list(labels))
    table = arrow.table({plan.data.text: arrow.array(texts, arrow.string()), plan.data.label: label})
    return _written(table.schema, [table])


def _table(folder: Path, plan: Plan) -> bytes:
    arrow = optional("pyarrow", "pyarrow")
    rows = read_csv(folder / "data.csv")
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
    found = pictures(folder, plan)
    while batch := [_row(picture) for picture in itertools.islice(found, BATCH)]:
        yield arrow.Table.from_pylist(batch, schema=schema)


def _row(picture: Picture) -> dict[str, Any]:
    image = {"bytes": picture.png, "path": Path(picture.name).name}
    return {"image": image, "label": picture.number, "class": picture.label}


def _written(schema: Any, tables: list[Any] | Iterator[Any]) -> bytes:
    buffer = io.BytesIO()
    with optional("pyarrow.parquet", "pyarrow").ParquetWriter(buffer, schema, compression="zstd") as writer:
        for table in tables:
            writer.write_table(table)
    return buffer.getvalue()
