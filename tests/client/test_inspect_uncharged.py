"""Bad images end a run with one sentence and code 4 before a ledger exists; good ones, of any file type, run."""

import click
import numpy as np
import pydicom
import pytest
from click.testing import CliRunner
from PIL import Image
from pydicom.dataset import FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian

from patevolve.client.cli import local
from patevolve.client.policy import draft
from patevolve.client.simulate import load_records
from patevolve.shared.cli import Application
from patevolve.shared.plan import agree

PLAN = """
format = 1
name = "images"
seed = 1
[privacy]
epsilon = 30.0
delta = 1e-5
unit = "record"
[sites]
count = 1
expected_units = 60
[data]
kind = "image"
classes = ["0", "1"]
label = "label"
height = 16
width = 16
fit = "pad"
frames = "middle"
[generator]
kind = "simulator"
[questions.counts]
share = 0.5
[evolution]
selection = "none"
generations = 0
population = 8
[release]
samples = 8
"""
RNG = np.random.default_rng(0)


def dicom(path, pixels):
    made = pydicom.Dataset()
    made.file_meta = FileMetaDataset()
    made.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    made.file_meta.MediaStorageSOPClassUID = made.SOPClassUID = "1.2.840.10008.5.1.4.1.1.7"
    made.file_meta.MediaStorageSOPInstanceUID = "1.2.3"
    made.Rows, made.Columns, made.SamplesPerPixel, made.PhotometricInterpretation = 16, 16, 1, "MONOCHROME1"
    made.BitsAllocated = made.BitsStored = 8
    made.HighBit, made.PixelRepresentation, made.PixelData = 7, 0, pixels.tobytes()
    made.save_as(path, enforce_file_format=True)


def mixed(folder):
    """Fill two classes with files of every mode and kind."""
    for name in "01":
        (folder / name).mkdir(parents=True)
        for i, mode in enumerate(["L", "LA", "RGB", "RGBA", "P", "CMYK", "1", "I;16"]):
            grey = Image.fromarray(RNG.integers(0, 256, (16, 16), np.uint8))
            image = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257) if mode == "I;16" else grey
            image = (
                grey.convert("RGB").convert("CMYK")
                if mode == "CMYK"
                else image
                if mode == "I;16"
                else grey.convert(mode)
            )
            image.save(folder / name / f"{i}.{'tif' if mode == 'CMYK' else 'png'}")
        dicom(folder / name / "IM0001", RNG.integers(0, 256, (16, 16), np.uint8))
    return folder


@pytest.fixture
def go(tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "policy.toml").write_text(draft("s", agree(PLAN)))
    group = Application(name="x")
    group.add_command(local)
    assert isinstance(group, click.Group)

    def run(data, *more):
        words = ["local", str(tmp_path / "plan.toml"), "--data", str(data), "--home", str(tmp_path / "home")]
        return CliRunner().invoke(group, [*words, "--out", str(tmp_path / "run"), "--format", "json", *more])

    return run


def nan_tiff(folder):
    Image.fromarray(np.full((16, 16), np.nan, np.float32)).save(folder / "0" / "bad.tif")


def truncated(folder):
    path = folder / "0" / "bad.png"
    Image.fromarray(RNG.integers(0, 256, (16, 16), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:-40])


def other_class(folder):
    (folder / "2").mkdir()
    Image.fromarray(np.zeros((16, 16), np.uint8)).save(folder / "2" / "bad.png")


def loop(folder):
    (folder / "0" / "bad.png").symlink_to(folder / "0" / "bad.png")


FAULTS = {"nan": nan_tiff, "truncated": truncated, "other class": other_class, "loop": loop}


@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_file_ends_the_run_before_a_ledger_exists(tmp_path, go, name):
    FAULTS[name](mixed(tmp_path / "images"))
    done = go(tmp_path / "images")
    assert done.exit_code == 4, done.output
    assert "inspect" in done.output
    assert sorted(path.name for path in (tmp_path / "home").iterdir()) == ["policy.toml"]
    assert not (tmp_path / "run").exists()


def test_a_mixed_folder_becomes_one_mode_and_runs(tmp_path, go):
    folder = mixed(tmp_path / "images")
    records = load_records(folder, agree(PLAN).plan)[""]
    assert records.values.shape == (18, 16, 16)
    assert records.values.dtype == np.uint8
    done = go(folder)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "run" / "release").is_dir()


@pytest.mark.parametrize("sealed", [False, True])
def test_a_run_from_an_index_on_the_disk_ends_as_one_from_memory(tmp_path, go, sealed):
    folder, policy = mixed(tmp_path / "images"), tmp_path / "home" / "policy.toml"
    if sealed:
        policy.write_text('index_key = "index.key"\n' + policy.read_text())
        (tmp_path / "home" / "index.key").write_bytes(b"k" * 32)
    done = go(folder, "--index", str(tmp_path / "home" / "index"))
    assert done.exit_code == 0, done.output
    assert (tmp_path / "run" / "release").is_dir()
    assert sum(path.suffix == ".sealed" for path in (tmp_path / "home" / "index").iterdir()) == int(sealed)


def test_an_index_is_not_made_for_a_plan_that_the_policy_does_not_permit(tmp_path, go):
    (tmp_path / "plan.toml").write_text(PLAN.replace("seed = 1", "seed = 2"))
    assert go(mixed(tmp_path / "images"), "--index", str(tmp_path / "home" / "index")).exit_code == 3
    assert not (tmp_path / "home" / "index").exists()


def test_a_faulty_file_ends_a_run_from_an_index_before_a_ledger_exists(tmp_path, go):
    truncated(mixed(tmp_path / "images"))
    done = go(tmp_path / "images", "--index", str(tmp_path / "index"))
    assert done.exit_code == 4, done.output
    assert sorted(path.name for path in (tmp_path / "home").iterdir()) == ["policy.toml"]
