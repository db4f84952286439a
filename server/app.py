"""The Flower ServerApp of the coordinator: runs a plan over the connected sites into a run folder.

Flower has no channel for results: whoever started the run reads ``status.json`` in the folder. A killed run is resumed
by starting the app again with the same folder; its questions were answered under the run's own name, not Flower's.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING

from flwr.app import Context as FlowerContext
from flwr.serverapp import Grid, ServerApp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from patevolve.server.run import Settings
    from patevolve.shared.rounds import Generation

ROSTER, KEY = "roster.json", "coordinator.key"

app = ServerApp()


@app.main()
def main(grid: Grid, context: FlowerContext) -> None:
    """Run the plan that the run's configuration names. Raises SystemExit with the run's exit code if it failed."""
    from pathlib import Path  # noqa: PLC0415 - the app is loaded wherever Flower looks for its components

    from patevolve.server.flower_institutions import GridPost  # noqa: PLC0415 - the same
    from patevolve.server.report import write_report  # noqa: PLC0415 - the same
    from patevolve.server.run import coordinate, reported  # noqa: PLC0415 - the same
    from patevolve.shared.described import Context, seen  # noqa: PLC0415 - the same
    from patevolve.shared.plan import read_plan  # noqa: PLC0415 - the same
    from patevolve.shared.tools import tools_of  # noqa: PLC0415 - the same

    _speak()
    config = context.run_config
    agreed = read_plan(Path(str(config["plan"])))
    settings = settings_of(config)

    started = time.monotonic()

    def run() -> None:
        tools, generations = tools_of(agreed.plan), []

        def watch(generation: Generation) -> None:
            last = generation.number in (0, agreed.plan.evolution.generations)
            generations.append(seen(generation, agreed.plan, tools, gallery=last))

        finished = coordinate(agreed, GridPost(grid=grid), settings, watch)
        words = Context(
            mode=str(config.get("mode") or "deployed"),
            seeds=[agreed.plan.seed],
            utility=(),
            generations=generations,
            reproduce=[str(config.get("command") or f"flwr run . -c 'plan={config['plan']!r} out={config['out']!r}'")],
            wall_seconds=time.monotonic() - started,
        )
        write_report(agreed, finished, words)

    code = reported(agreed, settings.path, run)
    if code:
        raise SystemExit(code)


def _speak() -> None:
    """Log this package to standard error, which Flower keeps; never the root logger's rest.

    Flower sends what is logged to the SuperLink by HTTP, and its HTTP client logs every request.
    """
    journal = logging.getLogger("patevolve")
    if not journal.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        journal.addHandler(handler)
        journal.propagate = False
    journal.setLevel(logging.INFO)


def settings_of(config: Mapping[str, bool | float | int | str]) -> Settings:
    """Return the run's settings; ``out`` and ``plan`` are absolute paths on the coordinator.

    The roster and the coordinator's key are looked for beside the plan if they are not named.
    """
    from pathlib import Path  # noqa: PLC0415 - the same

    from patevolve.server.cohort import load_roster  # noqa: PLC0415 - the same
    from patevolve.server.post import Timing  # noqa: PLC0415 - the same
    from patevolve.server.run import Settings  # noqa: PLC0415 - the same

    patience, grace, beside = (
        float(config["patience"]),
        float(config.get("grace", 120.0)),
        Path(str(config["plan"])).parent,
    )
    roster, key = Path(str(config.get("roster") or beside / ROSTER)), Path(str(config.get("key") or beside / KEY))
    return Settings(
        path=Path(str(config["out"])),
        known=load_roster(roster) if roster.exists() or config.get("roster") else {},
        hello=Timing(deadline=float(config["hello-deadline"]), grace=grace, patience=patience),
        timing=Timing(deadline=float(config["deadline"]), grace=grace, patience=patience),
        run=str(config.get("run", "")) or None,
        key=key if key.exists() else None,
    )
