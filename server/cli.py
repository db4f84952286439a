"""The coordinator's commands: make a deployment, run its SuperLink, submit the plan and say how it ended."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from patevolve.server import airgap_cli, handover, processes
from patevolve.server.dashboard.cli import dashboard
from patevolve.server.handover import FLOWER, RUN, SITES, Deployment, read_deployment
from patevolve.shared.cli import EPILOG, FORMAT, say
from patevolve.shared.errors import InputError, PatevolveError
from patevolve.shared.plan import read_plan
from patevolve.shared.processes import Children, ProcessError, Stopped, ending_on_signals

SETTINGS = {"help_option_names": ["-h", "--help"]}
PATH = click.Path(path_type=Path)
CODES = EPILOG.removesuffix(".") + " · 11 a process did not start or ended."
STATUS = "status.json"
LOCK = "server.lock"
UNSAFE = click.option(
    "--unsafe-without-tls",
    "unsafe",
    is_flag=True,
    help="No TLS and no node authentication: whoever reaches the port takes part and reads along. For tests alone.",
)
POLL_SECONDS = 1.0
GRACE_POLLS = 15  # a run whose app has said how it ended, and that Flower still calls running, is waited for so long


class RunFailedError(PatevolveError):
    """A run ended in Flower without saying how: its app did not start, or was killed."""

    exit_code = 12
    code = "run"


def commands() -> list[click.Command]:
    """Return the coordinator's commands for the ``patevolve`` command line."""
    for command in [*airgap_cli.commands(), dashboard]:
        server.add_command(command)
    return [server]


@click.group(context_settings=SETTINGS)
def server() -> None:
    """What a coordinator does: set up, start, run, resume, look."""


@server.command(
    context_settings=SETTINGS,
    epilog=f"Example: patevolve server init coordinator/ --plan plan.toml --host c.org --site A --site B\n\n{CODES}",
)
@click.argument("folder", type=PATH)
@click.option("--plan", type=PATH, required=True, help="The plan that all sites will agree on.")
@click.option("--host", "hosts", multiple=True, required=True, help="Name or address of the server (repeatable).")
@click.option("--site", "sites", multiple=True, required=True, help="Name of a site, once for each (repeatable).")
@click.option("--port", type=click.IntRange(1, 65535), default=443, show_default=True, help="Port that sites dial.")
@click.option("--bind", default="127.0.0.1:8443", show_default=True, help="Where the SuperLink itself listens.")
@FORMAT
def init(  # noqa: PLR0917 - click passes by name
    folder: Path, plan: Path, hosts: tuple[str, ...], sites: tuple[str, ...], port: int, bind: str, form: str
) -> None:
    """Make keys and certificates, and a folder to hand over to each site.

    The first --host and --port make the address that sites dial; all hosts stand in the server's certificate. With a
    reverse proxy before it, which is advised, the SuperLink listens on loopback alone (--bind).
    """
    host, colon, number = bind.rpartition(":")
    if not (colon and host and number.isdigit() and 0 < int(number) < 65536):
        raise InputError(f"--bind {bind!r} found; expected host:port, such as 127.0.0.1:8443.")
    agreed = read_plan(plan)
    made = handover.initialise(folder, agreed, hosts=hosts, sites=sites, bind=(host, int(number)), port=port)
    lines = [
        f"Plan {made.plan}",
        f"Bundle {made.bundle}",
        "",
        "Hand over, each by a trusted way (it holds a private key):",
    ]
    lines += [f"  {site}: {folder / SITES / name}" for site, name in zip(made.sites, made.folders, strict=True)]
    lines += ["", f"Then: patevolve server start {folder}, and in a second window: patevolve server run {folder}"]
    say(form, _described(folder, made), "\n".join(lines))


@server.command(context_settings=SETTINGS, epilog=f"Example: patevolve server start coordinator/\n\n{CODES}")
@click.argument("folder", type=PATH)
@UNSAFE
@FORMAT
def start(folder: Path, form: str, *, unsafe: bool) -> None:
    """Run the SuperLink until stopped, with TLS and node authentication, and register the sites' keys."""
    deployment, _ = read_deployment(folder)
    with _alone(folder), ending_on_signals(), Children() as children:
        processes.configure(folder, deployment, tls=not unsafe)
        child = processes.start_superlink(folder, deployment, children, tls=not unsafe)
        nodes = {} if unsafe else processes.register_sites(folder, deployment)
        if unsafe:
            click.echo("UNSAFE: no TLS, no node authentication. Whoever reaches the port takes part.", err=True)
        said = {"ready": True, "bind": deployment.bind, "tls": not unsafe, "pid": child.process.pid, "nodes": nodes}
        say(form, said, f"Listening on {deployment.bind}; {len(nodes)} sites registered. Stop with Ctrl-C.")
        try:
            while True:
                children.check()
                time.sleep(POLL_SECONDS)
        except (KeyboardInterrupt, Stopped):
            click.echo("Stopping.", err=True)


