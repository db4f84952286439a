"""The performance page is what its JSON says, and its goals are judged as written."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def view():
    """The module that renders the page; benchmarks are scripts, found by path."""
    spec = importlib.util.spec_from_file_location("bench_view", ROOT / "benchmarks/bench_view.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    machine = {"cpu": "c", "cores": 2, "system": "Linux", "threads": 1, "load": 0.0}
    one = {"machine": machine, "versions": {}, "measurements": {"tally": {"rows": [], "failed": "no such library"}}}
    page = view.page(one)
    assert page.count("Not measured.\n") == len(view.TITLES)
    assert "tally: no such library" in page
