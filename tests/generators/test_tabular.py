"""Rows of a public schema: drawn, mutated, crossed, rendered."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patevolve.shared.generators.tabular import Tabular
from patevolve.shared.schema import Column

SCHEMA = (
    Column(name="a", kind="numeric", edges=(0.0, 1.0, 2.0, 3.0), missing=True),
    Column(name="b", kind="categorical", values=("x", "y")),
    Column(name="c", kind="categorical", values=("p", "q", "r")),
)
TABULAR = Tabular(schema=SCHEMA)
LEVELS = np.array([4, 2, 3])


def test_draws_are_even_over_the_levels():
    """12,000 rows: each level within 6 standard deviations of its share."""
    genomes = TABULAR.draw(np.random.default_rng(0), 0, 12_000)
    assert genomes.shape == (12_000, TABULAR.genome_size)
    for column, levels in enumerate(LEVELS):
        counts = np.bincount(genomes[:, column].astype(int), minlength=levels)
        assert len(counts) == levels
        assert (np.abs(counts - 12_000 / levels) < 6 * np.sqrt(12_000 / levels)).all()


@pytest.mark.parametrize("strength", [0.05, 0.3, 1.0])
def test_mutation_redraws_each_cell_with_its_probability(strength):
    rng = np.random.default_rng(1)
    parents = TABULAR.draw(rng, 0, 20_000)
    children = TABULAR.mutate(rng, parents, 0, strength)
    expected = strength * (1 - 1 / LEVELS)  # a redraw may give the same level again
    changed = (children != parents).mean(axis=0)
    assert (np.abs(changed - expected) < 6 * np.sqrt(expected / 20_000)).all()


@given(st.integers(0, 2**32), st.integers(1, 20))
def test_a_child_has_one_segment_of_its_father(seed, count):
    mothers, fathers = np.zeros((count, 9)), np.ones((count, 9))
    wide = Tabular(schema=tuple(Column(name=str(i), kind="categorical", values=("x", "y")) for i in range(9)))
    children = wide.cross(np.random.default_rng(seed), mothers, fathers)
    turns = np.abs(np.diff(np.pad(children, ((0, 0), (1, 1))), axis=1)).sum(axis=1)
    assert np.isin(turns, (0, 2)).all()


@given(st.integers(0, 2**32))
def test_two_crossings_from_one_stream_complete_each_other(seed):
    mothers, fathers = (
        TABULAR.draw(np.random.default_rng(seed), 0, 8),
        TABULAR.draw(np.random.default_rng(seed + 1), 0, 8),
    )
    one = TABULAR.cross(np.random.default_rng(3), mothers, fathers)
    other = TABULAR.cross(np.random.default_rng(3), fathers, mothers)
    assert np.array_equal(np.sort([one, other], axis=0), np.sort([mothers, fathers], axis=0))


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3), min_size=1, max_size=9))
def test_any_genome_renders_within_the_levels(genomes):
    codes = TABULAR.render(np.array(genomes), np.zeros(len(genomes), np.int64))
    assert codes.dtype == np.int64
    assert ((codes >= 0) & (codes < LEVELS)).all()


def test_a_drawn_genome_renders_as_itself():
    genomes = TABULAR.draw(np.random.default_rng(2), 0, 50)
    assert np.array_equal(TABULAR.render(genomes, np.zeros(50, np.int64)), genomes)


def test_the_digest_names_the_schema():
    assert Tabular(schema=SCHEMA).digest == TABULAR.digest
    assert Tabular(schema=SCHEMA[:2]).digest != TABULAR.digest
