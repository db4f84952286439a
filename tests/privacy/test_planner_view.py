"""The planning screen: complete as JSON, one screen as text, quick, and true to the accountant."""

import dataclasses
import json
from importlib import resources
from pathlib import Path

import pytest

from patevolve.client.variants import ALONE, PRIVATE_EVOLUTION, PUBLIC_ONLY, selections
from patevolve.shared.errors import ParameterError, PlanError
from patevolve.shared.noise import discrete_gaussian
from patevolve.shared.plan import Agreed, read_plan
from patevolve.shared.plan_edit import vary
from patevolve.shared.privacy import planner_view, tight
from patevolve.shared.privacy.planner import composed, spend
from patevolve.shared.privacy.planner_view import describe, describe_text

EVERYTHING = {
    "privacy.trust": "each-site",
    "data.hold_out": 0.2,
    "questions.prototypes.share": 0.4,
    "questions.neighbours.share": 0.2,
    "questions.neighbours.candidates": 1200,
    "questions.neighbours.nearest": 30,
    "questions.neighbours.times": 3,
    "questions.labels.share": 0.2,
    "questions.labels.candidates": 6000,
    "questions.labels.teachers": 10,
    "questions.score.share": 0.1,
}


def heart() -> Agreed:
    return demo("heart")


def demo(name: str) -> Agreed:
    return read_plan(Path(str(resources.files("patevolve.client") / "demo_data" / f"{name}.toml")))


ISLANDS = {
    "islands.migrants": 100,
    "islands.candidates": 400,
    "islands.share": 0.2,
    "islands.nearest": 3,
    "questions.prototypes.share": 0.7,
}
VARIANTS = {
    "heart": {},
    "islands": ISLANDS,
    "free islands": {**ISLANDS, "islands.share": None, "islands.nearest": None},
    "everything": EVERYTHING,
    "alone": ALONE,
    "nothing": PUBLIC_ONLY,
    "private evolution": {
        **PRIVATE_EVOLUTION,
        "questions.neighbours.candidates": 400,
    },
    "hospitals with losses": {"sites.count": 40, "privacy.dropouts": 3, "privacy.colluders": 2, "privacy.epsilon": 0.1},
    "rich": {"privacy.epsilon": 1000.0},
    "starved": {"privacy.epsilon": 1e-4},
}


@pytest.fixture(params=["digits", *VARIANTS])
def agreed(request):
    return demo("digits") if request.param == "digits" else vary(heart(), VARIANTS[request.param])


def test_json_is_complete_and_strict(agreed):
    found = describe(agreed)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert {"epsilon", "delta", "parts", "composed", "labels", "splits", "pooling", "advice"} <= set(found)
    for part in found["parts"]:
        assert part["effect"]["verdict"] in {"usable", "weak", "noise"}
        assert part["epsilon_alone"] <= found["epsilon"]


def test_text_fits_one_screen(agreed):
    lines = describe_text(agreed).splitlines()
    assert max(len(line) for line in lines) <= 100
    assert len(lines) <= 45


def test_composition_is_the_accountants(agreed):
    found, parts = describe(agreed)["composed"], spend(agreed.plan)
    assert found["epsilon"] == composed(parts, agreed.plan.privacy.delta).epsilon <= agreed.plan.privacy.epsilon
    if parts:
        assert found["tight"]["epsilon"] <= found["epsilon"] * (1 + 1e-9)
        assert found["tight"]["epsilon"] == tight.figure([p.event for p in parts], agreed.plan.privacy.delta).epsilon
        if found["epsilon"] > 0.01:  # for tiny budgets one δ for each part hides most of its cost
            assert found["epsilon_by_adding_up"] >= found["epsilon"] * (1 - 1e-9)


def test_what_is_left_fits_and_one_more_does_not(agreed):
    plan, parts = agreed.plan, spend(agreed.plan)
    for part, row in zip(parts, describe(agreed)["parts"], strict=True):
        one = dataclasses.replace(part, times=1, noise_multiplier=part.noise_multiplier * (1 + 1e-9))
        for beside, count in ((parts, "beside_the_plan"), ((), "in_the_whole_budget")):
            for more, fits in ((0, True), (1, False)):
                times = row["left"][count] + more
                asked = (*beside, dataclasses.replace(one, times=times)) if times else beside
                assert (composed(asked, plan.privacy.delta).epsilon <= plan.privacy.epsilon) == fits
        if plan.privacy.epsilon > 0.01:
            assert row["left"]["by_adding_up_epsilon"] <= row["left"]["in_the_whole_budget"]


