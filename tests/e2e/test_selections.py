"""Every selection runs whole under one ledger: what is charged is what the plan says, and the report says which."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from patevolve.client.variants import selections
from patevolve.shared.privacy import accountant
from patevolve.shared.privacy.events import DiscreteLaplace, Exponential
from patevolve.shared.privacy.filters import FixedOrderFilter
from patevolve.shared.schedule import schedule
from patevolve.shared.tools import tools_of

SELECTIONS = selections(2)
SMALL: Mapping[str, Any] = {
    "evolution.generations": 3,
    "evolution.population": 20,
    "release.samples": 30,
}
TIMES: Mapping[str, str] = {"pcevolve": "choices", "classifier-laplace": "confidence", "histogram": "neighbours"}


def changes(selection: str) -> dict[str, Any]:
    kind = TIMES.get(selection)
    small = {f"questions.{kind}.times": 3, f"questions.{kind}.candidates": 40} if kind else {}
    return {**SELECTIONS[selection], **SMALL, **small}


@pytest.mark.usefixtures("plain_page")
@pytest.mark.parametrize("trust", ["secure-sum", "each-site"])
@pytest.mark.parametrize("selection", SELECTIONS)
def test_the_ledgers_hold_what_the_plan_allows(selection: str, trust: str, kit: Any) -> None:
    agreed = kit.agreed({**changes(selection), "privacy.trust": trust})
    asks = schedule(agreed.plan, tools_of(agreed.plan).encoder.embedding_size)
    delta = agreed.plan.privacy.delta
    planned = accountant.epsilon(accountant.compose([ask.event for ask in asks]), delta).epsilon
    assert planned <= agreed.plan.privacy.epsilon
    ledger = FixedOrderFilter(epsilon=agreed.plan.privacy.epsilon, delta=delta)
    assert 0.999 * ledger.budget < sum(ledger.cost(ask.event) for ask in asks) <= ledger.budget
    finished, sites = kit.run(agreed, kit.records(agreed), "run")
    report = kit.report(agreed, finished, sites)
    assert report["epsilon"] == pytest.approx(planned, rel=1e-12)
    for site in sites.values():
        assert [charge.event for charge in kit.charges(site.home.path)] == [ask.event for ask in asks]
    assert finished.outcome.population.classes.size == 30
    told = " ".join(part["words"] for part in report["parts"])
    assert ("noise like" in told) == (selection not in ("pcevolve", "classifier-laplace"))
    words = {row["item"]: row["text"] for row in report["statement"]}
    assert ("exponential mechanism" in words["Mechanism"]) == (selection == "pcevolve")
    assert ("Laplace" in words["Mechanism"]) == (selection == "classifier-laplace")


def test_the_pure_mechanisms_are_the_stated_ones(kit: Any) -> None:
    for selection, kind in (("pcevolve", Exponential), ("classifier-laplace", DiscreteLaplace)):
        agreed = kit.agreed({**changes(selection), "privacy.trust": "each-site"})
        asks = schedule(agreed.plan, tools_of(agreed.plan).encoder.embedding_size)
        assert {type(ask.event) for ask in asks} == {kind}
        assert all(ask.full for ask in asks)


@pytest.mark.usefixtures("plain_page")
def test_a_planted_copy_is_dropped_and_the_cost_is_in_the_ledger(kit: Any) -> None:
    """Patients added whose rows are a sample that would be released; at a large ε the count stands out of the noise.

    σ in the sum of two sites is 0.19 votes, so a copy's count of 1 falls below the threshold of probability 0.99 with
    probability 0.01; noise above it has probability 0.0015 a sample.
    """
    asked = {
        "privacy.epsilon": 200.0,
        "questions.counts.share": 0.1,
        "questions.prototypes.share": 0.3,
        "questions.copies.share": 0.6,
        "questions.copies.within": 0.1,
        "questions.copies.catch": 0.99,
    }
    agreed = kit.agreed(asked)
    records = kit.records(agreed)
    finished, sites = kit.run(agreed, records, "run")
    screening = finished.outcome.screening
    assert screening.asked == 60
    assert screening.dropped == 60 - len(finished.outcome.population)
    assert "copies" in {charge.question for charge in kit.charges(next(iter(sites.values())).home.path)}
    private = np.concatenate([part.values for part in records.values()])
    kept = finished.tools.generator.render(finished.outcome.population.genomes, finished.outcome.population.classes)
    close = (kept[:, None] == private).all(axis=2)
    assert screening.dropped > 0
    assert close.any(axis=1).mean() < 0.1  # of the copies of real rows almost none is left
    report = kit.report(agreed, finished, sites)
    gate = {row["check"]: row for row in report["gate"]}
    assert gate["near-duplicates"]["passed"] is True
    assert f"{screening.dropped} of 60" in gate["near-duplicates"]["found"]
    assert not any("near-duplicates" in row["text"] for row in report["statement"])


@pytest.mark.usefixtures("plain_page")
def test_without_the_question_the_report_says_that_it_was_not_asked(kit: Any) -> None:
    agreed = kit.agreed()
    finished, sites = kit.run(agreed, kit.records(agreed), "run")
    report = kit.report(agreed, finished, sites)
    uncovered = next(row["text"] for row in report["statement"] if row["item"] == "What is not covered")
    assert "Not checked: near-duplicates" in uncovered
    assert finished.outcome.screening is None


@pytest.mark.usefixtures("plain_page")
def test_looking_ahead_is_public_and_changes_the_votes(kit: Any) -> None:
    base = {**changes("histogram"), "evolution.lookahead": 0}
    runs = []
    for lookahead in (0, 3):
        agreed = kit.agreed({**base, "evolution.lookahead": lookahead})
        finished, _ = kit.run(agreed, kit.records(agreed), f"run-{lookahead}")
        runs.append(finished.outcome.population.genomes)
    assert not np.array_equal(*runs)
