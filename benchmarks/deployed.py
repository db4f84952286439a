"""Deployment on loopback with TLS and node authentication, measured with Flower's real processes.

Two parts:

waves    seconds per message wave over two sites, for Flower's stock executor and for ours, same trivial app, same run;
         and what each does with a bundle that holds a changed module: the stock one runs it, ours refuses by a code
job      `patevolve demo heart --deployed` under recorded noise: seconds in all, equality with the simulated mode, and
         the processes that are left

Usage: python benchmarks/deployed.py [waves|job] [--waves N]     (several minutes; needs the extras federation and demo)
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from patevolve.client.joining import free_port
from patevolve.server import pki, processes
from patevolve.server.handover import Deployment
from patevolve.shared.processes import Children, ending_on_signals, own_children, wait_for
from patevolve.shared.randomness import RECORDED_NOISE_VARIABLE

PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "waves"
version = "1.0.0"
license = {file = "LICENSE"}
dependencies = ["flwr>=1.42,<1.43"]
[tool.flwr.app]
publisher = "patevolve"
[tool.flwr.app.components]
serverapp = "waves.server:app"
clientapp = "waves.client:app"
[tool.flwr.app.config]
out = ""
count = 6
"""
SERVER = """
import json, pathlib, time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()
@app.main()
def main(grid, context):
    while len(nodes := list(grid.get_node_ids())) < 2:
        time.sleep(0.2)
    waves = []
    for _ in range(int(context.run_config["count"])):
        begun = time.monotonic()
        letters = [Message(RecordDict({"q": ConfigRecord({"data": b"q"})}), node, "query.ask") for node in nodes]
        open_ids, said = set(grid.push_messages(letters)), []
        while open_ids and time.monotonic() - begun < 120:
            for reply in grid.pull_messages(open_ids):
                open_ids.discard(reply.metadata.reply_to_message_id)
                said.append(reply.error.reason if reply.has_error() else str(reply.content["a"]["who"]))
            time.sleep(0.05)
        waves.append([time.monotonic() - begun, sorted(said)])
        time.sleep(0.4)
    pathlib.Path(str(context.run_config["out"])).write_text(json.dumps(waves))
"""
CLIENT = """
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
app = ClientApp()
@app.query("ask")
def ask(message, context):
    return Message(RecordDict({"a": ConfigRecord({"who": "WHO"})}), reply_to=message)
"""


def write_app(folder: Path, who: str) -> str:
    """Write a Flower app whose ClientApp, if it is run from the bundle, answers ``who``; return the bundle's hash."""
    from flwr.cli.build import build_fab_from_disk

    (folder / "waves").mkdir(parents=True)
    files = {"pyproject.toml": PYPROJECT, "LICENSE": "x", "README.md": "x", "waves/__init__.py": ""}
    files |= {"waves/server.py": SERVER, "waves/client.py": CLIENT.replace("WHO", who)}
    for name, text in files.items():
        (folder / name).write_text(text)
    return hashlib.sha256(build_fab_from_disk(folder)).hexdigest()


def waves(executor: str, count: int, *, changed: bool) -> list[Any]:
    """Return [seconds, replies] of each wave under ``executor``, stock or ours."""
    with tempfile.TemporaryDirectory() as name, ending_on_signals(), Children(grace=25.0) as children:
        root = Path(name)
        good = write_app(root / "good", "bundle")
        write_app(root / "bad", "changed bundle")
        port = free_port()
        deployment = Deployment(
            name="w", address=f"127.0.0.1:{port}", bind=f"127.0.0.1:{port}", plan="", bundle=good, coordinator="",
            sites=("one", "two"), folders=("1", "2"),
        )  # fmt: skip
        pki.write_pki(root / "pki", "waves", ["127.0.0.1"])
        for folder in deployment.folders:
            (root / "sites" / folder).mkdir(parents=True)
            key = pki.create_node_key()
            (root / "sites" / folder / "node.key").write_bytes(key.private)
            (root / "sites" / folder / "node.pub").write_bytes(key.public)
        processes.configure(root, deployment, tls=True)
        processes.start_superlink(root, deployment, children, tls=True)
        processes.register_sites(root, deployment)
        for folder in deployment.folders:
            start_site(
                root=root, home=root / "sites" / folder, port=port, executor=executor, bundle=good, children=children
            )
        shutil.move(root / ("bad" if changed else "good"), root / "app")
        settings = {"out": str(root / "waves.json"), "count": count}
        config = " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
        command = ["run", str(root / "app"), processes.CONNECTION, "--run-config", config, "--format", "json"]
        processes.flower(root, command)
        wait_for((root / "waves.json").exists, "the waves' end", timeout=60.0 + 20.0 * count, children=children)
        time.sleep(0.5)  # the file is written in one go; its name appears first
        found: list[Any] = json.loads((root / "waves.json").read_text())
        return found


