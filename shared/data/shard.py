"""Keyed assignment of privacy units: to teachers, to the held-out part, and under the contribution bound.

Each is a pure function of (site secret, unit), so that one unit that leaves moves no other unit. Contiguous slices
move every later shard when one record leaves, which breaks PATE's sensitivity argument (docs/pate.md).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.data.records import Records


def keyed_uniform(secret: bytes, purpose: str, units: NDArray[np.str_]) -> NDArray[np.float64]:
    """Return a number in [0, 1) for each unit, a pure function of (secret, purpose, unit)."""
    values = {unit: _uniform(secret, f"{purpose}\x1f{unit}") for unit in set(units.tolist())}
    return np.array([values[unit] for unit in units.tolist()], np.float64)


def _uniform(secret: bytes, text: str) -> float:
    digest = hmac.new(secret, text.encode(), hashlib.sha256).digest()
    return int.from_bytes(digest[:6], "big") / 2.0**48  # 48 bits: exact in a double


def teacher_of(secret: bytes, units: NDArray[np.str_], teachers: int) -> NDArray[np.int64]:
    """Return the teacher in 0 .. teachers − 1 of each record's unit."""
    return (keyed_uniform(secret, "teacher", units) * teachers).astype(np.int64)  # label: keyed-shard


def held_out(secret: bytes, units: NDArray[np.str_], fraction: float) -> NDArray[np.bool_]:
    """Return which records belong to held-out units: they answer ``score`` and nothing else."""
    return keyed_uniform(secret, "held-out", units) < fraction  # label: keyed-hold-out


def bounded(secret: bytes, records: Records, per_unit: int) -> Records:
    """Return the records that stay when each unit keeps at most ``per_unit``.

    The choice is keyed by the record's content: neither the file's order nor another unit can move it.
    """
    return records.pick(
        kept_rows(secret, records.units, lambda row: content(records.values[row], records.classes[row]), per_unit)
    )


def kept_rows(
    secret: bytes, units: NDArray[np.str_], content_of: Callable[[int], str], per_unit: int
) -> NDArray[np.bool_]:
    """Return which records stay under the bound; ``content_of`` names a record's content by its row."""
    names, inverse, counts = np.unique(units, return_inverse=True, return_counts=True)
    keep: NDArray[np.bool_] = counts[inverse] <= per_unit
    over = np.flatnonzero(~keep)
    over = over[np.argsort(inverse[over], kind="stable")]
    for rows in np.split(over, np.flatnonzero(np.diff(inverse[over])) + 1) if len(over) else []:
        unit = names[inverse[rows[0]]]
        keys = [_uniform(secret, f"keep\x1f{unit}\x1f{content_of(int(row))}") for row in rows]
        keep[rows[np.argsort(keys, kind="stable")[:per_unit]]] = True  # label: contribution-bound
    return keep


def content(value: NDArray[Any], cls: np.int64) -> str:
    """Return the SHA-256 of a record's values and class."""
    return hashlib.sha256(np.ascontiguousarray(value).tobytes() + int(cls).to_bytes(8, "little")).hexdigest()
