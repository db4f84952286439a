"""Whole runs in which the sites train a classifier together: what is charged, what it labels, and where it resumes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from patevolve.client.audit_pipeline import answer_path, asked_of, small_plan, two_world_runs
from patevolve.client.policy import draft, read_policy
from patevolve.client.simulate import open_sites, simulate, system_noise
from patevolve.shared.data.records import Records
from patevolve.shared.errors import PlanError, PolicyError
from patevolve.shared.evolution.descend import classified
from patevolve.shared.generators.simulator import Simulator
from patevolve.shared.plan import agree
from patevolve.shared.plan_edit import vary
from patevolve.shared.privacy import accountant
from patevolve.shared.privacy.filters import FixedOrderFilter
from patevolve.shared.randomness import stream
from patevolve.shared.schedule import schedule
from patevolve.shared.tools import features_of, tools_of

STEPS = 6
CLASSIFIED: Mapping[str, Any] = {
    "questions.counts": None,
    "questions.prototypes": None,
    "questions.gradients": {"share": 1.0, "times": STEPS},
    "evolution.selection": "none",
    "evolution.generations": 0,
    "release.labels": "classifier",
}
DIGITS = """
format = 1
name = "two sites, two digits"
seed = 1
[privacy]
epsilon = 8.0
delta = 1e-4
unit = "record"
trust = "secure-sum"
[sites]
count = 2
expected_units = 150
[data]
kind = "image"
classes = ["0", "1"]
label = "digit"
height = 28
width = 28
[generator]
kind = "simulator"
blend = 0.5
[encoder]
dimension = 16
embedding = "linear"
[questions.gradients]
share = 1.0
times = 6
[evolution]
selection = "classifier"
population = 240
generations = 1
[release]
samples = 120
labels = "classifier"
"""


def digits(seed: int, count: int = 150) -> Records:
    """Return images that the simulator drew under a seed of their own, as a site's records."""
    simulator, classes = Simulator(glyphs=("0", "1")), np.arange(count) % 2
    genomes = np.zeros((count, simulator.genome_size))
    for cls in range(2):
        rows = np.flatnonzero(classes == cls)
        genomes[rows] = simulator.draw(stream(seed, "records", cls), cls, len(rows))
    units = np.array([f"{seed}-{number}" for number in range(count)])
    return Records(values=simulator.render(genomes, classes), classes=classes, units=units)


@pytest.mark.usefixtures("plain_page")
@pytest.mark.parametrize("trust", ["secure-sum", "each-site"])
def test_the_ledgers_hold_every_step_and_the_release_its_labels(trust: str, kit: Any) -> None:
    agreed = kit.agreed({**CLASSIFIED, "privacy.trust": trust})
    asks = schedule(agreed.plan, tools_of(agreed.plan).encoder.embedding_size)
    assert [ask.name for ask in asks] == [f"gradients/{number}" for number in range(1, STEPS + 1)]
    planned = accountant.epsilon(accountant.compose([ask.event for ask in asks]), agreed.plan.privacy.delta)
    assert planned.epsilon <= agreed.plan.privacy.epsilon
    ledger = FixedOrderFilter(epsilon=agreed.plan.privacy.epsilon, delta=agreed.plan.privacy.delta)
    assert 0.999 * ledger.budget < sum(ledger.cost(ask.event) for ask in asks) <= ledger.budget
    finished, sites = kit.run(agreed, kit.records(agreed), "run")
    for site in sites.values():
        assert [charge.event for charge in kit.charges(site.home.path)] == [ask.event for ask in asks]
    outcome, tools = finished.outcome, finished.tools
    assert outcome.labelling.method == "classifier"
    embeddings = tools.encoder.embed(features_of(tools, outcome.population.genomes, outcome.population.classes))
    assert np.array_equal(outcome.labelling.classes, classified(embeddings, outcome.learnt.classifier))
    assert (outcome.labelling.classes != outcome.population.classes).any()
    report = kit.report(agreed, finished, sites)
    words = {row["item"]: row["text"] for row in report["statement"]}
    assert f"{STEPS} step(s) of a classifier" in words["What was charged"]
    assert report["labels"]["method"] == "classifier"
    assert len(report["participation"]) == STEPS


def test_on_digits_it_names_what_it_never_saw(kit: Any) -> None:
    """Both classes are told apart without fault by this many records; blends get the nearer one's name."""
    agreed = agree(DIGITS)
    records = {name: digits(seed) for seed, name in enumerate(kit.hospitals, start=10)}
    homes = kit.homes(agreed, secret=b"s" * 32)
    sites = open_sites(homes, records, agreed)
    finished = simulate(agreed, sites, kit.place / "run", noise=kit.noise, run="run-1")
    others, tools = digits(99), finished.tools
    told = classified(tools.encoder.embed(tools.encoder.encode(others.values)), finished.outcome.learnt.classifier)
    assert np.mean(told == others.classes) > 0.9
    released = finished.released.samples
    assert released.images.shape == (120, 28, 28)
    assert set(released.classes.tolist()) == {0, 1}
    chosen = finished.outcome.population
    blends = tools.generator.mixed(chosen.genomes)
    assert 0 < np.mean(blends) < 1
    assert np.array_equal(released.classes[~blends], chosen.classes[~blends])  # alone, each is what it was drawn as
    assert (released.classes != chosen.classes).any()


