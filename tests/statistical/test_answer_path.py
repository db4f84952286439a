"""The whole answer path: from the bytes of a question to the noisy sum, whether the noise is what the plan promises.

False alarms: each test refuses a correct build with probability at most ALPHA (1e-8; the suite's pot is 1e-6, see
conftest). Power: stated per test, and shown by planted twins that the same statistic must refuse. Noise comes from the
operating system, so every run is a fresh one; there is no seed to print.
"""

import dataclasses
import functools
import math

import numpy as np
import pytest
from scipy import stats

from patevolve.client.guard import Guard
from patevolve.client.home import open_home
from patevolve.client.institution import Institution, render_once
from patevolve.client.policy import draft
from patevolve.client.private_index import build_index
from patevolve.shared.data.records import Records
from patevolve.shared.errors import LedgerError
from patevolve.shared.institutions import InProcess
from patevolve.shared.messages import Question, decode_answer, encode_question
from patevolve.shared.noise.discrete_gaussian import DiscreteGaussianMechanism
from patevolve.shared.noise.distributed import DiscreteGaussianShare
from patevolve.shared.plan import agree
from patevolve.shared.privacy import tight
from patevolve.shared.randomness import RecordedNoise, SystemNoise
from patevolve.shared.schedule import find, schedule
from patevolve.shared.tally import NoisyTally
from patevolve.shared.tools import tools_of

SITES, DROPOUTS, COLLUDERS = 5, 1, 1
WIDE = 100_000  # candidates: one answer holds as many draws

PLAN = """
format = 1
name = "wide"
seed = 1
[privacy]
epsilon = 2.0
delta = 1e-6
trust = "TRUST"
dropouts = 1
colluders = COLLUDERS
[sites]
count = 5
expected_units = 100
[data]
kind = "table"
classes = ["a", "b"]
label = "y"
unit = "id"
[[data.columns]]
name = "u"
kind = "numeric"
edges = [0, 1, 2, 3]
[generator]
kind = "tabular"
[questions.neighbours]
share = 1.0
times = 2
candidates = 100000
nearest = 3
[evolution]
generations = 2
[release]
samples = 10
"""


@pytest.fixture
def cohort(tmp_path):
    """Return a function that opens five sites of one plan, one public seed and ONE data set: noise alone may differ."""
    opened = []

    def make(trust, *, folder="sites", noise=lambda *_: SystemNoise(), wrap=lambda mechanism: mechanism):
        agreed = agree(PLAN.replace("TRUST", trust).replace("COLLUDERS", "1" if trust == "secure-sum" else "0"))
        tools = tools_of(agreed.plan)
        asks = schedule(agreed.plan, tools.encoder.embedding_size)
        wrapped = tuple(dataclasses.replace(ask, mechanism=wrap(ask.mechanism)) for ask in asks)
        rng = np.random.default_rng(3)
        records = Records(
            values=rng.integers(0, 3, (6, 1)), classes=rng.integers(0, 2, 6), units=np.arange(6).astype(str)
        )
        sites, rendered = {}, render_once(tools.generator, tools.encoder)
        for name in "abcde":
            path = tmp_path / folder / name
            path.mkdir(parents=True)
            (path / "policy.toml").write_text(draft(name, agreed))
            home = open_home(path, site=name)
            ledger = home.open_ledger()
            opened.append(ledger)
            sites[name] = Institution(
                agreed=agreed,
                asks=wrapped,
                cohort="c" * 64,
                guard=Guard(policy=home.policy, ledger=ledger, identity=home.identity, noise=noise),
                index=build_index(records, agreed.plan, tools.encoder, home.secret),
                encoder=tools.encoder,
                generator=tools.generator,
                teach=lambda _: np.zeros((0, 0), np.int64),
                rendered=rendered,
            )
        return agreed, asks, sites

    yield make
    for ledger in opened:
        ledger.close()


@functools.lru_cache(maxsize=1)
def candidates():
    rng = np.random.default_rng(4)
    return {"genomes": rng.integers(0, 3, (WIDE, 1)).astype(np.float64), "classes": np.arange(WIDE) % 2}


def question(agreed, number=1):
    return Question(kind="neighbours", name=f"neighbours/{number}", plan=agreed.sha256, run="r", arrays=candidates())


def noises(agreed, sites, number=1):
    """Return (sites, WIDE) noises of the released values, and the standard deviations that the answers state."""
    asked = question(agreed, number)
    data, first = encode_question(asked), next(iter(sites.values()))
    exact = first._tally(asked, find(first.asks, asked.name)).values  # of every site: they hold the same records
    rows, stated = [], []
    for site in sites.values():
        answer = decode_answer(site.handle(data))
        rows.append(answer.values - exact)
        stated.append(answer.std)
    return np.array(rows, np.float64), stated


