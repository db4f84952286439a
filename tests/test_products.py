"""Inner products in which each row counts for itself, bit by bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from patevolve.shared.products import BLOCK, products

VALUES = st.floats(-1e6, 1e6)


@given(st.data())
def test_a_row_has_the_same_products_alone_and_in_any_company(data):
    n, d, p = (data.draw(st.integers(1, most)) for most in (40, 70, 30))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    rows, pool = rng.normal(size=(n, d)), rng.normal(size=(p, d))
    whole = products(rows, pool)
    for i in range(n):
        assert products(rows[i : i + 1], pool).tobytes() == whole[i].tobytes()
    order = rng.permutation(n)
    assert products(rows[order], pool).tobytes() == whole[order].tobytes()


def test_planted_plain_product():
    """On this machine's library a plain product rounds some row differently alone than in company."""
    rng = np.random.default_rng(0)
    for d in (33, 64, 100, 300):
        rows, pool = rng.normal(size=(64, d)), rng.normal(size=(50, d))
        whole = rows @ pool.T
        if any((rows[:n] @ pool.T).tobytes() != whole[:n].tobytes() for n in range(1, 64)):
            return
    pytest.skip("this library rounds every shape alike, so there is nothing to catch")


@given(arrays.arrays(np.float64, (3, 8), elements=VALUES), arrays.arrays(np.float64, (4, 8), elements=VALUES))
def test_the_products_are_right_to_a_millionth_of_the_longest_sides(rows, pool):
    error = np.abs(products(rows, pool) - rows @ pool.T)
    room = 8 * np.abs(rows).max(axis=1)[:, None] * np.abs(pool).max() * 2.0**-20
    assert (error <= room + 1e-300).all()


def test_whole_numbers_are_exact():
    rng = np.random.default_rng(1)
    rows, pool = rng.integers(0, 2, (20, 300)).astype(float), rng.integers(0, 2, (30, 300)).astype(float)
    assert np.array_equal(products(rows, pool), rows @ pool.T)


def test_a_hostile_row_spoils_no_other():
    rows = np.ones((4, 3))
    clean = products(rows, np.eye(3))
    for bad in (np.nan, np.inf, -np.inf, 1e300, 0.0):
        spoilt = rows.copy()
        spoilt[1, 1] = bad
        found = products(spoilt, np.eye(3))
        assert np.isfinite(found).all()
        assert np.array_equal(found[[0, 2, 3]], clean[[0, 2, 3]])


def test_no_rows_and_no_columns():
    assert products(np.zeros((0, 3)), np.eye(3)).shape == (0, 3)
    assert products(np.zeros((2, 0)), np.zeros((4, 0))).tolist() == [[0.0] * 4] * 2


def test_blocks_of_rows_leave_no_seam():
    rng = np.random.default_rng(2)
    rows, pool = rng.normal(size=(300, 1000)), rng.normal(size=(5, 1000))
    assert len(rows) > 2 * (BLOCK // rows.shape[1])  # three blocks
    whole = products(rows, pool)
    for i in range(len(rows)):
        assert products(rows[i : i + 1], pool).tobytes() == whole[i].tobytes()
