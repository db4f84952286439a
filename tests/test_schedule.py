"""What a plan asks: names, bounds, noise and its total cost."""

import math

import numpy as np
import pytest

from patevolve.shared.errors import InputError, MessageError, PlanError
from patevolve.shared.noise.discrete_gaussian import DiscreteGaussianMechanism
from patevolve.shared.noise.distributed import DiscreteGaussianShare
from patevolve.shared.plan import agree
from patevolve.shared.privacy import accountant
from patevolve.shared.privacy.planner import spend
from patevolve.shared.schedule import bounds_of, find, schedule
from patevolve.shared.votes.lattice import LATTICE

EMBEDDING = 5


def plan(**changes):
    values = {
        "epsilon": 2.0,
        "delta": 1e-5,
        "trust": "each-site",
        "sites": 6,
        "dropouts": 0,
        "colluders": 0,
        "per_unit": 1,
        "times": 3,
        "contrast": 0.0,
        "units": 100,
    } | changes
    return agree(
        f"""
format = 1
name = "p"
seed = 1
[privacy]
epsilon = {values["epsilon"]}
delta = {values["delta"]}
trust = "{values["trust"]}"
dropouts = {values["dropouts"]}
colluders = {values["colluders"]}
records_per_unit = {values["per_unit"]}
[sites]
count = {values["sites"]}
expected_units = {values["units"]}
[data]
kind = "table"
classes = ["a", "b", "c"]
label = "y"
unit = "id"
hold_out = 0.2
[[data.columns]]
name = "v"
kind = "numeric"
edges = [0, 1, 2]
[generator]
kind = "tabular"
[questions.counts]
share = 0.1
[questions.prototypes]
share = 0.3
contrast = {values["contrast"]}
[questions.neighbours]
share = 0.3
times = {values["times"]}
candidates = 30
nearest = 4
[questions.labels]
share = 0.2
candidates = 40
teachers = 5
[questions.score]
share = 0.1
[evolution]
generations = 10
[release]
samples = 40
"""
    ).plan


def cost(asks, delta):
    return accountant.epsilon(accountant.compose([ask.event for ask in asks]), delta).epsilon


def test_every_question_has_its_name_and_place():
    asks = schedule(plan(), EMBEDDING)
    names = ["counts", "prototypes", "neighbours/1", "neighbours/2", "neighbours/3", "labels", "score"]
    assert [ask.name for ask in asks] == names
    assert [find(asks, name) for name in names] == list(asks)
    assert {ask.part for ask in asks} == {"counts", "prototypes", "neighbours", "labels", "score"}
    sizes = {ask.name: ask.bounds.size for ask in asks}
    assert sizes == {"counts": 3, "prototypes": 15, "labels": 120, "score": 2} | {
        f"neighbours/{i}": 30 for i in (1, 2, 3)
    }


def test_a_question_that_the_plan_lacks_is_refused():
    asks = schedule(plan(), EMBEDDING)
    for name in ("neighbours/4", "neighbours/0", "neighbours", "means", ""):
        with pytest.raises(MessageError, match="the plan asks counts"):
            find(asks, name)
    with pytest.raises(MessageError, match="nothing"):
        find((), "counts")


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 8.0])
@pytest.mark.parametrize("trust", ["each-site", "secure-sum"])
def test_the_budget_is_kept_and_used(epsilon, trust):
    """ε of the whole is at most the plan's, and at least 99.9 % of it: nothing is wasted in silence."""
    changes = {"dropouts": 1, "colluders": 2} if trust == "secure-sum" else {}
    asks = schedule(plan(epsilon=epsilon, trust=trust, **changes), EMBEDDING)
    assert 0.999 * epsilon <= cost(asks, 1e-5) <= epsilon


def test_each_site_adds_the_whole_noise():
    for ask in schedule(plan(), EMBEDDING):
        assert ask.full
        assert isinstance(ask.mechanism, DiscreteGaussianMechanism)
        assert ask.mechanism.l2 == ask.bounds.lattice_l2


def test_shares_carry_the_whole_noise_without_dropouts_and_colluders():
    """n − d − t honest shares add up to what a single site would add: the shares are larger by √(n/(n−d−t))."""
    whole = schedule(plan(), EMBEDDING)
    shared = schedule(plan(trust="secure-sum", dropouts=1, colluders=2), EMBEDDING)
    for one, share in zip(whole, shared, strict=True):
        assert not share.full
        assert isinstance(share.mechanism, DiscreteGaussianShare)
        assert share.mechanism.std * math.sqrt(6 - 1 - 2) == pytest.approx(one.mechanism.std, rel=1e-6)
        assert share.mechanism.least_reporters == 5


def test_noise_is_in_the_ratio_that_the_shares_say():
    """σ² per unit of sensitivity goes as times/share."""
    asks = {ask.kind: ask for ask in schedule(plan(), EMBEDDING)}
    multiplier = {kind: ask.mechanism.std / ask.bounds.lattice_l2 for kind, ask in asks.items()}
    weights = {part.kind: part.times / part.share for part in spend(plan())}
    scaled = [multiplier[kind] ** 2 / weights[kind] for kind in multiplier]
    assert np.allclose(scaled, scaled[0], rtol=1e-6)


def test_root_of_two_q_for_labels():
    ask = find(schedule(plan(), EMBEDDING), "labels")
    assert ask.mechanism.l2 == pytest.approx(LATTICE * math.sqrt(2 * 40))


@pytest.mark.parametrize(
    ("kind", "per_unit", "contrast", "support"),
    [
        ("counts", 1, 0.0, 1),
        ("counts", 9, 0.0, 3),
        ("prototypes", 1, 0.0, 5),
        ("prototypes", 2, 0.0, 10),
        ("prototypes", 1, 0.5, 15),
        ("neighbours", 1, 0.0, 4),
        ("neighbours", 9, 0.0, 30),
        ("labels", 1, 0.0, 80),
        ("score", 1, 0.0, 1),
        ("score", 5, 0.0, 2),
    ],
)
def test_support_is_what_a_unit_can_touch(kind, per_unit, contrast, support):
    assert bounds_of(plan(per_unit=per_unit, contrast=contrast), kind, EMBEDDING).support == support


def test_shares_below_two_lattice_steps_are_refused():
    """With 100,000 sites and ε = 500 a share would be 0.2 steps: the sum would no longer be like a Gaussian."""
    bad = plan(trust="secure-sum", sites=100_000, epsilon=500.0, delta=1e-8)
    with pytest.raises(InputError, match="fewer sites"):
        schedule(bad, EMBEDDING)


def test_noise_beyond_what_can_be_drawn_is_refused_with_the_question_and_its_share():
    words = r"share of 0.1 of ε = 0.0001 for counts .*cannot be drawn .*expected 0.25 to .*larger share"
    with pytest.raises(PlanError, match=words):
        schedule(plan(epsilon=1e-4, delta=1e-12, times=10), EMBEDDING)


def test_one_schedule_for_one_plan():
    assert schedule(plan(), EMBEDDING) == schedule(plan(), EMBEDDING)
