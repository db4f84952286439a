"""The simulated mode through Flower's own simulation engine, Ray: the sites answer in the processes of a cluster.

Coordinator and sites are those of a deployment, message by message, with policies, ledgers and secure sum; only who
carries the messages differs. Whoever has a Ray cluster names it in ``RAY_ADDRESS``; its machines have to see the sites'
folders and the data under the same paths.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from patevolve.client.approved import install_plan
from patevolve.client.executor import UNSAFE_NOISE, check_flower
from patevolve.client.masking import ROSTER
from patevolve.client.simulate import Site
from patevolve.shared.errors import InputError, PatevolveError, PolicyError
from patevolve.shared.files import write_atomic
from patevolve.shared.plan import Agreed
from patevolve.shared.privacy.signing import Identity, create_identity, load_identity

COORDINATOR, KEY = "coordinator", "coordinator.key"
SERVER = "patevolve.server.app"  # named as Flower names its components: this side never imports that one
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
WAITING = {"hello-deadline": 300.0, "deadline": 3600.0, "patience": 900.0, "grace": 3600.0}  # nobody gets lost here


def check_engine() -> None:
    """Raise InputError unless Flower's simulation engine is installed."""
    check_flower()
    if importlib.util.find_spec("ray") is None:
        raise InputError("Flower's simulation engine needs Ray; install it with: pip install 'patevolve[cluster]'")


def simulate_on_cluster(
    agreed: Agreed, sites: Mapping[str, Site], data: Path, out: Path, *, run: str = "", recorded: bool = False
) -> dict[str, Any]:
    """Run the plan over these sites into a run folder, new or resumed, and return the report.

    data:      one file with every site's records, as in the other simulated mode
    recorded:  noise that can be repeated; for tests that compare bytes
    Raises the run's own error, with its exit code, if it failed; InputError without the engine.
    """
    check_engine()
    os.environ.update({name: value for name, value in QUIET.items() if name not in os.environ})
    out = out.absolute()
    beside = _introduced(sites)
    for site in sites.values():
        install_plan(site.home.path, agreed)
    plan = install_plan(beside, agreed)
    command = f"patevolve simulate {agreed.plan.name}.toml --data ... --engine flower --out {out.name}"
    config = {"plan": str(plan), "out": str(out), "run": run, **WAITING}
    config |= {"roster": str(beside / ROSTER), "key": str(beside / KEY)}
    _engine(_nodes(sites, data, recorded=recorded), {**config, "mode": "simulated", "command": command})
    return _ended(out)


def _nodes(sites: Mapping[str, Site], data: Path, *, recorded: bool) -> list[dict[str, str]]:
    """Return each node's configuration, as a site of a deployment writes it for itself."""
    unsafe = {UNSAFE_NOISE: "yes"} if recorded else {}
    shared = {"data": str(data.absolute()), "data-of-all-sites": "yes", **unsafe}
    return [{"home": str(sites[name].home.path.absolute()), **shared} for name in sorted(sites)]


def answer(nodes: Sequence[Mapping[str, str]], message: Any, context: Any) -> Any:
    """Answer as the site whose number the engine gives the node; runs in a process of the cluster."""
    from patevolve.client.app import app  # noqa: PLC0415 - imports Flower

    context.node_config |= nodes[int(context.node_config["partition-id"])]  # kept, number and all, to the next message
    return app(message, context)


def _engine(nodes: list[dict[str, str]], config: dict[str, Any]) -> None:
    """Run the two apps to the end of the server's. How it ended stands in the run's folder."""
    from flwr.app import Context, RecordDict  # noqa: PLC0415 - Flower is an extra
    from flwr.simulation.run_simulation import _run_simulation  # noqa: PLC0415 - takes a configuration, as `flwr run`
    from flwr.supercore.telemetry import EventType  # noqa: PLC0415

    start: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    if "RAY_ADDRESS" not in os.environ:  # a cluster knows its own size
        start["num_cpus"] = os.cpu_count() or 1
    _run_simulation(
        num_supernodes=len(nodes),
        client_app=functools.partial(answer, nodes),  # type: ignore[arg-type]  # called as a ClientApp is
        server_app=importlib.import_module(SERVER).app,
        server_app_context=Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config),
        backend_config={"init_args": start, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
        exit_event=EventType.PYTHON_API_RUN_SIMULATION_LEAVE,
    )


def _introduced(sites: Mapping[str, Site]) -> Path:
    """Let all know everybody's public key, as a deployment does by telephone; return the coordinator's folder.

    It lies beside the sites' folders and holds its key and the roster. Raises PolicyError for a site whose roster is of
    a deployment: a simulation does not overwrite it.
    """
    homes = [site.home for site in sites.values()]
    beside = homes[0].path.parent / COORDINATOR
    beside.mkdir(mode=0o700, exist_ok=True)
    identity: Identity = load_identity(beside / KEY) if (beside / KEY).exists() else create_identity(beside / KEY)
    keys = {home.policy.site: home.identity.public_key for home in homes}
    text = json.dumps({"coordinator": identity.public_key, "sites": keys}, indent=1, ensure_ascii=False).encode()
    for home in homes:
        path = home.path / ROSTER
        if path.exists() and json.loads(path.read_text(encoding="utf-8")).get("coordinator") != identity.public_key:
            raise PolicyError(f"{path} is of another coordinator; simulate over folders made for it.")
    for folder in (*(home.path for home in homes), beside):
        write_atomic(folder / ROSTER, text)
    return beside


def _ended(out: Path) -> dict[str, Any]:
    """Return the report. Raises the run's error: Flower reports success whatever happened."""
    status = json.loads((out / "status.json").read_text(encoding="utf-8"))
    if status["exit_code"] != 0:
        reason = PatevolveError(status["message"] or "the run did not end")
        reason.exit_code, reason.code = status["exit_code"] or 1, status["code"] or "error"
        raise reason
    report: dict[str, Any] = json.loads((out / "report.json").read_text(encoding="utf-8"))
    return report
