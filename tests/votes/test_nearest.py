"""The neighbour search finds what sorting every exact distance finds, whatever the pool's size, order and ties."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from patevolve.shared.products import products, snapped
from patevolve.shared.votes import nearest


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
    assert np.array_equal(nearest.nearest_candidates(rows, pool, k), sorted_out(rows, pool, k))


def test_the_nearest_may_all_lie_in_one_group():
    pool = np.full((640, 1), 10.0)
    pool[::8] = np.arange(80)[:, None] / 100  # k = 1 sieves in 8 groups: the first holds all the near ones
    rows = np.array([[0.5], [0.001]])
    for k in (1, 2, 5):
        assert np.array_equal(nearest.nearest_candidates(rows, pool, k), sorted_out(rows, pool, k))


def test_a_pool_of_equals_is_taken_in_order():
    assert nearest.nearest_candidates(np.ones((3, 2)), np.ones((3000, 2)), 20).tolist() == [list(range(20))] * 3


# ---- the screen in single precision ---------------------------------------------------------------------------------


def close_calls(rng, n, size, d):
    """Candidates that differ by about what single precision can tell, around a few centres; some are equal."""
    centres = rng.normal(size=(3, d)) * 10.0 ** rng.integers(-2, 3)
    pool = centres[rng.integers(0, 3, size)] * (1.0 + 2.0 ** -float(rng.integers(16, 26)) * rng.normal(size=(size, d)))
    pool[rng.integers(0, size, size // 4)] = pool[0]
    return centres[rng.integers(0, 3, n)] + rng.normal(size=(n, d)), pool


@pytest.mark.parametrize("seed", range(60))
def test_what_single_precision_cannot_tell_the_exact_products_decide(seed):
    rng = np.random.default_rng([seed, 9])
    n, size, d, k = (int(rng.integers(1, most)) for most in (40, 2000, 200, 30))
    k = min(k, size)
    rows, pool = close_calls(rng, n, size, d)
    found = nearest.nearest_candidates(rows, pool, k)
    assert np.array_equal(found, sorted_out(rows, pool, k))
    for i in range(n):
        assert np.array_equal(nearest.nearest_candidates(rows[i : i + 1], pool, k)[0], found[i])


def test_few_close_calls_among_many_candidates_are_decided_pair_by_pair(monkeypatch):
    """Planted pairs near every row, the others far: the whole matrix of exact products is never made."""
    rng = np.random.default_rng(1)
    base = rng.normal(size=(40, 30))
    close = np.concatenate([base, base * (1.0 + 2.0**-24 * rng.normal(size=base.shape)), base])
    pool = np.concatenate([close, 5.0 * rng.normal(size=(1500, 30))])[rng.permutation(1620)]
    rows = base[rng.integers(0, 40, 50)] + 0.1 * rng.normal(size=(50, 30))
    expected = sorted_out(rows, pool, 5)
    monkeypatch.setattr(nearest, "products_of", None)
    assert np.array_equal(nearest.nearest_candidates(rows, pool, 5), expected)


def test_planted_screen_without_doubt():
    """Taking the screen's word for it turns some row: the exact products are there for a reason."""
    wrong = 0
    for seed in range(20):
        rng = np.random.default_rng([seed, 9])
        rows, pool = close_calls(rng, 30, 500, 50)
        field = dataclasses.replace(nearest.field_of(pool), bound=(0.0, 0.0))
        wrong += not np.array_equal(nearest.nearest_candidates(rows, field, 5), sorted_out(rows, pool, 5))
    assert wrong >= 10


@pytest.mark.parametrize("d", [1, 2, 33, 128, 1000])
@pytest.mark.parametrize("scale", [1e-25, 1e-10, 1.0, 1e5, 1e9])
def test_the_screen_errs_by_less_than_its_bound(d, scale):
    rng = np.random.default_rng(d)
    for shift in (0.0, 30.0):
        rows, pool = (scale * (rng.normal(size=(50, d)) + shift) for _ in range(2))
        field = nearest.field_of(pool)
        screen, doubt = nearest._screened(snapped(rows, field.vectors.bits), field)
        exact = field.norms - products(rows, pool)
        assert (2.0 * np.abs(screen - exact) <= doubt).all()


@pytest.mark.parametrize("value", [0.0, 1e-300, 1e15, 1e200, 1.7e308, np.nan, np.inf])
def test_hostile_rows_and_candidates_are_searched_exactly(value):
    rng = np.random.default_rng(3)
    rows, pool = rng.normal(size=(6, 5)), rng.normal(size=(900, 5))
    spoilt = rows.copy()
    spoilt[2, 3] = value
    with np.errstate(over="ignore"):  # the exact products of the longest row overflow: all candidates are alike to it
        found = nearest.nearest_candidates(spoilt, pool, 4)
        assert np.array_equal(found, sorted_out(spoilt, pool, 4))
    assert np.array_equal(np.delete(found, 2, axis=0), np.delete(nearest.nearest_candidates(rows, pool, 4), 2, axis=0))
    if value < 1e100:
        pool[17, 1] = value
        assert np.array_equal(nearest.nearest_candidates(rows, pool, 4), sorted_out(rows, pool, 4))


def test_a_library_that_rounds_coarser_is_not_believed(monkeypatch):
    """Some multiply in fewer bits when told to: then nothing is screened, and the result is the same."""
    rng = np.random.default_rng(4)
    rows, pool = rng.normal(size=(6, 5)), rng.normal(size=(900, 5))
    assert nearest._single_precision_holds()
    monkeypatch.setattr(nearest, "_single_precision_holds", lambda: False)
    field = nearest.field_of(pool)
    assert field.bound[0] == np.inf
    assert np.array_equal(nearest.nearest_candidates(rows, field, 4), sorted_out(rows, pool, 4))
