"""One plan, one result: in either mode, on every repetition, in any order of the file's rows."""

from __future__ import annotations

import collections
import random
from typing import Any

import pytest

from patevolve.client import cli, simulate
from patevolve.shared import cli as commands
from patevolve.shared.data import shard
from patevolve.shared.plan import read_plan
from patevolve.shared.privacy.ledger import Ledger

PUBLIC = ("release", "student", "generations")
ONE_SITE = {"sites.count": 1, "privacy.trust": "each-site"}


def _public(kit: Any, out: str) -> dict[str, dict[str, bytes]]:
    return {part: kit.tree(kit.place / out / part) for part in PUBLIC}


@pytest.fixture
def repeatable(monkeypatch: pytest.MonkeyPatch, kit: Any) -> None:
    """Let the command line run with recorded noise and a fixed run id: the run id names the questions."""

    def fixed(*arguments: Any, **named: Any) -> Any:
        return simulate.simulate(*arguments, **named, noise=kit.noise, run="run-1")

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


def test_the_same_plan_and_noise_give_the_same_bytes(kit: Any) -> None:
    agreed = kit.agreed(kit.everything)
    records = kit.records(agreed)
    for out in ("one", "again"):
        kit.run(agreed, records, out)
    assert _public(kit, "one") == _public(kit, "again")


def test_ledgers_that_rest_between_questions_give_the_same_bytes(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process whose limit of open files is less than its sites need."""
    agreed = kit.agreed(kit.everything)
    kit.run(agreed, kit.records(agreed), "one")
    rested, rest = [], Ledger.rest
    monkeypatch.setattr(simulate, "SPARE", 10**9)
    monkeypatch.setattr(Ledger, "rest", lambda ledger: (rested.append(ledger.site), rest(ledger))[1])
    kit.run(agreed, kit.records(agreed), "resting")
    assert min(collections.Counter(rested).values()) >= 5
    assert _public(kit, "one") == _public(kit, "resting")


@pytest.mark.parametrize("change", ["seed", "noise"])
def test_another_seed_or_other_noise_gives_other_bytes(change: str, kit: Any) -> None:
    """The negative control of the test above."""
    agreed = kit.agreed(kit.everything)
    kit.run(agreed, kit.records(agreed), "one")
    if change == "seed":
        changed = kit.agreed({**kit.everything, "seed": 2})
        kit.run(changed, kit.records(changed), "other")
    else:
        kit.run(agreed, kit.records(agreed), "other", noise=simulate.system_noise)
    assert _public(kit, "one")["release"]["data.csv"] != _public(kit, "other")["release"]["data.csv"]


def test_the_order_of_rows_in_the_file_changes_nothing(kit: Any) -> None:
    agreed = kit.agreed(kit.everything)
    rows = kit.rows()
    kit.run(agreed, kit.records(agreed, rows), "sorted")
    random.Random(5).shuffle(rows)  # noqa: S311 - no secret
    kit.run(agreed, kit.records(agreed, rows), "shuffled")
    assert _public(kit, "sorted") == _public(kit, "shuffled")


def test_the_order_of_a_patients_rows_changes_nothing(kit: Any) -> None:
    """Patients with several records, more than count: which ones stay is keyed by content, not by place."""
    agreed = kit.agreed({**kit.everything, "privacy.records_per_unit": 2})
    rows = [{**row, "patient": str(position // 4)} for position, row in enumerate(kit.rows())]
    kit.run(agreed, kit.records(agreed, rows), "sorted")
    random.Random(5).shuffle(rows)  # noqa: S311 - no secret
    kit.run(agreed, kit.records(agreed, rows), "shuffled")
    assert _public(kit, "sorted") == _public(kit, "shuffled")


RECORDS = {"privacy.unit": "record", "data.unit": None}


def test_the_order_of_records_without_patient_ids_changes_nothing(kit: Any) -> None:
    """Where every record is a unit, its place in the file names it neither for the shards nor for the hold-out."""
    agreed = kit.agreed({**kit.everything, **RECORDS})
    rows = [{**row, "age": "50", "cholesterol": ""} for row in kit.rows()]  # many records are equal
    kit.run(agreed, kit.records(agreed, rows), "sorted")
    random.Random(5).shuffle(rows)  # noqa: S311 - no secret
    kit.run(agreed, kit.records(agreed, rows), "shuffled")
    assert _public(kit, "sorted") == _public(kit, "shuffled")


@pytest.mark.parametrize("unit", ["patient", "record"])
@pytest.mark.parametrize("leaving", [0, 100])
def test_a_unit_that_leaves_moves_no_other(unit: str, leaving: int, kit: Any) -> None:
    agreed = kit.agreed(RECORDS if unit == "record" else {})
    rows = [{**row, "age": "50", "cholesterol": ""} for row in kit.rows()]

    def placed(rows: list[dict[str, str]]) -> collections.Counter[Any]:
        found: collections.Counter[Any] = collections.Counter()
        for site, own in kit.records(agreed, rows).items():
            parts = zip(
                own.values.tolist(),
                own.classes.tolist(),
                shard.teacher_of(b"s" * 32, own.units, 7).tolist(),
                shard.held_out(b"s" * 32, own.units, 0.3).tolist(),
                strict=True,
            )
            found.update((site, tuple(values), *rest) for values, *rest in parts)
        return found

    before, after = placed(rows), placed(rows[:leaving] + rows[leaving + 1 :])
    assert sum((before - after).values()) == 1
    assert not after - before