def spread_is_right(noise, promised, alpha):
    """Return whether noise (n,) is centred and has the promised standard deviation: within 2 %, and as n allows.

    The variance of n normal draws is a chi-square variable over n: its alpha quantiles are the limits (a discrete
    Gaussian this wide differs from a normal one by less than 1e-12). With n = 100,000 the measured σ has a standard
    error of 0.22 %: the quantiles lie 1.3 % away, and 2 % is 8.9 of them.
    Power: σ × 0.9 lies 45 standard errors away, σ/√2 131, σ·√2 185, no noise at all 447.
    """
    n = noise.size
    square = float((noise / promised) @ (noise / promised))
    low, high = stats.chi2.ppf(alpha / 4, n), stats.chi2.isf(alpha / 4, n)
    centred = abs(noise.mean()) < stats.norm.isf(alpha / 4) * promised / math.sqrt(n)
    return low < square < high and centred and abs(math.sqrt(square / n) - 1) < 0.02


def uncorrelated(rows, alpha):
    """Return whether no two rows of (r, n) noises correlate, at any of the lags 0 to 2.

    Under independence a correlation of n pairs has standard deviation 1/√n (0.0032 at 100,000); one source used twice
    correlates fully, 316 of them away.
    """
    rows = (rows - rows.mean(axis=1, keepdims=True)) / rows.std(axis=1, keepdims=True)
    r, n = rows.shape
    limit = stats.norm.isf(alpha / (6 * r * r)) / math.sqrt(n - 2)
    for lag in (0, 1, 2):
        found = rows[:, : n - lag] @ rows[:, lag:].T / (n - lag)
        if lag == 0:
            found = found[~np.eye(r, dtype=bool)]
        if np.abs(found).max(initial=0.0) > limit:
            return False
    return True


# ---- honest sites ---------------------------------------------------------------------------------------------------


def test_each_site_adds_the_whole_noise_that_the_plan_promises(cohort, alpha):
    """500,000 draws over five sites of one seed and one data set: spread, centre and independence."""
    agreed, asks, sites = cohort("each-site")
    mechanism = find(asks, "neighbours/1").mechanism
    assert isinstance(mechanism, DiscreteGaussianMechanism)
    rows, stated = noises(agreed, sites)
    assert stated == [mechanism.sigma] * SITES
    assert spread_is_right(rows.ravel(), mechanism.sigma, alpha)


def test_sites_and_questions_are_independent(cohort, alpha):
    """Two questions at five sites that share plan, seed and data: ten noises, none of them tied to another."""
    agreed, _, sites = cohort("each-site")
    rows = np.concatenate([noises(agreed, sites, number)[0] for number in (1, 2)])
    assert uncorrelated(rows, alpha)


@pytest.mark.parametrize("dropped", [0, DROPOUTS])
def test_the_sum_of_shares_has_the_noise_that_the_plan_promises(cohort, alpha, dropped):
    """Under secure-sum, with all sites and with the allowed drop-outs: n − d − t shares carry the whole noise S.

    The sum of k reporters has S·√(k/(n−d−t)); what protects against t colluders among n − d reporters is S itself.
    """
    agreed, asks, sites = cohort("secure-sum")
    ask = find(asks, "neighbours/1")
    assert isinstance(ask.mechanism, DiscreteGaussianShare)
    total = ask.mechanism.total_sigma
    handlers = {name: site.handle for name, site in sites.items()}
    asked = question(agreed)
    exact = sites["a"]._tally(asked, ask).values
    reporters = SITES - dropped

    def gone(_):
        raise LedgerError("this site is gone")

    for name in list("abcde")[reporters:]:
        handlers[name] = gone
    reply = InProcess(handlers=handlers, public_keys={}, minimum=SITES - DROPOUTS).ask(asked, ask)
    noise = (reply.tally.values - reporters * exact).astype(np.float64)
    promised = total * math.sqrt(reporters / (SITES - DROPOUTS - COLLUDERS))
    assert reply.tally.std == pytest.approx(promised)
    assert spread_is_right(noise, promised, alpha / 2)
    known = decode_answer(sites["a"].handle(encode_question(asked))).values - exact  # a colluder's share
    assert spread_is_right(noise - known, total * math.sqrt((reporters - 1) / 3), alpha / 2)


def test_the_noise_is_what_the_planner_computed(cohort):
    """σ over the ballot's bound is the planner's multiplier; its Gaussian ε at the plan's δ is at most the plan's."""
    _, asks, _ = cohort("each-site")
    multiplier = asks[0].mechanism.sigma / asks[0].bounds.lattice_l2
    assert tight.gaussian_delta(multiplier / math.sqrt(2), 2.0) <= 1e-6


# ---- planted faults -------------------------------------------------------------------------------------------------


class Twin:
    """A mechanism with one fault, that looks like the honest one from outside."""

    def __init__(self, honest, release):
        self.honest, self.twisted = honest, release

    def __getattr__(self, name):
        return getattr(self.honest, name)

    def release(self, exact, source):
        values = self.twisted(self.honest, exact, source)
        return NoisyTally(values=values, std=self.honest.std)


