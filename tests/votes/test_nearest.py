"""The neighbour search finds what sorting every distance finds, whatever the pool's size, order and ties."""

from __future__ import annotations

import numpy as np
import pytest

from patevolve.shared.products import products
from patevolve.shared.votes import ballots


def sorted_out(rows, pool, k):
    """The k first of a stable sort by distance: nearest first, ties to the earlier member."""
    distance = 0.5 * np.einsum("pd,pd->p", pool, pool) - products(rows, pool)
    return np.argsort(distance, axis=1, kind="stable")[:, :k]


@pytest.mark.parametrize("k", [1, 3, 20])
@pytest.mark.parametrize("size", [20, 33, 97, 640, 641, 1999])
@pytest.mark.parametrize("levels", [0, 2])
def test_the_search_is_the_sort(k, size, levels):
    rng = np.random.default_rng([k, size, levels])

    def draw(n):
        return rng.integers(0, levels, (n, 4)).astype(np.float64) if levels else rng.normal(size=(n, 4))

    rows, pool = draw(40), draw(size)
    assert np.array_equal(ballots.nearest_candidates(rows, pool, k), sorted_out(rows, pool, k))


def test_the_nearest_may_all_lie_in_one_group():
    pool = np.full((640, 1), 10.0)
    pool[::8] = np.arange(80)[:, None] / 100  # k = 1 sieves in 8 groups: the first holds all the near ones
    rows = np.array([[0.5], [0.001]])
    for k in (1, 2, 5):
        assert np.array_equal(ballots.nearest_candidates(rows, pool, k), sorted_out(rows, pool, k))


def test_a_pool_of_equals_is_taken_in_order():
    assert ballots.nearest_candidates(np.ones((3, 2)), np.ones((3000, 2)), 20).tolist() == [list(range(20))] * 3