@server.command(context_settings=SETTINGS, epilog=f"Example: patevolve server run coordinator/\n\n{CODES}")
@click.argument("folder", type=PATH)
@click.option("--timeout", type=click.FloatRange(1), default=86400.0, show_default=True, help="Seconds to wait for.")
@click.option("--name", default="", help="The run's name, which its questions carry (default: random).")
@FORMAT
def run(folder: Path, timeout: float, name: str, form: str) -> None:
    """Submit the plan to the sites and wait for its end; ends with the run's exit code.

    Needs `patevolve server start`. The release and status.json are in DIR/run.
    """
    if (folder / RUN / STATUS).exists():
        raise InputError(f"{folder / RUN} holds a run already; see `server status`, or go on with `server resume`.")
    _ended(folder, _carry_out(folder, timeout, name), form)


@server.command(context_settings=SETTINGS, epilog=f"Example: patevolve server resume coordinator/\n\n{CODES}")
@click.argument("folder", type=PATH)
@click.option("--timeout", type=click.FloatRange(1), default=86400.0, show_default=True, help="Seconds to wait for.")
@FORMAT
def resume(folder: Path, timeout: float, form: str) -> None:
    """Go on with a run that was cut short, as a new Flower run; what was answered is not asked again."""
    if not (folder / RUN).exists():
        raise InputError(f"{folder / RUN} does not exist; there is no run to resume. Begin with `server run`.")
    _ended(folder, _carry_out(folder, timeout, ""), form)


@server.command(context_settings=SETTINGS, epilog=f"Example: patevolve server status coordinator/\n\n{CODES}")
@click.argument("folder", type=PATH)
@FORMAT
def status(folder: Path, form: str) -> None:
    """Say whether the SuperLink answers, which sites are connected, and how the run stands."""
    deployment, _ = read_deployment(folder)
    up = processes.reachable(deployment)
    names = {node: site for site, node in _registered(folder).items()}
    online = {names.get(str(n["node-id"]), "?"): str(n["status"]) for n in processes.nodes(folder)} if up else {}
    found = _status(folder)
    said = {"superlink": up, "address": deployment.address, "sites": online, "run": found}
    lines = [f"SuperLink on {deployment.bind}: {'up' if up else 'not reachable; patevolve server start'}"]
    lines += [f"  {site}: {state}" for site, state in online.items()]
    lines += [f"Run: {found.get('state', 'none yet')} {found.get('code', '')}".rstrip()]
    lines += [str(found["message"])] if found.get("message") else []
    say(form, said, "\n".join(lines))


def _described(folder: Path, made: Deployment) -> dict[str, Any]:
    folders = {site: str(folder / SITES / name) for site, name in zip(made.sites, made.folders, strict=True)}
    return {"plan": made.plan, "bundle": made.bundle, "address": made.address, "bind": made.bind, "sites": folders}


def _carry_out(folder: Path, timeout: float, name: str) -> dict[str, Any]:
    """Submit a Flower run and return how the app in it ended. Raises RunFailedError if it did not say."""
    deployment, agreed = read_deployment(folder)
    if not processes.reachable(deployment):
        raise ProcessError(
            f"nothing listens on {deployment.bind}; expected the SuperLink. `patevolve server start` it."
        )
    processes.clear_away(folder, _status(folder))
    (folder / RUN / STATUS).unlink(missing_ok=True)
    handover.check_roster(folder, deployment, agreed)
    number = processes.submit(folder, {"run": name})
    deadline, still = time.monotonic() + timeout, 0
    try:
        while time.monotonic() < deadline:
            found = _status(folder)
            if found.get("state") in {"finished", "failed"}:
                return {**found, "flower_run": number}
            still += 1
            if still % GRACE_POLLS == 0 and not processes.reachable(deployment):
                raise ProcessError(
                    f"the SuperLink on {deployment.bind} has ended, and the run too. `patevolve server start "
                    f"{folder}`, then `patevolve server resume {folder}`; nothing is asked twice."
                )
            # Flower is asked seldom: its command starts a process, and a run without any word is the rare case
            if still % GRACE_POLLS == 0 and processes.run_state(folder, number).startswith("finished"):
                found = _status(folder)
                if found.get("state") in {"finished", "failed"}:
                    return {**found, "flower_run": number}
                raise RunFailedError(
                    f"run {number} ended in Flower without a result; `flwr log {number}` with FLWR_HOME="
                    f"{folder / FLOWER} says more. Then: patevolve server resume {folder}"
                )
            time.sleep(POLL_SECONDS)
    except (KeyboardInterrupt, Stopped):
        processes.stop_run(folder, number)
        raise
    raise RunFailedError(
        f"run {number} did not end within {timeout:g} s; it goes on. See: patevolve server status {folder}"
    )


def _ended(folder: Path, found: dict[str, Any], form: str) -> None:
    code = int(found.get("exit_code") or 0)
    words = f"Release: {folder / RUN / 'release'}" if code == 0 else f"error: {found.get('message', '')}"
    say(form, found, words)
    click.get_current_context().exit(code)


def _status(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / RUN / STATUS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return found


def _registered(folder: Path) -> dict[str, str]:
    path = folder / FLOWER / processes.NODES
    found: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the deployment. Raises InputError if another process does."""
    handle = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as reason:
        raise InputError(f"{folder} is served by another process already; stop that one first.") from reason
    else:
        yield
    finally:
        os.close(handle)
