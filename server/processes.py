"""The coordinator's processes: the SuperLink, and Flower's commands that register sites and submit the run.

All use of Flower's command line by the coordinator stands here.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from patevolve.server import pki
from patevolve.server.handover import APP, FLOWER, NODE_PUBLIC, PKI, PLAN, RUN, SITES, Deployment
from patevolve.shared.errors import InputError
from patevolve.shared.files import write_atomic
from patevolve.shared.processes import Child, Children, ProcessError, wait_for

NODES = "nodes.json"  # site -> node id, as Flower gave them
CONNECTION = "coordinator"  # the name of the connection in Flower's own configuration
SUPERLINK = "superlink.life"  # another text for each start
SUBMITTED = "submitted.json"  # the last run, as Flower names it
START_SECONDS = 90.0
LEFTOVER_SECONDS = 10.0
COMMAND_SECONDS = 90.0


def environment(path: Path) -> dict[str, str]:
    """Return the environment of the coordinator's processes: no telemetry, no installation, state below DIR."""
    programs = Path(sys.executable).parent
    return {
        "FLWR_HOME": str(path.absolute() / FLOWER),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",
    }


def configure(path: Path, deployment: Deployment, *, tls: bool) -> None:
    """Write Flower's configuration: how its commands on this machine reach the SuperLink."""
    port = deployment.bind.rpartition(":")[2]
    lines = [f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]']
    lines += [f"address = {json.dumps(f'{_control_host(deployment)}:{port}')}"]
    certificate = path.absolute() / PKI / pki.CA_CERTIFICATE
    lines += [f"root-certificates = {json.dumps(str(certificate))}" if tls else "insecure = true"]
    write_atomic(path / FLOWER / "config.toml", ("\n".join(lines) + "\n").encode())


def _control_host(deployment: Deployment) -> str:
    host = deployment.bind.rpartition(":")[0]
    return "127.0.0.1" if host in {"0.0.0.0", "[::]", "::", ""} else host  # noqa: S104 - compared, not bound


def start_superlink(path: Path, deployment: Deployment, children: Children, *, tls: bool) -> Child:
    """Start the SuperLink and return when it accepts connections. Raises ProcessError."""
    host, _, port = deployment.bind.rpartition(":")
    if reachable(deployment):
        raise InputError(f"something listens on {deployment.bind} already; stop it, or choose another --bind.")
    keys = path.absolute() / PKI
    command = [program("flower-superlink"), "--host", host.strip("[]"), "--port", port]
    command += ["--database", str(path.absolute() / FLOWER / "state.db"), "--disable-runtime-dependency-installation"]
    if tls:
        command += ["--ssl-ca-certfile", str(keys / pki.CA_CERTIFICATE)]
        command += ["--ssl-certfile", str(keys / pki.SERVER_CERTIFICATE), "--ssl-keyfile", str(keys / pki.SERVER_KEY)]
        command += ["--enable-supernode-auth"]
    else:
        command += ["--insecure"]
    child = children.start("superlink", command, path / "logs" / "superlink.log", environment(path))
    wait_for(lambda: reachable(deployment), "the SuperLink's start", timeout=START_SECONDS, children=children)
    write_atomic(path / FLOWER / SUPERLINK, secrets.token_hex(8).encode())
    return child


def _superlink(path: Path) -> str:
    """Return the name of the SuperLink's present life; a run of an earlier one is dead."""
    kept = path / FLOWER / SUPERLINK
    return kept.read_text(encoding="utf-8") if kept.exists() else ""


def reachable(deployment: Deployment) -> bool:
    """Return whether something listens where the SuperLink should."""
    port = int(deployment.bind.rpartition(":")[2])
    try:
        with socket.create_connection((_control_host(deployment).strip("[]"), port), timeout=1.0):
            return True
    except OSError:
        return False


def register_sites(path: Path, deployment: Deployment) -> dict[str, str]:
    """Register every site's node key and return each one's node id; a site that is registered already keeps its own."""
    kept = path / FLOWER / NODES
    known: dict[str, str] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    there = {str(entry.get("node-id")) for entry in nodes(path)} if known else set()
    for site, folder in zip(deployment.sites, deployment.folders, strict=True):
        if known.get(site) in there:
            continue
        key = path.absolute() / SITES / folder / NODE_PUBLIC
        answer = flower(path, ["supernode", "register", str(key), CONNECTION, "--name", folder, "--format", "json"])
        known[site] = str(answer.get("node-id", ""))
    write_atomic(kept, json.dumps(known, ensure_ascii=False).encode())
    return known


