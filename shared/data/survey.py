"""What stands in a site's data, counted record by record in memory that grows by some 40 bytes per record.

Records are kept as 64-bit hashes: equal content, equal patient. Two of five million records collide with probability
below 10^-6. Images also leave a 64-bit difference hash: brightness falls or rises between neighbouring cells of a
9 × 8 grid; two images that differ in at most NEAR of these signs look alike. Texts leave the signs of the sum of their
pieces' hashes (Charikar 2002).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.data.target import grey_of, resample
from patevolve.shared.texts import unpacked

NEAR = 3  # signs of 64; four bands of 16 bits find every such pair, since one band of it is then equal
PIECE = 5  # characters of a text that are hashed together
MOST_PAIRS = 20_000  # images of one band compared with one another
MOST_ROWS = 200_000  # rows of a table whose neighbours are sought


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """How often content comes again.

    equal:        records whose content an earlier record has
    across:       records whose content also another patient has
    contradicts:  records whose content also stands under another class
    near:         records not equal to any, with another that looks alike (images, texts) or differs in one column
                  (tables); None if there were too many to compare
    near_across:  those whose likeness is of another patient
    """

    equal: int
    across: int
    contradicts: int
    near: int | None
    near_across: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteCount:
    """Records and privacy units of one site: in all, by class, and what the contribution bound leaves out."""

    records: int
    units: int
    by_class: tuple[tuple[int, int], ...]
    units_over_bound: int
    records_left_out: int
    largest_unit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Everything that was counted. ``sites`` is keyed by name, "" where the data is of one site."""

    sites: dict[str, SiteCount]
    repeats: Repeats
    units_in_sites: int
    units_in_splits: int
    units_in_classes: int
    units_alike: int
    splits: dict[str, int]
    steps: dict[str, int]


