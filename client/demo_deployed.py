"""``patevolve demo --deployed``: the demonstration's job over a real network of processes on this machine.

One SuperLink and one SuperNode with its executor for each site, with TLS and node authentication on loopback, started
and stopped by the same commands as a deployment. Under recorded noise its release is compared with the simulated one's.
"""

from __future__ import annotations

import csv
import filecmp
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from patevolve.client import demo, policy
from patevolve.client.home import open_home
from patevolve.client.joining import free_port, take_over, take_peers
from patevolve.client.simulate import simulate
from patevolve.client.study import RESERVE, found_sites
from patevolve.shared.data.records import Records
from patevolve.shared.errors import InputError, PatevolveError, ReleaseError
from patevolve.shared.files import write_atomic
from patevolve.shared.plan import Agreed, Plan
from patevolve.shared.plan_edit import vary
from patevolve.shared.processes import Children, ProcessError, ending_on_signals, wait_for
from patevolve.shared.randomness import RECORDED_NOISE_VARIABLE, NoiseSource, RecordedNoise
from patevolve.shared.release.proof import PROOF

PROGRAM = [sys.executable, "-c", "from patevolve.shared.cli import main; main()"]
COORDINATOR, HOMES, LOGS = "coordinator", "homes", "logs"
START_SECONDS = 120.0
RUN_SECONDS = 600.0
PIECES = 4  # how often ``tick`` is called
CHILD_GRACE = 25.0  # more than the commands take to stop what they started


