"""The whole demonstration with the network, ray, Flower and torch out of reach."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from patevolve.shared.privacy.global_ledger import GlobalLedger
from patevolve.shared.privacy.ledger import verify

# Python runs a module of this name at the start of every process, so that child processes are walled in too.
WALL = """
import os, socket, sys, _socket

def refuse(*arguments, **named):
    raise OSError("the network is out of reach in this test")

class Wall(socket.socket):
    __init__ = refuse

_socket.socket = socket.socket = socket.SocketType = Wall
socket.create_connection = socket.getaddrinfo = socket.socketpair = refuse

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"ray", "flwr", "torch"}:
            with open(os.environ["WALL_LOG"], "a") as log:
                log.write(f"import {name}\\n")
            raise ImportError(f"{name} is blocked in this test")

sys.meta_path.insert(0, Blocked())
with open(os.environ["WALL_LOG"], "a") as log:
    log.write(f"process {os.getpid()}\\n")
"""


@pytest.fixture
def walled(place: Path) -> dict[str, str]:
    """The environment of a process without network and without the blocked packages."""
    (place / "wall").mkdir()
    (place / "wall" / "sitecustomize.py").write_text(WALL, encoding="utf-8")
    return {
        **os.environ,
        "PYTHONPATH": str(place / "wall"),
        "WALL_LOG": str(place / "wall.log"),
        "OMP_NUM_THREADS": "1",
        "PYTHONUTF8": "1",
    }


def _python(environment: dict[str, str], *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "attempt",
    [
        "import socket; socket.socket()",
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9')",
        "import torch",
        "import ray.data",
    ],
)
def test_the_wall_holds(attempt: str, walled: dict[str, str]) -> None:
    ended = _python(walled, "-c", attempt)
    assert ended.returncode == 1
    assert "in this test" in ended.stderr


def test_the_demonstration_needs_no_network(place: Path, walled: dict[str, str]) -> None:
    out = place / "demo"
    script = Path(__file__).with_name("small_demo.py")
    options = ("--seeds", 2, "--epsilon", 2, "--selections", "--out", out, "--format", "json")
    ended = _python(walled, script, "demo", "heart", *options)
    assert ended.returncode == 0, ended.stderr
    log = (place / "wall.log").read_text("utf-8").splitlines()
    assert len({line for line in log if line.startswith("process")}) >= 2, "no helper process was walled in"
    assert not [line for line in log if line.startswith("import")], "a blocked package was asked for"
    report = json.loads(ended.stdout)
    assert report == json.loads((out / "report.json").read_text("utf-8"))
    _check_report(report)
    _check_folder(out, report)


def _check_report(report: dict[str, Any]) -> None:
    assert report["seeds"] == [1, 2]
    assert report["epsilon"] <= 2.0
    assert report["mode"] == "simulated"
    assert report["synthetic"]["rows"] == 300
    assert [site["site"] for site in report["sites"]] == ["Cleveland", "Hungary", "Switzerland", "VA Long Beach"]
    rows = report["utility"]
    assert len(rows) == 14
    assert sum(row["trained_on"].startswith("selection 'pcevolve") for row in rows) == 4
    assert {row["model"] for row in rows} == {"logistic", "boosted"}
    for row in rows:
        assert row["metric"] == "AUROC"
        assert row["chance"] == 0.5
        assert len(row["values"]) == 2
        assert row["mean"] == pytest.approx(sum(row["values"]) / 2)
        assert row["sd"] == pytest.approx(abs(row["values"][0] - row["values"][1]) / 2**0.5)
        assert 0.0 <= row["mean"] <= 1.0
    real = [row["mean"] for row in rows if row["trained_on"].startswith("the real rows")]
    assert min(real) > 0.8


def _check_folder(out: Path, report: dict[str, Any]) -> None:
    for name in ("plan.toml", "global.sqlite", "report.html", "release/manifest.json", "student/student.npz"):
        assert (out / name).is_file(), name
    assert sorted(path.name for path in (out / "generations").iterdir()) == ["001.pv", "002.pv"]
    ledgers = sorted((out / "sites").glob("*/ledger.sqlite"))
    assert len(ledgers) == len(report["sites"])
    with GlobalLedger.open(out / "global.sqlite") as joined:
        for row, ledger in zip(report["sites"], ledgers, strict=True):
            heads = joined.trusted_heads(row["site"])
            assert len(heads) == 2
            verify(ledger, trusted_heads=heads)
