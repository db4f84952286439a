"""What a coordinator can make a site keep: one state a run, that does not grow, and few runs at once."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from click.testing import CliRunner

from patevolve.client import masking
from patevolve.client.cli import commands
from patevolve.client.home import open_home
from patevolve.client.masking import MOST_RUNS, RUNS, STATE, open_runs
from patevolve.shared.cli import Application
from patevolve.shared.envelopes import Request, decode_response, encode_request
from patevolve.shared.errors import InputError, MessageError, ReleaseError
from patevolve.shared.secagg.site import InMemory

SECURE = {"privacy.trust": "secure-sum"}


def state_bytes(town: Any, times: int) -> int:
    """Run a plan that asks ``times`` times and return the size of a site's state after it."""
    agreed = town.agreed({**SECURE, "questions.neighbours.times": times, "evolution.generations": times})
    with contextlib.suppress(ReleaseError):  # with so few samples the gate may well not pass
        town.coordinate(agreed, town.office(agreed))
    (state,) = (town.place / "homes" / "Ada" / RUNS).glob(f"*/{STATE}")
    return state.stat().st_size


@pytest.fixture
def vast(town):
    """Answers so long that a state which held them would show it."""
    for key in ("candidates", "population"):
        town.text = town.text.replace(f"{key} = 20\n", f"{key} = 2000\n")
    return town


def test_a_state_does_not_grow_with_the_sums_that_are_over(vast):
    state = state_bytes(vast, 3)
    assert state < 4000
    replies = [path.stat().st_size for path in (vast.place / "homes" / "Ada").glob(f"{RUNS}/*/replies/*")]
    assert len([size for size in replies if size > 8000]) == 3  # kept, each for itself


def test_a_state_that_holds_its_replies_is_seen_to_grow(vast, monkeypatch):
    """The planted twin of the test above."""
    kept: dict[str, Any] = {}
    monkeypatch.setattr(masking, "ReplyFiles", lambda folder: kept.setdefault(str(folder), InMemory()))
    assert state_bytes(vast, 3) > 20_000


@pytest.fixture
def ada(town):
    agreed = town.agreed(SECURE)
    town.roster(agreed)
    station = town.station(agreed, "Ada")

    def set_up(run: str, action: Any = "setup") -> str:
        data = encode_request(Request(action=action, plan=agreed.sha256, run=run, sites=town.sites))
        return decode_response(station.handle(action, data), action).codes[0]

    return town.place / "homes" / "Ada", set_up


def test_names_of_runs_fill_a_site_no_further_than_a_few_states(ada):
    home, set_up = ada
    codes = [set_up(f"run-{number}") for number in range(MOST_RUNS + 3)]
    assert codes == [""] * MOST_RUNS + ["policy"] * 3
    assert len(open_runs(home)) == MOST_RUNS
    assert set_up("run-0") == ""  # what is open goes on
    assert masking.forget(open_home(home), "run-5") == 1
    assert "run-5" not in open_runs(home).values()
    assert set_up("another") == ""
    assert set_up("one-more") == "policy"


def test_a_run_that_the_budget_does_not_cover_leaves_nothing_behind(ada):
    home, set_up = ada
    policy = home / "policy.toml"
    policy.write_text(policy.read_text(encoding="utf-8").replace("epsilon = 12.0", "epsilon = 0.1"), encoding="utf-8")
    assert set_up("run-1") == "budget"
    assert not (home / RUNS).exists()


@pytest.mark.parametrize("run", ["", "x" * 129, "../../etc", " ab", "ä", "a\nb"])
@pytest.mark.parametrize("action", ["hello", "setup"])
def test_a_run_whose_name_no_ledger_could_hold_is_refused(run, action, ada):
    home, set_up = ada
    assert set_up(run, action) == "message"
    assert not open_runs(home)


def test_questions_can_be_tied_to_sums_no_further_than_a_bound(ada, town, monkeypatch):
    home, set_up = ada
    set_up("run-1")
    monkeypatch.setattr(masking, "MOST_TIED", 3)
    agreed, opened = town.agreed(SECURE), open_home(home)
    one = masking.open_masking(opened, agreed, "run-1")
    one.bind(["a", "b"], "first")
    one.bind(["c"], "second")
    one.bind(["a", "b"], "first")
    with pytest.raises(MessageError, match="more than 3"):
        one.bind(["d"], "third")


def test_forget_is_a_command_and_names_what_is_open(ada):
    home, set_up = ada
    set_up("run-1")
    with pytest.raises(InputError, match=r"expected one of \['run-1'\]"):
        masking.forget(open_home(home), "run-2")
    client = Application(commands=commands())
    done = CliRunner().invoke(client, ["client", "forget", "run-1", "--home", str(home), "--format", "json"])
    assert done.exit_code == 0
    assert json.loads(done.output) == {"forgotten": "run-1"}
    assert not open_runs(home)
