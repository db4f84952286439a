"""Exports open in the tools that they are made for, hold what the release holds, and are verified like it."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pydicom
import pytest
from PIL import Image

from patevolve.shared.data.load import Layout, load_images
from patevolve.shared.data.target import target_of
from patevolve.shared.errors import InputError, ReleaseError
from patevolve.shared.plan import Agreed
from patevolve.shared.release import folder as folder_module
from patevolve.shared.release.export import FORMATS, export
from patevolve.shared.release.samples import Samples
from patevolve.shared.verify import verify_release

IMAGE_FORMATS = [fmt for fmt in FORMATS if fmt != "csv"]
TABLE_FORMATS = ["csv", "parquet", "huggingface"]


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def table_release(tmp_path: Path, release: Callable, table: Samples, table_plan: Agreed) -> Path:
    return release(tmp_path / "release", table, table_plan)


@pytest.fixture
def image_release(
    tmp_path: Path, release: Callable, pictures: Callable, image_plan: Callable, hostile: tuple[str, ...]
) -> Path:
    return release(tmp_path / "release", pictures(hostile), image_plan(hostile))


@pytest.fixture(autouse=True)
def quiet_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the library keep its caches in this test's folder and draw no bars."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()


def loaded(*arguments: str, **named: Any) -> Any:
    return datasets.load_dataset(*arguments, split="train", **named)


def check_pictures(found: Any, samples: Samples) -> None:
    assert len(found) == len(samples)
    for row, image in zip(found, samples.images, strict=True):
        np.testing.assert_array_equal(np.asarray(row["image"]), image)


@pytest.mark.parametrize("how", ["imagefolder", "folder"])
def test_a_hugging_face_folder_of_images_opens_as_imagefolder_and_by_its_card(
    *, how: str, image_release: Path, tmp_path: Path, pictures: Callable, hostile: tuple[str, ...]
) -> None:
    export(image_release, tmp_path / "out", "huggingface")
    out = str(tmp_path / "out")
    found = loaded("imagefolder", data_dir=out) if how == "imagefolder" else loaded(out)
    samples = pictures(hostile)
    assert sorted(found["label"]) == sorted(hostile[c] for c in samples.classes)
    by_label: dict[str, list[bytes]] = {}
    for row in found:
        by_label.setdefault(row["label"], []).append(np.asarray(row["image"]).tobytes())
    for number, label in enumerate(hostile):
        expected = sorted(image.tobytes() for image in samples.images[samples.classes == number])
        assert sorted(by_label.get(label, [])) == expected


def _rows(folder: Path) -> list[tuple[str, str]]:
    text = (folder / "labels.csv").read_text("utf-8")
    return [(name, label) for name, label in list(csv.reader(io.StringIO(text)))[1:]]


@pytest.mark.parametrize("how", ["parquet", "folder"])
def test_a_hugging_face_folder_of_a_table_opens_as_parquet_and_by_its_card(
    how: str, table_release: Path, tmp_path: Path, table: Samples
) -> None:
    export(table_release, tmp_path / "out", "huggingface")
    out = str(tmp_path / "out")
    found = loaded("parquet", data_dir=out) if how == "parquet" else loaded(out)
    assert found.column_names == [*table.columns, "disease"]
    assert found["age"] == [None if row[0] == "" else int(row[0]) for row in table.rows]
    assert found["disease"] == ["no"] * 20 + ["yes"] * 20


def test_the_card_of_a_hugging_face_folder_has_metadata(table_release: Path, tmp_path: Path) -> None:
    export(table_release, tmp_path / "out", "huggingface")
    from huggingface_hub import DatasetCard

    data = DatasetCard.load(tmp_path / "out" / "README.md").data.to_dict()
    assert data["task_categories"] == ["tabular-classification"]
    assert data["tags"] == ["synthetic", "differential-privacy", "tabular"]
    assert data["configs"] == [{"config_name": "default", "data_files": "train/data.parquet"}]
    assert data["pretty_name"] == "Small | table"


def test_webdataset_shards_open_in_datasets(
    image_release: Path, tmp_path: Path, pictures: Callable, hostile: tuple[str, ...]
) -> None:
    export(image_release, tmp_path / "out", "webdataset")
    samples = pictures(hostile)
    found = loaded("webdataset", data_files=str(tmp_path / "out" / "shards" / "*.tar"))
    assert [row["cls"] for row in found] == samples.classes.tolist()
    assert [row["json"]["label"] for row in found] == [hostile[c] for c in samples.classes]
    check_pictures([{"image": row["png"]} for row in found], samples)


def test_webdataset_shards_tell_no_time_owner_or_group(image_release: Path, tmp_path: Path) -> None:
    export(image_release, tmp_path / "out", "webdataset")
    with tarfile.open(tmp_path / "out" / "shards" / "train-000000.tar") as tar:
        entries = tar.getmembers()
    assert len(entries) == 120
    assert {(e.mtime, e.uid, e.gid, e.uname, e.gname) for e in entries} == {(0, 0, 0, "", "")}
    assert [entry.name for entry in entries[:3]] == ["000001.png", "000001.cls", "000001.json"]


@pytest.mark.parametrize(("count", "shards"), [(3, [3]), (7, [3, 3, 1]), (6, [3, 3])])
def test_webdataset_shards_are_of_a_bounded_size(
    *,
    count: int,
    shards: list[int],
    tmp_path: Path,
    release: Callable,
    image_plan: Callable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from patevolve.shared.release import webdataset

    monkeypatch.setattr(webdataset, "SHARD", 3)
    images = np.random.default_rng(0).integers(0, 256, (count, 9, 8), np.uint8)
    samples = Samples(images=images, classes=np.arange(count) % 2, class_names=("no", "yes"))
    export(release(tmp_path / "r", samples, image_plan()), tmp_path / "out", "webdataset")
    found = []
    for path in sorted((tmp_path / "out" / "shards").iterdir()):
        with tarfile.open(path) as tar:
            found.append(len(tar.getnames()) // 3)
    assert [n for n in found if n] == shards


def test_dicom_files_are_marked_as_synthetic_everywhere(
    image_release: Path, tmp_path: Path, pictures: Callable, hostile: tuple[str, ...]
) -> None:
    export(image_release, tmp_path / "out", "dicom")
    samples, uids, series = pictures(hostile), set(), {}
    rows = _rows(tmp_path / "out")
    for (name, label), image, number in zip(rows, samples.images, samples.classes, strict=True):
        found = pydicom.dcmread(tmp_path / "out" / name)
        np.testing.assert_array_equal(found.pixel_array, image)
        assert label == hostile[number]
        assert found.SOPClassUID == "1.2.840.10008.5.1.4.1.1.7"
        assert found.file_meta.MediaStorageSOPInstanceUID == found.SOPInstanceUID
        assert (found.SyntheticData, found.ConversionType, found.BurnedInAnnotation) == ("YES", "SYN", "NO")
        assert list(found.ImageType) == ["DERIVED", "SECONDARY"]
        assert str(found.PatientName).startswith("SYNTHETIC^")
        assert found.PatientID.startswith("SYNTHETIC-")
        assert (found.PatientIdentityRemoved, found.PatientBirthDate, found.StudyDate) == ("YES", "", "")
        for text in (found.StudyDescription, found.SeriesDescription):
            assert text.startswith("SYNTHETIC: ")
            assert len(text) <= 64
            assert "\\" not in text
        uids.add(found.SOPInstanceUID)
        series.setdefault(found.SeriesInstanceUID, set()).add(label)
        assert all(pydicom.uid.UID(uid).is_valid for uid in (found.SOPInstanceUID, found.SeriesInstanceUID))
        assert found.SOPInstanceUID.startswith("2.25.")
    assert len(uids) == len(samples)
    assert all(len(labels) == 1 for labels in series.values())
    assert len(series) == len(set(samples.classes.tolist()))


def test_dicom_files_are_read_by_our_own_loader(
    tmp_path: Path, release: Callable, pictures: Callable, image_plan: Callable
) -> None:
    agreed, samples = image_plan(), pictures()
    export(release(tmp_path / "r", samples, agreed), tmp_path / "out", "dicom")
    layout = Layout(classes=("no", "yes"), label="label", unit="", site="")
    (records,) = load_images(tmp_path / "out" / "images", (9, 8), layout, target_of(agreed.plan.data)).values()
    for number in (0, 1):
        expected = sorted(image.tobytes() for image in samples.images[samples.classes == number])
        assert sorted(v.tobytes() for v in records.values[records.classes == number]) == expected


def test_dicom_of_public_images_is_refused(
    tmp_path: Path, release: Callable, pictures: Callable, image_plan: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool's images are not synthetic, so no mark may say so."""
    from patevolve.shared.release import export as module

    folder = release(tmp_path / "r", pictures(), image_plan())
    read = module.read_plan(folder / "plan.toml")
    generator = dataclasses.replace(read.plan.generator)
    object.__setattr__(generator, "kind", "pool")
    pool = dataclasses.replace(read, plan=dataclasses.replace(read.plan))
    object.__setattr__(pool.plan, "generator", generator)
    monkeypatch.setattr(module, "read_plan", lambda _: pool)
    with pytest.raises(InputError, match="public ones out of a pool"):
        export(folder, tmp_path / "out", "dicom")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("fmt", IMAGE_FORMATS)
