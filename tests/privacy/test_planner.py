"""The budget of a plan: never above its ε, and labels by what their noise does."""

import dataclasses
import math
import random

import pytest

from patevolve.shared.errors import PlanError
from patevolve.shared.plan import Agreed, Plan
from patevolve.shared.plan_sections import Asking, Data, Evolution, Generator, Privacy, Questions, Release, Sites
from patevolve.shared.privacy import accountant, planner, planner_view, split, tight
from patevolve.shared.privacy.planner import choose_labels, composed, flip_probability, pooled, spend
from patevolve.shared.schedule import schedule
from patevolve.shared.schema import Column

PLANS = 1000
KINDS = ("counts", "prototypes", "neighbours", "labels", "score")


def drawer(seed: int) -> random.Random:
    """Return repeatable draws of plans; no noise comes from it."""
    return random.Random(seed)  # noqa: S311 - plans are no secret


def random_plan(rng: random.Random) -> Plan:
    """Return a plan with any budget, cohort, trust model and split that a plan file may hold."""
    sites = rng.randint(1, 200) if rng.random() < 0.8 else rng.randint(200, 5000)
    secure = rng.random() < 0.6
    colluders = rng.randint(0, sites - 1) if secure and rng.random() < 0.5 else 0
    dropouts = rng.randint(0, sites - 1 - colluders) if rng.random() < 0.5 else 0
    units = rng.randint(1, 5000)
    classes = tuple(f"c{number}" for number in range(rng.randint(2, 12)))
    samples = rng.randint(len(classes), 3000)
    weights = {kind: rng.expovariate(1.0) for kind in KINDS if rng.random() < 0.7}
    whole = math.fsum(weights.values()) / rng.choice([1.0, 1.0, 0.9, 0.1])
    shares = {kind: weight / whole for kind, weight in weights.items()}
    times = rng.randint(1, 10)
    return Plan(
        format=1,
        name="random",
        seed=0,
        privacy=Privacy(
            epsilon=10 ** rng.uniform(-3, 1.5),
            delta=min(10 ** rng.uniform(-12, -3), 0.5 / (sites * units)),
            unit="record",
            trust="secure-sum" if secure else "each-site",
            dropouts=dropouts,
            colluders=colluders,
        ),
        sites=Sites(count=sites, expected_units=units),
        data=Data(
            kind="table",
            classes=classes,
            label="label",
            hold_out=rng.choice([0.1, 0.3]),
            columns=(Column(name="a", kind="categorical", values=tuple("abcdefgh"[: rng.randint(2, 8)])),),
        ),
        generator=Generator(kind="tabular"),
        release=Release(samples=samples, labels="pate" if "labels" in shares and rng.random() < 0.3 else "auto"),
        questions=Questions(
            counts=Asking(share=shares.get("counts", 0.0)),
            prototypes=Asking(share=shares.get("prototypes", 0.0), contrast=rng.choice([0.0, 0.3, 0.8])),
            neighbours=Asking(
                share=shares.get("neighbours", 0.0),
                times=times,
                candidates=rng.randint(len(classes), 2000),
                nearest=rng.randint(1, 60),
            ),
            labels=Asking(share=shares.get("labels", 0.0), candidates=samples, teachers=rng.randint(1, 50)),
            score=Asking(share=shares.get("score", 0.0)),
        ),
        evolution=Evolution(
            population=2000, generations=rng.randint(times, 20), selection=rng.choice(["soft", "histogram", "none"])
        ),
    )


def scheduled(plan: Plan) -> list:
    """Return the events that every site would charge."""
    return [ask.event for ask in schedule(plan, embedding_size=8)]


def fits(plan: Plan, events: list) -> bool:
    return accountant.epsilon(accountant.compose(events), plan.privacy.delta).epsilon <= plan.privacy.epsilon


def test_no_plan_of_a_thousand_exceeds_its_epsilon():
    rng, drawn, caught, full = drawer(20261130), 0, 0, 0
    for _ in range(PLANS):
        plan = random_plan(rng)
        found = planner_view.describe(Agreed(plan=plan, text="", sha256="0" * 64))
        assert found["composed"]["epsilon"] <= plan.privacy.epsilon
        assert fits(plan, [part.event for part in spend(plan)])
        try:
            events = scheduled(plan)
        except PlanError:  # shares too small to draw are refused, not under-noised
            continue
        drawn += 1
        assert fits(plan, events)
        if math.fsum(part.share for part in spend(plan)) > 1 - 1e-9:
            full += 1
            caught += not fits(plan, [dataclasses.replace(p.event, sigma=p.event.sigma * 0.999) for p in spend(plan)])
    assert drawn > 0.95 * PLANS  # nearly every plan can be drawn, so the statement is not empty
    assert full > 200
    assert caught == full  # a thousandth less noise is always noticed


def test_no_proposed_split_of_a_thousand_plans_exceeds_its_epsilon():
    rng, proposed = drawer(20261201), 0
    for _ in range(PLANS):
        plan = random_plan(rng)
        shares = split.propose(plan)
        if not shares or plan.release.labels == "pate":
            continue
        proposed += 1
        changed = split.with_shares(plan, shares)
        try:
            assert fits(changed, scheduled(changed))
        except PlanError as refusal:
            assert "noise share" in str(refusal)  # noqa: PT017 - both outcomes are right; neither is above ε
    assert proposed > 300