def test_an_interrupted_run_goes_on_with_the_same_steps(kit: Any) -> None:
    agreed = kit.agreed(CLASSIFIED)
    records = kit.records(agreed)
    whole, _ = kit.run(agreed, records, "whole")

    class Stop(Exception):  # noqa: N818 - no error of the product
        pass

    drawn: list[str] = []

    def stopping(site: str, question: str) -> Any:
        drawn.append(site)
        if len(drawn) == 7:  # both sites have answered three steps
            raise Stop
        return kit.noise(site, question)

    homes = kit.homes(agreed, name="again", reserve=2.0, secret=b"s" * 32)
    with pytest.raises(Stop):
        kit.run(agreed, records, "part", homes=homes, noise=stopping)
    finished, sites = kit.run(agreed, records, "part", homes=homes)
    assert np.array_equal(finished.outcome.learnt.classifier, whole.outcome.learnt.classifier)
    asked = {name: kit.asked(site.home.path) for name, site in sites.items()}
    once = {f"gradients/{number}": 1 for number in range(1, STEPS + 1)}
    # The site that was stopped between charge and answer pays for that step again, the other one for nothing twice.
    assert sorted(asked.values(), key=lambda counts: counts.total()) == [once, once | {"gradients/4": 2}]


@pytest.mark.usefixtures("plain_page")
def test_an_audit_finds_the_noise_of_every_step_and_two_worlds_alike(kit: Any) -> None:
    """The noise found, in units of what was promised: of 204 draws a mean square beyond 1.75 has probability 2e-10."""
    agreed = kit.agreed(CLASSIFIED)
    records = kit.records(agreed)
    finished, sites = kit.run(agreed, records, "run", noise=system_noise)
    asked = asked_of(finished.folder.path, agreed)
    for name, site in sites.items():
        found = answer_path(asked, site.home, records[name])
        assert (found.missing, found.uncharged) == ((), ())
        assert np.mean(found.residuals**2) == pytest.approx(1.0, abs=0.75)
    assert small_plan(agreed).plan.questions.gradients.times == 5
    assert not two_world_runs(agreed, trials=16, confidence=0.999).alarm


def test_a_policy_that_does_not_name_the_steps_refuses_them(kit: Any) -> None:
    """What a later version can ask for has to be permitted by name."""
    agreed = kit.agreed(CLASSIFIED)
    homes = kit.homes(agreed)
    drafted = draft("s", agreed, reserve=1.0)
    assert "gradients" in drafted
    for folder in homes.values():
        text = (folder / "policy.toml").read_text(encoding="utf-8")
        kept = [line for line in text.splitlines() if not line.startswith("permitted")]
        (folder / "policy.toml").write_text("\n".join(kept) + "\n", encoding="utf-8")
        assert "gradients" not in read_policy(folder / "policy.toml").permitted
    with pytest.raises(PolicyError, match="gradients"):
        kit.run(agreed, kit.records(agreed), "run", homes=homes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"questions.gradients": None}, "needs a share|without a share"),
        ({"release.labels": "votes"}, "nothing would use it"),
        ({"evolution.selection": "classifier"}, "generations = 1"),
        ({"questions.gradients": None, "evolution.selection": "classifier", "release.labels": None}, "needs a share"),
        ({"generator.blend": 0.5}, "images alone"),
        ({"questions.gradients": {"share": 1.0, "times": 2, "candidates": 5}}, "no use for it"),
    ],
)
def test_plans_that_contradict_themselves_are_refused(changes: dict[str, Any], said: str, kit: Any) -> None:
    with pytest.raises(PlanError, match=said):
        kit.agreed({**CLASSIFIED, **changes})


TEACHERS = {"share": 0.5, "teachers": 10, "candidates": 120}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"generator": {"kind": "pool", "asset": "a" * 64, "blend": 0.5}, "evolution.selection": "discriminant"},
            "as it",
        ),
        ({"questions.labels": TEACHERS}, r"questions\.labels with release\.labels = 'classifier'"),
        (
            {
                "questions.labels": TEACHERS,
                "release.labels": None,
                "generator.blend": None,
                "evolution.selection": "none",
                "evolution.generations": 0,
            },
            r"questions\.gradients with release\.labels = 'auto'",
        ),
    ],
)
def test_no_plan_pays_for_steps_or_teachers_in_vain(changes: dict[str, Any], said: str) -> None:
    """The first would fail after every step was charged; the others would charge what nothing reads."""
    with pytest.raises(PlanError, match=said):
        vary(agree(DIGITS), {"questions.gradients.share": 0.5, **changes})


@pytest.mark.parametrize("labels", ['"auto"', '"votes"'])
def test_blends_need_a_classifier_that_is_asked_for_by_name(labels: str) -> None:
    with pytest.raises(PlanError, match=r"generator\.blend|nothing would use it"):
        agree(DIGITS.replace('labels = "classifier"', f"labels = {labels}"))
