"""Variation: annealed strengths, offspring, and an exchange that keeps what the population holds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patevolve.shared.evolution.breed import FLOOR, breed, exchange, spread, strength_at
from patevolve.shared.generators.tabular import Tabular
from patevolve.shared.plan_sections import Evolution
from patevolve.shared.randomness import stream
from patevolve.shared.schema import Column

TABULAR = Tabular(
    schema=tuple(Column(name=str(i), kind="numeric", edges=tuple(map(float, range(9)))) for i in range(6))
)


@pytest.mark.parametrize(
    ("mutation", "generations", "expected"),
    [
        ((0.3, 0.15, 0.05), 6, [0.3, 0.3, 0.15, 0.15, 0.05, 0.05]),
        ((0.3, 0.15, 0.05), 3, [0.3, 0.15, 0.05]),
        ((0.3, 0.15, 0.05), 1, [0.3]),
        ((0.4, 0.2), 5, [0.4, 0.4, 0.4, 0.2, 0.2]),
        ((0.5,), 4, [0.5] * 4),
    ],
)
def test_strengths_in_equal_stretches(mutation, generations, expected):
    settings = Evolution(mutation=mutation, generations=generations)
    assert [strength_at(settings, g) for g in range(1, generations + 1)] == expected


@given(st.lists(st.floats(0.05, 1.0), min_size=1, max_size=6), st.integers(1, 40), st.integers(1, 60))
def test_strength_never_falls_below_the_floor(mutation, generations, generation):
    settings = Evolution(mutation=tuple(mutation), generations=generations)
    assert FLOOR <= strength_at(settings, generation) <= 1.0


def test_offspring_number_what_was_asked_and_come_from_the_parents():
    rng = np.random.default_rng(0)
    parents = np.arange(12.0).reshape(2, 6)
    children = breed(rng, TABULAR, parents, 0, 500, settings=Evolution(crossover=0.5), strength=1e-9)
    assert children.shape == (500, 6)
    assert all((child[j] in parents[:, j]) for child in children for j in range(6))
    pure = sum(any(np.array_equal(child, parent) for parent in parents) for child in children)
    assert 250 < pure < 500  # half have one parent; a crossing of two may give one of them back


@pytest.mark.parametrize("crossover", [0.0, 1.0])
def test_the_ends_of_crossover(crossover):
    """Without crossover every child is a copy; with it, segments of both appear in one child."""
    parents = np.stack([np.zeros(6), np.ones(6)])
    children = breed(
        np.random.default_rng(1), TABULAR, parents, 0, 400, settings=Evolution(crossover=crossover), strength=1e-9
    )
    mixed = ((children.min(axis=1) == 0) & (children.max(axis=1) == 1)).mean()
    assert mixed == 0.0 if crossover == 0.0 else mixed > 0.2


@given(st.integers(0, 2**32), st.integers(0, 30), st.floats(0, 1))
def test_exchange_keeps_every_gene_of_the_population(seed, count, crossover):
    parents = TABULAR.draw(np.random.default_rng(seed), 0, count)
    after = exchange(TABULAR, Evolution(crossover=crossover), parents, (seed, "exchange", 3))
    assert after.shape == parents.shape
    assert np.array_equal(np.sort(after, axis=0), np.sort(parents, axis=0))


def test_exchange_moves_genes_and_leaves_the_parents_alone():
    parents = TABULAR.draw(np.random.default_rng(0), 0, 100)
    before = parents.copy()
    after = exchange(TABULAR, Evolution(crossover=1.0), parents, (0, "exchange"))
    assert np.array_equal(parents, before)
    assert not np.array_equal(after, before)


def test_streams_do_not_depend_on_the_order_of_calls():
    """A named stream gives the same numbers whichever other streams were drawn before it, between or since."""
    first = stream(1, "generation", 2, 0).random(4)
    stream(1, "pool", 2, 0).random(99)
    other = stream(1, "generation", 2, 1)
    interleaved = stream(1, "generation", 2, 0)
    drawn = []
    for _ in range(4):
        other.random()
        drawn.append(interleaved.random())
    assert drawn == first.tolist()
    names = [(1, "a", 1), (1, "a", 2), (2, "a", 1), (1, "b", 1), (1, "a"), (1, "a1"), (1, "a", "1", "")]
    assert len({float(stream(*name).random()) for name in names}) == len(names)


@given(st.integers(0, 2**32), st.integers(1, 20))
def test_spread_is_the_distance_from_the_mean(seed, count):
    features = np.random.default_rng(seed).normal(size=(count, 4))
    centre = features.mean(axis=0)
    expected = np.sqrt(np.mean([np.sum((row - centre) ** 2) for row in features]))
    assert spread(features) == pytest.approx(expected)


def test_a_collapsed_or_empty_population_has_no_spread():
    assert spread(np.ones((5, 3))) == 0.0
    assert spread(np.zeros((0, 3))) == 0.0