def test_a_share_that_is_not_given_away_leaves_questions():
    half = vary(heart(), {"questions.prototypes.share": 0.48})
    found = describe(half)
    assert [part["left"]["beside_the_plan"] for part in found["parts"]] == [12, 1]
    assert any("not given to any part" in words for words in found["advice"])


def test_noise_is_said_in_words_with_a_remedy():
    found = describe(vary(heart(), EVERYTHING))
    assert {p["kind"]: p["effect"]["verdict"] for p in found["parts"]}["labels"] == "noise"
    words = " ".join(found["advice"])
    assert "mostly noise" in words
    assert "Proposed split" in words
    assert "teachers in all" in words
    assert found["composed"]["epsilon_as_run"] < found["composed"]["epsilon"]  # labels that are not asked cost nothing


@pytest.mark.parametrize("name", ["heart", "digits"])
def test_the_demonstrations_splits_are_as_good_as_the_proposed_ones(name):
    assert any("as good as" in words for words in describe(demo(name))["advice"])


def test_pooling_lists_the_plans_own_cohort():
    found = describe(vary(heart(), {**EVERYTHING, "sites.count": 7}))
    assert [row["sites"] for row in found["pooling"]] == [1, 5, 7, 10, 20]


def test_planning_draws_no_noise_and_builds_no_table(agreed):
    """The screen re-plans at once because it is closed formulas alone; sampling tables would take seconds."""
    before = discrete_gaussian.sampler.cache_info()
    describe(agreed)
    assert discrete_gaussian.sampler.cache_info() == before


def test_one_changed_parameter_replans():
    longer = describe(vary(heart(), {"privacy.epsilon": 2.0}))
    assert longer["parts"][0]["noise_multiplier"] < describe(heart())["parts"][0]["noise_multiplier"]


@pytest.mark.parametrize(
    "change",
    [{"privacy.epsilon": 0.0}, {"privacy.epsilon": float("nan")}, {"privacy.delta": 1.0}, {"sites.count": 0}],
)
def test_impossible_changes_are_refused_as_input(change):
    with pytest.raises((PlanError, ParameterError)):
        planner_view.describe(vary(heart(), change))


def test_what_islands_ask_is_said_in_words():
    free, paid = (describe(vary(heart(), VARIANTS[name])) for name in ("free islands", "islands"))
    assert "islands" not in describe(heart())
    assert "no record of the site is read, so they cost nothing" in free["islands"]["words"]
    (part,) = [part for part in paid["parts"] if part["kind"] == "islands"]
    assert f"ε = {part['epsilon_alone']:.3g} alone" in paid["islands"]["words"]
    assert "whatever the trust model" in paid["islands"]["words"]
    assert "sends 200 of them home" in paid["islands"]["words"]  # 100 of each of two classes
    text = " ".join(describe_text(vary(heart(), ISLANDS)).split())
    assert paid["islands"]["words"] in text
    assert "islands: at each site" in text


def test_an_islands_noise_is_that_of_one_site_under_either_trust_model():
    for trust in ("each-site", "secure-sum"):
        found = describe(vary(heart(), {**ISLANDS, "privacy.trust": trust}))
        (noise,) = [part["noise"] for part in found["parts"] if part["kind"] == "islands"]
        assert len(set(noise.values())) == 1


@pytest.mark.parametrize(("selection", "kind"), [("pcevolve", "choices"), ("classifier-laplace", "confidence")])
def test_pure_mechanisms_are_shown_as_what_they_are(selection, kind):
    """No Gaussian noise beside a choice, and no figure called exact that is exact for Gaussian noise alone."""
    agreed = vary(heart(), selections(2)[selection])
    found = describe(agreed)
    (part,) = found["parts"]
    assert part["kind"] == kind
    assert part["noise"]["sum"] == pytest.approx(2 * part["noise"]["one_site"])  # four sites, each its own
    assert (part["noise"]["sum"] == 0.0) == (kind == "choices")
    assert found["composed"]["tight"]["accountant"] != "gaussian"
    assert found["composed"]["tight"]["epsilon"] <= 1.0 + 1e-9
    assert f"{kind} would be mostly noise" in describe_text(agreed)