def start_site(*, root: Path, home: Path, port: int, executor: str, bundle: str, children: Children) -> None:
    """Start a SuperNode with the stock executor or with ours."""
    runtime, secret = free_port(), home / "secret"
    secret.write_bytes(os.urandom(32))
    node = ["--root-certificates", str(root / "pki" / "ca.crt"), "--superlink", f"127.0.0.1:{port}"]
    node += ["--auth-supernode-private-key", str(home / "node.key"), "--host", "127.0.0.1", "--port", str(runtime)]
    environment = {**processes.environment(root), "FLWR_HOME": str(home / "flower")}
    if executor == "stock":
        children.start("node", [processes.program("flower-supernode"), *node], home / "node.log", environment)
        return
    node += ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
    ours = [sys.executable, "-m", "patevolve.client.executor", "--parent", str(os.getpid())]
    children.start("node", [*ours, "node", "--", *node], home / "node.log", environment)
    tasks = [sys.executable, __file__, "--serve", str(runtime), str(secret), bundle]
    children.start("executor", tasks, home / "executor.log", environment)


def serve_installed(runtime: str, secret: Path, bundle: str) -> None:
    """Serve as a site's executor does, with an installed app that says so."""
    from flwr.app import ConfigRecord, Message, RecordDict
    from flwr.clientapp import ClientApp

    from patevolve.client.executor import Settings, serve

    app = ClientApp()

    @app.query("ask")
    def ask(message: Message, context: Any) -> Message:
        del context
        return Message(RecordDict({"a": ConfigRecord({"who": "installed"})}), reply_to=message)

    settings = Settings(
        runtime=f"127.0.0.1:{runtime}", secret=secret.read_bytes(), bundles=frozenset({bundle}), config={}
    )
    serve(settings, app, threading.Event())


def wave_table(count: int) -> None:
    """Print the waves of both executors, and their answer to a changed bundle."""
    print(f"{'executor':<10} {'bundle':<9} {'waves':>5} {'median s':>9} {'min s':>6} {'max s':>6}  replies")
    for executor in ("stock", "ours"):
        for changed in (False, True):
            found = waves(executor, 2 if changed else count, changed=changed)
            times = [seconds for seconds, _ in found]
            said = sorted({word for _, words in found for word in words})
            row = f"{executor:<10} {'changed' if changed else 'permitted':<9} {len(times):>5}"
            print(
                f"{row} {statistics.median(times):>9.2f} {min(times):>6.2f} {max(times):>6.2f}  {', '.join(said)}",
                flush=True,
            )


def job() -> None:
    """Run the deployed demonstration as a user would and print what it says."""
    with tempfile.TemporaryDirectory() as name, Children() as adopted:
        out = Path(name) / "run"
        begun = time.monotonic()
        done = demo(out, {RECORDED_NOISE_VARIABLE: "1"})
        seconds = time.monotonic() - begun
        print(f"patevolve demo heart --deployed: exit {done.returncode}, {seconds:.0f} s")
        print(done.stdout[-1500:] if done.returncode == 0 else done.stderr[-3000:])
        print(f"processes left: {len(own_children())}")
        del adopted


def demo(out: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    code = "from patevolve.shared.cli import main; main()"
    command = [sys.executable, "-c", code, "demo", "heart", "--deployed", "--out", str(out), "--format", "json"]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)  # noqa: S603 - ours


def main(arguments: Sequence[str]) -> None:
    """Run the chosen parts."""
    if arguments[:1] == ["--serve"]:
        serve_installed(arguments[1], Path(arguments[2]), arguments[3])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=["waves", "job"])
    parser.add_argument("--waves", type=int, default=10)
    chosen = parser.parse_args(arguments)
    if chosen.part in {None, "waves"}:
        wave_table(chosen.waves)
    if chosen.part in {None, "job"}:
        job()


if __name__ == "__main__":
    main(sys.argv[1:])
