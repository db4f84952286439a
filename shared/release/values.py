"""Whether released values lie in the plan's public description: a schema, a text's form, an image's size and type."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.errors import DataError
from patevolve.shared.plan import Plan
from patevolve.shared.release.samples import Samples
from patevolve.shared.schema import Column
from patevolve.shared.texts import normal

NUMBER = re.compile(r"-?[0-9]+(?:\.([0-9]+))?")  # stricter than float(): no spaces, underscores, exponents, NaN


def schema_problems(samples: Samples, plan: Plan) -> list[str]:
    """Return one text for each thing outside the plan's description, with the first sample that has it."""
    problems = _class_problems(samples, plan)
    if samples.is_table != (plan.data.kind != "image"):
        return [*problems, f"samples that are no {plan.data.kind}s"]
    if plan.data.kind == "text":
        return problems + _text_problems(samples, plan)
    if samples.is_table:
        return problems + _table_problems(samples, plan.data.columns)
    return problems + _image_problems(samples.images, plan.data.shape)


def _class_problems(samples: Samples, plan: Plan) -> list[str]:
    if samples.class_names != plan.data.classes:
        return [f"classes {list(samples.class_names)}"]
    if samples.classes.dtype != np.int64:
        return [f"classes of type {samples.classes.dtype}"]
    outside = np.flatnonzero((samples.classes < 0) | (samples.classes >= len(plan.data.classes)))
    return [f"sample {outside[0] + 1}: class number {samples.classes[outside[0]]}"] if len(outside) else []


def _table_problems(samples: Samples, schema: tuple[Column, ...]) -> list[str]:
    names = tuple(column.name for column in schema)
    if samples.columns != names:
        return [f"columns {list(samples.columns)}"]
    problems = []
    for position, column in enumerate(schema):
        cells: list[object] = [row[position] for row in samples.rows]
        fits = {cell: cell_fits(column, cell) for cell in dict.fromkeys(cells)}
        row = next((row for row, cell in enumerate(cells) if not fits[cell]), None)
        if row is not None:
            problems.append(f"column {column.name!r}, sample {row + 1}: {cells[row]!r}")
    return problems


def _text_problems(samples: Samples, plan: Plan) -> list[str]:
    if samples.columns != (plan.data.text,):
        return [f"columns {list(samples.columns)}"]
    unfit = next((row for row, (cell,) in enumerate(samples.rows) if not _is_normal(cell, plan.data.length)), None)
    return [] if unfit is None else [f"column {plan.data.text!r}, sample {unfit + 1}: no text in normal form"]


def _is_normal(cell: object, length: int) -> bool:
    try:
        return isinstance(cell, str) and cell != "" and cell == normal(cell, length)
    except DataError:
        return False


def cell_fits(column: Column, cell: object) -> bool:
    """Return whether a released cell lies in the column's public schema, in the spelling that releases use.

    A numeric cell may be the public bound rounded to the column's decimals, which is what ``decode_column`` writes.
    """
    if not isinstance(cell, str):
        return False
    if column.kind == "categorical":
        return cell in column.values or (cell == "" and column.missing)
    if cell == "":
        return column.missing
    match = NUMBER.fullmatch(cell)
    if match is None or len(match[1] or "") > column.decimals:
        return False
    low, high = column.edges[0], column.edges[-1]
    rounded_low, rounded_high = (float(f"{edge:.{column.decimals}f}") for edge in (low, high))
    return min(low, rounded_low) <= float(cell) <= max(high, rounded_high)


def _image_problems(images: NDArray[np.uint8] | None, shape: tuple[int, ...]) -> list[str]:
    if images is None or images.dtype != np.uint8 or images.shape[1:] != shape:
        return [f"images {getattr(images, 'dtype', None)} {getattr(images, 'shape', None)}"]
    found = np.flatnonzero(blank(images))
    return [f"{len(found)} images of {plain(shape)}, the first is sample {found[0] + 1}"] if len(found) else []


def blank(images: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return (n,) whether each of (n, height, width) or (n, height, width, 3) images is of one value throughout."""
    planes = images if images.ndim == 4 else images[..., None]
    alike: NDArray[np.bool_] = (planes.min(axis=(1, 2)) == planes.max(axis=(1, 2))).all(axis=1)
    return alike


def plain(shape: tuple[int, ...]) -> str:
    """Return what an image of this shape has that shows nothing, in words."""
    return "one grey value" if len(shape) == 2 else "one colour"
