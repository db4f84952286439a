"""What was asked, what it cost and what the report says of it: the plan, the ledgers and the report agree."""

from __future__ import annotations

import collections
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patevolve.client.institution import Institution
from patevolve.client.policy import draft
from patevolve.shared import cli as commands
from patevolve.shared.errors import BudgetError, DataError, LedgerError, QuorumError
from patevolve.shared.messages import decode_question
from patevolve.shared.plan import Agreed
from patevolve.shared.privacy import accountant
from patevolve.shared.privacy.global_ledger import GlobalLedger
from patevolve.shared.privacy.ledger import Ledger, verify
from patevolve.shared.schedule import Ask, schedule
from patevolve.shared.tools import tools_of

TRUSTS = ("secure-sum", "each-site")
ALL = ["counts", "prototypes", "neighbours/1", "neighbours/2", "labels", "score"]
# Many teachers, few candidates, a large budget: here noise does not drown the teachers' votes.
PAYS: Mapping[str, Any] = {
    "privacy.epsilon": 50.0,
    "privacy.trust": "each-site",
    "questions.counts.share": 0.1,
    "questions.prototypes.share": 0.3,
    "questions.labels.share": 0.6,
    "questions.labels.candidates": 40,
    "questions.labels.teachers": 20,
    "release.samples": 40,
}
PAYS_NOT: Mapping[str, Any] = {**PAYS, "privacy.epsilon": 0.5}


def _asks(agreed: Agreed) -> tuple[Ask, ...]:
    return schedule(agreed.plan, tools_of(agreed.plan).encoder.embedding_size)


def _cost(asks: tuple[Ask, ...], delta: float) -> float:
    return accountant.epsilon(accountant.compose([ask.event for ask in asks]), delta).epsilon


def _tally(kit: Any, finished: Any, name: str) -> Any:
    with GlobalLedger.open(finished.folder.path / "global.sqlite") as ledger:
        sha256 = next(row["question_sha256"] for row in ledger.questions() if row["question"] == name)
    return finished.folder.load_reply(name, sha256)


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.usefixtures("plain_page")
def test_plan_ledgers_and_report_agree(trust: str, kit: Any) -> None:
    agreed = kit.agreed({**kit.everything, "privacy.trust": trust})
    asks, delta = _asks(agreed), agreed.plan.privacy.delta
    assert [ask.name for ask in asks] == ALL
    finished, sites = kit.run(agreed, kit.records(agreed), "run")
    report = kit.report(agreed, finished, sites)
    planned = _cost(asks, delta)
    assert 0.999 * agreed.plan.privacy.epsilon < planned <= agreed.plan.privacy.epsilon
    assert report["epsilon"] == pytest.approx(planned, rel=1e-12)
    assert report["rdp"]["values"] == pytest.approx(accountant.compose([ask.event for ask in asks]).tolist())
    for row in report["sites"]:
        assert row["epsilon"] == pytest.approx(planned, rel=1e-12)
        assert row["questions"] == ALL
        assert row["verified"] is True
    for site in sites.values():
        charges = kit.charges(site.home.path)
        assert [charge.event for charge in charges] == [ask.event for ask in asks]
        assert [charge.part for charge in charges] == [ask.part for ask in asks]
    with finished.folder.open_ledger() as joined:
        assert joined.epsilon(delta).epsilon == pytest.approx(planned, rel=1e-12)
    for ask in asks:
        reply = _tally(kit, finished, ask.name)
        assert reply.sites == tuple(sorted(kit.hospitals))
        assert reply.tally.std == pytest.approx(math.sqrt(2) * ask.mechanism.std)


@pytest.mark.usefixtures("plain_page")
def test_a_second_plan_at_the_same_sites_continues_their_totals(kit: Any) -> None:
    first, second = kit.agreed(), kit.agreed({**kit.everything, "seed": 2})
    homes, delta = kit.homes(first, reserve=2.1), first.plan.privacy.delta
    for site, home in homes.items():
        both = draft(site, second, reserve=2.1).replace("plans = [", f'plans = ["{first.sha256}", ')
        (home / "policy.toml").write_text(both, encoding="utf-8")
    kit.run(first, kit.records(first), "first", homes=homes)
    finished, sites = kit.run(second, kit.records(second), "second", homes=homes, run="run-2")
    report = kit.report(second, finished, sites)
    together = _cost((*_asks(first), *_asks(second)), delta)
    assert together > 1.2 * first.plan.privacy.epsilon
    assert report["epsilon"] == pytest.approx(_cost(_asks(second), delta), rel=1e-12)
    for row in report["sites"]:
        assert row["epsilon"] == pytest.approx(together, rel=1e-12)
        assert row["questions"] == ALL
    before = {site: kit.asked(home) for site, home in homes.items()}
    kit.run(first, kit.records(first), "third", homes=homes, run="run-3")  # the same plan again is a new exposure
    with pytest.raises(BudgetError, match="does not cover"):
        kit.run(first, kit.records(first), "fourth", homes=homes, run="run-4")
    assert not (kit.place / "fourth").exists()
    for site, home in homes.items():
        with Ledger.open(home / "ledger.sqlite") as ledger:
            assert ledger.spent(delta).epsilon <= 2.1 * first.plan.privacy.epsilon
        assert kit.asked(home) == before[site] + collections.Counter(["counts", "prototypes"])


