"""Selection against brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize

from patevolve.shared.evolution import select
from patevolve.shared.evolution.select import diverse, histogram, match_mean, resample, smooth


@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 5))
def test_matched_weights_are_a_distribution(seed, candidates, dimension):
    rng = np.random.default_rng(seed)
    weights = match_mean(rng.normal(size=(candidates, dimension)), rng.normal(size=dimension))
    assert weights.sum() == pytest.approx(1.0)
    assert (weights >= 0).all()


@pytest.mark.parametrize("seed", range(6))
def test_matched_weights_come_close_to_the_best_there_are(seed):
    """Beside the exact optimum (non-negative least squares with the sum as a heavy row): within 5 % of the distance
    that the uniform weights start from."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(60, 8))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    target = features[:5].mean(axis=0) if seed % 2 else rng.normal(size=8) / 3

    def miss(weights):
        return float(np.linalg.norm(weights @ features - target))

    system = np.vstack([features.T, np.full(60, 1e4)])
    best = optimize.nnls(system, np.append(target, 1e4))[0]
    start = miss(np.full(60, 1 / 60))
    assert miss(match_mean(features, target)) <= miss(best / best.sum()) + 0.05 * start


def test_a_target_at_one_candidate_takes_it():
    features = np.eye(6)
    weights = match_mean(features, features[2])
    assert np.argmax(weights) == 2
    assert weights[2] > 0.95


@given(st.lists(st.floats(0, 10), min_size=1, max_size=12), st.integers(1, 60), st.integers(0, 2**32))
def test_resampling_gives_each_its_share_rounded_down_or_up(values, count, seed):
    weights = np.array(values)
    chosen = resample(np.random.default_rng(seed), weights, count)
    assert len(chosen) == count
    shares = weights / weights.sum() if weights.sum() > 0 else np.full(len(weights), 1 / len(weights))
    counts = np.bincount(chosen, minlength=len(weights))
    assert (counts >= np.floor(count * shares - 1e-9)).all()
    assert (counts <= np.ceil(count * shares + 1e-9)).all()


def test_resampling_is_unbiased():
    weights = np.array([0.1, 0.0, 0.35, 0.55])
    counts = sum(np.bincount(resample(np.random.default_rng(s), weights, 3), minlength=4) for s in range(4000))
    assert np.abs(counts / 12_000 - weights).max() < 0.02
    assert counts[1] == 0


@pytest.mark.parametrize("values", [[-1.0, -2.0], [0.0, 0.0], [np.nan, -1.0], [np.nan, np.nan]])
def test_where_nothing_was_learnt_all_are_alike(values):
    """Every noisy vote below zero: a uniform fall-back, no division by zero."""
    assert np.bincount(resample(np.random.default_rng(0), np.array(values), 10), minlength=2).tolist() == [5, 5]


def test_negative_and_missing_weights_count_for_nothing():
    chosen = resample(np.random.default_rng(0), np.array([-5.0, 1.0, np.nan, 1.0]), 10)
    assert np.bincount(chosen, minlength=4).tolist() == [0, 5, 0, 5]


@given(st.integers(0, 2**32), st.floats(0.05, 3.0))
def test_smoothing_is_the_weighted_mean_written_out(seed, bandwidth):
    rng = np.random.default_rng(seed)
    features, votes = rng.normal(size=(9, 3)), rng.normal(size=9)
    expected = np.zeros(9)
    for i in range(9):
        kernel = [np.exp(-np.sum((features[i] - features[j]) ** 2) / (2 * bandwidth**2)) for j in range(9)]
        expected[i] = np.dot(kernel, votes) / np.sum(kernel)
    assert np.allclose(smooth(features, votes, bandwidth), expected, atol=1e-7)


def test_a_narrow_kernel_keeps_the_votes_and_a_wide_one_levels_them():
    rng = np.random.default_rng(0)
    features, votes = rng.normal(size=(30, 4)), rng.normal(size=30)
    assert np.allclose(smooth(features, votes, 1e-3), votes)
    assert np.allclose(smooth(features, votes, 1e6), votes.mean())


