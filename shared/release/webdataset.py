"""WebDataset shards: tar files in which the parts of a sample share a key (``000001.png``, ``.cls``, ``.json``)."""

from __future__ import annotations

import io
import itertools
import json
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from patevolve.shared.plan import Plan
from patevolve.shared.release.source import Picture, pictures

SHARD = 1000  # samples
FOLDER = "shards"


def webdataset_files(folder: Path, plan: Plan) -> Iterator[tuple[str, bytes]]:
    """Yield the shards of a release of images, the same bytes each time.

    ``.cls`` holds the class's number as text, ``.json`` its number and name.
    """
    found = pictures(folder, plan)
    for number in itertools.count():
        batch = list(itertools.islice(found, SHARD))
        if not batch and number:
            return
        yield f"{FOLDER}/train-{number:06d}.tar", _shard(batch)
        if len(batch) < SHARD:
            return


def _shard(batch: Iterable[Picture]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for picture in batch:
            named = json.dumps({"class": picture.number, "label": picture.label}, ensure_ascii=False)
            for ending, data in (
                ("png", picture.png),
                ("cls", str(picture.number).encode()),
                ("json", named.encode()),
            ):
                entry = tarfile.TarInfo(f"{picture.key}.{ending}")  # time, owner and group are zero
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()
