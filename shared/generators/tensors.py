"""Named arrays in the safetensors format, read and written with numpy alone: plain bytes, no code, no pickle.

Layout: header length (8 bytes, little endian) · header (JSON: name → dtype, shape, data_offsets; ``__metadata__`` of
texts) · the arrays' bytes, without gaps. The format is https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.errors import DataError

DTYPES = {"U8": "|u1", "I16": "<i2", "I32": "<i4", "I64": "<i8", "F32": "<f4", "F64": "<f8"}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
LONGEST = 1 << 20  # bytes of a header

Arrays = Mapping[str, NDArray[Any]]


def pack(arrays: Arrays, metadata: Mapping[str, str]) -> bytes:
    """Return the bytes of named arrays and texts; the same ones give the same bytes."""
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    blocks, offset = [], 0
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        dtype = array.dtype.newbyteorder("<").str
        blocks.append(array.astype(dtype, copy=False).tobytes())
        ends = [offset, offset + len(blocks[-1])]
        header[name] = {"dtype": NAMES[dtype], "shape": list(array.shape), "data_offsets": ends}
        offset = ends[1]
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # arrays start at a multiple of 8, as the format advises
    return b"".join([len(text).to_bytes(8, "little"), text, *blocks])


def unpack(data: bytes) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return the named arrays and the texts. Raises DataError for anything but well-formed bytes."""
    try:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(_header(data, length).decode())
        metadata, body = header.pop("__metadata__", {}), data[8 + length :]
        arrays = {name: _array(body, entry) for name, entry in header.items()}
        return arrays, {str(key): str(value) for key, value in metadata.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as reason:
        raise DataError(f"a file that is no safetensors file found ({reason}); expected named arrays.") from reason


def _header(data: bytes, length: int) -> bytes:
    if len(data) < 8 or not length <= min(LONGEST, len(data) - 8):
        raise ValueError("its header is longer than the file")
    return data[8 : 8 + length]


def _array(body: bytes, entry: Mapping[str, Any]) -> NDArray[Any]:
    (start, end), shape = entry["data_offsets"], entry["shape"]
    dtype = np.dtype(DTYPES[entry["dtype"]])
    fits = all(type(size) is int and size >= 0 for size in (start, end, *shape)) and end <= len(body)
    if not (fits and end - start == math.prod(shape) * dtype.itemsize):
        raise ValueError("an array does not fit its place")
    return np.frombuffer(body[start:end], dtype).reshape(shape)
