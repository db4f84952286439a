"""A SuperLink, two sites and a run as processes of this machine: TLS, node keys, own executors, one small plan."""

from __future__ import annotations

import csv
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patevolve.client.demo_deployed import CHILD_GRACE, COORDINATOR, PROGRAM, carry_out, start
from patevolve.client.joining import free_port
from patevolve.shared.privacy.ledger import Ledger
from patevolve.shared.processes import Children, own_children

pytest.importorskip("flwr")
SITES = ("north", "south")
PLAN = """
format = 1
name = "two sites"
seed = 1
[privacy]
epsilon = 4.0
delta = 1e-5
[sites]
count = 2
expected_units = 60
[data]
kind = "table"
classes = ["no", "yes"]
label = "y"
unit = "patient"
[[data.columns]]
name = "age"
kind = "numeric"
edges = [0, 10, 20, 30]
[generator]
kind = "tabular"
[questions.counts]
share = 0.5
[questions.neighbours]
share = 0.5
candidates = 20
nearest = 2
[evolution]
population = 20
generations = 1
[release]
samples = 20
"""


def said(*words: object) -> dict[str, Any]:
    command = [*PROGRAM, *map(str, words), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def site_of(folder: Path, place: Path, name: str) -> Path:
    """Do at a site what its people do: join, approve."""
    home, data, rng = place / name, place / f"{name}.csv", np.random.default_rng(len(name) + ord(name[0]))
    with data.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["y", "patient", "age"])
        rows.writerows([("no", "yes")[number % 2], f"p{number}", int(rng.integers(30))] for number in range(60))
    said("client", "join", folder, "--home", home, "--data", data)
    said("client", "approve", home / "plan.toml", "--home", home, "--site", name, "--reserve", 2, "--yes")
    return home


def test_a_small_plan_runs_over_real_processes_and_leaves_none_behind(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN, encoding="utf-8")
    before, port = own_children(), free_port()
    network = ["--host", "127.0.0.1", "--port", port, "--bind", f"127.0.0.1:{port}"]
    named = [word for site in SITES for word in ("--site", site)]
    made = said("server", "init", tmp_path / COORDINATOR, "--plan", tmp_path / "plan.toml", *network, *named)
    homes = {site: site_of(Path(folder), tmp_path, site) for site, folder in made["sites"].items()}
    with Children(grace=CHILD_GRACE) as children:
        start(tmp_path, homes, children, recorded=False)
        ended = carry_out(tmp_path, children, "")
    assert own_children() == before
    assert ended["exit_code"] == 0
    release = tmp_path / COORDINATOR / "run" / "release"
    assert len((release / "data.csv").read_text(encoding="utf-8").splitlines()) == 21
    for home in homes.values():
        with Ledger.open(home / "ledger.sqlite") as ledger:
            assert [charge.question for charge in ledger.charges()] == ["counts", "neighbours/1"]
        assert "answered query.ask" in (home / "logs" / "executor.log").read_text(encoding="utf-8")
