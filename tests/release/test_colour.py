"""Releases in colour: the gate's checks, the files, every export, and DICOM marked as RGB."""

from __future__ import annotations

import dataclasses
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pydicom
import pytest
from PIL import Image
from skimage import data

from patevolve.shared.data.load import Layout, load_images
from patevolve.shared.data.target import resample, target_of
from patevolve.shared.plan import Agreed, agree
from patevolve.shared.release.export import export
from patevolve.shared.release.gate import run_gate
from patevolve.shared.release.samples import Samples
from patevolve.shared.release.sharpness import blur, train
from patevolve.shared.release.values import schema_problems
from patevolve.shared.verify import verify_release

KIND = f'kind = "diffusers"\nasset = "{"a" * 64}"\nsteps = 20\nprompts = ["a {{class}}"]'


@pytest.fixture
def agreed(image_plan: Callable[..., Agreed]) -> Agreed:
    """The small plan, in colour; only diffusers draw synthetic images in colour."""
    text = image_plan().text.replace("width = 8", "width = 8\nchannels = 3")
    return agree(text.replace('kind = "simulator"', KIND))


def pieces(count: int, seed: int, photograph: np.ndarray | None = None) -> np.ndarray:
    """Return 9 × 8 pieces of a photograph, shrunk threefold."""
    picture = np.asarray(data.chelsea() if photograph is None else photograph).astype(float)
    rng = np.random.default_rng(seed)
    corners = zip(
        rng.integers(0, picture.shape[0] - 27, count), rng.integers(0, picture.shape[1] - 24, count), strict=True
    )
    cut = [picture[y : y + 27, x : x + 24] for y, x in corners]
    return np.rint([np.stack([resample(one[..., i], 9, 8) for i in range(3)], axis=2) for one in cut]).astype(np.uint8)


@pytest.fixture
def samples(agreed: Agreed) -> Samples:
    return Samples(classes=np.arange(40) % 2, class_names=agreed.plan.data.classes, images=pieces(40, 1))


def test_values_outside_the_plan_are_told(agreed: Agreed, image_plan: Callable[..., Agreed], samples: Samples) -> None:
    assert schema_problems(samples, agreed.plan) == []
    assert schema_problems(samples, image_plan().plan) == ["images uint8 (40, 9, 8, 3)"]
    grey = dataclasses.replace(samples, images=np.ascontiguousarray(samples.images[..., 0]))
    assert schema_problems(grey, agreed.plan) == ["images uint8 (40, 9, 8)"]
    plain = samples.images.copy()
    plain[7] = (200, 90, 10)
    plain[8, ..., :2] = 5  # one channel varies: not blank
    found = schema_problems(dataclasses.replace(samples, images=plain), agreed.plan)
    assert found == ["1 images of one colour, the first is sample 8"]


def test_sharpness_is_that_of_the_luminance(agreed: Agreed, samples: Samples) -> None:
    found = train(pieces(300, 2))
    blurred = np.stack([blur(np.ascontiguousarray(samples.images[..., i])) for i in range(3)], axis=3)
    assert found.caught > 0.8
    assert found.blurred(samples.images).mean() < 0.3
    assert found.blurred(blurred).mean() > 0.7
    checks = run_gate(samples, agreed.plan, features=np.eye(40), reference_spread=0.1, sharpness=found)
    assert {one.name: one.passed for one in checks}["sharpness"] is True
    assert "9 × 8 × 3" in checks[0].expected


@pytest.mark.parametrize("fmt", ["imagefolder", "webdataset", "huggingface", "parquet", "dicom"])
def test_every_export_holds_the_released_colours_and_is_verified(
    tmp_path: Path, release: Callable[..., Path], agreed: Agreed, samples: Samples, fmt: str
) -> None:
    folder, out = release(tmp_path / "r", samples, agreed), tmp_path / "out"
    export(folder, out, fmt)
    verify_release(out)
    if fmt == "webdataset":
        with tarfile.open(next(iter((out / "shards").iterdir()))) as tar:
            tar.extractall(tmp_path / "tar", filter="data")
        found = [np.asarray(Image.open(path)) for path in sorted((tmp_path / "tar").glob("*.png"))]
    elif fmt == "dicom":
        found = [pydicom.dcmread(path).pixel_array for path in sorted(out.rglob("*.dcm"), key=lambda path: path.name)]
    elif fmt == "parquet":
        return  # the PNG bytes of the release; its own tests open it
    else:
        found = [np.asarray(Image.open(path)) for path in sorted(out.rglob("*.png"), key=lambda path: path.name)]
    assert np.array_equal(np.stack(found), samples.images)


def test_dicom_says_that_it_is_rgb_and_is_read_by_our_own_loader(
    tmp_path: Path, release: Callable[..., Path], agreed: Agreed, samples: Samples
) -> None:
    export(release(tmp_path / "r", samples, agreed), tmp_path / "out", "dicom")
    file = pydicom.dcmread(next((tmp_path / "out").rglob("*.dcm")))
    assert (file.PhotometricInterpretation, file.SamplesPerPixel, file.PlanarConfiguration) == ("RGB", 3, 0)
    assert (file.Rows, file.Columns, file.BitsAllocated) == (9, 8, 8)
    layout = Layout(classes=("no", "yes"), label="label")
    (records,) = load_images(tmp_path / "out" / "images", (9, 8), layout, target_of(agreed.plan.data)).values()
    assert sorted(v.tobytes() for v in records.values) == sorted(v.tobytes() for v in samples.images)
