"""The command reads a run and its records, shows everything with its badge, writes nothing, and fails on an alarm."""

from __future__ import annotations

import csv
import json
import math
import re
import stat
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from patevolve.client.audit_cli import audit_command
from patevolve.client.audit_page import rendered
from patevolve.client.demo import FOLDER, data_of
from patevolve.shared.errors import DataError

QUICK = ("--trials", "0", "--shadows", "0", "--canaries", "0")


@pytest.fixture
def command() -> Callable[..., Result]:
    return lambda *words: CliRunner().invoke(audit_command, [str(word) for word in words])


@pytest.fixture
def finished(bench: Any) -> Path:
    """A finished run over the demonstration's members."""
    agreed = bench.agreed()
    return bench.run(agreed, data_of("heart", agreed.plan, agreed.plan.seed).train, None).path


def files(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_an_honest_run_ends_well_and_nothing_is_written(command: Any, finished: Path) -> None:
    before = files(finished)
    ended = command(finished, "--demo", "heart", *QUICK)
    assert "not releasable" in ended.output
    assert "640 members against 140 others" in ended.output  # the other half of 280 is the attacker's reference
    for site in ("Cleveland", "Hungary", "Switzerland", "VA Long Beach"):
        assert f"  {site}" in ended.output
    assert files(finished) == before
    assert (ended.exception is None) == ("ALARM" not in ended.output)


def test_json_holds_the_same_and_every_number_is_finite(command: Any, finished: Path) -> None:
    more = ("--shadows", "2", "--canaries", "10", "--format", "json")
    ended = command(finished, "--demo", "heart", "--trials", "0", *more)
    found = json.loads(ended.output, parse_constant=lambda name: pytest.fail(f"{name} in the JSON"))
    assert {row["site"] for row in found["answers"]} == {"Cleveland", "Hungary", "Switzerland", "VA Long Beach"}
    assert [one["name"] for one in found["membership"]] == [
        "nearest released sample", "density ratio", "mean shift", "student's confidence", "against 2 shadow students",
    ]  # fmt: skip
    assert [one["column"] for one in found["attributes"]][:2] == ["age", "sex"]
    assert [one["name"].split(":")[0] for one in found["inversion"]] == ["the encoder", "the votes"]
    assert found["one_run"]["guesses"] == 5
    assert found["canary"] is None
    assert found["charged"] is False


def test_one_site_audits_its_own_answers(command: Any, finished: Path, bench: Any) -> None:
    agreed = bench.agreed()
    units = set(data_of("heart", agreed.plan, agreed.plan.seed).train["Hungary"].units.tolist())
    own = bench.place / "own.csv"
    with resources.as_file(FOLDER / "heart.csv") as path, path.open(newline="", encoding="utf-8") as lines:
        rows = csv.DictReader(lines)
        with own.open("w", newline="", encoding="utf-8") as out:
            writer = csv.DictWriter(out, rows.fieldnames or [])
            writer.writeheader()
            writer.writerows(row for row in rows if row["patient"] in units)
    found = json.loads(command(finished, "--data", own, *QUICK, "--format", "json").output)
    assert [row["site"] for row in found["answers"]] == ["Hungary"]
    assert found["answers"][0]["values"] > 90
    assert 0.3 < found["answers"][0]["ratio"] < 2.5  # 108 values: outside with probability below 1e-8
    assert found["membership"] == []  # nobody was held out


def test_other_records_than_the_run_s_are_noticed(command: Any, finished: Path, bench: Any) -> None:
    """The exact sums of other records are no sums of this run: the noise seems too large."""
    with resources.as_file(FOLDER / "heart.csv") as path:
        ended = command(finished, "--data", path, *QUICK)
    assert isinstance(ended.exception, DataError)
    assert "ALARM" in ended.output


def test_a_page_is_kept_for_the_site_alone_if_it_is_asked_for(command: Any, finished: Path) -> None:
    page = finished.parent / "audit.html"
    ended = command(finished, "--demo", "heart", *QUICK, "--page", page)
    text = page.read_text(encoding="utf-8")
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert "Not releasable." in text
    assert "it must not travel" in text
    for words in ("mean shift", "thallium", "the votes: all records known but one", "VA Long Beach"):
        assert words in text
    assert ("No alarm." in text) == ("ALARM" not in ended.output)
    assert not re.search(r"<script|https?://|<link|<img", text)
    assert not re.search(r"anonym|\bsafe\b|complian|guaranteed private", text, re.IGNORECASE)


def test_the_page_shows_every_name_as_text_and_no_number_that_is_none(command: Any, finished: Path) -> None:
    more = ("--shadows", "2", "--canaries", "10", "--format", "json")
    found = json.loads(command(finished, "--demo", "heart", "--trials", "8", *more).output)
    attack = "<script>alert(1)</script>"
    found["answers"][0] |= {"site": attack, "ratio": math.nan, "p": None}
    found["attributes"][0]["column"] = "W" * 200
    found["alarms"] = [attack]
    text = rendered(attack, found)
    assert "<script" not in text
    assert text.count("&lt;script&gt;") >= 4
    assert "not measured" in text
    assert not re.search(r"\bnan\b", text)


@pytest.mark.parametrize("words", [(), ("--demo", "heart", "--data", "x.csv")])
def test_records_are_named_once(command: Any, finished: Path, words: tuple[str, ...]) -> None:
    ended = command(finished, *words)
    assert isinstance(ended.exception, DataError)
    assert "--data" in str(ended.exception)


def test_a_site_without_its_folder_is_named(command: Any, finished: Path, bench: Any) -> None:
    empty = bench.place / "nothing"
    empty.mkdir()
    ended = command(finished, "--demo", "heart", "--homes", empty, *QUICK)
    assert isinstance(ended.exception, DataError)
    assert "Cleveland" in str(ended.exception)