class Surveyor:
    """Counts records as they pass by; ``survey`` gives the result. It cannot be pickled: what it holds is private."""

    def __init__(self, classes: int, *, units: bool) -> None:
        """Start empty; ``units``: whether records carry the id of their patient, else each is its own unit."""
        self._classes, self._named = classes, units
        self._parts: list[NDArray[np.uint64]] = []
        self._coded: list[NDArray[np.int64]] = []
        self._rows = 0
        self._sites: dict[str, int] = {}
        self._splits: Counter[str] = Counter()
        self._split_numbers: dict[str, int] = {}
        self._steps: Counter[str] = Counter()

    def __reduce__(self) -> NoReturn:
        """Refuse pickling."""
        raise TypeError("what a survey holds is private and cannot be serialised")

    def note(self, steps: Iterable[str]) -> None:
        """Count the steps that a file's conversion took, each once per file."""
        self._steps.update(set(steps))

    def add_images(
        self, images: Sequence[NDArray[np.uint8]], *, label: int, unit: str, site: str = "", split: str = ""
    ) -> None:
        """Count the images of one file."""
        for image in images:
            self._add(
                content=[_content(image)],
                labels=[label],
                units=[unit],
                sites=[site],
                splits=[split],
                prints=[fingerprint(image)],
            )

    def add_rows(
        self, values: NDArray[np.int64], labels: NDArray[np.int64], units: Sequence[str], sites: Sequence[str]
    ) -> None:
        """Count coded rows of a table, (n, columns)."""
        if self._rows + len(values) <= MOST_ROWS:
            self._coded.append(values)
        content = row_hashes(values)
        count = len(values)
        self._add(
            content=content,
            labels=labels,
            units=units,
            sites=sites or [""] * count,
            splits=[""] * count,
            prints=np.zeros(count),
        )

    def add_texts(
        self, values: NDArray[np.uint8], labels: NDArray[np.int64], units: Sequence[str], sites: Sequence[str]
    ) -> None:
        """Count texts in their normal form, (n, length) bytes."""
        self._add(
            content=[_content(row) for row in values],
            labels=labels,
            units=units,
            sites=sites or [""] * len(values),
            splits=[""] * len(values),
            prints=[text_fingerprint(text) for text in unpacked(values)],
        )

    def _add(self, *, content: Any, labels: Any, units: Any, sites: Any, splits: Any, prints: Any) -> None:
        count = len(labels)
        if self._named:
            named = [_text_hash(unit) for unit in units]
            alike = [_text_hash(_loosely(unit)) for unit in units]
        else:
            named = alike = list(range(self._rows, self._rows + count))
        self._splits.update(splits)
        rows = [
            np.asarray(content, np.uint64),
            np.asarray(labels, np.uint64),
            np.asarray(named, np.uint64),
            np.asarray(alike, np.uint64),
            np.array([self._sites.setdefault(site, len(self._sites)) for site in sites], np.uint64),
            np.array([self._split_numbers.setdefault(name, len(self._split_numbers)) for name in splits], np.uint64),
            np.asarray(prints, np.uint64),
        ]
        self._parts.append(np.stack(rows))
        self._rows += count
        if len(self._parts) >= 4096:  # one wide piece instead of many narrow ones
            self._parts = [np.concatenate(self._parts, axis=1)]

    def survey(self, *, per_unit: int, prints: bool) -> Survey:
        """Return what was counted; ``per_unit``: the contribution bound; ``prints``: images or texts, not rows."""
        table = np.concatenate(self._parts, axis=1) if self._parts else np.zeros((7, 0), np.uint64)
        content, labels, units, alike, sites, splits, signs = table
        found = {
            name: _site_count(labels[sites == number], units[sites == number], self._classes, per_unit)
            for name, number in sorted(self._sites.items())
        }
        near = self._near_prints(content, signs, units) if prints else self._near_rows(content, units)
        return Survey(
            sites=found,
            repeats=Repeats(
                equal=len(content) - len(np.unique(content)),
                across=_in_several(content, units)[1],
                contradicts=_in_several(content, labels)[1],
                near=near[0],
                near_across=near[1],
            ),
            units_in_sites=_in_several(units, sites)[0],
            units_in_splits=_in_several(units, splits)[0],
            units_in_classes=_in_several(units, labels)[0],
            units_alike=len(np.unique(units)) - len(np.unique(alike)),
            splits=dict(sorted((name, count) for name, count in self._splits.items() if name)),
            steps=dict(sorted(self._steps.items())),
        )

    @staticmethod
    def _near_prints(
        content: NDArray[np.uint64], prints: NDArray[np.uint64], units: NDArray[np.uint64]
    ) -> tuple[int | None, int | None]:
        _, first = np.unique(content, return_index=True)
        return _near(prints[first], units[first])

    def _near_rows(self, content: NDArray[np.uint64], units: NDArray[np.uint64]) -> tuple[int | None, int | None]:
        coded = sum(len(part) for part in self._coded)
        if coded < self._rows:
            return None, None
        if not self._rows:
            return 0, 0
        values = np.concatenate(self._coded)
        _, first = np.unique(content, return_index=True)
        values, units = values[first], units[first]
        total, near, across = row_hashes(values), np.zeros(len(first), bool), np.zeros(len(first), bool)
        for column in range(values.shape[1]):
            rest = total - _terms(values[:, column], column)
            _, inverse, counts = np.unique(rest, return_inverse=True, return_counts=True)
            near |= counts[inverse] > 1
            across |= _spread(inverse, units)
        return int(near.sum()), int((near & across).sum())


def _loosely(unit: str) -> str:
    """Return an id as a careless typist would see it: no case, spaces, hyphens or leading zeros."""
    return "".join(c for c in unit.casefold() if c.isalnum()).lstrip("0")


def _text_hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _content(image: NDArray[np.uint8]) -> int:
    data = np.ascontiguousarray(image)
    return int.from_bytes(hashlib.blake2b(data.tobytes() + str(data.shape).encode(), digest_size=8).digest(), "little")


def _terms(codes: NDArray[np.int64], column: int) -> NDArray[np.uint64]:
    """Return a well-mixed number for each code of a column (the finaliser of SplitMix64, Steele 2014)."""
    salt = (column + 1) * 0x9E3779B97F4A7C15 % 2**64
    z = codes.astype(np.uint64) * np.uint64(0xD1342543DE82EF95) + np.uint64(salt)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


