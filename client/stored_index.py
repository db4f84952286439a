"""A site's private index from data too large for memory: embedded once onto the disk, then read without the records."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from patevolve.client.policy import SitePolicy
from patevolve.client.private_index import PrivateIndex, Voters, checked_units
from patevolve.shared.data.index import KEY_BYTES, Index, Piece, build, open_index, pieces_of
from patevolve.shared.data.layout import Layout
from patevolve.shared.data.load import columns_of, encode_piece, read_items
from patevolve.shared.data.manifest import Found, Item, find
from patevolve.shared.data.names import shown
from patevolve.shared.data.parquet import pieces
from patevolve.shared.data.records import Records
from patevolve.shared.data.shard import content, held_out, kept_rows
from patevolve.shared.data.target import target_of
from patevolve.shared.errors import DataError, PolicyError
from patevolve.shared.plan import Agreed, Plan
from patevolve.shared.plan_sections import Data
from patevolve.shared.protocols import Encoder
from patevolve.shared.votes.ballots import Electorate

FILES = 256  # files in one chunk


def index_key(home: Path, policy: SitePolicy) -> bytes | None:
    """Return the key that the site's policy names for its index, or None. Raises PolicyError if it cannot be used."""
    if not policy.index_key:
        return None
    path = home / policy.index_key
    try:
        key = path.read_bytes()
    except OSError as reason:
        raise PolicyError(f"{path}, the policy's index_key, cannot be read ({reason.strerror}).") from reason
    if len(key) != KEY_BYTES:
        raise PolicyError(f"{path} holds {len(key)} bytes; expected {KEY_BYTES} random ones.")
    return key


def embed_data(
    path: Path,
    agreed: Agreed,
    encoder: Encoder,
    folder: Path,
    *,
    key: bytes | None = None,
    tick: Callable[[], None] = lambda: None,
) -> Index:
    """Return the index of the data at ``path``: every record is read and embedded once, in bounded memory.

    A call that was killed is resumed by the same call. ``tick`` is called after each chunk.

    Raises DataError for what the loaders refuse, a source that changed since, or a full disk.
    """
    data = agreed.plan.data
    layout = Layout(classes=data.classes, label=data.label, unit=data.unit, site=data.site)
    found = _files(path, layout) if data.kind == "image" else None
    about = {
        "plan": agreed.sha256,
        "source": _state(path) if found is None else _listing(found),
        "dimension": encoder.dimension,
    }
    index = open_index(folder, about, key)
    if found is None:
        build(index, _table_works(path, data, layout, encoder, tick))
    else:
        build(index, _file_works(found.items, data, layout, encoder, tick))
    return index


def _files(path: Path, layout: Layout) -> Found:
    found = find(path, layout)
    if found.refused:
        name, reason = found.refused[0]
        raise DataError(f"{len(found.refused)} file(s) of {shown(path.name)} refused; the first: {name}: {reason}.")
    return found


def _state(path: Path) -> str:
    try:
        state = path.stat()
    except OSError as reason:
        raise DataError(f"{shown(path.name)} cannot be read ({reason.strerror}). Check the path.") from reason
    return f"{state.st_size}-{state.st_mtime_ns}"


def _listing(found: Found) -> str:
    """Return a hash of the files' names, labels, units, sizes and times: another one means another source."""
    digest = hashlib.sha256()
    for item in found.items:
        row = [str(item.path), item.label, item.unit, item.site, _state(item.path)]
        digest.update(json.dumps(row).encode())
    return digest.hexdigest()


