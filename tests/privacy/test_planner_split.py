"""The proposed split: the optimum of its own objective, in agreement with what was measured."""

import dataclasses
import math
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from patevolve.shared.plan import Plan, read_plan
from patevolve.shared.plan_sections import Asking, Data, Evolution, Generator, Release, Sites
from patevolve.shared.privacy import advice, split
from patevolve.shared.privacy.planner import spend
from patevolve.shared.votes.ballots import class_code


def heart() -> Plan:
    return read_plan(Path(str(resources.files("patevolve.client") / "demo_data" / "heart.toml"))).plan


def images(**changes: object) -> Plan:
    """Return a plan of 4,000 images of ten classes at five sites, with votes on 1,000 candidates a class."""
    plan = heart()
    return dataclasses.replace(
        plan,
        privacy=dataclasses.replace(plan.privacy, epsilon=4.0, unit="record"),
        sites=Sites(count=5, expected_units=800),
        data=Data(
            kind="image", classes=tuple(f"d{i}" for i in range(10)), label="digit", height=28, width=28, **changes
        ),
        generator=Generator(kind="simulator"),
        questions=dataclasses.replace(
            plan.questions, neighbours=Asking(share=0.0, times=1, candidates=10_000, nearest=20)
        ),
        evolution=Evolution(population=2000, generations=5),
        release=Release(samples=1000),
    )


def test_tables_get_what_was_measured_to_be_best():
    """20 paired splits of the heart data: counts 4 %, prototypes 96 %, nothing for votes."""
    voting = dataclasses.replace(heart().questions, neighbours=Asking(candidates=1200, nearest=30))
    for plan in (heart(), dataclasses.replace(heart(), questions=voting)):
        shares = split.propose(plan)
        assert set(shares) == {"counts", "prototypes"}
        assert shares["counts"] == pytest.approx(0.04, abs=0.021)
        own, proposed = split.loss(plan, {"counts": 0.04, "prototypes": 0.96}), split.loss(plan, shares)
        assert own == pytest.approx(proposed, rel=0.01)


def test_images_share_between_prototypes_and_votes():
    """Measured on digits: 40 to 70 % for votes are equally good, and none costs .01 to .02 of accuracy."""
    for times in (1, 2):
        plan = images()
        voting = dataclasses.replace(plan.questions.neighbours, times=times)
        shares = split.propose(
            dataclasses.replace(plan, questions=dataclasses.replace(plan.questions, neighbours=voting))
        )
        assert 0.4 <= shares["neighbours"] <= 0.7
        assert 0.27 <= shares["prototypes"] <= 0.57


@pytest.mark.parametrize("plan", [heart(), images()], ids=["heart", "images"])
def test_no_other_split_has_a_smaller_loss(plan):
    shares = split.propose(plan)
    best = split.loss(plan, shares)
    assert math.fsum(shares.values()) == pytest.approx(1.0, abs=1e-12)
    for giver in shares:
        for taker in shares:
            for moved in (0.02, 0.05, 0.2):
                if giver != taker and shares[giver] > moved:
                    other = {**shares, giver: shares[giver] - moved, taker: shares[taker] + moved}
                    assert split.loss(plan, other) > best


def test_the_loss_is_known_only_where_every_weighted_part_is_asked():
    assert split.loss(heart(), {"prototypes": 1.0}) is None
    assert split.loss(images(), {"counts": 0.04, "prototypes": 0.96}) is None


def test_the_article_stands_beside():
    rows = {row.name: row for row in split.splits(images())}
    assert rows["seed article"].shares == {"prototypes": 0.6, "neighbours": 0.4}
    assert set(rows) == {"this plan", "proposed", "seed article"}


def test_labels_get_what_makes_them_right_or_nothing():
    plan = images()
    samples = plan.release.samples
    shares = {}
    for teachers in (1, 2000):
        asking = Asking(candidates=samples, teachers=teachers)
        voting = dataclasses.replace(plan, questions=dataclasses.replace(plan.questions, labels=asking))
        voting = split.with_shares(voting, {"prototypes": 0.7, "labels": 0.3})
        shares[teachers] = split.propose(voting)
        if "labels" in shares[teachers]:
            changed = split.with_shares(voting, shares[teachers])
            part = next(part for part in spend(changed) if part.kind == "labels")
            assert advice.effect(changed, part).verdict == "usable"
    assert "labels" not in shares[1]
    assert 0 < shares[2000]["labels"] <= split.MOST_LABELS


def test_a_score_gets_what_it_needs_and_at_most_a_tenth():
    for units, expected in ((800, 0.01), (60, split.MOST_SCORE), (10, None)):  # 10: noise even with a tenth
        plan = images(hold_out=0.2)
        plan = dataclasses.replace(
            plan,
            sites=Sites(count=5, expected_units=units),
            privacy=dataclasses.replace(plan.privacy, delta=1e-9),
        )
        plan = split.with_shares(plan, {"prototypes": 0.7, "score": 0.3})
        assert split.propose(plan).get("score") == expected


