"""A plan whose encoder is a network ends in the same release in one process and from file to file, on any profile."""

from __future__ import annotations

import numpy as np
import pytest

from patevolve.client.airgap import answer_file
from patevolve.client.device import keep_device
from patevolve.client.joined import Joined
from patevolve.client.policy import draft
from patevolve.client.simulate import load_records, open_sites, simulate
from patevolve.client.station import Station
from patevolve.shared import assets, pools
from patevolve.shared.encoder.device import DeviceProfile
from patevolve.shared.plan import agree
from patevolve.shared.privacy.signing import create_identity
from patevolve.shared.randomness import RECORDED_NOISE_VARIABLE, RecordedNoise

pytest.importorskip("onnxruntime")
server = pytest.importorskip("patevolve.server.airgap")
SITES = ("north", "south")
PLAN = """
format = 1
name = "networks"
seed = 1
[privacy]
epsilon = 4.0
delta = 1e-5
unit = "record"
[sites]
count = 2
expected_units = 40
[data]
kind = "image"
classes = ["a", "b"]
label = "y"
height = 28
width = 28
[generator]
kind = "pool"
asset = "{pool}"
[encoder]
kind = "onnx"
asset = "{network}"
dimension = 8
[questions.counts]
share = 0.2
[questions.neighbours]
share = 0.8
candidates = 24
nearest = 3
[evolution]
population = 24
generations = 1
[release]
samples = 16
"""


def noise(site, question_sha256):
    """The same bytes for a site whatever is asked: a question's hash holds the run's name, which differs here."""
    del question_sha256
    return RecordedNoise(site)


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A plan, the coordinator's key, and two sites, each with its folder, records and another device profile."""
    monkeypatch.setenv(assets.FOLDERS, str(tmp_path / "assets"))
    monkeypatch.setenv(RECORDED_NOISE_VARIABLE, "1")
    monkeypatch.setattr("patevolve.shared.tools.PUBLIC", 20)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (140, 28, 28)).astype(np.uint8)
    (tmp_path / "pool.npz").write_bytes(pools.build(images[:60]))
    (network,) = assets.SHIPPED.glob("*.onnx")
    agreed = agree(PLAN.format(pool=assets.add(tmp_path / "pool.npz").stem, network=network.stem))
    for mode in ("here", "away"):
        for number, site in enumerate(SITES):
            home = tmp_path / mode / site
            (home / "plans").mkdir(parents=True)
            (home / "policy.toml").write_text(draft(site, agreed, reserve=2.0), encoding="utf-8")
            (home / "plans" / f"{agreed.sha256}.toml").write_text(agreed.text, encoding="utf-8")
            own = images[60 + 40 * number : 100 + 40 * number]
            np.savez(tmp_path / f"{site}.npz", images=own, y=np.array(["a", "b"] * 20))
            keep_device(home, DeviceProfile(threads=number + 1, batch=7))
    return tmp_path, agreed, create_identity(tmp_path / "coordinator.key")


def here(path, agreed):
    """The run in one process, on three threads."""
    records = {site: load_records(path / f"{site}.npz", agreed.plan)[""] for site in SITES}
    sites = open_sites({site: path / "here" / site for site in SITES}, records, agreed)
    simulate(agreed, sites, path / "one", noise=noise, device=DeviceProfile(threads=3, batch=4))
    return path / "one" / "release"


def away(path, agreed, coordinator):
    """The run from file to file."""
    while True:
        try:
            server.ask(agreed, path / "mail", path / "two", SITES, path / "coordinator.key")
        except server.WaitingError as waiting:
            asked = [file for file in sorted((path / "mail" / "out").iterdir()) if str(file) in str(waiting)]
        else:
            return path / "two" / "release"
        for question in asked:
            site = SITES[int(question.name[5:8]) - 1]
            key = coordinator.public_key
            joined = Joined(
                format=1,
                site=site,
                address="c.example.org:443",
                plan=agreed.sha256,
                coordinator=key,
                bundles=(),
                version="0",
            )
            station = Station(home=path / "away" / site, data=path / f"{site}.npz", noise=noise)
            answer_file(path / "away" / site, joined, question, path / "answer.pv", station)
            server.collect(path / "mail", SITES, path / "answer.pv")


def test_the_same_images_are_released_in_both_modes(world):
    path, agreed, coordinator = world
    one, two = here(path, agreed), away(path, agreed, coordinator)
    files = sorted(file.relative_to(one) for file in one.rglob("*.png"))
    assert len(files) == agreed.plan.release.samples
    assert (one / "labels.csv").read_bytes() == (two / "labels.csv").read_bytes()
    assert all((one / file).read_bytes() == (two / file).read_bytes() for file in files)
