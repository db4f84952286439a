"""Each question's tally against the one that a person would add up unit by unit."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patevolve.shared.votes import ballots, nearest
from patevolve.shared.votes.ballots import Electorate
from patevolve.shared.votes.nearest import nearest_candidates


def by_unit(units):
    """Yield the positions of each unit's records."""
    for unit in sorted(set(units.tolist())):
        yield np.flatnonzero(units == unit)


def added_up(units, ballot_of, size, scale):
    """Return the integer sum of the units' averaged ballots."""
    total = np.zeros(size, np.int64)
    for rows in by_unit(units):
        total += np.rint(np.mean([ballot_of(i) for i in rows], axis=0) * scale).astype(np.int64)
    return total


@st.composite
def sites(draw, classes=3, dimension=4):
    """A site of up to 12 records of up to 6 units: (units, classes, features)."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n = draw(st.integers(1, 12))
    units = np.array([f"u{i}" for i in rng.integers(0, 6, n)])
    return units, rng.integers(0, classes, n), rng.normal(size=(n, dimension)) / 2


def close(found, expected):
    """Equal up to one lattice step where an average lies on half a step and is rounded either way."""
    return np.abs(found - expected).max(initial=0) <= 1


@given(sites())
def test_counts(site):
    units, classes, _ = site
    bounds = ballots.counts_bounds(3, 12)
    found = ballots.counts(Electorate(units), classes, bounds)
    assert close(found.values, added_up(units, lambda i: np.eye(3)[classes[i]], 3, bounds.scale))
    assert (found.l1, found.l2) == (bounds.lattice_l1, bounds.lattice_l2)


@given(sites(), st.sampled_from([0.0, 0.3, 0.9]))
def test_prototypes(site, contrast):
    units, classes, features = site
    code = ballots.class_code(3, contrast)
    bounds = ballots.prototypes_bounds(3, 4, 12, contrast)
    found = ballots.prototypes(Electorate(units), features, classes, code=code, bounds=bounds)

    def ballot(i):
        clipped = features[i] / max(1.0, float(np.linalg.norm(features[i])))
        return np.outer(code[classes[i]], clipped).ravel()

    assert close(found.values, added_up(units, ballot, 12, bounds.scale))


@given(sites(), st.integers(1, 6), st.integers(0, 2**32))
def test_neighbours(site, nearest, seed):
    units, classes, features = site
    rng = np.random.default_rng(seed)
    pool, pool_classes = rng.normal(size=(15, 4)), rng.integers(0, 3, 15)
    bounds = ballots.neighbours_bounds(15, nearest, 12)
    found = ballots.neighbours(
        Electorate(units), features, classes, (pool, pool_classes), nearest=nearest, bounds=bounds
    )

    def ballot(i):
        own = [p for p in range(15) if pool_classes[p] == classes[i]]
        own.sort(key=lambda p: float(np.sum((features[i] - pool[p]) ** 2)))
        weights = ballots.rank_weights(min(nearest, len(own))) if own else []
        row = np.zeros(15)
        row[own[: len(weights)]] = weights
        return row

    assert close(found.values, added_up(units, ballot, 15, bounds.scale))


@pytest.mark.parametrize("k", [1, 2, 5, 100])
def test_rank_weights_have_norm_one_and_fall(k):
    weights = ballots.rank_weights(k)
    assert np.linalg.norm(weights) == pytest.approx(1.0, abs=1e-12)
    assert (np.diff(weights) < 0).all()
    assert (weights > 0).all()


def test_ties_go_to_the_earlier_candidate_in_order():
    pool = np.zeros((20, 3))
    for k in (1, 3, 20):
        assert nearest_candidates(np.zeros((2, 3)), pool, k).tolist() == [list(range(k))] * 2
    pool[[4, 7, 9]] = 1.0
    assert nearest_candidates(np.ones((1, 3)), pool, 4).tolist() == [[4, 7, 9, 0]]


def test_blocks_do_not_show(monkeypatch):
    rng = np.random.default_rng(0)
    features, classes = rng.normal(size=(50, 4)), rng.integers(0, 2, 50)
    candidates = rng.normal(size=(20, 4)), rng.integers(0, 2, 20)
    bounds = ballots.neighbours_bounds(20, 3, 1)

    def tally():
        voters = Electorate(np.arange(50).astype(str))
        return ballots.neighbours(voters, features, classes, candidates, nearest=3, bounds=bounds).values

    whole = tally()
    monkeypatch.setattr(nearest, "BLOCK", 140)
    monkeypatch.setattr(nearest, "FEWEST", 1)
    assert np.array_equal(tally(), whole)


def test_a_class_without_candidates_votes_for_nothing():
    bounds = ballots.neighbours_bounds(4, 2, 1)
    candidates = np.zeros((4, 2)), np.zeros(4, np.int64)
    voters = Electorate(np.array(["a", "b"]))
    found = ballots.neighbours(voters, np.zeros((2, 2)), np.array([1, 1]), candidates, nearest=2, bounds=bounds)
    assert found.values.tolist() == [0] * 4


@given(st.integers(1, 6), st.integers(1, 7), st.integers(2, 4), st.integers(0, 2**32))
def test_labels(teachers, candidates, classes, seed):
    votes = np.random.default_rng(seed).integers(-1, classes, (teachers, candidates))
    bounds = ballots.labels_bounds(candidates, classes)
    expected = np.zeros((candidates, classes), np.int64)
    for teacher, candidate in itertools.product(range(teachers), range(candidates)):
        if votes[teacher, candidate] >= 0:
            expected[candidate, votes[teacher, candidate]] += bounds.scale
    found = ballots.labels(votes, classes, bounds)
    assert np.array_equal(found.values, expected.ravel())
    assert found.l2 == pytest.approx(1024 * math.sqrt(2 * candidates))


def test_all_teachers_abstain():
    bounds = ballots.labels_bounds(3, 2)
    assert ballots.labels(np.full((4, 3), -1), 2, bounds).values.tolist() == [0] * 6


@given(sites(), st.integers(0, 2**32))
def test_score(site, seed):
    units, _, _ = site
    correct = np.random.default_rng(seed).integers(0, 2, len(units)).astype(bool)
    bounds = ballots.score_bounds(12)
    found = ballots.score(Electorate(units), correct, bounds)
    assert close(found.values, added_up(units, lambda i: np.eye(2)[0 if correct[i] else 1], 2, bounds.scale))


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("contrast", [0.0, 0.1, 0.8, 0.999])
def test_rows_of_the_class_code_have_norm_one_and_can_be_undone(classes, contrast):
    code = ballots.class_code(classes, contrast)
    assert np.allclose(np.linalg.norm(code, axis=1), 1.0, atol=1e-12)
    assert np.linalg.cond(code) < 1e3


def test_the_contrast_of_one_slot_per_class_is_one_slot_per_class():
    for classes in (2, 5):
        assert np.allclose(ballots.class_code(classes, 1 - 1 / classes), np.eye(classes), atol=1e-12)


def test_an_empty_electorate_votes_for_nothing():
    nobody = Electorate(np.zeros(0, np.str_))
    none = np.zeros(0, np.int64)
    assert ballots.counts(nobody, none, ballots.counts_bounds(2, 1)).values.tolist() == [0, 0]
    found = ballots.prototypes(
        nobody, np.zeros((0, 3)), none, code=np.eye(2), bounds=ballots.prototypes_bounds(2, 3, 1, 0.0)
    )
    assert found.values.tolist() == [0] * 6
    assert ballots.score(nobody, np.zeros(0, bool), ballots.score_bounds(1)).values.tolist() == [0, 0]


@given(sites(), st.integers(1, 60), st.sampled_from([0.0, 0.4]))
def test_prototypes_in_parts_are_the_same_to_the_last_bit(site, held, contrast):
    """However few coordinates are held at a time, each unit is whole in one part, and the tally does not change."""
    units, classes, features = site
    bounds = ballots.prototypes_bounds(3, 4, len(units), contrast)
    code = ballots.class_code(3, contrast)
    tallies = []
    with pytest.MonkeyPatch.context() as patch:
        for entries in (2**22, held):
            patch.setattr(ballots, "ENTRIES", entries)
            tallies.append(ballots.prototypes(Electorate(units), features, classes, code=code, bounds=bounds).values)
    assert np.array_equal(*tallies)