def smaller(factor):
    def release(honest, exact, source):
        return DiscreteGaussianMechanism(sigma=honest.sigma * factor, l2=honest.l2 * factor).release(
            dataclasses.replace(exact, l1=0.0, l2=0.0), source
        ).values  # fmt: skip

    return release


def added_to_a_copy(honest, exact, source):
    copy = exact.values.copy()
    copy += honest.release(exact, source).values
    return exact.values


def added_twice(honest, exact, source):
    return honest.release(exact, source).values + honest.release(exact, source).values - exact.values


SPREAD_FAULTS = {
    "sigma x 0.9": smaller(0.9),
    "root of two forgotten": smaller(1 / math.sqrt(2)),
    "added to a copy": added_to_a_copy,
    "added twice": added_twice,
}


@pytest.mark.parametrize("name", SPREAD_FAULTS)
def test_planted_wrong_spread(cohort, alpha, name):
    agreed, asks, sites = cohort("each-site", wrap=lambda honest: Twin(honest, SPREAD_FAULTS[name]))
    rows, _ = noises(agreed, {"a": sites["a"]})
    assert not spread_is_right(rows.ravel(), find(asks, "neighbours/1").mechanism.sigma, alpha)


SEED_FAULTS = {
    "one seed for all sites": lambda _, question_sha256: RecordedNoise(question_sha256),
    "one seed for all questions": lambda site, _: RecordedNoise(site),
    "the plan's seed": lambda *_: RecordedNoise("1"),
}


@pytest.mark.parametrize("name", SEED_FAULTS)
def test_planted_noise_from_one_seed(cohort, alpha, recorded_noise, name):
    agreed, _, sites = cohort("each-site", noise=SEED_FAULTS[name])
    two = {name: sites[name] for name in "ab"}
    rows = np.concatenate([noises(agreed, two, number)[0] for number in (1, 2)])
    assert not uncorrelated(rows, alpha)


def test_planted_share_without_room_for_dropouts_and_colluders(cohort, alpha):
    """Shares sized S/√n instead of S/√(n−d−t): the sum of all falls short of S·√(n/(n−d−t)) by 23 %."""

    def release(honest, exact, source):
        share = DiscreteGaussianMechanism(sigma=honest.total_sigma / math.sqrt(SITES), l2=honest.l2)
        return share.release(exact, source).values

    agreed, asks, sites = cohort("secure-sum", wrap=lambda honest: Twin(honest, release))
    rows, _ = noises(agreed, sites)
    promised = find(asks, "neighbours/1").mechanism.total_sigma * math.sqrt(SITES / 3)
    assert not spread_is_right(rows.sum(axis=0), promised, alpha)


# ---- two worlds -----------------------------------------------------------------------------------------------------


def two_world_excess(scores, claim, delta, threshold, alpha):
    """Return a lower bound on P(S) − e^ε P'(S) − δ for S = "the score passes the threshold"; positive: a violation.

    Each probability is bounded by Clopper and Pearson at alpha/2.
    """
    hits, trials = [int(np.count_nonzero(score >= threshold)) for score in scores], scores[0].size
    low = stats.beta.ppf(alpha / 2, hits[0], trials - hits[0] + 1) if hits[0] else 0.0
    high = stats.beta.isf(alpha / 2, hits[1] + 1, trials - hits[1])
    return low - math.exp(claim) * high - delta


@pytest.mark.parametrize("factor", [1.0, 1 / math.sqrt(2)])
def test_a_unit_more_or_less_is_hidden_as_well_as_claimed(cohort, alpha, factor):
    """Whole noises of released answers, beside a world in which one unit's ballot was added to them.

    The worst ballot has length LATTICE in the direction of one coordinate, so each of 500,000 values is a trial of its
    own: noise + LATTICE in one world, noise in the other, both as the answer path drew them. At the plan's σ of 3.37
    ballots exact Gaussian accounting claims δ(0.25) = 0.0372. Power: with √2 forgotten P(S) − e^ε P'(S) is 0.0597, an
    excess of 0.0225, of which the confidence bounds take 0.006; the rest is over 20 standard errors.
    """
    wrap = (lambda honest: honest) if factor == 1.0 else (lambda honest: Twin(honest, smaller(factor)))
    agreed, asks, sites = cohort("each-site", wrap=wrap)
    ask, claim = find(asks, "neighbours/1"), 0.25
    worlds = [noises(agreed, sites, number)[0].ravel() for number in (1, 2)]
    with_unit, without = worlds[0] + ask.bounds.lattice_l2, worlds[1]
    sigma = ask.mechanism.sigma / ask.bounds.lattice_l2
    delta = tight.gaussian_delta(sigma, claim)
    # The loss of the pair passes ε where the value passes σ²ε/Δ + Δ/2.
    threshold = ask.bounds.lattice_l2 * (sigma**2 * claim + 0.5)
    excess = two_world_excess([with_unit, without], claim, delta, threshold, alpha)
    assert excess <= 0.0 if factor == 1.0 else excess > 0.0