def row_hashes(values: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a 64-bit number for each coded row: the sum of its columns', so that one column can be taken out again."""
    total = np.zeros(len(values), np.uint64)
    for column in range(values.shape[1]):
        total += _terms(values[:, column], column)
    return total


def fingerprint(image: NDArray[np.uint8]) -> int:
    """Return the difference hash of an image, in colour of its luminance: 64 signs."""
    cells = resample(grey_of(image).astype(np.float64), 8, 9)
    bits = (cells[:, 1:] - cells[:, :-1] > 0.5).ravel()  # half a grey level: flat areas stay flat under rounding
    return int.from_bytes(np.packbits(bits).tobytes(), "little")


def text_fingerprint(text: str) -> int:
    """Return the 64 signs of the sum of the hashes of a text's pieces of PIECE characters, whatever their case."""
    whole = " ".join(text.casefold().split())
    pieces = {whole[start : start + PIECE] for start in range(max(1, len(whole) - PIECE + 1))}
    hashes = np.array([_text_hash(piece) for piece in sorted(pieces)], np.uint64)
    bits = np.unpackbits(hashes.view(np.uint8).reshape(-1, 8), axis=1).sum(axis=0, dtype=np.int64)
    return int.from_bytes(np.packbits(2 * bits > len(hashes)).tobytes(), "little")


def _in_several(keys: NDArray[np.uint64], others: NDArray[np.uint64]) -> tuple[int, int]:
    """Return how many keys, and how many records, have a key that stands with two or more others."""
    if not len(keys):
        return 0, 0
    _, inverse = np.unique(keys, return_inverse=True)
    spread = _spread(inverse, others)
    return len(np.unique(inverse[spread])), int(spread.sum())


def _spread(groups: NDArray[np.intp], others: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return for each record whether its group holds two different others."""
    count = int(groups.max()) + 1
    low, high = np.full(count, 2**64 - 1, np.uint64), np.zeros(count, np.uint64)
    np.minimum.at(low, groups, others)
    np.maximum.at(high, groups, others)
    return np.asarray((low != high)[groups])


def _site_count(labels: NDArray[np.uint64], units: NDArray[np.uint64], classes: int, per_unit: int) -> SiteCount:
    sizes = np.unique(units, return_counts=True)[1]
    by_class = tuple(
        (int(np.sum(labels == number)), len(np.unique(units[labels == number]))) for number in range(classes)
    )
    return SiteCount(
        records=len(labels),
        units=len(sizes),
        by_class=by_class,
        units_over_bound=int(np.sum(sizes > per_unit)),
        records_left_out=int(np.sum(np.maximum(0, sizes - per_unit))),
        largest_unit=int(sizes.max()) if len(sizes) else 0,
    )


def _near(prints: NDArray[np.uint64], units: NDArray[np.uint64]) -> tuple[int | None, int | None]:
    """Return how many of these different images look like another one, and like one of another patient."""
    kinds, inverse, counts = np.unique(prints, return_inverse=True, return_counts=True)
    low, high = np.full(len(kinds), 2**64 - 1, np.uint64), np.zeros(len(kinds), np.uint64)
    np.minimum.at(low, inverse, units)
    np.maximum.at(high, inverse, units)
    near, across = counts > 1, low != high
    for band in range(4):
        key = (kinds >> np.uint64(16 * band)) & np.uint64(0xFFFF)
        order = np.argsort(key, kind="stable")
        for group in np.split(order, np.flatnonzero(np.diff(key[order])) + 1):
            if len(group) > MOST_PAIRS:
                return None, None
            for a, b in _pairs(kinds, group):
                near[a] = near[b] = True
                apart = np.minimum(low[a], low[b]) != np.maximum(high[a], high[b])
                across[a] |= apart
                across[b] |= apart
    return int(near[inverse].sum()), int((near & across)[inverse].sum())


def _pairs(kinds: NDArray[np.uint64], group: NDArray[np.intp]) -> Iterable[tuple[int, int]]:
    """Yield the pairs of a group whose fingerprints differ in at most NEAR signs."""
    for start in range(0, len(group) - 1, 256):
        rows = group[start : start + 256]
        differ = _ones(kinds[rows][:, None] ^ kinds[group][None, :])
        for i, j in zip(*np.nonzero(differ <= NEAR), strict=True):
            if start + i < j:
                yield int(rows[i]), int(group[j])


_ONES = np.array([byte.bit_count() for byte in range(256)], np.uint8)


def _ones(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the number of set bits of each word."""
    return np.asarray(
        _ONES[np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, 8)].sum(axis=-1, dtype=int)
    )
