"""A folder that the ``datasets`` library and data-set hubs open: ``train/``, and a card with metadata."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from patevolve.shared.plan import Plan
from patevolve.shared.release.card import TASK
from patevolve.shared.release.source import LABELS, read_csv

TABLE = "train/data.parquet"
METADATA = "train/metadata.jsonl"


def image_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the pictures below ``train/`` and the metadata from which ``imagefolder`` takes the class of each."""
    rows = [(name.removeprefix("images/"), name, label) for name, label in read_csv(folder / LABELS)]
    yield from ((f"train/{short}", (folder / name).read_bytes()) for short, name, _ in rows)
    # Without it the folders' names would be the classes, and those are spelt so that every file system takes them.
    lines = (json.dumps({"file_name": short, "label": label}, ensure_ascii=False) for short, _, label in rows)
    yield METADATA, "".join(f"{line}\n" for line in lines).encode()


def card_metadata(plan: Plan) -> list[str]:
    """Return the lines of a card's front matter that say what the data are for."""
    return ["task_categories:", f"- {TASK[plan.data.kind]}-classification"]
