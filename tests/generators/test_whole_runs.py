"""Whole runs of two sites: images over each kind of public file, and a table whose columns go together."""

import hashlib

import numpy as np
import pytest

from patevolve.client import study
from patevolve.shared import assets, pools
from patevolve.shared.data.records import Records
from patevolve.shared.generators import vqvae_train
from patevolve.shared.generators.vqvae_train import Settings
from patevolve.shared.plan import agree

PLAN = """
format = 1
name = "discs"
seed = 1
[privacy]
epsilon = 20.0
delta = 1e-4
unit = "record"
trust = "secure-sum"
[sites]
count = 2
expected_units = 100
[data]
kind = "image"
classes = ["left", "right"]
label = "side"
height = 16
width = 16
[generator]
kind = "{kind}"
asset = "{asset}"
[encoder]
dimension = 8
[questions.counts]
share = 0.1
[questions.prototypes]
share = 0.5
[questions.neighbours]
share = 0.4
times = 1
candidates = 60
nearest = 5
[evolution]
population = 40
generations = 3
[release]
samples = 20
"""


def discs(count, seed):
    """Return images of a bright disc to the left or to the right, and which."""
    rng = np.random.default_rng(seed)
    rows, columns = np.indices((16, 16))
    right = rng.permutation(np.arange(count) % 2)
    y, x = rng.uniform(6, 10, count), rng.uniform(3, 5, count) + 7 * right
    far = np.hypot(rows - y[:, None, None], columns - x[:, None, None])
    images = np.rint(255 * np.clip(4.5 - far, 0, 1)).astype(np.uint8)
    noisy = np.clip(images + rng.integers(0, 30, images.shape), 0, 255).astype(np.uint8)
    return noisy, right


def sites():
    made = {}
    for number in (1, 2):
        images, classes = discs(100, number)
        units = np.array([f"{number}-{row}" for row in range(100)])
        made[f"site {number}"] = Records(values=images, classes=classes, units=units)
    return made


def pool_file(folder):
    (folder / "pool.npz").write_bytes(pools.build(discs(150, 3)[0]))
    return folder / "pool.npz"


def vqvae_file(folder):
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    images, _ = discs(120, 3)
    settings = Settings(codes=16, depth=3, channels=8, epochs=8, batch=16, rate=1e-2)
    (folder / "model.safetensors").write_bytes(vqvae_train.train(images, np.full(120, ""), settings).file)
    torch.set_num_threads(before)
    return folder / "model.safetensors"


@pytest.mark.parametrize(("kind", "make"), [("pool", pool_file), ("vqvae", vqvae_file)])
def test_the_sites_answers_alone_tell_the_classes_apart(tmp_path, monkeypatch, kind, make):
    """No public file names a class here. At ε = 20 nearly all released discs lie on their side; chance is half."""
    monkeypatch.setenv(assets.FOLDERS, str(tmp_path / "assets"))
    sha256 = assets.add(make(tmp_path)).stem
    agreed = agree(PLAN.format(kind=kind, asset=sha256))
    released = study.make(agreed, sites(), tmp_path / "run").finished.released
    images = released.samples.images
    assert images.shape == (20, 16, 16)
    weight = images.astype(float)
    says_right = weight[:, :, 8:].sum(axis=(1, 2)) > weight[:, :, :8].sum(axis=(1, 2))
    assert np.mean(says_right == released.samples.classes) >= 0.75
    if kind == "pool":  # what is released is public, byte for byte
        public = {hashlib.sha256(image.tobytes()).digest() for image in discs(150, 3)[0]}
        assert {hashlib.sha256(image.tobytes()).digest() for image in images} <= public
        card = (tmp_path / "run" / "release" / "README.md").read_text()
        assert "an image of a public pool" in card


TABLE = """
format = 1
name = "tied columns"
seed = 1
[privacy]
epsilon = 20.0
delta = 1e-4
unit = "record"
trust = "secure-sum"
[sites]
count = 2
expected_units = 1000
[data]
kind = "table"
classes = ["no", "yes"]
label = "y"
[[data.columns]]
name = "a"
kind = "categorical"
values = ["p", "q"]
[[data.columns]]
name = "b"
kind = "categorical"
values = ["p", "q"]
[generator]
kind = "tabular"
{encoder}
[questions.counts]
share = 0.1
[questions.prototypes]
share = 0.9
[evolution]
population = 2000
generations = 6
[release]
samples = 2000
"""


@pytest.mark.parametrize(("encoder", "least", "most"), [("[encoder]\npairs = 0.5", 0.8, 1.0), ("", 0.4, 0.6)])
def test_columns_that_go_together_do_so_in_the_release(tmp_path, encoder, least, most):
    """Nine in ten private rows have equal cells; without pairs the release's columns are independent."""
    made = {}
    for number in (1, 2):
        rng = np.random.default_rng(number)
        first = rng.integers(2, size=1000)
        values = np.stack([first, np.where(rng.random(1000) < 0.9, first, 1 - first)], axis=1)
        units = np.array([f"{number}-{row}" for row in range(1000)])
        made[f"site {number}"] = Records(values=values, classes=rng.integers(2, size=1000), units=units)
    agreed = agree(TABLE.format(encoder=encoder))
    rows = np.array(study.make(agreed, made, tmp_path / "run").finished.released.samples.rows)
    assert least <= np.mean(rows[:, 0] == rows[:, 1]) <= most