def test_copies_share_their_votes():
    features = np.repeat(np.eye(3), 4, axis=0)
    votes = np.arange(12.0)
    found = smooth(features, votes, 0.01).reshape(3, 4)
    assert np.allclose(found, votes.reshape(3, 4).mean(axis=1)[:, None])


@pytest.mark.parametrize("candidates", [1, 4, 5, 23])
def test_blocks_change_nothing(candidates, monkeypatch):
    rng = np.random.default_rng(candidates)
    features, votes = rng.normal(size=(candidates, 3)), rng.normal(size=candidates)
    whole = smooth(features, votes, 0.5)
    monkeypatch.setattr(select, "BLOCK", 4)
    assert np.allclose(smooth(features, votes, 0.5), whole, atol=1e-12)


def test_many_candidates_are_averaged_over_those_on_their_side(monkeypatch):
    """Clusters far apart: halving cuts between them, so nothing is lost; and no group is larger than the limit."""
    rng = np.random.default_rng(0)
    centres = np.array([[0.0, 0.0], [90.0, 0.0], [0.0, 40.0], [90.0, 40.0]])
    features = rng.permutation(np.repeat(centres, 8, axis=0)) + 0.1 * rng.normal(size=(32, 2))
    votes = rng.normal(size=32)
    whole = smooth(features, votes, 1.0)
    monkeypatch.setattr(select, "MOST", 8)
    groups = select._halved(features, np.arange(32))
    assert sorted(np.concatenate(groups).tolist()) == list(range(32))
    assert [len(group) for group in groups] == [8, 8, 8, 8]
    assert np.allclose(smooth(features, votes, 1.0), whole, atol=1e-12)


def test_copies_beyond_the_limit_end(monkeypatch):
    """No coordinate tells them apart: they are halved all the same."""
    monkeypatch.setattr(select, "MOST", 4)
    assert np.allclose(smooth(np.ones((19, 2)), np.full(19, 3.0), 0.5), 3.0)


@given(st.lists(st.floats(-100, 100), max_size=9), st.floats(0, 50))
def test_histogram(votes, threshold):
    found = histogram(np.array(votes), threshold)
    assert found.tolist() == [max(vote - threshold, 0.0) for vote in votes]


def test_selection_has_no_order_of_its_own():
    """Every permutation of the candidates permutes the weights and nothing else."""
    rng = np.random.default_rng(4)
    features, votes = rng.normal(size=(4, 2)), rng.normal(size=4)
    for order in map(list, itertools.permutations(range(4))):
        assert np.allclose(smooth(features[order], votes[order], 0.5), smooth(features, votes, 0.5)[order])
        assert np.allclose(match_mean(features[order], votes[:2]), match_mean(features, votes[:2])[order], atol=1e-6)


@given(st.integers(0, 2**32), st.integers(1, 14), st.integers(1, 14), st.floats(0, 3), st.integers(0, 5))
def test_diverse_choices_are_the_greedy_ones(seed, candidates, count, weight, elites):
    """Against the definition, written out without any running maximum."""
    rng = np.random.default_rng(seed)
    scores, features = rng.random(candidates), rng.normal(size=(candidates, 3))
    found = diverse(scores, features, count, weight=weight, elites=elites).tolist()
    count = min(count, candidates)
    assert len(set(found)) == len(found) == count
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    ranked = np.argsort(-scores, kind="stable").tolist()
    if weight == 0.0:
        assert found == ranked[:count]
        return
    start = max(1, min(elites, count))
    assert found[:start] == ranked[:start]
    for place in range(start, count):
        kept = found[:place]
        worth = {
            i: scores[i] + weight * (1 - max(0.0, *(float(unit[i] @ unit[j]) for j in kept)))
            for i in range(candidates)
            if i not in kept
        }
        assert worth[found[place]] == pytest.approx(max(worth.values()))


def test_diversity_prefers_another_kind_over_a_copy():
    features = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    scores = np.array([1.0, 0.99, 0.75])
    assert diverse(scores, features, 2, weight=0.0).tolist() == [0, 1]
    assert diverse(scores, features, 2, weight=0.3).tolist() == [0, 2]
    assert diverse(scores, features, 2, weight=0.3, elites=2).tolist() == [0, 1]
