"""One plan, one result: in either mode, on every repetition, in any order of the file's rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from patevolve.client import cli, simulate
from patevolve.shared import cli as commands
from patevolve.shared.plan import read_plan

PUBLIC = ("release", "student", "generations")
ONE_SITE = {"sites.count": 1, "privacy.trust": "each-site"}


def _public(kit: Any, out: str) -> dict[str, dict[str, bytes]]:
    return {part: kit.tree(kit.place / out / part) for part in PUBLIC}


@pytest.fixture
def repeatable(monkeypatch: pytest.MonkeyPatch, recorded: Callable[..., Any]) -> None:
    """Let the command line run with recorded noise and a fixed run id: the run id names the questions."""

    def fixed(*arguments: Any, **named: Any) -> Any:
        return simulate.simulate(*arguments, **named, noise=recorded, run="run-1")

    monkeypatch.setattr(cli, "simulate", fixed)


def _invoke(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr("sys.argv", ["patevolve", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        commands.main()
    assert ended.value.code == 0


@pytest.mark.usefixtures("repeatable", "plain_page")
def test_local_and_simulate_with_one_site_give_the_same_bytes(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = kit.plan({**kit.everything, **ONE_SITE})
    agreed = read_plan(plan)
    data = kit.data([row for row in kit.rows() if row["hospital"] == "Hungary"])
    kit.homes(agreed, name="alone", secret=b"s" * 32)
    kit.homes(agreed, name="together", secret=b"s" * 32)
    place = kit.place
    _invoke(monkeypatch, "local", plan, "--data", data, "--home", place / "alone/hungary", "--out", place / "local")
    _invoke(monkeypatch, "simulate", plan, "--data", data, "--homes", place / "together", "--out", place / "simulated")
    assert len(_public(kit, "local")["release"]) >= 5
    assert _public(kit, "local") == _public(kit, "simulated")
    assert kit.asked(place / "alone/hungary") == kit.asked(place / "together/hungary")
    assert sum(kit.asked(place / "alone/hungary").values()) == 6


def test_the_same_plan_and_noise_give_the_same_bytes(kit: Any, recorded: Callable[..., Any]) -> None:
    agreed = kit.agreed(kit.everything)
    records = kit.records(agreed)
    for out in ("one", "again"):
        kit.run(agreed, records, out, noise=recorded)
    assert _public(kit, "one") == _public(kit, "again")


@pytest.mark.parametrize("change", ["seed", "noise"])
def test_another_seed_or_other_noise_gives_other_bytes(change: str, kit: Any, recorded: Callable[..., Any]) -> None:
    """The negative control of the test above."""
    agreed = kit.agreed(kit.everything)
    kit.run(agreed, kit.records(agreed), "one", noise=recorded)
    if change == "seed":
        changed = kit.agreed({**kit.everything, "seed": 2})
        kit.run(changed, kit.records(changed), "other", noise=recorded)
    else:
        kit.run(agreed, kit.records(agreed), "other")
    assert _public(kit, "one")["release"]["data.csv"] != _public(kit, "other")["release"]["data.csv"]


def test_the_order_of_rows_in_the_file_changes_nothing(kit: Any, recorded: Callable[..., Any]) -> None:
    agreed = kit.agreed(kit.everything)
    rows = kit.rows()
    kit.run(agreed, kit.records(agreed, rows), "sorted", noise=recorded)
    random.Random(5).shuffle(rows)  # noqa: S311 - no secret
    kit.run(agreed, kit.records(agreed, rows), "shuffled", noise=recorded)
    assert _public(kit, "sorted") == _public(kit, "shuffled")


def test_the_order_of_a_patients_rows_changes_nothing(kit: Any, recorded: Callable[..., Any]) -> None:
    """Patients with several records, more than count: which ones stay is keyed by content, not by place."""
    agreed = kit.agreed({**kit.everything, "privacy.records_per_unit": 2})
    rows = [{**row, "patient": str(position // 4)} for position, row in enumerate(kit.rows())]
    kit.run(agreed, kit.records(agreed, rows), "sorted", noise=recorded)
    random.Random(5).shuffle(rows)  # noqa: S311 - no secret
    kit.run(agreed, kit.records(agreed, rows), "shuffled", noise=recorded)
    assert _public(kit, "sorted") == _public(kit, "shuffled")
