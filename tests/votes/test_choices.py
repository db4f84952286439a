"""PCEvolve's own selection: its score is bounded whatever the site holds, and its law is the published one."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patevolve.shared import contrast
from patevolve.shared.noise.choice import ChoiceMechanism
from patevolve.shared.randomness import SystemNoise
from patevolve.shared.tally import ExactTally
from patevolve.shared.votes.choices import choice_scores, choices_bounds
from patevolve.shared.votes.lattice import LATTICE

CLASSES, DIMENSION, PER_CLASS, TAU = 3, 4, 5, 10.0
RNG = np.random.default_rng(3)
POOL = RNG.normal(size=(CLASSES * PER_CLASS, DIMENSION))
LABELS = np.repeat(np.arange(CLASSES), PER_CLASS)


def scores(features, classes):
    return choice_scores(features, classes, (POOL, LABELS), count=CLASSES, tau=TAU).values


def unbounded(features, classes):
    """The planted twin: distances as scores, without the calibrator that bounds them."""
    centres = np.stack([features[classes == cls].mean(axis=0) for cls in range(CLASSES)])
    own = contrast.distances(POOL, centres)[np.arange(len(POOL)), LABELS]
    return np.rint(-own * LATTICE).astype(np.int64)


def worst(tally, features, classes, units):
    """Return the largest change of a single score when any one unit leaves."""
    whole = tally(features, classes)
    changes = []
    for unit in set(units.tolist()):
        keep = units != unit
        changes.append(np.abs(whole - tally(features[keep], classes[keep])).max())
    return max(changes)


@given(st.integers(0, 2**32), st.integers(1, 12), st.sampled_from([1.0, 1e6, 1e150, math.nan, math.inf]))
def test_no_unit_moves_a_score_by_more_than_one(seed, n, size):
    rng = np.random.default_rng(seed)
    features, classes = rng.normal(size=(n, DIMENSION)), rng.integers(0, CLASSES, n)
    units = rng.integers(0, 4, n)
    with np.errstate(all="ignore"):
        features[units == 0] *= size
        assert worst(scores, features, classes, units) <= LATTICE


def test_a_unit_that_turns_the_filter_over_moves_a_score_by_exactly_one():
    """So Δ = 1 is not only enough but needed: the bound is tight."""
    features = np.vstack([np.zeros((1, DIMENSION)), np.full((1, DIMENSION), 9.0), np.full((1, DIMENSION), -9.0)])
    classes = np.arange(CLASSES)
    far = np.vstack([features, np.full((1, DIMENSION), 30.0)]), np.append(classes, 0)
    change = np.abs(scores(features, classes) - scores(*far))
    assert change.max() == LATTICE


def test_planted_twin_without_the_calibrator_is_caught():
    features = np.vstack([np.zeros((6, DIMENSION)), np.full((1, DIMENSION), 40.0)])
    classes, units = np.array([0, 1, 2, 0, 1, 2, 0]), np.arange(7)
    assert worst(unbounded, features, classes, units) > LATTICE
    assert worst(scores, features, classes, units) <= LATTICE


def published(features, classes, epsilon):
    """Zhang et al. 2025, written down once more from the paper: probabilities of each candidate within its class."""
    means = [features[classes == cls].mean(axis=0) for cls in range(CLASSES)]
    found = []
    for cls in range(CLASSES):
        values = []
        for candidate in POOL[cls == LABELS]:
            logits = [-math.dist(candidate, mean) for mean in means]
            values.append(logits[cls] if logits[cls] >= max(logits) else -math.inf)
        finite = [value for value in values if value > -math.inf]
        if len(finite) == 1:
            return None  # the published code then chooses evenly among all, rejected ones included
        if not finite:
            found.append(np.full(PER_CLASS, 1 / PER_CLASS))
            continue
        low, high = min(finite), max(finite)
        calibrated = [math.exp(-TAU * (high - value) / (high - low)) for value in values]
        weights = np.exp(epsilon / CLASSES * np.array(calibrated) / 2)
        found.append(weights / weights.sum())
    return np.concatenate(found)


def test_the_probabilities_are_the_published_ones():
    """On 40 fixed sites; those where one candidate alone passes the filter are the one deliberate difference."""
    compared = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        classes = np.repeat(np.arange(CLASSES), 4)
        features = rng.normal(size=(12, DIMENSION)) + 0.5 * POOL[classes * PER_CLASS]
        own, expected = scores(features, classes), published(features, classes, 20.0)
        if expected is None:
            continue
        compared += 1
        weights = np.exp(20.0 / CLASSES * own / LATTICE / 2)
        law = np.concatenate([weights[cls == LABELS] / weights[cls == LABELS].sum() for cls in range(CLASSES)])
        assert np.abs(law / expected - 1).max() < 2 * 20 / CLASSES / LATTICE
    assert compared >= 10


def test_at_the_published_setting_the_choice_is_almost_random():
    """ε = 0.2 per iteration over two classes, 100 candidates: the best is chosen 1.05 times as often as by chance."""
    exponent = 0.2 / 2 / 2
    best = 100 * math.exp(exponent) / (math.exp(exponent) + 99)
    assert best == pytest.approx(1.05, abs=0.002)


def test_a_site_without_a_class_chooses_evenly_there_and_one_without_records_everywhere():
    features, classes = POOL[LABELS > 0] + 0.01, LABELS[LABELS > 0]
    own = scores(features, classes)
    assert (own[LABELS == 0] == LATTICE).all()
    assert len(set(own[LABELS == 1].tolist())) > 1
    assert (scores(np.zeros((0, DIMENSION)), np.zeros(0, np.int64)) == LATTICE).all()


def test_the_only_candidate_that_passes_scores_one_alone():
    apart = np.array([[1.0, 5.0], [6.0, 5.0], [9.0, 1.0]])
    assert contrast.scores(apart, np.array([0, 0, 1]), TAU).tolist() == [1.0, 0.0, 1.0]


def test_margins_name_the_nearer_class():
    apart = np.array([[1.0, 4.0], [4.0, 1.0], [math.inf, 1.0], [math.inf, math.inf]])
    assert contrast.margins(apart, np.zeros(4, np.int64)).tolist() == [3.0, -3.0, -math.inf, -math.inf]


def test_one_index_of_each_group_is_chosen():
    exact = choice_scores(POOL, LABELS, (POOL, LABELS), count=CLASSES, tau=TAU)
    mechanism = ChoiceMechanism(epsilon=200.0, change=LATTICE, groups=(PER_CLASS,) * CLASSES)
    values = mechanism.release(exact, SystemNoise()).values
    assert values.reshape(CLASSES, PER_CLASS).sum(axis=1).tolist() == [1] * CLASSES
    assert (exact.values[values == 1] > 0.7 * LATTICE).all()  # e^100 to 1 against everything far behind
    bounds = choices_bounds(len(POOL), CLASSES)
    assert (bounds.size, bounds.scale) == (len(POOL), 1)
    assert isinstance(exact, ExactTally)
