"""Texts described by numpy alone: their words, pairs of words and parts of words, counted in hashed places."""

from __future__ import annotations

import itertools
import re
import zlib
from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.texts import Rows, unpacked

PLACES = 1024
PART = 4  # characters of a part of a word, its borders counted
WORDS = re.compile(r"\w+")


def hashed_words(rows: Rows) -> NDArray[np.float32]:
    """Return (n, 1024) signed root counts of hashed pieces of texts, each row of norm 1 (0 for a text without words).

    Signed so that pieces that share a place cancel in the mean (Weinberger et al. 2009). Row i is a function of text i
    alone, bit by bit.
    """
    found = np.zeros((len(rows), PLACES), np.float32)
    for row, text in zip(found, unpacked(rows), strict=True):
        places: Counter[int] = Counter()
        for piece in _pieces(text):
            number = zlib.crc32(piece.encode())
            places[number % PLACES] += 1 if number >> 31 else -1
        total = sum(map(abs, places.values()))  # whole numbers: exact in any order  # label: own-words
        for place, count in places.items():
            row[place] = np.sign(count) * np.sqrt(abs(count) / total) if total else 0.0
    return found


def _pieces(text: str) -> Iterator[str]:
    words = WORDS.findall(text.casefold())
    yield from words
    yield from (f"{one} {two}" for one, two in itertools.pairwise(words))
    for word in words:
        whole = f"_{word}_"
        yield from (whole[start : start + PART] for start in range(len(whole) - PART + 1))
