"""Measurements of ``benchmarks/bench.py`` that are made only when named: they need other programs, or minutes.

OMP_NUM_THREADS=1 python benchmarks/bench_seldom.py dpsda|index|crowd|end
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from bench_rows import HERE, TALLY, Row, repeats, row, script, spent, voting

DPSDA = "PATEVOLVE_BENCH_DPSDA"  # the folder of DPSDA's own environment, as benchmarks/dpsda.py makes it
END = "PATEVOLVE_BENCH_END"  # the files that dpsda.py and aim.py wrote


def dpsda() -> list[Row]:
    """Row 1, continued: DPSDA's own histogram by each of its back ends, in its environment (``--peer``)."""
    python = Path(os.environ[DPSDA]) / "bin" / "python"
    vote, _, _ = voting(1)
    command = [python, HERE / "tally_peer.py", *map(str, TALLY)]
    quiet = {**os.environ, "PYTHONWARNINGS": "ignore"}
    rows = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=quiet) as peer:  # noqa: S603 - our own script
        if peer.stdin is None or peer.stdout is None:
            raise RuntimeError("a process without pipes found; both ends were asked for.")

        def theirs(name: str) -> float:
            print(name, file=peer.stdin, flush=True)
            return float(peer.stdout.readline())

        vote()
        for name in ("faiss", "sklearn", "torch"):
            theirs(name)
            ratios = [theirs(name) / spent(vote) for _ in repeats(5)]
            rows.append(
                row(
                    1,
                    f"DPSDA's histogram by {name} / vote tally, one class",
                    ratios,
                    "×",
                    least=2.0,
                    note="DPSDA: processor time of its whole histogram, embeddings given, in single precision: what "
                    "lies closer than that tells is in any order, and may change with who else is searched",
                    next="against faiss and torch hardly any is left: both are one product in single precision and a "
                    "selection, and that product alone is half of the tally here",
                )
            )
        peer.stdin.close()
    return rows


def crowd() -> list[Row]:
    """Row 6, continued: 10,000 sites once, whose ledgers are closed while they wait."""
    return crowd_rows([script("sites_speed.py", str(count)) for count in (100, 1000, 10_000)])


def crowd_rows(runs: Sequence[dict[str, float]]) -> list[Row]:
    """Return the rows of one run each with 100, 1,000 and 10,000 sites."""
    work = [run["founding_cpu_s"] + run["run_cpu_s"] for run in runs]
    each = [(b - a) / (y["sites"] - x["sites"]) for (a, b), (x, y) in zip(pairwise(work), pairwise(runs), strict=True)]
    note = (
        f"10,000 sites: one run of each size; {1000 * each[1]:.0f} ms of processor time for each further site, their "
        f"ledgers closed while they wait, since they would need more open files than a process may have here; closing "
        f"and opening them takes about 2 ms of it"
    )
    idea = "fewer openings of a site's ledger: each of its three questions waits until the one before is on record"
    goal, rest = "processor time of each further site, from 1,000 to 10,000 / from 100 to 1,000", {"few": True}
    return [
        row(6, goal, [each[1] / each[0]], "×", most=1.1, note=note, next=idea, **rest),
        row(6, "10,000 sites in one process: peak memory", [runs[2]["peak_mib"]], "MiB", **rest),
    ]


def index() -> list[Row]:
    """Row 1, continued: an approximate index beyond 10⁶ candidates."""
    found = script("index_speed.py", "--peer", os.environ[DPSDA])
    making, exact = found["making_candidates"], found["exact_tally"]
    saved = exact - found["index_train"] - found["index_add"] - found["index_search_32"]
    note = (
        f"10⁶ candidates, {found['records']} records, once: the exact tally takes {exact:.1f} s, faiss's flat search "
        f"{found['flat_search']:.1f} s, its IVF index {found['index_train'] + found['index_add']:.1f} s to build and "
        f"{found['index_search_32']:.2f} s to search in 32 of 1,000 lists, where it finds "
        f"{100 * found['recall_32']:.0f} % of the 20 nearest; drawing, rendering and describing the candidates takes "
        f"{making:.0f} s. A question of 16 MiB holds some 200,000 candidates of the digits plan. So there is no "
        f"index: it could save {100 * saved / (making + exact):.0f} % and would not be exact"
    )
    return [
        row(1, "exact tally of 10⁶ candidates / making them", [100 * exact / making], "%", note=note, few=True),
    ]


def end() -> list[Row]:
    """Row 8: whole runs beside DPSDA and AIM, from what dpsda.py and aim.py wrote by ``--json``."""
    rows = []
    for path in os.environ[END].split(os.pathsep):
        runs = json.loads(Path(path).read_text(encoding="utf-8"))["rows"]
        for epsilon in sorted({run["epsilon"] for run in runs}):
            some = [run["methods"] for run in runs if run["epsilon"] == epsilon]
            peers = [name for name in some[0] if name in {"AIM", "MST"} or name.startswith(("DPSDA", "patevolve, "))]
            for peer in peers:
                rows += ended(peer, epsilon, [run for run in some if peer in run])
    return rows


def ended(peer: str, epsilon: float, runs: Sequence[dict[str, dict[str, float]]]) -> list[Row]:
    """Return one peer's rows at one ε: time and quality beside the product's in the same run."""
    keys = [("seconds", "processor time"), ("CPU seconds", "processor time"), ("wall", "wall time")]
    program, _, setting = (peer, "", "") if peer.startswith("patevolve") else peer.partition(", ")
    what = f"{program}, ε = {epsilon:g}"
    pairs = [(run[peer], run["patevolve"]) for run in runs]
    rows = [
        row(8, f"{what}: its {words} / patevolve's", [theirs[key] / ours[key] for theirs, ours in pairs], "×", few=True)
        for key, words in keys
        if key in pairs[0][0] and key in pairs[0][1]
    ]
    for key, words in (("accuracy", "accuracy"), ("logistic", "AUROC of a logistic regression")):
        if key in pairs[0][0]:
            for name, side in ((program, 0), ("patevolve", 1)):
                figures = [100 * pair[side][key] for pair in pairs]
                rows.append(row(8, f"{what}: {words} on held-out data, {name}", figures, "%", few=True))
    rows[0]["note"] = (
        f"{program}: one value for each seed, the same data, ε, δ and student"
        + (f", and the same generator and encoder; {setting}" if setting else "")
        + "; the product runs whole, with sites, ledgers and release (docs/evolution.md)"
    )
    return rows


MEASUREMENTS: dict[str, Callable[[], list[Row]]] = {"dpsda": dpsda, "index": index, "crowd": crowd, "end": end}

if __name__ == "__main__":
    print(json.dumps(MEASUREMENTS[sys.argv[1]]()))