def test_every_export_of_images_is_verified_and_the_same_each_time(
    fmt: str, image_release: Path, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        export(image_release, tmp_path / name, fmt)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert verify_release(tmp_path / "a").export is (fmt != "imagefolder")
    card = (tmp_path / "a" / "README.md").read_text("utf-8")
    named = set(re.findall(r"^- `([\w./-]+)`", card, re.MULTILINE))
    assert {"manifest.json", "proof.json", "plan.toml", "guarantee.json"} <= named
    assert all((tmp_path / "a" / name).exists() for name in named)


@pytest.mark.parametrize("fmt", TABLE_FORMATS)
def test_every_export_of_a_table_is_verified(fmt: str, table_release: Path, tmp_path: Path) -> None:
    export(table_release, tmp_path / "out", fmt)
    assert verify_release(tmp_path / "out").export is (fmt != "csv")


@pytest.mark.parametrize("fmt", ["webdataset", "huggingface", "dicom"])
def test_any_changed_byte_of_an_export_is_found(fmt: str, image_release: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(image_release, out, fmt)
    original, rng = contents(out), np.random.default_rng(3)
    for _ in range(100):
        name = sorted(original)[rng.integers(len(original))]
        data = bytearray(original[name])
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        (out / name).write_bytes(bytes(data))
        with pytest.raises(ReleaseError):
            verify_release(out)
        (out / name).write_bytes(original[name])
    verify_release(out)


@pytest.mark.parametrize("fmt", ["webdataset", "dicom"])
def test_images_are_not_made_of_a_table(fmt: str, table_release: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a table has no images"):
        export(table_release, tmp_path / "out", fmt)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("fmt", ["webdataset", "huggingface", "dicom"])
@pytest.mark.parametrize("fault", ["disk", "gone", "denied"])
def test_a_failing_disk_leaves_nothing_behind(
    *, fmt: str, fault: str, image_release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up, a picture is deleted while the export reads, or may not be read."""
    real, written = folder_module._write, []
    victim = max((image_release / "images").rglob("*.png"))

    def write(path: Path, data: bytes) -> None:
        written.append(path)
        if len(written) == 3 and fault == "disk":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data[:5])
            raise OSError(28, "No space left on device")
        if len(written) == 3 and fault == "gone":
            victim.unlink()
        real(path, data)

    def denied(self: Path) -> bytes:
        if self == victim and len(written) >= 3:
            raise PermissionError(13, "Permission denied")
        return reading(self)

    reading = Path.read_bytes
    monkeypatch.setattr(folder_module, "_write", write)
    if fault == "denied":
        monkeypatch.setattr(Path, "read_bytes", denied)
    words = {"disk": "No space left", "gone": "No such file", "denied": "Permission denied"}[fault]
    with pytest.raises(ReleaseError, match=words):
        export(image_release, tmp_path / "out", fmt)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["release"]


@pytest.mark.parametrize(("fmt", "module"), [("dicom", "pydicom"), ("webdataset", None)])
def test_a_missing_extra_is_named_and_shards_need_none(
    fmt: str, module: str | None, image_release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pydicom", "pydicom.dataset"):
        monkeypatch.setitem(sys.modules, name, None)
    if module is None:
        export(image_release, tmp_path / "out", fmt)
        return
    with pytest.raises(InputError, match=r"pip install 'patevolve\[dicom\]'"):
        export(image_release, tmp_path / "out", fmt)
    assert not (tmp_path / "out").exists()


def test_pictures_in_shards_are_the_released_bytes(image_release: Path, tmp_path: Path) -> None:
    export(image_release, tmp_path / "out", "webdataset")
    with tarfile.open(tmp_path / "out" / "shards" / "train-000000.tar") as tar:
        data = tar.extractfile("000001.png").read()  # type: ignore[union-attr]
        named = json.loads(tar.extractfile("000001.json").read())  # type: ignore[union-attr]
    name, label = _rows(image_release)[0]
    assert data == (image_release / name).read_bytes()
    assert named == {"class": 0, "label": label}
    with Image.open(io.BytesIO(data)) as image:
        assert image.mode == "L"