@pytest.mark.usefixtures("plain_page")
def test_where_pate_pays_the_teachers_label(kit: Any) -> None:
    agreed = kit.agreed(PAYS)
    finished, sites = kit.run(agreed, kit.records(agreed), "run")
    report = kit.report(agreed, finished, sites)
    assert report["labels"]["method"] == "pate"
    assert "40 teachers" in report["labels"]["reason"]
    assert "labels" in report["sites"][0]["questions"]
    votes = _tally(kit, finished, "labels").tally.values.reshape(40, 2)
    assert finished.released.samples.classes.tolist() == np.argmax(votes, axis=1).tolist()
    teacher = [item["text"] for item in report["statement"] if item["item"] == "What was charged"]
    assert "teacher labels" in teacher[0]


@pytest.mark.usefixtures("plain_page")
def test_where_pate_does_not_pay_the_teachers_are_neither_asked_nor_charged(kit: Any) -> None:
    agreed = kit.agreed(PAYS_NOT)
    finished, sites = kit.run(agreed, kit.records(agreed), "run")
    report = kit.report(agreed, finished, sites)
    assert report["labels"]["method"] == "votes"
    assert "40 teachers" in report["labels"]["reason"]
    asked = tuple(ask for ask in _asks(agreed) if ask.kind != "labels")
    for site in sites.values():
        assert kit.asked(site.home.path) == {"counts": 1, "prototypes": 1}
    assert report["epsilon"] == pytest.approx(_cost(asked, agreed.plan.privacy.delta), rel=1e-12)
    assert report["epsilon"] < agreed.plan.privacy.epsilon
    assert report["sites"][0]["epsilon"] == pytest.approx(report["epsilon"], rel=1e-12)
    assert not [item for item in report["statement"] if "teacher labels" in item["text"]]


@pytest.mark.usefixtures("plain_page")
def test_the_score_is_asked_of_held_out_patients_and_reported(kit: Any) -> None:
    agreed = kit.agreed({**kit.everything, "privacy.epsilon": 20.0})
    finished, sites = kit.run(agreed, kit.records(agreed), "run")
    report = kit.report(agreed, finished, sites)
    right, wrong = _tally(kit, finished, "score").tally.values.tolist()
    assert report["score"]["accuracy"] == pytest.approx(right / (right + wrong))
    assert 0 < report["score"]["std"] < 0.2
    patients = sum(finished.units.values())
    ask = next(ask for ask in _asks(agreed) if ask.name == "score")
    # A fifth of the patients, keyed: within 8 binomial standard deviations and 8 of the noise.
    slack = 8 * math.sqrt(0.16 * patients) + 8 * 2 * ask.mechanism.std / ask.bounds.scale
    assert (right + wrong) / ask.bounds.scale == pytest.approx(0.2 * patients, abs=slack)
    assert slack < 0.7 * patients


