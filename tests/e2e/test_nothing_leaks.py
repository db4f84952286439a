"""Infinite noise: where the tallies say nothing about the data, nothing that is released may depend on the data.

It finds every private value that reaches a release by a way around the charged tallies.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

import numpy as np
import pytest

from patevolve.client import institution, simulate
from patevolve.shared.data.records import Records
from patevolve.shared.plan import agree
from patevolve.shared.plan_edit import vary
from patevolve.shared.tally import ExactTally

PUBLIC = ("release", "student", "generations")


def _other(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return other patients: fewer, older, of other classes, in another order and under other names."""
    kept = [row for position, row in enumerate(rows) if position % 3]
    return [
        {**row, "patient": f"x{row['patient']}", "age": "77", "disease": "yes" if position % 5 else "no"}
        for position, row in reversed(list(enumerate(kept)))
    ]


def _public(kit: Any, out: str) -> dict[str, dict[str, bytes]]:
    return {part: kit.tree(kit.place / out / part) for part in PUBLIC}


@pytest.fixture
def without_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace every private sum by zeros before its noise: what infinite noise leaves of it."""
    exact = institution.Institution._tally

    def emptied(self: Any, question: Any, ask: Any) -> ExactTally:
        tally = exact(self, question, ask)
        return ExactTally(values=np.zeros_like(tally.values), l1=tally.l1, l2=tally.l2)

    monkeypatch.setattr(institution.Institution, "_tally", emptied)


def test_a_plan_that_asks_nothing_releases_the_same_bytes_for_other_data(kit: Any) -> None:
    agreed = kit.agreed(kit.nothing)
    made = {}
    for out, rows in (("one", kit.rows()), ("other", _other(kit.rows()))):
        kit.run(agreed, kit.records(agreed, rows), out)
        made[out] = _public(kit, out)
        assert all(not kit.charges(home) for home in (kit.place / f"{out}-sites").iterdir())
    assert {"data.csv", "manifest.json", "README.md", "guarantee.json", "plan.toml"} <= set(made["one"]["release"])
    assert made["one"] == made["other"]


@pytest.mark.parametrize("trust", ["secure-sum", "each-site"])
@pytest.mark.parametrize("selection", ["soft", "histogram"])
@pytest.mark.usefixtures("without_data", "plain_page")
def test_every_question_without_its_data_releases_the_same_bytes_for_other_data(
    trust: str, selection: str, kit: Any
) -> None:
    changes = {**kit.everything, "privacy.trust": trust, "evolution.selection": selection}
    agreed = kit.agreed(changes)
    made, scores, reports = {}, [], []
    for out, rows in (("one", kit.rows()), ("other", _other(kit.rows()))):
        finished, sites = kit.run(agreed, kit.records(agreed, rows), out)
        made[out] = _public(kit, out)
        scores.append(finished.score)
        report = kit.report(agreed, finished, sites)
        for private in ("sites", "ledger", "made", "wall_seconds"):  # what stays with whoever holds the data
            del report[private]
        reports.append(report)
    assert made["one"] == made["other"]
    assert scores[0] == scores[1]
    assert reports[0] == reports[1]


def _images(kit: Any, seed: int, count: int) -> dict[str, Records]:
    """Return images of noise, of two classes, for both sites."""
    rng = np.random.default_rng(seed)
    return {
        site: Records(
            values=rng.integers(0, 256, (count, 28, 28), dtype=np.uint8),
            classes=rng.integers(0, 2, count),
            units=np.array([f"{seed}-{position}" for position in range(count)]),
        )
        for site in kit.hospitals
    }


@pytest.mark.parametrize("nothing", [True, False], ids=["nothing_asked", "sums_without_data"])
def test_images_of_a_simulator_are_the_same_bytes_for_other_data(
    nothing: bool, kit: Any, request: pytest.FixtureRequest
) -> None:
    text = (resources.files("patevolve.client") / "demo_data" / "digits.toml").read_text("utf-8")
    changes: dict[str, Any] = {"sites.count": 2, "data.classes": ["0", "1"], "release.samples": 40}
    changes |= {"evolution.population": 40, "evolution.generations": 2, "questions.neighbours.times": 1}
    changes |= {"questions.neighbours.candidates": 60, "evolution.mutation": [0.3]}
    if nothing:
        changes |= {f"questions.{name}": None for name in ("counts", "prototypes", "neighbours")}
    else:
        request.getfixturevalue("without_data")
    agreed = vary(agree(text), changes)
    for out, records in (("one", _images(kit, 1, 60)), ("other", _images(kit, 2, 90))):
        finished, _ = kit.run(agreed, records, out)
        assert len(finished.asks) == (0 if nothing else 3)
    assert _public(kit, "one") == _public(kit, "other")
    assert sum(name.endswith(".png") for name in _public(kit, "one")["release"]) == 40


def test_with_its_data_the_same_plan_releases_other_bytes(kit: Any) -> None:
    """The negative control: noise and seed alike, only the charged tallies differ, and it shows."""
    agreed = kit.agreed(kit.everything)
    for out, rows in (("one", kit.rows()), ("other", _other(kit.rows()))):
        kit.run(agreed, kit.records(agreed, rows), out)
    one, other = _public(kit, "one"), _public(kit, "other")
    assert one["release"]["data.csv"] != other["release"]["data.csv"]
    assert one["student"]["student.npz"] != other["student"]["student.npz"]


@pytest.mark.usefixtures("without_data")
def test_a_planted_leak_around_the_tallies_is_caught(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: candidates shifted by the mean of the private records, as when a population is seeded from them."""
    drawn = simulate.rounds.steps.first
    held: list[float] = []

    def seeded(plan: Any, tools: Any, learnt: Any) -> Any:
        population = drawn(plan, tools, learnt)
        first = population.genomes.copy()
        first[0, 0] = held[-1]
        return type(population)(genomes=first, classes=population.classes)

    monkeypatch.setattr(simulate.rounds.steps, "first", seeded)
    agreed = kit.agreed(kit.everything)
    for out, rows in (("one", kit.rows()), ("other", _other(kit.rows()))):
        records = kit.records(agreed, rows)
        held.append(float(np.mean([r.values[:, 0].mean() for r in records.values()])) % 1.0)
        kit.run(agreed, records, out)
    assert _public(kit, "one") != _public(kit, "other")
