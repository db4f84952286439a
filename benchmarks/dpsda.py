"""Digits against microsoft/DPSDA's own code: accuracy of one student on the same held-out images, and time.

    git clone https://github.com/microsoft/DPSDA
    git clone https://github.com/marcojira/fld
    git clone https://github.com/openai/CLIP
    python benchmarks/dpsda.py --peer dpsda-environment --sources DPSDA fld CLIP --epsilons 1 4 --seeds 1 2 3

The peer runs in an environment of its own, which this makes in the folder ``--peer``, over the product's public
generator and encoder, at the same ε and δ, on the images of all sites pooled, which is more than a federated method may
see. It needs fld and CLIP only to be imported. torchvision 0.15.2 is one that imports without its compiled operators,
which no step here uses, so that it goes with any build of torch. The product runs whole: sites, ledgers and release.
Seconds are CPU seconds of the run, without start-up and without fitting the public encoder.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from peer_environment import python_of

import patevolve.client
import patevolve.shared
from patevolve.client import study
from patevolve.client.demo import DEMONSTRATIONS, data_of, plan_of
from patevolve.client.study import Split
from patevolve.client.variants import PRIVATE_EVOLUTION
from patevolve.shared.plan import Agreed
from patevolve.shared.plan_edit import vary
from patevolve.shared.tools import tools_of

PACKAGES = (
    "torch==2.13.0", "matplotlib", "clean-fid", "omegaconf==2.3.0", "pandas<3", "scikit-learn", "generalimport",
    "openai", "tenacity", "azure-identity", "pytorch-fid", "faiss-cpu", "ftfy", "regex", "click", "cryptography",
    "tqdm", "setuptools<80",
)  # fmt: skip
VISION = ("--no-deps", "torchvision==0.15.2")
WORKER = Path(__file__).with_name("dpsda_peer.py")
DEMONSTRATION = DEMONSTRATIONS["digits"]
STUDENT = DEMONSTRATION.judges.students[0]
RELEASED = 4000
ROUNDS = 4  # as in its example of digits rendered from fonts, which also looks ahead 8 times with threshold 1
STRENGTHS = [0.4, 0.3, 0.2, 0.1]
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "4,000 candidates, look-ahead 8, threshold 1": {"candidates": 4000, "lookahead": 8, "threshold": 1.0},
    "1,000 candidates, look-ahead 8, threshold 1": {"candidates": 1000, "lookahead": 8, "threshold": 1.0},
    "1,000 candidates, look-ahead 8, threshold 4": {"candidates": 1000, "lookahead": 8, "threshold": 4.0},
    "1,000 candidates, no look-ahead, threshold 4": {"candidates": 1000, "lookahead": 0, "threshold": 4.0},
}
OURS, HISTOGRAM, REAL = "patevolve", "patevolve, selection 'histogram'", "real images"
Found = dict[str, dict[str, float]]


def product(agreed: Agreed, parts: Split) -> dict[str, float]:
    """Return accuracy, CPU seconds and wall seconds of a whole run."""
    tools_of(agreed.plan)
    with tempfile.TemporaryDirectory() as folder:
        wall, start = time.perf_counter(), time.process_time()
        made = study.make(agreed, parts.train, Path(folder) / "run")
        wall, seconds = time.perf_counter() - wall, time.process_time() - start
        accuracy = study.judge_made(made, parts.test, DEMONSTRATION.judges)[STUDENT]
        return {"accuracy": accuracy, "seconds": seconds, "wall": wall}


def peer(python: Path, agreed: Agreed, parts: Split, setting: Mapping[str, Any]) -> dict[str, float]:
    """Return accuracy, CPU seconds and wall seconds of the peer in one setting."""
    private = study.join(list(parts.train.values()))
    asked = {
        "schedule": [setting["candidates"]] * ROUNDS + [RELEASED],
        "strengths": STRENGTHS,
        "lookahead": setting["lookahead"],
        "threshold": setting["threshold"],
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "patevolve").mkdir()  # the peer's environment sees the product through these links alone
        for package in (patevolve.shared, patevolve.client):
            source = Path(str(package.__file__)).parent
            (folder / "patevolve" / source.name).symlink_to(source)
        (folder / "plan.toml").write_text(agreed.text, encoding="utf-8")
        np.savez(folder / "in.npz", images=private.values, classes=private.classes)
        words = [folder / "plan.toml", folder / "in.npz", folder / "out.npz", json.dumps(asked)]
        subprocess.run(  # noqa: S603 - this repository's own script
            [python, WORKER, *words],
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": name, "PYTHONWARNINGS": "ignore"},
        )
        with np.load(folder / "out.npz") as found:
            images, classes, (wall, seconds) = found["images"], found["classes"], map(float, found["seconds"])
    encoder = tools_of(agreed.plan).encoder
    scores = study.judge(encoder.encode(images), classes, parts.test, encoder, DEMONSTRATION.judges)
    return {"accuracy": scores[STUDENT], "seconds": seconds, "wall": wall}


def one(epsilon: float, seed: int, python: Path, settings: list[str]) -> Found:
    """Return every method's accuracy and CPU seconds at one ε and seed."""
    agreed = plan_of("digits", epsilon, seed)
    parts = data_of("digits", agreed.plan, seed)
    encoder, real = tools_of(agreed.plan).encoder, study.join(list(parts.train.values()))
    scores = study.judge(encoder.encode(real.values), real.classes, parts.test, encoder, DEMONSTRATION.judges)
    published = vary(agreed, {**PRIVATE_EVOLUTION, **DEMONSTRATION.evolution})
    return {
        REAL: {"accuracy": scores[STUDENT]},
        OURS: product(agreed, parts),
        HISTOGRAM: product(published, parts),
        **{f"DPSDA, {name}": peer(python, agreed, parts, SETTINGS[name]) for name in settings},
    }