def _failing(monkeypatch: pytest.MonkeyPatch, error: Exception, questions: tuple[str, ...]) -> None:
    """Let Hungary's side fail on these questions, with a text that must stay there."""
    handle = Institution.handle

    def broken(self: Institution, data: bytes) -> bytes:
        if self.guard.policy.site == "Hungary" and decode_question(data).name in questions:
            raise error
        return handle(self, data)

    monkeypatch.setattr(Institution, "handle", broken)


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.usefixtures("plain_page")
def test_a_site_that_fails_is_dropped_where_the_plan_allows_it(
    trust: str, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreed = kit.agreed({**kit.everything, "privacy.trust": trust, "privacy.dropouts": 1})
    _failing(monkeypatch, LedgerError("/home/zebedee/secret.csv is damaged"), ("prototypes", "neighbours/1"))
    finished, sites = kit.run(agreed, kit.records(agreed), "run")
    report = kit.report(agreed, finished, sites)
    lost = _tally(kit, finished, "prototypes")
    assert (lost.sites, dict(lost.refusals)) == (("Cleveland",), {"Hungary": "ledger"})
    ask = next(ask for ask in _asks(agreed) if ask.name == "prototypes")
    assert lost.tally.std == pytest.approx(ask.mechanism.std)
    assert _tally(kit, finished, "labels").sites == tuple(kit.hospitals)
    assert kit.asked(sites["Cleveland"].home.path) == dict.fromkeys(ALL, 1)
    assert kit.asked(sites["Hungary"].home.path) == dict.fromkeys(["counts", "neighbours/2", "labels", "score"], 1)
    assert report["epsilon"] <= agreed.plan.privacy.epsilon
    everything = b"".join(kit.tree(finished.folder.path).values())
    assert b"zebedee" not in everything, "the text of a site's error left the site"


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("error", [LedgerError("disk"), DataError("damaged")], ids=["ledger", "data"])
def test_a_site_that_fails_ends_the_run_where_the_plan_does_not_allow_it(
    trust: str, error: Exception, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreed = kit.agreed({**kit.everything, "privacy.trust": trust})
    _failing(monkeypatch, error, ("prototypes",))
    with pytest.raises(QuorumError, match="prototypes: 1 of 2 sites answered; expected >= 2"):
        kit.run(agreed, kit.records(agreed), "run")
    assert not (kit.place / "run" / "release").exists()
    assert not (kit.place / "run" / "tallies" / "prototypes.pv").exists()
    assert kit.asked(kit.place / "run-sites" / "cleveland") == {"counts": 1, "prototypes": 1}


def test_the_command_ends_with_the_code_of_a_missing_quorum_and_resumes(
    kit: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shell: Any
) -> None:
    kit.homes(kit.agreed())
    place = kit.place
    command = ["simulate", kit.plan(), "--data", kit.data(), "--homes", place / "sites", "--out", place / "run"]
    with monkeypatch.context() as patched:
        _failing(patched, LedgerError("disk"), ("prototypes",))
        patched.setattr("sys.argv", ["patevolve", *map(str, command), "--format", "json"])
        with pytest.raises(SystemExit) as ended:
            commands.main()
    assert ended.value.code == 8
    assert json.loads(capsys.readouterr().out)["error"] == "quorum"
    assert shell(*command).code == 0
    for hospital in ("cleveland", "hungary"):
        assert kit.asked(place / "sites" / hospital) == {"counts": 1, "prototypes": 1}


def test_the_report_and_the_run_folder_are_complete(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real page, from the command line; a plan without prototypes, whose distance from them is NaN."""
    changes = {"questions.prototypes": None, "questions.neighbours.share": 0.7}
    changes |= {"questions.neighbours.candidates": 40, "questions.neighbours.nearest": 2}
    plan, place = kit.plan(changes), kit.place
    homes = kit.homes(kit.agreed(changes))
    command = ["simulate", plan, "--data", kit.data(), "--homes", place / "sites", "--out", place / "run"]
    monkeypatch.setattr("sys.argv", ["patevolve", *map(str, command)])
    with pytest.raises(SystemExit) as ended:
        commands.main()
    assert ended.value.code == 0
    report = _strict(place / "run" / "report.json")
    assert {"epsilon", "delta", "rdp", "trust", "unit", "sites", "utility", "seeds", "plan_sha256", "synthetic"} <= set(
        report
    )
    assert (report["delta"], report["trust"], report["unit"], report["seeds"]) == (1e-5, "secure-sum", "patient", [1])
    assert report["plan_sha256"] == kit.agreed(changes).sha256
    assert len(report["rdp"]["orders"]) == len(report["rdp"]["values"]) > 10
    assert [row["site"] for row in report["sites"]] == list(kit.hospitals)
    for row in report["sites"]:
        assert row["units"] > 100
        assert row["questions"] == ["counts", "neighbours/1"]
    assert report["synthetic"]["rows"] == 60 == sum(report["synthetic"]["classes"].values())
    assert set(report["synthetic"]["classes"]) == {"no", "yes"}
    assert [row["match"] for row in report["generations"]] == [None] * 4
    page = (place / "run" / "report.html").read_text("utf-8")
    assert kit.agreed(changes).sha256 in page
    found = set(kit.tree(place / "run"))
    assert {"plan.toml", "global.sqlite", "report.html", "report.json", "student/student.npz"} <= found
    assert {f"generations/{number:03d}.pv" for number in (1, 2, 3)} <= found
    assert {"release/data.csv", "release/manifest.json", "release/guarantee.json"} <= found
    with GlobalLedger.open(place / "run" / "global.sqlite") as joined:
        for site, home in homes.items():
            assert verify(home / "ledger.sqlite", trusted_heads=joined.trusted_heads(site)).head.site == site


def test_the_machine_form_is_json_where_a_number_does_not_exist(kit: Any, shell: Any) -> None:
    plan, place = kit.plan({"questions.prototypes": None}), kit.place
    kit.homes(kit.agreed({"questions.prototypes": None}))
    command = ["simulate", plan, "--data", kit.data(), "--homes", place / "sites", "--out", place / "run"]
    ended = shell(*command, "--format", "json")
    assert ended.code == 0
    (place / "out.json").write_text(ended.out, encoding="utf-8")
    assert _strict(place / "out.json") == _strict(place / "run" / "report.json")
    assert {row["match"] for row in _strict(place / "out.json")["generations"]} == {None}


def _strict(path: Path) -> dict[str, Any]:
    def refuse(constant: str) -> Any:
        pytest.fail(f"{constant} found in {path.name}")

    found: dict[str, Any] = json.loads(path.read_text("utf-8"), parse_constant=refuse)
    return found
