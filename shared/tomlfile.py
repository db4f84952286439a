"""Strict TOML: the same text on every platform, unknown keys refused with a suggestion, no silent conversion.

A byte-order mark and CRLF line ends are normalised before parsing and hashing, so that a file that went through a
Windows editor is still the same file; every other changed byte is another file.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from patevolve.shared.errors import InputError, ParameterError

T = TypeVar("T")
MAX_BYTES = 1 << 20  # a plan or policy larger than 1 MiB is not one


def read_text(path: Path, error: type[InputError]) -> str:
    """Return the file's normalised text. Raises ``error`` if it is missing, unreadable, too large or not UTF-8."""
    try:
        raw = path.read_bytes()
    except OSError as reason:
        raise error(f"{path} cannot be read ({reason.strerror}); expected a TOML file. Check the path.") from reason
    if len(raw) > MAX_BYTES:
        raise error(f"{path} has {len(raw)} bytes; expected at most {MAX_BYTES}. This is not the file meant.")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as reason:
        raise error(f"{path} is not UTF-8 (byte {reason.start}); save it as UTF-8.") from reason
    return normalise(text)


def normalise(text: str) -> str:
    """Return the text without byte-order mark and with LF line ends."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def sha256(text: str) -> str:
    """Return the hex SHA-256 of a normalised text."""
    return hashlib.sha256(text.encode()).hexdigest()


def parse(text: str, cls: type[T], where: str, error: type[InputError]) -> T:
    """Decode TOML text into the frozen dataclass ``cls``; ``where`` names the source in messages.

    Raises ``error`` for bad syntax, an unknown key (with a suggestion), a missing key or a value of another type.
    """
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as reason:  # also numbers of thousands of digits and endless nesting
        raise error(f"{where} is not valid TOML: {reason}. Correct that line.") from reason
    return decode(data, cls, where, error)


def decode(data: Mapping[str, Any], cls: type[T], where: str, error: type[InputError]) -> T:
    """Decode a mapping into the frozen dataclass ``cls``, field by field and without conversions."""
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]  # T is a dataclass
    hints = typing.get_type_hints(cls)
    for key in data:
        if key not in fields:
            raise error(_unknown(key, list(fields), where))
    values = {}
    for name, field in fields.items():
        if name in data:
            values[name] = _value(data[name], hints[name], f"{where}: {name}", error)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise error(f"{where}: key {name!r} is missing; expected {_spell(hints[name])}. Add it.")
    try:
        return cls(**values)
    except ParameterError as reason:
        raise error(f"{where}: {reason}") from reason


def _unknown(key: str, known: list[str], where: str) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else f"Known keys: {', '.join(known)}."
    return f"{where}: unknown key {key!r} found. {hint}"


def _spell(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return "one of " + ", ".join(repr(choice) for choice in typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        return f"a list of {_spell(typing.get_args(hint)[0])}"
    names = {float: "a number", int: "a whole number", str: "text", bool: "true or false"}
    return names.get(hint, "a table")


def _value(value: Any, hint: Any, where: str, error: type[InputError]) -> Any:
    origin = typing.get_origin(hint)
    if origin is types.UnionType:  # only `X | None` is used in plans
        (hint,) = [option for option in typing.get_args(hint) if option is not type(None)]
        return _value(value, hint, where, error)
    if origin is typing.Literal:
        if not isinstance(value, str) or value not in typing.get_args(hint):
            close = difflib.get_close_matches(str(value), typing.get_args(hint), n=1)
            raise error(
                f"{where} = {value!r} found; expected {_spell(hint)}."
                + (f" Did you mean {close[0]!r}?" if close else "")
            )
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise error(f"{where} = {value!r} found; expected {_spell(hint)}.")
        inner = typing.get_args(hint)[0]
        return tuple(_value(item, inner, f"{where}[{i}]", error) for i, item in enumerate(value))
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise error(f"{where} = {value!r} found; expected a table.")
        return decode(value, typing.cast("type[Any]", hint), where, error)
    return _scalar(value, hint, where, error)


def _scalar(value: Any, hint: type, where: str, error: type[InputError]) -> Any:
    # bool is a subclass of int in Python; in a plan `true` is never a number.
    fits = isinstance(value, hint) and (hint is bool or not isinstance(value, bool))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        if abs(value) > 2**53:  # no double holds every larger whole number
            raise error(f"{where} = a whole number of {value.bit_length()} bits found; expected a number up to 2^53.")
        return float(value)
    if not fits:
        raise error(f"{where} = {value!r} found ({type(value).__name__}); expected {_spell(hint)}.")
    return value
