"""The performance page is what its JSON says, and its goals are judged as written."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def script(name):
    """Return a script of benchmarks/, which finds its neighbours as it does when it is run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        return importlib.import_module(name)


@pytest.fixture(scope="module")
def view():
    return script("bench_view")


@pytest.fixture(scope="module")
def bench():
    return script("bench")


@pytest.fixture(scope="module")
def result():
    return json.loads((ROOT / "benchmarks/performance.json").read_text(encoding="utf-8"))


def test_the_page_is_rendered_from_the_json(view, result):
    assert view.page(result) == (ROOT / "docs/performance.md").read_text(encoding="utf-8")


def test_every_row_has_five_repeats_and_its_place(view, result):
    rows = [row for one in result["measurements"].values() for row in one["rows"]]
    assert {row["row"] for row in rows} == set(view.TITLES)
    assert all(len(row["values"]) >= 5 or row.get("few") for row in rows)
    assert sum("few" in row for row in rows) <= 15


def test_runs_agree_where_each_middle_lies_within_every_other_range(view):
    def run(**rows):
        return {"load": [0.1, 1.25], "rows": rows}

    near, apart = [0.9, 1.0, 1.1], [1.04, 1.3, 1.5]
    page = view.runs([run(a=near, b=near), run(a=[0.95, 1.05, 1.2], b=apart), run(a=near, b=near)])
    assert "1 of 2 rows" in page
    assert "| a | 1.00 (0.900 to 1.10) | 1.05 (0.950 to 1.20) | 1.00 (0.900 to 1.10) | agree |" in page
    assert page.count("| differ |") == 1
    assert view.within(1234.4, [1233.9, 1234.0, 1234.0])  # as the page shows them
    assert not view.within(1235.4, [1233.9, 1234.0, 1234.0])


def test_each_measurement_is_made_once_a_round_and_its_repeats_are_pooled(bench, view, monkeypatch):
    calls = []

    def measure(name, given):
        calls.append((name, given["PATEVOLVE_BENCH_ROUND"], given["PATEVOLVE_BENCH_DPSDA"]))
        if name == "noise":
            return {"rows": [], "failed": "no such library"}
        number = float(len(calls))
        note = {"note": "it takes {each:.0f} ms", "figures": {"each": [10 * number]}}
        rows = [{"row": 1, "what": "a", "values": [number, number + 0.5], "unit": "s", **note}]
        return {"rows": rows, "seconds": number, "load": number / 10}

    monkeypatch.setattr(bench, "measure", measure)
    found = bench.in_rounds(("tally", "noise", "wire"), {"PATEVOLVE_BENCH_DPSDA": "peer"}, 3)
    turns = [("tally", "0/3"), ("noise", "0/3"), ("wire", "0/1"), ("tally", "1/3"), ("tally", "2/3")]
    assert calls == [(*turn, "peer") for turn in turns]
    (row,) = found["tally"]["rows"]
    assert row["values"] == [1.0, 1.5, 4.0, 4.5, 5.0, 5.5]  # round by round
    assert (found["tally"]["seconds"], found["tally"]["load"]) == ([1.0, 4.0, 5.0], [0.1, 0.4, 0.5])
    assert view.note(row) == "it takes 40 ms"
    assert found["noise"] == {"rows": [], "failed": "no such library"}
    assert found["wire"]["rows"][0]["values"] == [3.0, 3.5]
    assert bench.spreads({"measurements": found})["rows"] == {"a": [3.0, 3.25, 3.5]}


def test_rounds_share_the_repeats_without_making_one_twice(monkeypatch):
    rows = script("bench_rows")
    assert rows.repeats(5) == range(5)
    monkeypatch.setenv(rows.ROUND, "0/3")
    shares = []
    for number in range(3):
        monkeypatch.setenv(rows.ROUND, f"{number}/3")
        shares += rows.repeats(5)
    assert shares == list(range(6))  # five or a few more


@pytest.mark.parametrize(
    ("goal", "values", "words"),
    [
        ({"most": 1.6}, [1.0, 1.2, 1.6], "reached"),
        ({"most": 1.6}, [1.0, 1.5, 1.7], "in part"),
        ({"most": 1.6}, [1.0, 1.7, 1.8], "missed"),
        ({"least": 30.0}, [31.0, 40.0, 50.0], "reached"),
        ({"least": 30.0}, [29.0, 40.0, 50.0], "in part"),
        ({"least": 30.0}, [10.0, 20.0, 50.0], "missed"),
        ({}, [1.0, 2.0, 3.0], ""),
    ],
)
def test_a_goal_is_judged_by_the_middle_and_the_worst(view, goal, values, words):
    row = {"row": 1, "what": "a / b", "values": values, "unit": "×", "next": "another way", **goal}
    assert view.verdict(row) == words
    assert ("Next idea: another way." in view.section(1, "T", [row])) == (words in ("missed", "in part"))


def test_what_is_missing_is_said(view):
    machine = {"cpu": "c", "cores": 2, "system": "Linux", "threads": 1, "load": 0.0, "rounds": 5}
    one = {"machine": machine, "versions": {}, "measurements": {"tally": {"rows": [], "failed": "no such library"}}}
    page = view.page(one)
    assert page.count("Not measured.\n") == len(view.TITLES)
    assert "tally: no such library" in page
