"""Names of files as messages show them, and which files of a folder are nobody's data."""

from __future__ import annotations

from pathlib import Path

LONGEST = 80
JUNK_FOLDERS = frozenset({"__macosx", ".ipynb_checkpoints", "__pycache__", "@eadir", "$recycle.bin"})
JUNK_FILES = frozenset({"thumbs.db", "ehthumbs.db", "desktop.ini", ".ds_store", "dicomdir"})


def shown(path: Path | str) -> str:
    """Return a name for messages: one line of printable text, whatever bytes the file system holds."""
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(path))
    return text if len(text) <= LONGEST else f"{text[:40]}…{text[-35:]}"


def is_junk(name: str) -> bool:
    """Return whether a file or folder is left there by an operating system or editor, or hidden."""
    return name.casefold() in JUNK_FOLDERS | JUNK_FILES or name.startswith(".")


def is_there(path: Path) -> bool:
    """Return whether a path leads to something; a name that cannot even be looked up leads nowhere."""
    try:
        return path.exists()
    except (OSError, ValueError):  # too long, a zero byte, or without permission
        return False
