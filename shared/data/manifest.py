"""Which files a site's images are, and what is known of each: from a folder per class, or a manifest.

A folder holds one folder per class of the plan, which may hold one folder per patient; above the classes there may be
folders named as splits. A manifest is a CSV, TSV or Parquet table with the columns ``path`` (relative to the manifest)
and those that the plan names for the label, the privacy unit and the site, and possibly ``split``.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from patevolve.shared.data.images import looks_like_image
from patevolve.shared.data.layout import Layout
from patevolve.shared.data.names import is_junk, shown
from patevolve.shared.data.parquet import cells
from patevolve.shared.errors import DataError

PATH, SPLIT = "path", "split"
SPLITS = frozenset({"train", "training", "val", "valid", "validation", "test", "testing", "eval"})
MANIFESTS = (".csv", ".tsv", ".parquet", ".pq")
UNIT_TAG = "PatientID"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One file of a site and what is known of it; empty where nothing is."""

    path: Path
    label: str
    unit: str = ""
    site: str = ""
    split: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The items of a folder or manifest, in an order that does not depend on the file system, and what is not one.

    ignored:  (name, reason) of files and folders that are nobody's data
    refused:  (name, reason) of those that look like data and cannot take part
    """

    items: tuple[Item, ...]
    ignored: tuple[tuple[str, str], ...] = ()
    refused: tuple[tuple[str, str], ...] = ()


def find(path: Path, layout: Layout) -> Found:
    """Return the image files of a folder or manifest, or of one file. Raises DataError if it cannot be listed."""
    try:
        if path.is_dir():
            return find_in_folder(path, layout)
    except OSError as reason:  # also where a name cannot even be looked up
        raise DataError(f"{shown(path.name)} cannot be listed ({reason.strerror}). Check permissions.") from reason
    if path.suffix.lower() not in MANIFESTS:
        raise DataError(
            f"{shown(path.name)} is neither a folder of images nor a manifest; expected a folder per class, a table "
            f"with a column {PATH!r} ({', '.join(MANIFESTS)}), or an .npz file."
        )
    return read_manifest(path, layout)


def find_in_folder(root: Path, layout: Layout) -> Found:
    """Return the images of a folder per class. Raises DataError if it cannot be listed or has no class's folder."""
    if layout.site:
        raise DataError(f"{shown(root.name)}: a folder does not say which file is of which site. Use a manifest.")
    found = _Walk(layout)
    entries = _entries(root)
    splits = [entry for entry in entries if _is_split(entry, layout)]
    for entry in entries:
        if entry in splits:
            for inner in _entries(entry):
                found.top(inner, split=entry.name)
        else:
            found.top(entry)
    if not found.items and not found.refused:
        raise DataError(
            f"{shown(root.name)}: no image found in the folders of the plan's classes ({', '.join(layout.classes)}). "
            f"Put each class's images into a folder of its name, or use a manifest."
        )
    return Found(items=tuple(found.items), ignored=tuple(found.ignored), refused=tuple(found.refused))


class _Walk:
    """What a walk over a folder has met so far."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.names = {unicodedata.normalize("NFC", name): name for name in layout.classes}
        self.items: list[Item] = []
        self.ignored: list[tuple[str, str]] = []
        self.refused: list[tuple[str, str]] = []

    def top(self, entry: Path, split: str = "") -> None:
        """Take one entry of the level where class folders are expected."""
        label = self.names.get(unicodedata.normalize("NFC", entry.name))  # file systems of Apple store NFD
        if is_junk(entry.name) and label is None:
            self.ignored.append((shown(entry.name), "left by a system or editor"))
        elif not entry.is_dir() or entry.is_symlink():
            self._loose(entry)
        elif label is None:
            self._other_class(entry)
        else:
            before = len(self.items)
            self._class(entry, label, split)
            if len(self.items) == before:
                self.ignored.append((shown(entry.name), "the folder of a class, without an image"))

    def _loose(self, entry: Path) -> None:
        if entry.is_symlink() and entry.is_dir():
            self.refused.append((shown(entry.name), "a link to a folder, which is not followed"))
        elif self._is_image(entry):
            self.refused.append((shown(entry.name), "an image outside the folders of the classes"))
        else:
            self.ignored.append((shown(entry.name), "no image"))

    def _other_class(self, entry: Path) -> None:
        images = sum(1 for path in _below(entry, self.refused) if not is_junk(path.name) and self._is_image(path))
        if images:
            self.refused.append((shown(entry.name), f"a folder with {images} image(s) that is no class of the plan"))
        else:
            self.ignored.append((shown(entry.name), "a folder without images that is no class of the plan"))

    def _class(self, folder: Path, label: str, split: str) -> None:
        for path in _below(folder, self.refused):
            inner = path.relative_to(folder)
            if any(is_junk(part) for part in inner.parts):
                self.ignored.append((shown(inner), "left by a system or editor"))
            elif not self._is_image(path):
                self.ignored.append((shown(inner), "no image"))
            elif self.layout.unit and self.layout.unit != UNIT_TAG and len(inner.parts) == 1:
                self.refused.append((shown(inner), "not in a patient's folder: the plan's privacy unit is the patient"))
            else:
                unit = inner.parts[0].strip() if self.layout.unit and self.layout.unit != UNIT_TAG else ""
                self.items.append(Item(path=path, label=label, unit=unit, split=split))

    def _is_image(self, path: Path) -> bool:
        try:
            return looks_like_image(path)
        except DataError as reason:
            self.refused.append((shown(path.name), str(reason)))
            return False


def _is_split(entry: Path, layout: Layout) -> bool:
    return entry.name.casefold() in SPLITS and entry.name not in layout.classes and entry.is_dir()


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir(), key=lambda path: os.fsencode(path.name))
    except OSError as reason:
        raise DataError(
            f"{shown(folder.name)} cannot be listed ({reason.strerror}). Check it and its permissions."
        ) from reason


def _below(folder: Path, refused: list[tuple[str, str]]) -> Iterator[Path]:
    """Yield every file below a folder in one order; links to folders are not followed, so that no loop is walked."""

    def note(reason: OSError) -> None:
        refused.append((shown(Path(str(reason.filename)).name), f"a folder that cannot be listed ({reason.strerror})"))

    for place, folders, files in os.walk(folder, onerror=note):
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        refused.extend((shown(name), "a link to a folder, which is not followed") for name in links)
        folders[:] = sorted((name for name in folders if name not in links), key=os.fsencode)
        yield from (Path(place) / name for name in sorted(files, key=os.fsencode))


def read_manifest(path: Path, layout: Layout) -> Found:
    """Return the items of a manifest in its own order. Raises DataError for an unreadable one or a missing column."""
    wanted = [PATH, layout.label, *(name for name in (layout.unit, layout.site) if name and name != UNIT_TAG)]
    table = cells(path, wanted, optional=(SPLIT, *((UNIT_TAG,) if layout.unit == UNIT_TAG else ())))
    items, refused = [], []
    unit = table.get(layout.unit)
    for row, text in enumerate(table[PATH]):
        where = f"data row {row + 1}"
        if not text.strip():
            refused.append((where, "an empty path"))
            continue
        items.append(
            Item(
                path=path.parent / text,
                label=table[layout.label][row].strip(),
                unit=unit[row].strip() if unit else "",
                site=table[layout.site][row].strip() if layout.site else "",
                split=table[SPLIT][row].strip() if SPLIT in table else "",
            )
        )
    return Found(items=tuple(items), refused=tuple(refused))
