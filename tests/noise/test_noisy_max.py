"""PATE's aggregators: flip rates as theory says, planted faults caught, abstention, ties, refusals, proofs' labels."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from patevolve.shared.errors import ParameterError
from patevolve.shared.noise import discrete_gaussian, noisy_max
from patevolve.shared.noise.noisy_max import ABSTAINED, ConfidentGNMax, GNMax, InteractiveGNMax, LNMax
from patevolve.shared.privacy import accountant, tails
from patevolve.shared.randomness import RecordedNoise, SystemNoise
from patevolve.shared.tally import ExactTally

NOISE = Path(noisy_max.__file__).parent


def tally(counts: object) -> ExactTally:
    rows = np.atleast_2d(np.asarray(counts, dtype=np.int64))
    queries = rows.shape[0]
    return ExactTally(values=rows.ravel(), l1=2.0 * queries, l2=math.sqrt(2.0 * queries))


def repeated(counts: list[int], times: int) -> ExactTally:
    return tally(np.tile(np.array(counts), (times, 1)))


def flip_rate(table: np.ndarray, gap: int) -> float:
    """Pr[the runner-up of two wins]: strictly larger, or half of the ties. ``table[g]`` = log Pr[X − Y >= g]."""
    return 0.5 * (math.exp(table[gap]) + math.exp(table[gap + 1]))


def plausible(flips: int, draws: int, rate: float, alpha: float) -> bool:
    """Exact two-sided binomial test with false-alarm probability at most alpha."""
    return min(stats.binom.cdf(flips, draws, rate), stats.binom.sf(flips - 1, draws, rate)) > alpha / 2


# 100,000 answers of two classes at a gap of one σ: the flip rate is 0.2398. A build that forgets √2 (σ/√2) flips 0.16
# of them, 59 standard errors away; one with σ × 0.9 flips 0.2160, 17.6 away. The test refuses beyond 6, so a planted
# fault escapes with probability below 1e-25.
DRAWS, SIGMA, GAP = 100_000, 40.0, 40


def test_gnmax_flips_as_often_as_the_discrete_law_says(alpha):
    labels = GNMax(sigma=SIGMA, classes=2).release(repeated([120 + GAP, 120], DRAWS), SystemNoise())
    rate = flip_rate(tails.discrete_gaussian_difference(SIGMA, GAP + 1), GAP)
    assert plausible(int(labels.sum()), DRAWS, rate, alpha)
    assert rate == pytest.approx(0.5 * math.erfc(GAP / (2 * SIGMA)), abs=2e-4)


def test_lnmax_flips_as_often_as_the_discrete_law_says(alpha):
    scale, gap = 1.0, 2  # the seed article's gamma=2 is Lap(1)
    labels = LNMax(scale=scale, classes=2).release(repeated([6, 4], DRAWS), SystemNoise())
    rate = flip_rate(tails.discrete_laplace_difference(scale, gap + 1), gap)
    assert plausible(int(labels.sum()), DRAWS, rate, alpha)


@pytest.mark.parametrize("fault", ["sqrt2_forgotten", "noise_on_a_copy", "sigma_0.9"])
def test_planted_faults_are_caught(fault, alpha, monkeypatch):
    real = discrete_gaussian.sampler

    class Broken:
        def __init__(self, sigma):
            self.sigma = sigma

        def draw(self, size, source):
            if fault == "noise_on_a_copy":
                return np.zeros(size, dtype=np.int64)
            return real(self.sigma * (math.sqrt(0.5) if fault == "sqrt2_forgotten" else 0.9)).draw(size, source)

    monkeypatch.setattr(noisy_max.discrete_gaussian, "sampler", Broken)
    labels = GNMax(sigma=SIGMA, classes=2).release(repeated([120 + GAP, 120], DRAWS), SystemNoise())
    rate = flip_rate(tails.discrete_gaussian_difference(SIGMA, GAP + 1), GAP)
    assert not plausible(int(labels.sum()), DRAWS, rate, alpha)


def test_ties_favour_no_class(alpha):
    labels = LNMax(scale=0.3, classes=4).release(repeated([5, 5, 5, 5], DRAWS), SystemNoise())
    counts = np.bincount(labels, minlength=4)
    # 4 classes share alpha. "The lowest class wins a tie" would give class 0 above 0.45 of the labels.
    assert all(plausible(int(c), DRAWS, 0.25, alpha / 4) for c in counts)


def test_confident_gnmax_answers_as_often_as_theory_says(alpha):
    mechanism = ConfidentGNMax(threshold=150, sigma_threshold=30.0, sigma=10.0, classes=3)
    passed = mechanism.screen(repeated([160, 50, 40], DRAWS), SystemNoise())
    # Pr[160 + Z >= 150] for the discrete Gaussian: the continuity correction is exact to 1e-9 at σ = 30
    assert plausible(int(passed.sum()), DRAWS, float(stats.norm.sf(-10.5 / 30.0)), alpha)
    # forgetting the noise answers everything, and σ₁/√2 answers 0.69 in the place of 0.637: both are caught
    assert not plausible(DRAWS, DRAWS, float(stats.norm.sf(-10.5 / 30.0)), alpha)
    assert not plausible(round(0.69 * DRAWS), DRAWS, float(stats.norm.sf(-10.5 / 30.0)), alpha)


def test_what_is_not_asked_abstains():
    mechanism = ConfidentGNMax(threshold=200, sigma_threshold=5.0, sigma=5.0, classes=3)
    votes = tally([[250, 0, 0], [90, 80, 80]])
    asked = mechanism.screen(votes, SystemNoise())
    assert asked.tolist() == [True, False]  # 10 and 22 standard deviations from the threshold
    assert mechanism.answer(votes, asked, SystemNoise()).tolist() == [0, ABSTAINED]
    assert mechanism.answer(votes, [False, False], SystemNoise()).tolist() == [ABSTAINED, ABSTAINED]


def test_interactive_gnmax_asks_on_surprise_and_reinforces_the_sure_student():
    inner = ConfidentGNMax(threshold=100, sigma_threshold=5.0, sigma=5.0, classes=3)
    mechanism = InteractiveGNMax(inner=inner, confidence=0.9)
    votes = tally([[240, 5, 5], [240, 5, 5], [90, 80, 80]])
    student = np.array([[0.0, 0.95, 0.05], [0.95, 0.05, 0.0], [0.4, 0.3, 0.3]])
    asked = mechanism.screen(votes, student, SystemNoise())
    assert asked.tolist() == [True, False, False]
    assert mechanism.answer(votes, student, asked, SystemNoise()).tolist() == [0, 0, ABSTAINED]


def test_the_baseline_is_whole_and_keeps_the_sum():
    student = np.random.default_rng(5).dirichlet(np.ones(7), size=50)
    shares = noisy_max.baseline(student, np.full(50, 31))
    assert shares.sum(axis=1).tolist() == [31] * 50
    assert np.all(np.abs(shares - 31 * student) < 1.0)
    with pytest.raises(ParameterError):
        noisy_max.baseline([[0.5, 0.4]], np.array([10]))
    with pytest.raises(ParameterError):
        noisy_max.baseline([[math.nan, 1.0]], np.array([10]))


def test_events_cost_what_the_proof_says():
    orders = (2.0, 8.0, 32.0)
    np.testing.assert_allclose(
        accountant.rdp(GNMax(sigma=40.0, classes=10).event(3), orders), np.array(orders) * 3 / 1600
    )
    confident = ConfidentGNMax(threshold=200, sigma_threshold=150.0, sigma=40.0, classes=10)
    np.testing.assert_allclose(accountant.rdp(confident.test_event(2), orders), np.array(orders) * 2 / (2 * 150**2))
    np.testing.assert_allclose(accountant.rdp(confident.answer_event(1), orders), np.array(orders) / 1600)
    gamma = 0.2
    curve = accountant.rdp(LNMax(scale=2 / gamma, classes=10).event(1), (1e6,))
    assert curve[0] == pytest.approx(gamma)  # pure ε = γ per answer: a larger γ is less private


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_one_teacher_moves_the_votes_within_the_stated_bounds(classes):
    rng = np.random.default_rng(classes)
    before = rng.integers(0, classes, size=(30, 12))  # (queries, teachers)
    after = before.copy()
    after[:, 4] = (before[:, 4] + 1) % classes  # the worst neighbour: this teacher changes every vote
    counts = [np.stack([(votes == c).sum(axis=1) for c in range(classes)], axis=1) for votes in (before, after)]
    change = counts[1] - counts[0]
    assert np.abs(change).sum(axis=1).max() == noisy_max.VOTE_L1
    assert math.sqrt((change**2).sum(axis=1).max()) == noisy_max.VOTE_L2
    assert math.sqrt((change**2).sum()) == pytest.approx(noisy_max.VOTE_L2 * math.sqrt(30))
    assert np.abs(counts[1].max(axis=1) - counts[0].max(axis=1)).max() <= noisy_max.MAXIMUM_L2


def test_a_tally_of_wider_ballots_is_refused():
    wide = ExactTally(values=np.array([5, 3], dtype=np.int64), l1=4.0, l2=2.0)
    unknown = ExactTally(values=np.array([5, 3], dtype=np.int64), l1=2.0, l2=math.nan)
    for bad in (wide, unknown):
        with pytest.raises(ParameterError):
            GNMax(sigma=5.0, classes=2).release(bad, SystemNoise())
    with pytest.raises(ParameterError):
        GNMax(sigma=5.0, classes=3).release(tally([[5, 3]]), SystemNoise())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0, True, "1"])
def test_bad_noise_is_refused(bad):
    with pytest.raises(ParameterError):
        GNMax(sigma=bad, classes=2)
    with pytest.raises(ParameterError):
        LNMax(scale=bad, classes=2)
    with pytest.raises(ParameterError):
        ConfidentGNMax(threshold=1, sigma_threshold=bad, sigma=1.0, classes=2)
    with pytest.raises(ParameterError):
        ConfidentGNMax(threshold=1, sigma_threshold=1.0, sigma=bad, classes=2)


@pytest.mark.usefixtures("recorded_noise")
def test_the_same_recorded_noise_gives_the_same_labels():
    votes = tally(np.random.default_rng(1).integers(0, 30, size=(40, 5)))
    draws = [GNMax(sigma=7.0, classes=5).release(votes, RecordedNoise("a")) for _ in range(2)]
    assert np.array_equal(draws[0], draws[1])


def test_each_label_of_the_proofs_stands_in_the_code():
    cited = set(re.findall(r"\[label: ([a-z0-9-]+)\]", (NOISE / "NOISY_MAX.md").read_text(encoding="utf-8")))
    code = (NOISE / "noisy_max.py").read_text(encoding="utf-8")
    written = set(re.findall(r"# label: ([a-z0-9-]+)", code))
    assert cited == written
    assert len(cited) >= 7