def nodes(path: Path) -> list[dict[str, Any]]:
    """Return the registered nodes as Flower lists them."""
    answer = flower(path, ["supernode", "list", CONNECTION, "--format", "json"])
    return [dict(entry) for entry in answer.get("nodes", [])]


def submit(path: Path, settings: Mapping[str, str | float] | None = None) -> str:
    """Submit the app over the plan and run folder below DIR and return Flower's run id. Raises ProcessError."""
    given = {"plan": str(path.absolute() / PLAN), "out": str(path.absolute() / RUN), **(settings or {})}
    config = " ".join(f"{name}={json.dumps(value)}" for name, value in given.items())
    command = ["run", str(path.absolute() / APP), CONNECTION, "--run-config", config, "--format", "json"]
    number = str(flower(path, command)["run-id"])
    write_atomic(path / FLOWER / SUBMITTED, json.dumps({"run": number, "superlink": _superlink(path)}).encode())
    return number


def run_state(path: Path, run: str) -> str:
    """Return Flower's status of a run, such as ``running`` or ``finished:failed``."""
    answer = flower(path, ["list", CONNECTION, "--run-id", run, "--format", "json"])
    entries = answer.get("runs", [])
    return str(entries[0].get("status", "")) if entries else ""


def clear_away(path: Path, status: Mapping[str, Any]) -> None:
    """End the app of an earlier run that a killed SuperLink left behind: it holds the run's folder and can do no more.

    Raises InputError if that run is still going on.
    """
    kept = path / FLOWER / SUBMITTED
    if kept.exists():
        last = json.loads(kept.read_text(encoding="utf-8"))
        number, state = str(last["run"]), run_state(path, str(last["run"]))
        going_on = bool(state) and not state.startswith("finished")
        if going_on and last.get("superlink") != _superlink(
            path
        ):  # Flower marks a dead run as failed only after a while
            with contextlib.suppress(ProcessError):
                stop_run(path, number)
        elif going_on:
            raise InputError(f"run {number} is going on ({state}); wait for it, or end it with Ctrl-C in its window.")
    process = status.get("pid")
    if not isinstance(process, int) or not _is_app(process):
        return
    for number_sent in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number_sent)
        end = time.monotonic() + LEFTOVER_SECONDS
        while _is_app(process) and time.monotonic() < end:
            time.sleep(0.1)


def _is_app(process: int) -> bool:
    """Return whether this process id is one of Flower's ServerApps; ids are used again for others."""
    try:
        return b"flwr-serverapp" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False


def stop_run(path: Path, run: str) -> None:
    """Stop a run, so that its sites are free for the next."""
    flower(path, ["stop", run, CONNECTION, "--format", "json"])


def flower(path: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """Run one of Flower's commands and return its JSON. Raises ProcessError."""
    try:
        done = subprocess.run(  # noqa: S603 - a list of arguments, never a shell
            [program("flwr"), *arguments],
            env={**os.environ, **environment(path)},
            cwd=path,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_SECONDS,
        )
    except subprocess.TimeoutExpired as reason:
        raise ProcessError(
            f"`flwr {arguments[0]}` took more than {COMMAND_SECONDS:g} s; is the SuperLink up?"
        ) from reason
    start = done.stdout.find("{")
    try:
        answer: dict[str, Any] = json.loads(done.stdout[start:]) if start >= 0 else {}
    except ValueError:
        answer = {}
    if done.returncode or not answer.get("success", bool(answer)):
        said = str(answer.get("error-message") or done.stderr.strip() or done.stdout.strip())[-800:]
        raise ProcessError(f"`flwr {' '.join(arguments[:2])}` failed with exit code {done.returncode}: {said}")
    return answer


def program(name: str) -> str:
    """Return the path of a program installed beside this Python. Raises InputError."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise InputError(f"{name} is not installed; install Flower with: pip install 'patevolve[federation]'")
    return str(path)
