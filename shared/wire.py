"""Canonical bytes for messages and checkpoints: a JSON header and raw little-endian arrays, bounded and versioned.

One value has one encoding (keys sorted, no white space, fixed byte order), so that a hash of the bytes names the
value. Decoding never runs code, allocates at most what the bytes themselves occupy, and raises MessageError alone.

Layout: magic (4) · header length (4, little endian) · header (UTF-8 JSON) · arrays in header order.
The header is ``{"version", "kind", "fields", "arrays": [[name, dtype, shape], ...]}``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.errors import MessageError

MAGIC = b"PVM1"
VERSION = 1
MAX_BYTES = 64 << 20  # 64 MiB: Flower's executors die somewhat above 100 MB
MAX_HEADER = 1 << 20
MAX_DIMENSIONS = 4
DTYPES = ("<i4", "<i8", "<f2", "<f4", "<f8", "|u1")
_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Packet:
    """A decoded message: its kind, small JSON fields, and named arrays."""

    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


def canonical_json(value: object) -> bytes:
    """Return the one JSON encoding of ``value``: sorted keys, no white space, no NaN. Raises MessageError."""
    try:
        return _JSON.encode(value).encode()  # refuses lone surrogates
    except (TypeError, ValueError, RecursionError) as reason:
        raise MessageError(
            f"a value without canonical JSON form was found ({reason}); expected finite JSON."
        ) from reason


def encode(packet: Packet) -> bytes:
    """Return the packet's canonical bytes. Raises MessageError for a dtype, shape or size outside the format."""
    blocks, heads = [], []
    for name in sorted(packet.arrays):
        array = np.ascontiguousarray(packet.arrays[name])
        dtype = array.dtype.str if array.dtype.str in DTYPES else array.dtype.newbyteorder("<").str
        if dtype not in DTYPES or array.ndim > MAX_DIMENSIONS:
            raise MessageError(
                f"array {name!r} is {array.dtype} with {array.ndim} dimensions; expected one of {DTYPES}."
            )
        heads.append([name, dtype, list(array.shape)])
        blocks.append(array.astype(dtype, copy=False).data)
    header = canonical_json({"version": VERSION, "kind": packet.kind, "fields": dict(packet.fields), "arrays": heads})
    if len(header) > MAX_HEADER:
        raise MessageError(
            f"a message with {len(header)} bytes of fields was built; expected at most {MAX_HEADER}, for names and "
            f"other small fields. Shorten them, or have fewer sites in one message."
        )
    data = b"".join([MAGIC, len(header).to_bytes(4, "little"), header, *blocks])
    if len(data) > MAX_BYTES:
        raise MessageError(
            f"a message of {len(data)} bytes was built; expected at most {MAX_BYTES}. Send fewer candidates."
        )
    return data


def decode(data: bytes, *, kind: str | None = None) -> Packet:
    """Return the packet in ``data``, and only if ``data`` is its canonical encoding.

    Raises MessageError for anything else: wrong magic, version, kind, sizes, trailing bytes, other spellings.
    """
    if len(data) > MAX_BYTES or data[:4] != MAGIC or len(data) < 8:
        raise MessageError(f"{len(data)} bytes without the message mark found; expected a patevolve message.")
    length = int.from_bytes(data[4:8], "little")
    if length > MAX_HEADER or 8 + length > len(data):
        raise MessageError("a message header longer than the message was found; the message is cut or damaged.")
    header = _header(data[8 : 8 + length])
    if kind is not None and header["kind"] != kind:
        raise MessageError(f"a message of kind {header['kind']!r} found; expected {kind!r}.")
    arrays, offset = {}, 8 + length
    for name, dtype, shape in header["arrays"]:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if offset + size > len(data):
            raise MessageError("an array longer than the message was found; the message is cut or damaged.")
        arrays[name] = np.frombuffer(data, dtype, math.prod(shape), offset).reshape(shape)
        offset += size
    packet = Packet(kind=header["kind"], fields=header["fields"], arrays=arrays)
    if offset != len(data) or encode(packet) != data:
        raise MessageError(
            "a message in another than its canonical form was found; it is damaged or was not written by patevolve."
        )
    return packet


def _header(raw: bytes) -> dict[str, Any]:
    try:
        header = json.loads(raw.decode())
    except (ValueError, RecursionError) as reason:
        raise MessageError("a message header that is not JSON was found; the message is damaged.") from reason
    if not isinstance(header, dict) or set(header) != {"version", "kind", "fields", "arrays"}:
        raise MessageError("a message header with other keys than version, kind, fields, arrays was found.")
    if header["version"] != VERSION:
        raise MessageError(
            f"message version {header['version']!r} found; expected {VERSION}. Install one patevolve on both sides."
        )
    well_formed = (
        isinstance(header["kind"], str)
        and isinstance(header["fields"], dict)
        and isinstance(header["arrays"], list)
        and all(_array_head(entry) for entry in header["arrays"])
    )
    if not well_formed:
        raise MessageError("a message header with fields of the wrong type was found; the message is damaged.")
    return header


def _array_head(entry: object) -> bool:
    if not isinstance(entry, list) or len(entry) != 3:
        return False
    name, dtype, shape = entry
    return (
        isinstance(name, str)
        and dtype in DTYPES
        and isinstance(shape, list)
        and len(shape) <= MAX_DIMENSIONS
        and all(type(size) is int and 0 <= size <= MAX_BYTES for size in shape)
    )


def compact(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array in the smallest dtype of the format that holds every value exactly; integers stay integers."""
    for dtype in ("|u1", "<i4") if array.dtype.kind in "iu" else ("|u1", "<f2", "<i4", "<f4"):
        with np.errstate(invalid="ignore", over="ignore"):
            small = array.astype(dtype)
            if np.array_equal(small.astype(array.dtype), array):
                return small
    return array