def test_shares_that_exceed_one_by_rounding_stay_within_epsilon():
    plan = random_plan(drawer(1))
    shares = {"counts": 0.1 + 1e-9, "prototypes": 0.9}
    changed = split.with_shares(dataclasses.replace(plan, release=Release(samples=5000)), shares)
    assert math.fsum(shares.values()) > 1
    assert composed(spend(changed), changed.privacy.delta).epsilon <= changed.privacy.epsilon


def test_the_planned_noise_is_what_the_schedule_draws():
    """Up to the lattice's rounding room: below 1 % for supports of a few hundred."""
    rng, seen = drawer(7), 0
    while seen < 200:
        plan = random_plan(rng)
        try:
            asks = schedule(plan, embedding_size=8)
        except PlanError:
            continue
        for part in planner_view.describe(Agreed(plan=plan, text="", sha256=""))["parts"]:
            ask = next(ask for ask in asks if ask.part == part["kind"])
            if ask.bounds.support > 400:
                continue
            drawn = ask.mechanism.std / ask.bounds.scale
            assert part["noise"]["one_site"] == pytest.approx(drawn, rel=0.011)
            assert part["noise"]["sum"] == pytest.approx(drawn * math.sqrt(plan.sites.count), rel=0.011)
            seen += 1


@pytest.mark.parametrize(
    ("trust", "dropouts", "colluders", "factor"),
    [("each-site", 0, 0, 3.0), ("each-site", 2, 0, 3.0), ("secure-sum", 0, 0, 1.0), ("secure-sum", 3, 2, 1.5)],
)
def test_noise_of_the_sum(trust, dropouts, colluders, factor):
    plan = random_plan(drawer(3))
    privacy = Privacy(epsilon=1.0, delta=1e-6, unit="record", trust=trust, dropouts=dropouts, colluders=colluders)
    nine = dataclasses.replace(plan, privacy=privacy, sites=Sites(count=9, expected_units=10))
    assert pooled(nine) == pytest.approx(factor)


def label_plan(*, teachers: int, sites: int = 1, trust: str = "each-site", labels: str = "auto") -> Plan:
    """Return the plan of the known figures: ε = 4, three classes, 100 answers, all of the budget for them."""
    plan = random_plan(drawer(5))
    data = Data(kind="table", classes=("a", "b", "c"), label="label", columns=plan.data.columns)
    return dataclasses.replace(
        plan,
        privacy=Privacy(epsilon=4.0, delta=1e-5, unit="record", trust=trust),
        sites=Sites(count=sites, expected_units=100),
        data=data,
        release=Release(samples=100, labels=labels),
        questions=Questions(labels=Asking(share=1.0, candidates=100, teachers=teachers)),
    )


def test_labels_are_taken_from_teachers_where_noise_seldom_overturns_them():
    few, many = choose_labels(label_plan(teachers=10)), choose_labels(label_plan(teachers=50))
    assert (few.method, many.method) == ("votes", "pate")
    assert few.flip == pytest.approx(1 - 0.517, abs=0.001)
    assert many.flip == pytest.approx(1 - 0.972, abs=0.001)


def test_ten_hospitals_of_one_teacher_do_better_with_one_noise_than_with_ten():
    each, secure = (choose_labels(label_plan(teachers=1, sites=10, trust=t)) for t in ("each-site", "secure-sum"))
    assert secure.flip == pytest.approx(choose_labels(label_plan(teachers=10)).flip)
    assert each.flip > secure.flip + 0.1


@pytest.mark.parametrize("wanted", ["pate", "votes"])
def test_a_plan_that_names_its_labels_gets_them(wanted):
    assert choose_labels(label_plan(teachers=10, labels=wanted)).method == wanted
    assert choose_labels(label_plan(teachers=5000, labels=wanted)).method == wanted


def test_without_a_share_nothing_is_overturned_because_nothing_is_asked():
    plan = dataclasses.replace(label_plan(teachers=10), questions=Questions(counts=Asking(share=1.0)))
    assert choose_labels(plan).method == "votes"


def test_flips_of_two_classes_are_a_normal_tail():
    assert flip_probability(3.0, 2.0, 2) == pytest.approx(0.5 * math.erfc(3.0 / (2.0 * 2.0)), rel=1e-12)


def test_one_noise_multiplier_serves_all_kinds_alike():
    """With equal shares every kind has the same cost, so its noise per unit of sensitivity is the same."""
    plan = split.with_shares(label_plan(teachers=10), {"counts": 0.5, "labels": 0.5})
    first, second = spend(plan)
    assert first.noise_multiplier == second.noise_multiplier
    exact = tight.gaussian_epsilon(first.noise_multiplier / math.sqrt(2), plan.privacy.delta)
    assert 0.8 * plan.privacy.epsilon < exact <= plan.privacy.epsilon


def test_asking_follows_the_plan():
    plan = label_plan(teachers=10)
    assert planner.asking(plan, "labels") == plan.questions.labels
