"""Blends of two candidates: each pixel a weighted mean, a fraction of the draws, the rest as they were."""

import numpy as np
import pytest

from patevolve.shared.generators.blend import LEAST, MOST, Blended
from patevolve.shared.generators.simulator import Simulator
from patevolve.shared.randomness import stream

BASE = Simulator(glyphs=("0", "1", "2"))
BLEND = Blended(base=BASE, classes=3, share=0.5)
SIZE = BASE.genome_size


def drawn(count=400, cls=1):
    return BLEND.draw(stream(1, "draw"), cls, count)


def test_a_fraction_of_the_draws_is_blended():
    genomes = drawn()
    weights = genomes[:, -1]
    assert genomes.shape == (400, BLEND.genome_size)
    assert 0.4 < np.mean(weights > 0) < 0.6  # false alarm 6e-5
    assert ((weights == 0) | ((weights >= LEAST - 1 / 512) & (weights <= MOST + 1 / 512))).all()
    assert set(genomes[:, -2]) == {0.0, 1.0, 2.0}


def test_a_pixel_is_the_weighted_mean_of_two():
    genomes, classes = drawn(40), np.full(40, 1)
    first = BASE.render(genomes[:, :SIZE], classes).astype(float)
    second = BASE.render(genomes[:, SIZE : 2 * SIZE], genomes[:, -2].astype(int)).astype(float)
    weight = genomes[:, -1][:, None, None]
    assert np.array_equal(BLEND.render(genomes, classes), np.rint((1 - weight) * first + weight * second))
    alone = np.flatnonzero(genomes[:, -1] == 0)
    assert np.array_equal(BLEND.render(genomes, classes)[alone], first[alone])


def test_mutants_and_children_keep_what_is_blended_with_what():
    genomes = drawn(30)
    mutants = BLEND.mutate(stream(1, "mutate"), genomes, 1, 0.3)
    children = BLEND.cross(stream(1, "cross"), genomes[:15], genomes[15:])
    assert np.array_equal(mutants[:, -2:], genomes[:, -2:])
    assert (mutants[:, :SIZE] != genomes[:, :SIZE]).any()
    assert (mutants[:, SIZE : 2 * SIZE] != genomes[:, SIZE : 2 * SIZE]).any()
    assert np.array_equal(children[:, SIZE:], genomes[:15, SIZE:])
    assert BLEND.render(children, np.full(15, 1)).dtype == np.uint8


def test_draws_repeat_and_the_digest_tells_blends_apart():
    assert np.array_equal(drawn(), drawn())
    others = (Blended(base=BASE, classes=3, share=0.25), Blended(base=BASE, classes=2, share=0.5))
    assert len({BLEND.digest, BASE.digest, *(other.digest for other in others)}) == 4


@pytest.mark.parametrize("fill", [-1e9, 1e9])
def test_genomes_of_nonsense_render_as_something(fill):
    assert BLEND.render(np.full((2, BLEND.genome_size), fill), np.array([0, 2])).shape == (2, 28, 28)
