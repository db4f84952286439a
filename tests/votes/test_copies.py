"""The near-duplicate question: one vote a unit, and copies caught as often as stated."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patevolve.shared.noise.discrete_gaussian import DiscreteGaussianMechanism
from patevolve.shared.privacy.advice import clean_share, copy_threshold
from patevolve.shared.randomness import SystemNoise
from patevolve.shared.votes.ballots import Electorate
from patevolve.shared.votes.copies import copies, copies_bounds
from patevolve.shared.votes.lattice import LATTICE, estimate

DIMENSION, WITHIN = 5, 0.5
POOL = np.random.default_rng(2).normal(size=(40, DIMENSION))
BOUNDS = copies_bounds(len(POOL))


def tally(units, features):
    with np.errstate(all="ignore"):
        return copies(Electorate(units), features, POOL, within=WITHIN, bounds=BOUNDS).values


def every(units, features):
    """The planted twin: each record votes for every candidate that is near, with its whole weight."""
    apart = np.linalg.norm(features[:, None] - POOL, axis=2)
    return (apart <= WITHIN).sum(axis=0) * LATTICE


def worst(ask, units, features):
    whole = ask(units, features)
    leaving = [whole - ask(units[units != unit], features[units != unit]) for unit in sorted(set(units.tolist()))]
    return max(float(np.linalg.norm(change)) for change in leaving)


@given(st.integers(0, 2**32), st.integers(1, 30), st.sampled_from([1.0, 1e6, 1e200, math.nan, math.inf]))
def test_a_unit_has_one_vote(seed, n, size):
    rng = np.random.default_rng(seed)
    units = np.array([f"u{i}" for i in rng.integers(0, 5, n)])
    features = POOL[rng.integers(0, len(POOL), n)] + rng.normal(size=(n, DIMENSION)) * 0.1
    with np.errstate(all="ignore"):
        features[units == "u0"] *= size
    assert worst(tally, units, features) <= LATTICE


def test_planted_votes_for_every_record_are_caught():
    units, features = np.array(["a"] * 4 + ["b"]), POOL[[0, 1, 2, 3, 4]]
    assert worst(every, units, features) > LATTICE
    assert worst(tally, units, features) <= LATTICE


def test_a_unit_votes_for_what_lies_nearest_to_any_of_its_records():
    units = np.array(["a", "a", "b", "c"])
    features = np.stack([POOL[3] + 0.05, POOL[7], POOL[9] + 10.0, POOL[7] + 0.01])
    found = estimate_of(tally(units, features))
    assert np.flatnonzero(found).tolist() == [7]
    assert found[7] == 2


def estimate_of(values):
    return np.rint(values / BOUNDS.scale)


def test_a_record_votes_alike_whoever_stands_beside_it():
    rng = np.random.default_rng(0)
    features = POOL[rng.integers(0, 40, 200)] + rng.normal(size=(200, DIMENSION)) * WITHIN / math.sqrt(DIMENSION)
    whole = tally(np.arange(200).astype(str), features)
    single = sum(tally(np.array(["x"]), features[i : i + 1]) for i in range(200))
    assert np.array_equal(whole, single)


@pytest.mark.parametrize("catch", [0.5, 0.9, 0.99])
def test_copies_are_caught_with_the_stated_probability(catch, alpha):
    """30,000 noisy counts of one unit and as many of none, against the stated error rates; 0.005 is the power's room.

    The discrete noise has 1,024 steps to a vote, so continuous tails are right to well below that.
    """
    mechanism = DiscreteGaussianMechanism(sigma=0.4 * LATTICE, l2=LATTICE)
    copied = tally(np.array(["a"]), POOL[:1])
    count, std = 30_000, mechanism.std / BOUNDS.scale
    bound = math.sqrt(math.log(2 / alpha) / 2 / count) + 0.005
    noise = np.concatenate([draw(mechanism, copied) for _ in range(count // len(POOL))]).reshape(-1, len(POOL))
    threshold = copy_threshold(std, catch)
    assert abs(np.mean(noise[:, 1:] > threshold) - (1.0 - clean_share(std, catch))) < bound
    again = np.array([draw(mechanism, copied)[0] for _ in range(3000)])
    assert abs(np.mean(again > threshold) - catch) < math.sqrt(math.log(2 / alpha) / 2 / 3000)


def draw(mechanism, values):
    from patevolve.shared.tally import ExactTally

    exact = ExactTally(values=values, l1=BOUNDS.lattice_l1, l2=BOUNDS.lattice_l2)
    return estimate(mechanism.release(exact, SystemNoise()), BOUNDS)
