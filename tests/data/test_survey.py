"""Counts of repeated and nearly repeated rows, against all pairs; and that memory grows by little per record."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patevolve.shared.data.survey import Surveyor, row_hashes

ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 1), st.integers(0, 2)), min_size=1, max_size=25
)


def surveyed(rows, **options):
    surveyor = Surveyor(3, units=True)
    values = np.array([row[:3] for row in rows], np.int64)
    surveyor.add_rows(
        values, np.array([row[3] for row in rows], np.int64), options.get("units") or ["u"] * len(rows), []
    )
    return surveyor.survey(per_unit=100, prints=False)


@settings(max_examples=100, deadline=None)
@given(ROWS, st.integers(1, 4))
def test_rows_that_repeat_or_differ_in_one_column_are_those_of_all_pairs(rows, patients):
    units = [f"P{i % patients}" for i in range(len(rows))]
    repeats = surveyed(rows, units=units).repeats
    contents = [row[:3] for row in rows]
    different = sorted(set(contents))
    assert repeats.equal == len(contents) - len(different)
    near = [row for row in different if any(sum(a != b for a, b in zip(row, o, strict=True)) == 1 for o in different)]
    assert repeats.near == len(near)
    of_units = {row: {u for c, u in zip(contents, units, strict=True) if c == row} for row in different}
    assert repeats.across == sum(len(of_units[row]) > 1 for row in contents)
    of_classes = {row: {r[3] for r in rows if r[:3] == row} for row in different}
    assert repeats.contradicts == sum(len(of_classes[row]) > 1 for row in contents)


def test_pieces_add_up_to_the_whole():
    rng = np.random.default_rng(0)
    values, labels = rng.integers(0, 3, (500, 4)), rng.integers(0, 3, 500)
    units = [f"P{i}" for i in rng.integers(0, 90, 500)]
    whole, parts = Surveyor(3, units=True), Surveyor(3, units=True)
    whole.add_rows(values, labels, units, [])
    for start in range(0, 500, 7):
        some = slice(start, start + 7)
        parts.add_rows(values[some], labels[some], units[some], [])
    assert whole.survey(per_unit=3, prints=False) == parts.survey(per_unit=3, prints=False)


def test_row_hashes_do_not_collide_on_small_codes():
    grid = np.stack(np.meshgrid(*[np.arange(12)] * 5), axis=-1).reshape(-1, 5).astype(np.int64)
    assert len(np.unique(row_hashes(grid))) == len(grid) == 12**5


def test_many_rows_are_counted_without_their_neighbours(monkeypatch):
    monkeypatch.setattr("patevolve.shared.data.survey.MOST_ROWS", 100)
    rows = [(i % 4, 0, 0, 0) for i in range(101)]
    repeats = surveyed(rows).repeats
    assert repeats.near is None
    assert repeats.equal == 97


def test_nothing_counted_is_nothing_found():
    survey = Surveyor(2, units=False).survey(per_unit=1, prints=True)
    assert survey.sites == {}
    assert (survey.repeats.equal, survey.repeats.near, survey.units_in_sites) == (0, 0, 0)


def test_a_surveyor_cannot_be_pickled():
    with pytest.raises(TypeError, match="private"):
        pickle.dumps(Surveyor(2, units=True))
