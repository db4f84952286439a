"""The steps of a classifier: one unit moves the summed gradient by one ballot at most, and the sum is the gradient."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patevolve.shared.errors import DataError, PlanError
from patevolve.shared.votes import gradients as module
from patevolve.shared.votes.ballots import Electorate
from patevolve.shared.votes.gradients import LONGEST, gradient_of, gradients, gradients_bounds
from patevolve.shared.votes.lattice import LATTICE

CLASSES, SIZE = 3, 7
BOUNDS = gradients_bounds(CLASSES, SIZE)
RNG = np.random.default_rng(5)
WEIGHTS = RNG.normal(size=(CLASSES, SIZE))


def tally(units, embeddings, classes, weights=WEIGHTS):
    with np.errstate(all="ignore"):
        return gradients(Electorate(units), embeddings.__getitem__, classes, weights, BOUNDS).values


def by_record(units, embeddings, classes, weights=WEIGHTS):
    """The planted twin: a record counts whole, however many its unit has."""
    return tally(np.array([f"{number}" for number in range(len(units))]), embeddings, classes, weights)


def unclipped(units, embeddings, classes, weights=WEIGHTS):
    """The planted twin: an embedding counts as long as it is."""
    longest = max(1.0, np.linalg.norm(embeddings, axis=1).max())
    return np.rint(tally(units, embeddings / longest, classes, weights * longest) * longest)


def rounded_apart(units, embeddings, classes, weights=WEIGHTS):
    """The planted twin: the whole lattice for the ballot, none left for rounding."""
    steps = tally(units, embeddings, classes, weights) / BOUNDS.steps
    return np.ceil(steps * LATTICE)


def worst(ask, units, embeddings, classes, weights=WEIGHTS):
    """Return the longest change of the tally when one unit leaves."""
    whole, changes = ask(units, embeddings, classes, weights), []
    for unit in sorted(set(units.tolist())):
        stay = units != unit
        changes.append(whole - ask(units[stay], embeddings[stay], classes[stay], weights))
    return max(float(np.linalg.norm(change)) for change in changes)


@given(
    st.integers(0, 2**32),
    st.integers(1, 30),
    st.sampled_from([0.0, 1.0, 1e6, 1e200, math.nan, math.inf]),
    st.sampled_from([0.0, 1.0, 1e3, 1e12, 1e308, math.inf, math.nan]),
)
def test_a_unit_moves_the_sum_by_one_ballot_at_most(seed, n, size, steep):
    rng = np.random.default_rng(seed)
    units = np.array([f"u{i}" for i in rng.integers(0, 5, n)])
    embeddings, classes = rng.normal(size=(n, SIZE)), rng.integers(0, CLASSES, n)
    with np.errstate(all="ignore"):
        embeddings[units == "u0"] *= size
    with np.errstate(all="ignore"):
        weights = WEIGHTS * steep
    assert worst(tally, units, embeddings, classes, weights) <= BOUNDS.lattice_l2


def adversary():
    """Return units of which one is as wrong as can be, always in one direction, on long embeddings."""
    weights = np.zeros((CLASSES, SIZE))
    weights[1, 0] = 1e6
    embeddings = np.zeros((4, SIZE))
    embeddings[:, 0] = 5.0
    return np.array(["a", "a", "b", "c"]), embeddings, np.zeros(4, np.int64), weights


def test_the_bound_is_nearly_reached():
    """A record of one class that the weights hold for another: its residual is (−1, 1, 0), as long as can be."""
    moved = worst(tally, *adversary())
    assert 0.99 * BOUNDS.steps <= moved <= BOUNDS.lattice_l2


@pytest.mark.parametrize("broken", [by_record, unclipped])
def test_planted_faults_are_caught(broken):
    assert worst(broken, *adversary()) > BOUNDS.lattice_l2


def test_rounding_needs_its_room():
    """Small changes in many coordinates: rounding can move each of them by a whole step beyond its size."""
    rng, most = np.random.default_rng(0), 0.0
    for _ in range(300):
        embeddings = rng.normal(size=(2, SIZE))
        units, classes = np.array(["a", "b"]), rng.integers(0, CLASSES, 2)
        weights = rng.normal(size=(CLASSES, SIZE)) * 1e6
        most = max(most, worst(rounded_apart, units, embeddings, classes, weights))
        assert worst(tally, units, embeddings, classes, weights) <= BOUNDS.lattice_l2
    assert most > LATTICE


def test_the_sum_is_the_gradient_of_the_logistic_loss():
    rng = np.random.default_rng(1)
    units = np.array([f"u{i}" for i in range(400)])
    embeddings, classes = rng.normal(size=(400, SIZE)), rng.integers(0, CLASSES, 400)
    embeddings /= np.maximum(np.linalg.norm(embeddings, axis=1), 1.0)[:, None]

    def loss(weights):
        logits = embeddings @ weights.T
        return np.sum(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(400), classes])

    found = gradient_of(tally(units, embeddings, classes) / BOUNDS.scale, CLASSES)
    for place in np.ndindex(CLASSES, SIZE):
        nudge = np.zeros_like(WEIGHTS)
        nudge[place] = 1e-5
        slope = (loss(WEIGHTS + nudge) - loss(WEIGHTS - nudge)) / 2e-5
        assert found[place] == pytest.approx(slope, abs=400 * 2**-13)


def test_a_unit_counts_the_mean_of_its_records():
    embeddings = RNG.normal(size=(3, SIZE)) / 4
    classes = np.array([0, 1, 2])
    together = tally(np.array(["a", "a", "a"]), embeddings, classes)
    singly = [tally(np.array(["a"]), embeddings[[row]], classes[[row]]) for row in range(3)]
    assert np.abs(together - np.mean(singly, axis=0)).max() <= 1.5


def test_a_record_counts_alike_in_any_company(monkeypatch):
    """Each record's share of the sum before rounding: parts of any size and order give the same sum."""
    rng = np.random.default_rng(2)
    units = np.array([f"u{i}" for i in range(203)])
    embeddings, classes = rng.normal(size=(203, SIZE)), rng.integers(0, CLASSES, 203)
    whole = tally(units, embeddings, classes)
    order = rng.permutation(203)
    assert np.array_equal(tally(units[order], embeddings[order], classes[order]), whole)
    for rows in (1, 2, 3, 31, 64):
        monkeypatch.setattr(module, "_ROWS", rows)
        assert np.array_equal(tally(units, embeddings, classes), whole)


