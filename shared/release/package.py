"""The release folder: samples, plan, dataset card, guarantee and a manifest; written whole or not at all.

No file holds a time, a host or a path, and text ends lines with LF, so the same samples give the same bytes (PNG
bytes also depend on Pillow's build).
"""

from __future__ import annotations

import csv
import hashlib
import importlib
import io
import json
import re
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.errors import InputError, PlanError, ReleaseError
from patevolve.shared.plan import Plan, agree
from patevolve.shared.release.card import check_card, write_card
from patevolve.shared.release.folder import verify_manifest, whole_folder, write_files
from patevolve.shared.release.samples import Samples

__all__ = ["class_folders", "optional", "verify_manifest", "write_release"]

FORMAT = 1
MAX_NAME = 120  # bytes of a class folder's name; file systems allow 255
DEVICE_NAME = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.IGNORECASE)  # not a file name on Windows


def write_release(
    folder: Path,
    samples: Samples,
    *,
    plan_text: str,
    plan_sha256: str,
    statement: Sequence[tuple[str, str]],
    proof: Mapping[str, Any],
    card: Mapping[str, Any],
    seal: Callable[[str], bytes],
) -> None:
    """Write the release folder; call it only with samples that passed the gate.

    statement:  (item, text) pairs of the guarantee, in order
    proof:      finite JSON: what was charged
    card:       title, what, how (list), epsilon, delta, limits (list); optional license, source
    seal:       the manifest's SHA-256 to the bytes of ``proof.json``, which signs it (``proof.write_proof``)

    A folder that already holds these very bytes is left as it is, so a resumed run may call again.
    Raises ReleaseError for parts that do not fit the plan, forbidden claims, another release in the folder, or a disk
    that cannot hold it; then nothing is left behind.
    """
    plan = _agreed(samples, plan_text, plan_sha256)
    check_card(card, statement)
    texts = {
        "README.md": write_card(samples, plan, plan_sha256, statement, card),
        "guarantee.json": _guarantee(plan_sha256, statement, proof),
        "plan.toml": plan_text,
    }
    with whole_folder(folder) as aside:
        plain = ((name, text.encode()) for name, text in texts.items())
        write_files(aside, plain, _data_files(samples, plan), seal=seal)


def _agreed(samples: Samples, plan_text: str, plan_sha256: str) -> Plan:
    try:
        agreed = agree(plan_text)
    except PlanError as reason:
        raise ReleaseError(f"the plan of the release cannot be read: {reason}") from reason
    if agreed.sha256 != plan_sha256 or agreed.text != plan_text:
        raise ReleaseError(
            f"plan_sha256 {plan_sha256} found; the text given has {agreed.sha256}. Give the agreed text."
        )
    data = agreed.plan.data
    if samples.class_names != data.classes or samples.is_table != (data.kind != "image"):
        raise ReleaseError("samples of another kind or other classes than the plan's found; run the gate first.")
    names = (data.text,) if data.kind == "text" else tuple(column.name for column in data.columns)
    if samples.columns != names or data.label in names:
        raise ReleaseError(f"columns {list(samples.columns)} found; expected the plan's, and {data.label!r} besides.")
    return agreed.plan


def _guarantee(plan_sha256: str, statement: Sequence[tuple[str, str]], proof: Mapping[str, Any]) -> str:
    items = [{"item": item, "text": text} for item, text in statement]
    value = {"format": FORMAT, "plan_sha256": plan_sha256, "statement": items, "proof": proof}
    try:
        return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
    except (TypeError, ValueError) as reason:
        raise ReleaseError(f"the proof has no JSON form ({reason}); expected finite numbers, texts, lists.") from reason


def _data_files(samples: Samples, plan: Plan) -> Iterator[tuple[str, bytes]]:
    labels = [samples.class_names[position] for position in samples.classes.tolist()]
    if samples.images is None:
        rows = ((*row, label) for row, label in zip(samples.rows, labels, strict=True))
        yield "data.csv", csv_bytes((*samples.columns, plan.data.label), rows)
        return
    folders = dict(zip(samples.class_names, class_folders(samples.class_names), strict=True))
    names = [f"images/{folders[label]}/{number:06d}.png" for number, label in enumerate(labels, 1)]
    yield from ((name, _png(image)) for name, image in zip(names, samples.images, strict=True))
    yield "labels.csv", csv_bytes(("file_name", "label"), zip(names, labels, strict=True))


def csv_bytes(header: Iterable[str], rows: Iterable[Iterable[str]]) -> bytes:
    """Return an RFC 4180 table in UTF-8 with LF line ends."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue().encode()


def optional(module: str, package: str) -> Any:
    """Return a module that only the ``demo`` extra installs. Raises InputError naming the extra."""
    try:
        return importlib.import_module(module)
    except ImportError as reason:
        raise InputError(
            f"{package} is not installed, and this needs it. Run: pip install 'patevolve[demo]'"
        ) from reason


def _png(image: NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    picture = optional("PIL.Image", "Pillow").fromarray(np.ascontiguousarray(image))
    picture.save(buffer, format="PNG", compress_level=6, optimize=False)
    return buffer.getvalue()


def class_folders(names: Sequence[str]) -> tuple[str, ...]:
    """Return a folder name for each class that every file system takes, distinct also where case is ignored.

    Plain names stay as they are; other characters are percent-encoded; long names end in a hash.
    """
    plain = [_plain(name) for name in names]
    clashes = Counter(name.casefold() for name in plain)
    spelt = [re.sub("%..|[A-Z]", _percent, name) if clashes[name.casefold()] > 1 else name for name in plain]
    return tuple(_short(folder, name) for folder, name in zip(spelt, names, strict=True))


def _plain(name: str) -> str:
    encoded = urllib.parse.quote(name, safe="")
    encoded = re.sub(r"^[.~-]|\.$", _percent, encoded)  # hidden files, "..", options of commands, Windows' final dot
    if DEVICE_NAME.fullmatch(encoded):
        encoded = re.sub("^.", _percent, encoded)
    return encoded or "%"  # quote() never writes a lone percent sign


def _percent(match: re.Match[str]) -> str:
    found = match[0]
    return found if len(found) > 1 else f"%{ord(found):02X}"  # what is already encoded stays


def _short(folder: str, name: str) -> str:
    if len(folder) <= MAX_NAME:
        return folder
    return f"{folder[:80]}~{hashlib.sha256(name.encode()).hexdigest()[:32]}"
