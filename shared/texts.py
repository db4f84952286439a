"""Texts as records: one normal form, at most so many bytes of UTF-8, each a row of bytes of one length.

The normal form is one line: control characters (NUL among them), line ends, tabs and every kind of space become one
space between words, invisible characters (turns of the direction of writing among them) are left out but for the two
joiners, and what remains is composed (NFC) and cut to whole characters. Each row is a function of its own text alone.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.errors import DataError

SPACES = frozenset({"Cc", "Zl", "Zp", "Zs"})  # general categories of Unicode that end a word
FORMATS = "Cf"  # turns of direction, soft hyphens and others that are not seen: they reorder or hide text
JOINERS = "\u200c\u200d"  # but these two spell words of Persian and the languages of India
LOOKED_AT = 8  # characters for each byte that is kept; composing longer runs of marks takes time that grows as a square

Rows = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextColumn:
    """The column of a table that holds the text, and how many bytes of it a record keeps."""

    name: str
    length: int


def normal(text: str, length: int) -> str:
    """Return a text in its normal form, cut to ``length`` bytes of UTF-8. Raises DataError for half a surrogate pair.

    A text in its normal form is its own normal form.
    """
    some = (_kept(character) for character in text[: LOOKED_AT * length])
    words = " ".join(filter(None, unicodedata.normalize("NFC", "".join(some)).split(" ")))
    try:
        whole = words.encode()
    except UnicodeEncodeError as reason:
        raise DataError(
            "a text with half of a surrogate pair found; expected Unicode. Export the file again as UTF-8."
        ) from reason
    return whole[:length].decode("utf-8", "ignore").rstrip(" ")


def _kept(character: str) -> str:
    kind = unicodedata.category(character)
    if kind == FORMATS and character not in JOINERS:
        return ""
    return " " if kind in SPACES else character


def packed(texts: Sequence[str], length: int) -> Rows:
    """Return (n, length) bytes of texts in normal form, zeros behind. Raises DataError for one that is longer."""
    rows = np.zeros((len(texts), length), np.uint8)
    for row, text in zip(rows, texts, strict=True):
        data = text.encode()
        if len(data) > length:
            raise DataError(f"a text of {len(data)} bytes found; expected at most {length}.")
        row[: len(data)] = np.frombuffer(data, np.uint8)
    return rows


def unpacked(rows: Rows) -> list[str]:
    """Return the texts of ``packed`` rows. Raises DataError for bytes that are no UTF-8."""
    try:
        return [bytes(row).rstrip(b"\0").decode() for row in rows]
    except UnicodeDecodeError as reason:
        raise DataError(f"bytes that are no UTF-8 found ({reason.reason}); expected packed texts.") from reason