def _file_works(
    items: tuple[Item, ...], data: Data, layout: Layout, encoder: Encoder, tick: Callable[[], None]
) -> Iterator[Callable[[], Piece]]:
    for start in range(0, len(items), FILES):

        def work(some: tuple[Item, ...] = items[start : start + FILES]) -> Piece:
            images: list[NDArray[np.uint8]] = []
            labels, units, sites = [], [], []
            for item, reading in read_items(some, target_of(data), layout):
                if isinstance(reading, DataError):
                    raise reading
                count = len(reading.images)
                images += reading.images
                labels += [data.classes.index(item.label)] * count
                units += [item.unit or reading.unit] * count
                sites += [item.site] * count
            tick()
            return _piece(np.stack(images), np.array(labels, np.int64), np.array(units), np.array(sites), encoder)

        yield work


def _table_works(
    path: Path, data: Data, layout: Layout, encoder: Encoder, tick: Callable[[], None]
) -> Iterator[Callable[[], Piece]]:
    before = 0
    for cells in pieces(path, columns_of(data.fields, layout)):
        count = len(cells[layout.label])

        def work(cells: dict[str, list[str]] = cells, before: int = before) -> Piece:
            records = encode_piece(cells, data.fields, layout, before)
            names = [name.strip() for name in cells[layout.site]] if layout.site else [""] * len(records)
            tick()
            return _piece(records.values, records.classes, records.units, np.array(names), encoder)

        yield work
        before += count


def _piece(
    values: NDArray[np.generic],
    classes: NDArray[np.int64],
    units: NDArray[np.str_],
    sites: NDArray[np.str_],
    encoder: Encoder,
) -> Piece:
    contents = [content(value, cls) for value, cls in zip(values, classes, strict=True)]
    return Piece(
        features=encoder.encode(values), classes=classes, units=units, sites=sites, contents=np.array(contents, "S64")
    )


def read_index(index: Index, plan: Plan, secret: bytes, *, site: str = "", alone: bool = False) -> PrivateIndex:
    """Return what a site votes with from its index: the same units, classes and features as from memory.

    site:   whose records are taken, of an index with a site column
    alone:  refuse an index that holds another site's records as well

    Raises DataError, before any charge, if the site's records cannot take part.
    """
    parts = []
    for piece in pieces_of(index):
        own = piece.sites == site
        if alone and not own.all():
            raise DataError(
                f"records of another site than {site!r} found in the index; expected one site's. Use simulate."
            )
        parts.append((piece.features[own], piece.classes[own], piece.units[own], piece.contents[own]))
    if not parts:
        raise DataError("the index holds no record; expected at least one.")
    features, classes, units, contents = (np.concatenate(column) for column in zip(*parts, strict=True))
    if not plan.data.unit:
        units = _named_by_content(contents)
    keep = kept_rows(secret, units, lambda row: contents[row].decode("ascii"), plan.privacy.records_per_unit)
    features, classes, units = features[keep], classes[keep], units[keep]
    count = checked_units(units, plan)
    apart = held_out(secret, units, plan.data.hold_out)
    return PrivateIndex(
        members=_voters(features[~apart], classes[~apart], units[~apart]),
        held_out=_voters(features[apart], classes[apart], units[apart]),
        units=count,
    )


def sites_of(index: Index) -> list[str]:
    """Return the sites whose records an index holds, in order; "" where the data has no site column."""
    found: set[str] = set()
    for piece in pieces_of(index):
        found.update(piece.sites.tolist())
    return sorted(found)


def _named_by_content(contents: NDArray[np.bytes_]) -> NDArray[np.str_]:
    seen: Counter[str] = Counter()
    names = []
    for raw in contents.tolist():
        digest = raw.decode("ascii")
        names.append(f"{digest}-{seen[digest]}")
        seen[digest] += 1
    return np.array(names)


def _voters(features: NDArray[np.float64], classes: NDArray[np.int64], units: NDArray[np.str_]) -> Voters:
    if not np.isfinite(features).all():
        raise DataError("a record whose features are not finite found; expected clean values. Run the inspection.")
    records = Records(values=np.zeros((len(classes), 0), np.uint8), classes=classes, units=units)
    return Voters(records=records, features=features, electorate=Electorate(units))