def main() -> None:
    """Print the table as Markdown, each ε as soon as it is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, required=True, help="folder for the peer's environment")
    parser.add_argument("--sources", nargs="+", required=True, help="checkouts of microsoft/DPSDA, fld and CLIP")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 4.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--settings", type=int, nargs="+", default=list(range(len(SETTINGS))), help="rows, from 0")
    parser.add_argument("--json", type=Path, help="write every run's figures to this file")
    options = parser.parse_args()
    python = python_of(
        options.peer,
        PACKAGES,
        VISION,
        ("--no-deps", "--no-build-isolation", *(str(Path(source).resolve()) for source in options.sources)),
    )
    settings = [list(SETTINGS)[place] for place in options.settings]
    print(
        "| ε | trained on | seeds | accuracy | CPU seconds | times patevolve |\n|---|---|---|---|---|---|", flush=True
    )
    kept: list[dict[str, Any]] = []
    for epsilon in options.epsilons:
        found: list[Found] = []
        for seed in options.seeds:
            found.append(one(epsilon, seed, python, settings))
            kept.append({"epsilon": epsilon, "seed": seed, "methods": found[-1]})
            print(f"ε = {epsilon:g}, seed {seed}: {found[-1]}", file=sys.stderr, flush=True)
            if options.json:
                options.json.write_text(json.dumps({"rows": kept}, indent=1) + "\n")
        for name in found[0]:
            print(f"| {epsilon:g} | {name} | {len(found)} | {' | '.join(line(found, name))} |", flush=True)


def line(found: list[Found], name: str) -> list[str]:
    """Return the cells of a method: accuracy, CPU seconds, and those as a multiple of the product's in the same run."""
    cells = [spread([run[name]["accuracy"] for run in found], 3)]
    if name == REAL:
        return [*cells, "", ""]
    seconds = [run[name]["seconds"] for run in found]
    ratios = [run[name]["seconds"] / run[OURS]["seconds"] for run in found]
    return [*cells, spread(seconds, 0), spread(ratios, 2)]


def spread(values: list[float], digits: int) -> str:
    """Return mean ± sd, or the one value."""
    some = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{some}"


if __name__ == "__main__":
    main()
