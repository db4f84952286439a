"""The guard on instruction counts: today's code keeps it, a slow twin of each piece does not."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def guard():
    """The script, found by path."""
    spec = importlib.util.spec_from_file_location("instructions", FOLDER / "instructions.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pieces_keep_the_baseline_and_slow_twins_exceed_it(guard):
    if reason := guard.obstacle():
        pytest.skip(reason)
    baseline = json.loads(guard.BASELINE.read_text(encoding="utf-8"))
    counts, twins = guard.count()
    assert guard.grown(counts, baseline) == []
    assert [line.split(":")[0] for line in guard.grown(twins, baseline)] == list(guard.NAMES)
    assert all(1.9 < twins[name] / counts[name] < 2.1 for name in guard.NAMES)  # nothing else has a part in a count


def test_growth_beyond_the_tolerance_is_named(guard):
    baseline = {"tolerance": 0.05, "counts": {"tally": 1000, "sampler": 1000}}
    assert guard.grown({"tally": 1050, "sampler": 500}, baseline) == []
    (line,) = guard.grown({"tally": 1051, "sampler": 1050}, baseline)
    assert line.startswith("tally: 1,051 instructions found, 1,000 expected (1.051 ×, at most 1.05 ×)")


def test_another_version_is_an_obstacle_and_no_failure(guard, monkeypatch):
    expected = json.loads(guard.BASELINE.read_text(encoding="utf-8"))["settings"]
    monkeypatch.setattr(guard.shutil, "which", lambda _: sys.executable)
    monkeypatch.setattr(guard.platform, "machine", lambda: "another")
    monkeypatch.setattr(guard, "settings", lambda: expected | {"numpy": "0.1"})
    assert guard.obstacle() == f"numpy 0.1 found, the baseline is of {expected['numpy']}"
    monkeypatch.setattr(guard.shutil, "which", lambda _: None)
    assert guard.obstacle().startswith("valgrind is not installed")