def demonstrate_deployed(
    name: str, *, epsilon: float, out: Path, tick: Callable[[str], None], changes: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Run the demonstration's job deployed into ``out`` and return what came out.

    changes: dotted keys of the plan to be set, as ``plan_edit.vary`` takes them
    Raises ProcessError if a process does not start, the run's own error if it ends with one, and ReleaseError if,
    under recorded noise, the release differs from the simulated one.
    """
    if name != "heart":
        raise InputError(f"{name} --deployed found; only heart has a deployed form. Leave --deployed away.")
    began, recorded = time.monotonic(), os.environ.get(RECORDED_NOISE_VARIABLE) == "1"
    agreed = demo.plan_of(name, epsilon, 1)
    agreed = vary(agreed, changes) if changes else agreed
    train = demo.data_of(name, agreed.plan, 1).train
    out = out.absolute()
    with ending_on_signals(), Children(grace=CHILD_GRACE) as children:
        homes = found_deployment(out, agreed, train, children)
        tick("keys and folders")
        start(out, homes, children, recorded=recorded)
        tick("processes started")
        ended = carry_out(out, children, name if recorded else "")
        tick("run ended")
    same = compare(agreed, train, out, name) if recorded else None
    tick("compared" if recorded else "stopped")
    report = {
        "release": str(out / COORDINATOR / "run" / "release"),
        "sites": {site: str(home) for site, home in homes.items()},
        "equals_simulated": same,
        "flower_run": ended.get("flower_run"),
        "seconds": round(time.monotonic() - began, 1),
    }
    if same is False:
        raise ReleaseError(f"the deployed release differs from the simulated one under the same noise; see {out}.")
    return report


def found_deployment(out: Path, agreed: Agreed, train: Mapping[str, Records], children: Children) -> dict[str, Path]:
    """Make the coordinator's folder, and each site's from its hand-over folder; return the sites' folders."""
    write_atomic(out / "plan.toml", agreed.text.encode())
    port = str(free_port())
    command = ["server", "init", str(out / COORDINATOR), "--plan", str(out / "plan.toml"), "--host", "127.0.0.1"]
    command += ["--port", port, "--bind", f"127.0.0.1:{port}"]
    for site in sorted(train):
        command += ["--site", site]
    made = _said(out, children, "init", command)
    homes = {}
    for site, folder in made["sites"].items():
        home = out / HOMES / Path(folder).name
        data = out / "data" / f"{home.name}.csv"
        write_rows(data, agreed.plan, train[site], site)
        take_over(Path(folder), home, data)
        write_atomic(home / policy.FILE, policy.draft(site, agreed, reserve=RESERVE).encode())
        homes[site] = home
    keys = {site: open_home(home, site=site).identity.public_key for site, home in homes.items()}
    for home in homes.values():  # each knows the others: what people compare by telephone, done in one process here
        take_peers(home, keys)
    for number, (site, key) in enumerate(keys.items(), 1):
        _said(out, children, f"pin-{number}", ["server", "pin", str(out / COORDINATOR), "--site", site, "--key", key])
    return homes


def write_rows(path: Path, plan: Plan, records: Records, site: str) -> None:
    """Write a site's rows of the public demonstration table: those whose unit is among the records."""
    units = set(records.units.tolist())
    text = (resources.files("patevolve.client") / "demo_data" / "heart.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(row for row in rows if row[plan.data.site] == site and row[plan.data.unit] in units)


def start(out: Path, homes: Mapping[str, Path], children: Children, *, recorded: bool) -> None:
    """Start the coordinator and the sites, and return when the sites' keys are registered."""
    logs = out / LOGS
    server = children.start(
        "server", [*PROGRAM, "server", "start", str(out / COORDINATOR), "--format", "json"], logs / "server.log"
    )
    wait_for(
        lambda: '"ready": true' in server.tail(100), "the coordinator's start", timeout=START_SECONDS, children=children
    )
    for home in homes.values():
        command = [*PROGRAM, "client", "start", "--home", str(home)]
        command += ["--unsafe-recorded-noise"] if recorded else []
        children.start(home.name, command, logs / f"{home.name}.log")


def carry_out(out: Path, children: Children, name: str) -> dict[str, Any]:
    """Submit the run and return how it ended. Raises the run's error."""
    command = ["server", "run", str(out / COORDINATOR), "--timeout", str(RUN_SECONDS), "--name", name]
    return _said(out, children, "run", command)


def _said(out: Path, children: Children, name: str, command: list[str]) -> dict[str, Any]:
    """Run a command to its end beside the others and return the JSON that it printed. Raises its error."""
    child = children.start(name, [*PROGRAM, *command, "--format", "json"], out / LOGS / f"{name}.log")
    while child.alive():
        for other in children.running:
            if other is not child and not other.alive():
                children.check()
        time.sleep(0.2)
    children.running.remove(child)
    text = child.log.read_text(encoding="utf-8")
    try:
        found: dict[str, Any] = json.loads(text[text.index("{") : text.rindex("}") + 1])
    except ValueError as reason:
        raise ProcessError(
            f"`patevolve {name}` said nothing to be read; its log {child.log} ends with:\n{child.tail()}"
        ) from reason
    if child.process.returncode:
        raise _ended(name, child.process.returncode, found)
    return found


def _ended(name: str, code: int, found: Mapping[str, Any]) -> PatevolveError:
    error = ProcessError(f"`patevolve server {name}` ended with exit code {code}: {found.get('message', found)}")
    error.exit_code = code
    return error


def compare(agreed: Agreed, train: Mapping[str, Records], out: Path, name: str) -> bool:
    """Return whether the simulated mode makes the same release, byte for byte, under the same recorded noise."""
    sites = found_sites(out / "simulated-sites", train, agreed)
    simulate(agreed, sites, out / "simulated", noise=recorded_noise, run=name)
    one, other = out / COORDINATOR / "run" / "release", out / "simulated" / "release"
    names = _compared(other)
    if names != _compared(one):
        return False
    _, different, odd = filecmp.cmpfiles(one, other, [str(each) for each in names], shallow=False)
    return not different and not odd


def _compared(release: Path) -> list[Path]:
    """Return a release's files but its proof, which differs from run to run: keys and ledgers do."""
    return sorted(p.relative_to(release) for p in release.rglob("*") if p.is_file() and p.name != PROOF)


def recorded_noise(site: str, question_sha256: str) -> NoiseSource:
    """Return the noise that a site's app draws when it is told to repeat itself; tests alone."""
    return RecordedNoise(f"{site}\x1f{question_sha256}")