def test_where_nothing_steers_nothing_is_proposed():
    plan = dataclasses.replace(heart(), evolution=Evolution(selection="none", population=10, generations=0))
    assert split.propose(plan) == {}
    assert [row.name for row in split.splits(plan)] == ["this plan"]


def test_a_classifier_alone_keeps_its_share_and_its_noise_falls_with_every_step():
    """Each of four steps has twice the noise of one alone, and their mean half of that: together as loud as one."""
    plan, found = images(), []
    for times in (1, 4):
        only = dataclasses.replace(type(plan.questions)(), gradients=Asking(share=1.0, times=times))
        stepped = dataclasses.replace(plan, questions=only, evolution=Evolution(selection="none", generations=0))
        assert split.propose(stepped) == {}
        assert split.splits(stepped)[0].loss is None
        found.append(effect_of(stepped, "gradients").quality)
    assert found[0] == pytest.approx(found[1])
    both = dataclasses.replace(plan.questions, prototypes=Asking(share=0.5), gradients=Asking(share=0.3, times=4))
    assert split.propose(dataclasses.replace(plan, questions=both))["gradients"] == 0.3


def test_private_evolution_gets_all_for_its_votes():
    plan = images()
    voting = Asking(share=1.0, times=5, candidates=10_000, nearest=1)
    only = dataclasses.replace(type(plan.questions)(), neighbours=voting)
    evolution = Evolution(selection="histogram", population=2000, generations=5)
    assert split.propose(dataclasses.replace(plan, questions=only, evolution=evolution)) == {"neighbours": 1.0}


def effect_of(plan: Plan, kind: str, **changes: object) -> advice.Effect:
    changed = dataclasses.replace(plan, **changes)
    return advice.effect(changed, next(part for part in spend(changed) if part.kind == kind))


@pytest.mark.parametrize("trust", ["each-site", "secure-sum"])
@pytest.mark.parametrize("kind", ["counts", "prototypes", "gradients", "neighbours", "labels", "score"])
def test_useful_sites_are_the_least_that_are_useful(kind, trust):
    plan = images(hold_out=0.2)
    samples = plan.release.samples
    questions = split.with_shares(plan, {"counts": 0.01}).questions
    asking = dataclasses.replace(getattr(questions, kind), share=0.2)
    if kind == "labels":
        asking = Asking(share=0.2, candidates=samples, teachers=40)
    plan = dataclasses.replace(
        plan,
        privacy=dataclasses.replace(plan.privacy, trust=trust, epsilon=1.0, delta=1e-9),
        questions=dataclasses.replace(questions, **{kind: asking}),
        sites=Sites(count=5, expected_units=100),
    )
    found = effect_of(plan, kind).useful_sites
    assert found is not None
    assert found > 1
    for sites, usable in ((found, True), (found - 1, False)):
        verdict = effect_of(plan, kind, sites=Sites(count=sites, expected_units=100)).verdict
        assert (verdict == "usable") == usable


def test_noise_to_signal_falls_with_the_square_root_of_the_share():
    plan = heart()
    quarter = split.with_shares(plan, {"counts": 0.04, "prototypes": 0.24})
    whole, less = effect_of(plan, "prototypes"), effect_of(quarter, "prototypes")
    assert less.noise_to_signal == pytest.approx(2 * whole.noise_to_signal)
    assert less.quality == pytest.approx(whole.quality / 2)


def test_a_contrast_of_one_slot_per_class_is_the_same_as_none():
    """The class code with contrast 1 − 1/classes is one slot per class, which 0 stands for."""
    plan = heart()
    for contrast in (0.0, 0.5):
        asking = dataclasses.replace(plan.questions.prototypes, contrast=contrast)
        questions = dataclasses.replace(plan.questions, prototypes=asking)
        assert effect_of(plan, "prototypes", questions=questions).quality == pytest.approx(
            effect_of(
                plan, "prototypes", questions=dataclasses.replace(questions, prototypes=Asking(share=0.96))
            ).quality
        )


def test_prototype_noise_is_that_of_the_decoded_sums():
    """The stated noise on a class's difference from the mean of all, against the class code itself."""
    plan = heart()
    found = effect_of(plan, "prototypes")
    inverse = np.linalg.inv(class_code(2, 0.8))
    apart = np.linalg.norm(inverse - inverse.mean(axis=0), axis=1)[0] * found.figures["std"]
    assert found.noise_to_signal == pytest.approx(apart * math.sqrt(53) / (320 * advice.APART))
