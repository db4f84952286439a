"""A whole run in colour, by the commands: pool, inspection, two sites, release, every export, verification, report."""

import base64
import hashlib
import io
import json
import re

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from skimage import data as samples

from patevolve.client.cli import client, simulated
from patevolve.shared import assets
from patevolve.shared.cli import application
from patevolve.shared.data.target import resample

PLAN = """
format = 1
name = "cats and cups"
seed = 1
[privacy]
epsilon = 20.0
delta = 1e-4
unit = "record"
trust = "secure-sum"
[sites]
count = 2
expected_units = 60
[data]
kind = "image"
classes = ["cat", "cup"]
label = "what"
site = "site"
height = 16
width = 16
channels = 3
[generator]
kind = "pool"
asset = "{asset}"
{variation}
[encoder]
dimension = 8
[questions.counts]
share = 0.1
[questions.prototypes]
share = 0.4
[questions.neighbours]
share = 0.5
times = 1
candidates = 40
nearest = 3
[evolution]
population = 40
generations = 2
[release]
samples = 16
"""


def patches(photograph, count, seed):
    """Return pieces of 48 × 48 pixels of a photograph, shrunk to 16 × 16."""
    rng = np.random.default_rng(seed)
    rows, columns = (rng.integers(0, side - 48, count) for side in photograph.shape[:2])
    cut = [photograph[y : y + 48, x : x + 48].astype(float) for y, x in zip(rows, columns, strict=True)]
    small = [np.stack([resample(piece[..., i], 16, 16) for i in range(3)], axis=2) for piece in cut]
    return np.rint(small).astype(np.uint8)


def photographs():
    return {"cat": np.asarray(samples.chelsea()), "cup": np.asarray(samples.coffee())}


def done(command, *words):
    ended = CliRunner().invoke(command, [str(word) for word in words])
    assert ended.exit_code == 0, ended.output
    return ended.stdout


@pytest.fixture(params=["", "variation = 0.5"], ids=["as they are", "bent"], scope="module")
def run(request, tmp_path_factory):
    """Return a folder with a plan, two sites' data, a pool, an inspection and a finished run."""
    place = tmp_path_factory.mktemp("colour")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(assets.FOLDERS, str(place / "assets"))
        (place / "public").mkdir()
        for name, photograph in photographs().items():
            for number, image in enumerate(patches(photograph, 30, 9)):
                Image.fromarray(image).save(place / "public" / f"{name}{number}.png")
        size = ("--channels", 3, "--height", 16, "--width", 16)
        made = done(application, "assets", "pool", place / "public", "--out", place / "pool.npz", *size)
        plan = PLAN.format(asset=made.strip().splitlines()[-1], variation=request.param)
        (place / "plan.toml").write_text(plan)
        lines = ["path,what,site"]
        for number, site in enumerate(("north", "south")):
            for name, photograph in photographs().items():
                for row, image in enumerate(patches(photograph, 30, number)):
                    picture = Image.fromarray(image)
                    grey = (row, name, site) == (0, "cup", "north")
                    (picture.convert("L") if grey else picture).save(place / f"{site}-{name}-{row}.png")
                    lines.append(f"{site}-{name}-{row}.png,{name},{site}")
            done(client, "approve", place / "plan.toml", "--home", place / "sites" / site, "--site", site, "--yes")
        (place / "all.csv").write_text("\n".join(lines))
        where = ("--plan", place / "plan.toml", "--format", "json")
        (place / "inspection.json").write_text(done(client, "inspect", place / "all.csv", *where))
        out = ["--homes", place / "sites", "--out", place / "run"]
        out += ["--index", place / "index"] if request.param else []  # one of the two runs reads from the disk
        done(simulated, place / "plan.toml", "--data", place / "all.csv", *out)
        yield place


def released(place):
    rows = [line.split(",") for line in (place / "run/release/labels.csv").read_text().splitlines()[1:]]
    return [(np.asarray(Image.open(place / "run/release" / name)), label) for name, label in rows]


def test_what_was_converted_is_counted_at_the_site_alone(run):
    found = json.loads((run / "inspection.json").read_text())
    assert found["survey"]["steps"] == {"grey repeated in red, green and blue": 1}
    assert "repeated in red" not in (run / "run/report.html").read_text()


def test_the_release_is_in_colour_and_of_the_pool(run):
    pictures = released(run)
    assert len(pictures) == 16
    assert all(image.shape == (16, 16, 3) for image, _ in pictures)
    assert any(np.ptp(image.astype(int), axis=2).max() > 60 for image, _ in pictures)
    if "variation" not in (run / "plan.toml").read_text():
        with np.load(run / "pool.npz") as file:
            public = {hashlib.sha256(image.tobytes()).digest() for image in file["images"]}
        assert {hashlib.sha256(image.tobytes()).digest() for image, _ in pictures} <= public


def test_every_export_is_verified_and_holds_the_colours(run, tmp_path):
    done(application, "verify", run / "run/release")
    for form in ("imagefolder", "webdataset", "huggingface", "parquet"):
        done(application, "export", run / "run", "--format", form, "--out", tmp_path / form)
        done(application, "verify", tmp_path / form)
    names = sorted((tmp_path / "huggingface/train").rglob("*.png"))
    assert len(names) == 16
    assert all(np.asarray(Image.open(name)).shape == (16, 16, 3) for name in names)


def test_the_report_shows_the_candidates_in_their_colours(run):
    page = (run / "run/report.html").read_text()
    shown = [
        np.asarray(Image.open(io.BytesIO(base64.b64decode(text))))
        for text in re.findall(r"data:image/png;base64,([A-Za-z0-9+/]+=*)", page)
    ]
    assert shown
    assert all(picture.ndim == 3 for picture in shown)
    with np.load(run / "pool.npz") as file:
        mean = file["images"].mean(axis=(0, 1, 2))
    # The photographs are reddish: in the negative, blue would lead.
    assert mean[0] > mean[2] + 20
    assert all(picture[..., 0].mean() > picture[..., 2].mean() + 10 for picture in shown)
