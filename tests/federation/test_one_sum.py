"""An answer's noise protects one sum: no question is ever summed with others than the first time."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from patevolve.client import station
from patevolve.client.approved import approved_plan
from patevolve.client.home import open_home
from patevolve.client.masking import Masking, open_masking
from patevolve.shared import inquiry
from patevolve.shared.envelopes import cohort_sha256
from patevolve.shared.errors import MessageError, PolicyError
from patevolve.shared.runfolder import RunFolder

SECURE = {"privacy.trust": "secure-sum", "privacy.dropouts": 1}


@pytest.fixture
def masking(town: Any) -> Masking:
    agreed = town.agreed(SECURE)
    town.roster(agreed)
    home = open_home(town.home(agreed, town.sites[0]))
    return open_masking(home, approved_plan(home, agreed.sha256), "run-1", begin=True)


@pytest.mark.parametrize(
    ("questions", "batch"),
    [(["a"], "two"), (["b", "a"], "two"), (["a", "c"], "two"), (["a", "a"], "one"), (["c", "c"], "two")],
)
def test_a_question_is_refused_in_every_other_sum(masking: Masking, questions: list[str], batch: str) -> None:
    masking.bind(["a", "b"], "one")
    with pytest.raises(MessageError):
        masking.bind(questions, batch)
    assert json.loads((masking.folder / "batches.json").read_text()) == {"a": "one", "b": "one"}


def test_the_same_sum_may_be_asked_for_again_and_a_new_one_too(masking: Masking) -> None:
    masking.bind(["a", "b"], "one")
    masking.bind(["a", "b"], "one")
    masking.bind(["c"], "two")
    assert json.loads((masking.folder / "batches.json").read_text()) == {"a": "one", "b": "one", "c": "two"}


def test_a_coordinator_killed_between_two_sums_of_one_batch_asks_for_both_again(
    town: Any, recorded: Any, killed: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    agreed = town.agreed(SECURE)
    town.simulate(agreed, "simulated", noise=recorded)
    save, cut = RunFolder.save_reply, []

    def until_prototypes(self: RunFolder, name: str, sha256: str, reply: Any) -> None:
        if name == "prototypes" and not cut:
            cut.append(name)
            raise killed
        save(self, name, sha256, reply)

    monkeypatch.setattr(RunFolder, "save_reply", until_prototypes)
    with pytest.raises(killed):
        town.coordinate(agreed, town.office(agreed, noise=recorded))
    charges = [town.charges(site) for site in town.sites]
    assert all(found["counts"] == found["prototypes"] == 1 for found in charges)
    town.coordinate(agreed, town.office(agreed, noise=recorded))
    assert town.tree("run", "release") == town.tree("simulated", "release")
    assert all(set(town.charges(site).values()) == {1} for site in town.sites)


def test_a_site_refuses_a_question_of_another_run_in_this_runs_sum(town: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator sets up run-1 and slips in questions that name another run: every site refuses, uncharged."""
    honest = inquiry.Question

    def other_run(**named: Any) -> Any:
        return honest(**{**named, "run": "another"})

    monkeypatch.setattr(inquiry, "Question", other_run)
    agreed = town.agreed(SECURE)
    with pytest.raises(Exception, match=r"answered|refused|message"):
        town.coordinate(agreed, town.office(agreed))
    assert all(not town.charges(site) for site in town.sites)


def charged_after_the_states_are_gone(town: Any, noise: Any) -> set[int]:
    """Sum a run, delete every site's state as after a run, sum the same run again; return the charges per question."""
    agreed = town.agreed(SECURE)
    town.coordinate(agreed, town.office(agreed, noise=noise))
    for site in town.sites:
        shutil.rmtree(town.place / "homes" / site / "secagg")
    town.coordinate(agreed, town.office(agreed, noise=noise), out="again")
    return {count for site in town.sites for count in town.charges(site).values()}


def test_a_second_sum_of_a_run_whose_state_was_deleted_is_charged_and_drawn_anew(town: Any, recorded: Any) -> None:
    """Else the coordinator asks the same answers with other survivors, and the difference is single sites' values."""
    assert charged_after_the_states_are_gone(town, recorded) == {2}
    assert all(drawn == 2 for drawn in town.draws.values())


def test_a_station_that_ties_its_answers_to_files_alone_is_caught(
    town: Any, recorded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(station, "cohort_sha256", lambda plan, sites, *_: cohort_sha256(plan, sites))
    assert charged_after_the_states_are_gone(town, recorded) == {1}


def test_a_plan_whose_noise_a_lying_coordinator_could_thin_is_vetoed(town: Any) -> None:
    """Ten sites, three drop-outs, two colluders: lies could open a sum of four honest shares; the noise is for five."""
    town.sites = tuple(f"s{number}" for number in range(10))
    agreed = town.agreed({**SECURE, "sites.count": 10, "privacy.dropouts": 3, "privacy.colluders": 2})
    town.roster(agreed)
    home = open_home(town.home(agreed, "s0"))
    with pytest.raises(PolicyError, match="4 honest shares"):
        open_masking(home, approved_plan(home, agreed.sha256), "run-1", begin=True)
