"""A release in the form that other people's tools open.

Every export is itself a folder with the plan, the card, the guarantee, the release's proof and a manifest of its own,
so that ``patevolve verify`` works on it too.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator
from pathlib import Path

from patevolve.shared.errors import InputError
from patevolve.shared.plan import Plan, read_plan
from patevolve.shared.release import huggingface, webdataset
from patevolve.shared.release.card import as_export
from patevolve.shared.release.folder import verify_manifest, whole_folder, write_files
from patevolve.shared.release.parquet import parquet_bytes
from patevolve.shared.release.secondary import dicom_files
from patevolve.shared.release.source import CARD, card, copies, kept_proof, papers

FORMATS = ("csv", "parquet", "imagefolder", "webdataset", "huggingface", "dicom")
NO_IMAGES = "a table has no images. Use csv, parquet or huggingface"
NO_PICTURES = "texts have no images. Use csv, parquet or huggingface"
UNFIT = {
    ("table", "imagefolder"): NO_IMAGES,
    ("table", "webdataset"): NO_IMAGES,
    ("table", "dicom"): NO_IMAGES,
    ("text", "imagefolder"): NO_PICTURES,
    ("text", "webdataset"): NO_PICTURES,
    ("text", "dicom"): NO_PICTURES,
    (
        "image",
        "csv",
    ): "images do not fit into cells of text. Use imagefolder, which has labels.csv beside it, or parquet",
}
# pattern of the data files, and what stands about them in the card
LAYOUT = {
    "parquet": ("data.parquet", "`data.parquet`: the synthetic records; null is a missing value."),
    "webdataset": (
        f"{webdataset.FOLDER}/train-*.tar",
        f"`{webdataset.FOLDER}/`: WebDataset shards of `KEY.png`, `KEY.cls` (class number), `KEY.json` (class name).",
    ),
    "dicom": ("labels.csv", "`images/`: DICOM secondary captures marked as synthetic; `labels.csv`: their classes."),
}
HUGGINGFACE = {
    "table": (huggingface.TABLE, f"`{huggingface.TABLE}`: the synthetic records; null is a missing value."),
    "text": (huggingface.TABLE, f"`{huggingface.TABLE}`: the texts and the class of each."),
    "image": ("train/**", f"`train/`: the images; `{huggingface.METADATA}`: the class of each, as the plan spells it."),
}


def export(release_folder: Path, out: Path, fmt: str) -> None:
    """Write the release in ``release_folder`` in one of FORMATS into a new folder ``out``.

    "csv" and "imagefolder" are the release's own files; the others are made from them, with its papers.
    Raises InputError for an unknown or unfit format, an ``out`` in use, or an extra that is not installed;
    ReleaseError if the release is not as it was written, or the disk fails: then nothing is left behind.
    """
    if fmt not in FORMATS:
        close = difflib.get_close_matches(fmt, FORMATS, n=1)
        raise InputError(
            f"format {fmt!r} found; expected one of {', '.join(FORMATS)}."
            + (f" Did you mean {close[0]!r}?" if close else "")
        )
    names = verify_manifest(release_folder)
    plan = read_plan(release_folder / "plan.toml").plan
    if (plan.data.kind, fmt) in UNFIT:
        raise InputError(
            f"format {fmt!r} found, but this release is of kind {plan.data.kind!r}: {UNFIT[plan.data.kind, fmt]}."
        )
    if fmt == "dicom" and plan.generator.kind == "pool":
        raise InputError(
            "format 'dicom' found, but the images of this release are public ones out of a pool: the files would be "
            "marked as synthetic, which only their labels are. Use imagefolder."
        )
    check_out(release_folder, out)
    own = fmt in ("csv", "imagefolder")
    files = copies(release_folder, names) if own else _converted(release_folder, plan, fmt)
    with whole_folder(out) as aside:
        write_files(aside, files, seal=kept_proof(release_folder))


def check_out(release_folder: Path, out: Path) -> None:
    """Raise InputError unless ``out`` is a new or empty folder outside the release."""
    if out.is_symlink() or (out.exists() and (not out.is_dir() or any(out.iterdir()))):
        raise InputError(f"{out} exists and is not an empty folder; an export replaces nothing. Name a new folder.")
    if out.resolve().is_relative_to(release_folder.resolve()):
        raise InputError(f"{out} lies inside the release, which would change it. Name a folder elsewhere.")


def _converted(folder: Path, plan: Plan, fmt: str) -> Iterator[tuple[str, bytes]]:
    kind = plan.data.kind
    data_files, words = HUGGINGFACE[kind] if fmt == "huggingface" else LAYOUT[fmt]
    metadata = huggingface.card_metadata(plan) if fmt == "huggingface" else ()
    text = as_export(card(folder), kind, data_files=data_files, words=words, metadata=metadata)
    return itertools.chain([(CARD, text.encode())], papers(folder), _data(folder, plan, fmt))


def _data(folder: Path, plan: Plan, fmt: str) -> Iterator[tuple[str, bytes]]:
    match fmt:
        case "parquet":
            yield "data.parquet", parquet_bytes(folder, plan)
        case "huggingface" if plan.data.kind != "image":
            yield huggingface.TABLE, parquet_bytes(folder, plan)
        case "huggingface":
            yield from huggingface.image_files(folder)
        case "webdataset":
            yield from webdataset.webdataset_files(folder, plan)
        case "dicom":
            yield from dicom_files(folder, plan)
