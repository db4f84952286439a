"""Rendering is total: genomes that come from elsewhere are finite numbers, and nothing more is known of them."""

import numpy as np
import pytest

from patevolve.shared import wire
from patevolve.shared.generators import simulator
from patevolve.shared.generators.simulator import FURTHEST, Simulator

SIMULATOR = Simulator(glyphs=("1", "2"))


@pytest.mark.parametrize("seed", range(3))
def test_any_finite_genome_is_an_image(seed):
    """Warnings are errors here, so an overflow or a value without meaning would be seen."""
    rng = np.random.default_rng(seed)
    extremes = [-1.7e308, -1e9, -FURTHEST, 0.0, FURTHEST, 1e9, 1.7e308]
    genomes = rng.choice(extremes, size=(60, SIMULATOR.genome_size))
    images = SIMULATOR.render(genomes, np.arange(60) % 2)
    assert images.shape == (60, 28, 28)


def test_what_evolution_reaches_is_rendered_as_it_is():
    rng = np.random.default_rng(1)
    genomes = SIMULATOR.draw(rng, 0, 50)
    for _ in range(60):
        genomes = SIMULATOR.mutate(rng, genomes, 0, 0.3)
    assert np.abs(genomes[:, 1:]).max() < FURTHEST


def test_every_step_makes_numbers_of_two_bytes_and_keeps_faces():
    rng = np.random.default_rng(2)
    drawn = SIMULATOR.draw(rng, 0, 200)
    mutants = SIMULATOR.mutate(rng, drawn, 0, 0.05)
    wild = np.full((200, SIMULATOR.genome_size), 1e300)  # an island may send any finite number
    children = [SIMULATOR.cross(rng, mutants, drawn), SIMULATOR.cross(rng, mutants, wild)]
    for genomes in (drawn, mutants, *children):
        assert np.array_equal(genomes[:, 1:], np.float16(genomes[:, 1:]))
    assert all(wire.compact(genomes).dtype == np.float16 for genomes in (drawn, mutants, children[0]))
    assert np.isin(children[0][:, 0], drawn[:, 0]).all()
    assert set(children[1][:, 0]) <= {1e300, *mutants[:, 0]}
    assert np.abs(mutants[:, 1:] - drawn[:, 1:]).min() < 1e-3 < np.abs(mutants[:, 1:] - drawn[:, 1:]).mean()


def test_a_face_beyond_half_precision_keeps_its_number(monkeypatch):
    many = np.zeros((5000, 1, 1), np.float32)
    monkeypatch.setattr(Simulator, "fields_of", lambda *_: many)
    drawn = SIMULATOR.draw(np.random.default_rng(3), 0, 300)
    assert np.array_equal(drawn[:, 0], np.random.default_rng(3).integers(5000, size=300))
    assert np.array_equal(wire.compact(drawn).astype(np.float64), drawn)


@pytest.mark.parametrize("side", [28, 224])
def test_rounding_shows_in_no_picture(side, monkeypatch):
    """Hardly a pixel differs from the unrounded genome's, and by a few grey levels."""
    drawing = Simulator(glyphs=("1", "2"), side=side)
    rounded = drawing.draw(np.random.default_rng(4), 1, 20)
    monkeypatch.setattr(simulator, "_rounded", lambda genomes: genomes)
    plain = drawing.draw(np.random.default_rng(4), 1, 20)
    classes = np.ones(20, np.int64)
    images = [drawing.render(genomes, classes).astype(int) for genomes in (plain, rounded)]
    assert not np.array_equal(plain, rounded)
    assert np.abs(images[0] - images[1]).mean() < 0.1
