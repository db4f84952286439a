"""Rendering is total: genomes that come from elsewhere are finite numbers, and nothing more is known of them."""

import numpy as np
import pytest

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
