"""Taking a hand-over folder into the site's own folder, and the processes that serve it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cryptography import x509

from patevolve.client.approved import install_plan
from patevolve.client.executor import check_flower
from patevolve.client.home import SiteHome
from patevolve.client.joined import FILE, Joined, joined_text, read_joined
from patevolve.client.masking import ROSTER
from patevolve.shared.errors import InputError, LedgerError
from patevolve.shared.files import write_atomic
from patevolve.shared.plan import Agreed, read_plan
from patevolve.shared.processes import Child, Children

PLAN, AUTHORITY, NODE_KEY = "plan.toml", "ca.crt", "node.key"
LOCK, SECRET, LOGS, FLOWER = "client.lock", "executor.secret", "logs", "flower"
RESTART_SECONDS = 15.0  # Flower refuses a node's return until it has marked the old one offline: 43 to 60 s
RESTART_EXECUTOR_SECONDS = 1.0
LOOK_SECONDS = 1.0  # far more than anybody holds the lock to look whether it is free
SECRET_BYTES = 32


def take_over(folder: Path, home: Path, data: Path) -> tuple[Joined, Agreed]:
    """Install a hand-over folder into the site's folder. Raises InputError, before anything is written.

    The policy is untouched: nothing is answered until the site approves the plan.
    """
    joined = read_joined(folder)
    agreed = read_plan(folder / PLAN)
    if agreed.sha256 != joined.plan:
        raise InputError(
            f"{folder / PLAN} is plan {agreed.sha256[:12]}…; {FILE} names {joined.plan[:12]}…. Ask for the folder anew."
        )
    certificate = _read(folder / AUTHORITY)
    try:
        x509.load_pem_x509_certificate(certificate)
    except ValueError as reason:
        raise InputError(f"{folder / AUTHORITY} is no PEM certificate. Ask for the folder anew.") from reason
    key = _read(folder / NODE_KEY)
    if not data.exists():
        raise InputError(f"{data} does not exist; expected the site's data file. Check --data.")
    if (home / FILE).exists() and read_joined(home).site != joined.site:
        raise InputError(
            f"{home} belongs to site {read_joined(home).site!r}; this folder is for {joined.site!r}. Name another."
        )
    kept = replace(joined, data=str(data.absolute()))
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    write_atomic(home / NODE_KEY, key, mode=0o600)
    write_atomic(home / AUTHORITY, certificate)
    write_atomic(home / PLAN, agreed.text.encode())
    install_plan(home, agreed)
    write_atomic(home / FILE, joined_text(kept).encode())
    return kept, agreed


def read_peers(path: Path, home: SiteHome, plans: Sequence[Agreed]) -> dict[str, str]:
    """Return the sites and their public keys of a roster. Raises InputError unless this site is rightly among them.

    plans:  those that the site has approved; the roster has to be one of theirs
    """
    try:
        sites = {str(k): str(v) for k, v in json.loads(_read(path))["sites"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as reason:
        raise InputError(f"{path} is no roster ({reason}); expected the roster.json of the coordinator.") from reason
    counts = sorted({agreed.plan.sites.count for agreed in plans})
    if len(sites) not in counts:
        raise InputError(
            f"{path} lists {len(sites)} sites; the approved plans are for {' or '.join(map(str, counts)) or 'none'}. "
            f"Approve the plan first, or ask for its own roster."
        )
    if sites.get(home.policy.site) != home.identity.public_key:
        raise InputError(
            f"{path} lacks the key of {home.policy.site!r}; expected {home.identity.public_key}. Tell the coordinator."
        )
    return sites


def take_peers(home: Path, sites: Mapping[str, str]) -> None:
    """Keep the roster that the site has compared: from now on it sums with these peers alone."""
    write_atomic(home / ROSTER, (json.dumps({"sites": dict(sites)}, indent=1, ensure_ascii=False) + "\n").encode())


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as reason:
        raise InputError(f"{path} cannot be read ({reason.strerror}); expected a folder of `server init`.") from reason


def node_command(home: Path, joined: Joined, *, port: int, tls: bool) -> list[str]:
    """Return the SuperNode's command line: one outbound address, and a Runtime API on loopback alone."""
    command = [sys.executable, "-m", "patevolve.client.executor", "--parent", str(os.getpid()), "node", "--"]
    command += ["--superlink", joined.address, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--isolation", "process", "--superexec-auth-secret-file", str(home / SECRET)]
    if not tls:
        return [*command, "--insecure"]
    return [
        *command,
        "--root-certificates",
        str(home / AUTHORITY),
        "--auth-supernode-private-key",
        str(home / NODE_KEY),
    ]


def executor_command(home: Path, *, port: int, recorded: bool = False) -> list[str]:
    """Return the executor's command line."""
    command = [sys.executable, "-m", "patevolve.client.executor", "--parent", str(os.getpid()), "tasks"]
    command += ["--home", str(home), "--runtime", f"127.0.0.1:{port}", "--secret", str(home / SECRET)]
    return [*command, "--unsafe-recorded-noise"] if recorded else command


def environment(home: Path) -> dict[str, str]:
    """Return the environment of the site's processes: no telemetry, no installation, Flower's state below HOME."""
    return {
        "FLWR_HOME": str(home / FLOWER),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def serve(home: Path, joined: Joined, children: Children, *, port: int, tls: bool, recorded: bool = False) -> None:
    """Run SuperNode and executor until interrupted; each is started again when it ends."""
    check_flower()
    write_atomic(home / SECRET, os.urandom(SECRET_BYTES), mode=0o600)
    commands = {
        "node": (node_command(home, joined, port=port, tls=tls), RESTART_SECONDS),
        "executor": (executor_command(home, port=port, recorded=recorded), RESTART_EXECUTOR_SECONDS),
    }
    running: dict[str, Child] = {}
    due = dict.fromkeys(commands, 0.0)
    while True:
        for name, (command, pause) in commands.items():
            child = running.get(name)
            if child is not None and not child.alive():
                children.running.remove(running.pop(name))
                due[name] = time.monotonic() + pause
            if name not in running and time.monotonic() >= due[name]:
                running[name] = children.start(name, command, home / LOGS / f"{name}.log", environment(home))
        time.sleep(1.0)


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens on now."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return int(chosen.getsockname()[1])


@contextlib.contextmanager
def alone(home: Path) -> Iterator[None]:
    """Hold the site's folder for serving. Raises LedgerError if another process serves it."""
    handle = os.open(home / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        if not _locked(handle, fcntl.LOCK_EX):
            raise LedgerError(f"{home} is served by another process already; expected one. Stop that one first.")
        yield
    finally:
        os.close(handle)


def _locked(handle: int, kind: int) -> bool:
    """Take a lock, and say whether it was free but for the moment in which somebody else looks whether it is."""
    end = time.monotonic() + LOOK_SECONDS
    while True:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > end:
                return False
            time.sleep(LOOK_SECONDS / 20)
        else:
            return True


def is_served(home: Path) -> bool:
    """Return whether a process serves this folder now. Several may look at once; one that starts meanwhile waits."""
    path = home / LOCK
    if not path.exists():
        return False
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        return False
    finally:
        os.close(handle)