def shifted_together(embeddings, classes, weights):
    """The planted twin: logits are held down by the largest of all records, not of their own."""
    logits = module.products(embeddings, weights)
    odds = np.exp(logits - logits.max())
    return odds / odds.sum(axis=1, keepdims=True) - np.eye(len(weights))[classes]


def moved_by_company(residuals):
    """Return in how many comparisons a record's residual had other bits beside other records."""
    rng, moved = np.random.default_rng(3), 0
    # Beside vectors of 2, 4 and 8 numbers, and parts of sums of 8, lie their tails.
    for number, size in ((2, 1), (3, 7), (8, 16), (10, 33), (17, 5)):
        weights = rng.normal(size=(number, size)) * 10.0 ** rng.integers(-2, 4)
        for n in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33):
            rows, classes = rng.normal(size=(n, size)), rng.integers(0, number, n)
            rows[1::3] *= rng.choice([0.0, 5e-324, 1e3, 1e300])
            whole = residuals(rows, classes, weights)
            for row in range(n):
                alone = residuals(rows[[row]], classes[[row]], weights)
                later = residuals(rows[row:], classes[row:], weights)
                moved += not alone[0].tobytes() == later[0].tobytes() == whole[row].tobytes()
    return moved


def test_a_residual_has_the_same_bits_alone_and_in_any_company():
    with np.errstate(all="ignore"):
        assert moved_by_company(module._residuals) == 0
        assert moved_by_company(shifted_together) > 100


def test_few_embeddings_are_held_at_a_time(monkeypatch):
    monkeypatch.setattr(module, "_ROWS", 8)
    asked = []

    def embedded(some):
        asked.append(some)
        return np.zeros((20, SIZE))[some]

    gradients(Electorate(np.arange(20).astype(str)), embedded, np.zeros(20, np.int64), WEIGHTS, BOUNDS)
    assert [len(range(20)[some]) for some in asked] == [8, 8, 4]


def test_nobody_there_is_a_sum_of_nothing():
    found = tally(np.array([], str), np.zeros((0, SIZE)), np.zeros(0, np.int64))
    assert found.tolist() == [0] * BOUNDS.size


def test_bounds_leave_rounding_its_room():
    for classes, size in ((2, 2), (2, 8), (10, 1000), (25, 2601), (3, 7)):
        bounds = gradients_bounds(classes, size)
        assert bounds.scale + math.sqrt(bounds.size) < bounds.lattice_l2 <= LATTICE * (1 + 1e-12)


def test_what_cannot_be_asked_is_refused(monkeypatch):
    with pytest.raises(PlanError, match="fewer classes"):
        gradients_bounds(1000, 1000)
    monkeypatch.setattr(module, "_MOST_RECORDS", 2)
    with pytest.raises(DataError, match="at most"):
        tally(np.array(["a", "b", "c"]), np.zeros((3, SIZE)), np.zeros(3, np.int64))


def test_a_gradient_and_its_noise_have_one_unit():
    assert gradient_of(1.0, 1).item() == LONGEST
