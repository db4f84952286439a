"""Keyed assignment: a pure function of the site's secret and the unit, moved by nobody else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patevolve.shared.data.records import Records
from patevolve.shared.data.shard import bounded, held_out, keyed_uniform, teacher_of

SECRET, OTHER = b"a" * 32, b"b" * 32
UNITS = np.array([f"patient-{i}" for i in range(4000)])


def records(units, seed=0):
    rng = np.random.default_rng(seed)
    return Records(
        values=rng.integers(0, 50, (len(units), 3)), classes=rng.integers(0, 2, len(units)), units=np.array(units)
    )


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8), min_size=1, max_size=12
    ),
    st.randoms(),
)
def test_an_assignment_depends_on_the_unit_alone(names, random):
    units = np.array(names)
    whole = dict(zip(units.tolist(), keyed_uniform(SECRET, "p", units).tolist(), strict=True))
    shuffled = list(names)
    random.shuffle(shuffled)
    some = np.array(shuffled[: max(1, len(shuffled) // 2)])
    found = keyed_uniform(SECRET, "p", some)
    assert all(whole[unit] == value for unit, value in zip(some.tolist(), found.tolist(), strict=True))
    assert ((found >= 0) & (found < 1)).all()


def test_assignments_are_even_and_unlike_under_another_secret_or_purpose():
    """4,000 units on 8 teachers: each has 500 ± 6 standard deviations; correlations are below 6 of theirs."""
    counts = np.bincount(teacher_of(SECRET, UNITS, 8), minlength=8)
    assert (np.abs(counts - 500) < 6 * np.sqrt(500 * 7 / 8)).all()
    base = keyed_uniform(SECRET, "teacher", UNITS)
    for other in (keyed_uniform(OTHER, "teacher", UNITS), keyed_uniform(SECRET, "held-out", UNITS)):
        assert abs(np.corrcoef(base, other)[0, 1]) < 6 / np.sqrt(4000)


def test_assignments_are_frozen():
    """A new version must not move a site's shards: these numbers never change."""
    assert teacher_of(SECRET, UNITS[:8], 10).tolist() == [0, 8, 7, 4, 4, 9, 4, 4]
    assert np.flatnonzero(held_out(SECRET, UNITS[:40], 0.2)).tolist() == [9, 11, 13, 22, 28, 29]


@pytest.mark.parametrize("fraction", [0.0, 0.2, 0.5])
def test_the_held_out_part_is_as_large_as_asked(fraction):
    share = held_out(SECRET, UNITS, fraction).mean()
    assert abs(share - fraction) < 6 * np.sqrt(0.25 / 4000)
    assert fraction or not share


def test_a_unit_is_never_split():
    units = np.repeat(UNITS[:100], 3)
    for found in (teacher_of(SECRET, units, 7), held_out(SECRET, units, 0.3)):
        assert (found.reshape(100, 3) == found.reshape(100, 3)[:, :1]).all()


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(1, 4), st.integers(0, 99), st.randoms())
def test_a_unit_keeps_the_same_records_whatever_the_order_and_the_others(owners, per_unit, seed, random):
    site = records([f"u{i}" for i in owners], seed)
    kept = bounded(SECRET, site, per_unit)
    names, counts = np.unique(kept.units, return_counts=True)
    assert (counts <= per_unit).all()
    assert set(names.tolist()) == set(site.units.tolist())
    order = list(range(len(owners)))
    random.shuffle(order)
    again = bounded(SECRET, site.pick(np.array(order)), per_unit)
    for unit in names.tolist():
        alone = bounded(SECRET, site.pick(site.units == unit), per_unit)
        contents = [content(found, unit) for found in (kept, again, alone)]
        assert contents[0] == contents[1] == contents[2]


def content(site, unit):
    rows = site.units == unit
    return sorted(map(tuple, np.column_stack([site.values[rows], site.classes[rows]]).tolist()))


def test_records_within_the_bound_all_stay_in_order():
    site = records(["a", "b", "a", "c"])
    kept = bounded(SECRET, site, 2)
    assert np.array_equal(kept.values, site.values)


def test_planted_first_records_stay_twin_is_caught():
    """Keeping the first records of the file: another order keeps others."""
    site = records(["a"] * 5)

    def first(found, per_unit):
        return found.pick(np.arange(len(found)) < per_unit)

    turned = site.pick(np.arange(5)[::-1])
    assert content(first(site, 2), "a") != content(first(turned, 2), "a")
    assert content(bounded(SECRET, site, 2), "a") == content(bounded(SECRET, turned, 2), "a")
