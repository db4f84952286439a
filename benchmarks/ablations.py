"""What each choice of the evolution is worth: one thing changed at a time, on heart (tables) and digits (images).

    python benchmarks/ablations.py --data heart digits --seeds 3
    python benchmarks/ablations.py --only selections --data heart --seeds 5
    python benchmarks/ablations.py --data digits --only population diversity calibrator rescue split \
        --rows 512 "λ = 0.6" "λ = 2" "τ = 30" elites article planner --json benchmarks/ablations_digits.json

Every row is a run of its own with its own ledgers at the data's usual ε. Figures: mean ± sd over seeds of the student's
AUROC (heart, logistic) or accuracy (digits, SVM) on real held-out records, the lowest recall of a class, and the spread
of the last generation. The held-out records take no part in any synthesis; testing on them is outside the guarantee.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from patevolve.client import study
from patevolve.client.demo import DEMONSTRATIONS, data_of, plan_of
from patevolve.client.study import Split
from patevolve.client.variants import PUBLIC_ONLY, selections
from patevolve.shared.data.records import Records
from patevolve.shared.plan import Agreed
from patevolve.shared.plan_edit import vary
from patevolve.shared.privacy.split import propose
from patevolve.shared.rounds import Generation
from patevolve.shared.runfolder import open_run
from patevolve.shared.students.evaluate import STUDENTS
from patevolve.shared.tools import tools_of

Changes = Mapping[str, Any]

# The seed article's setting around released prototypes: 256 candidates, 30 generations, λ = 0.3, τ = 10.
BASE: Changes = {
    "evolution.selection": "pcevolve-prototype",
    "evolution.population": 256,
    "evolution.generations": 30,
    "evolution.mutation": [0.3, 0.15, 0.05],
    "evolution.offspring": 1,
    "evolution.diversity": 0.3,
    "questions.counts.share": 0.05,
    "questions.prototypes.share": 0.95,
    "questions.neighbours": None,
    "release.samples": 1000,
}
# One round of votes after free generations towards the prototypes: rows take many more of them than images.
SPLIT: Mapping[str, Changes] = {
    "heart": {
        "evolution.generations": 40,
        "questions.neighbours.candidates": 1200,
        "questions.neighbours.nearest": 30,
    },
    "digits": {
        "evolution.generations": 4,
        "questions.neighbours.candidates": 2000,
        "questions.neighbours.nearest": 20,
    },
}


def studies(name: str, classes: int) -> dict[str, dict[str, Changes]]:
    """Return the changes by study and row."""
    base = dict(BASE)
    split = {**SPLIT[name], "evolution.population": 1000, "release.samples": 1000, "questions.neighbours.times": 1}
    return {
        "selections": {
            "soft (the demonstration's plan)": {},
            **selections(classes),
            "public only": PUBLIC_ONLY,
        },
        "population": {
            "128 candidates, 20 generations": {**base, "evolution.population": 128, "evolution.generations": 20},
            "256 candidates, 30 generations": base,
            "512 candidates, 40 generations": {**base, "evolution.population": 512, "evolution.generations": 40},
        },
        "diversity": {
            "λ = 0": {**base, "evolution.diversity": 0.0},
            "λ = 0.3": base,
            "λ = 0.6": {**base, "evolution.diversity": 0.6},
            "λ = 2": {**base, "evolution.diversity": 2.0},
        },
        "calibrator": {
            "τ = 1": {**base, "evolution.tau": 1.0},
            "τ = 10": base,
            "τ = 30": {**base, "evolution.tau": 30.0},
        },
        "rescue": {
            "nothing": base,
            "restart of 10 % and λ = 0.6 below half the spread": {**base, "evolution.collapse": 0.5},
            "rollback to the best generation": {**base, "evolution.rollback": True},
            "5 elites a class": {**base, "evolution.elites": 5},
        },
        "split": {
            "60 % prototypes, 40 % votes (the article)": {
                **split,
                "questions.counts": None,
                "questions.prototypes.share": 0.6,
                "questions.neighbours.share": 0.4,
            },
            "5 % counts, 30 % prototypes, 65 % votes": {
                **split,
                "questions.counts.share": 0.05,
                "questions.prototypes.share": 0.3,
                "questions.neighbours.share": 0.65,
            },
            "the planner's": {**split, **proposed(name, split)},
            "5 % counts, 95 % prototypes, no votes": {
                **split,
                "questions.counts.share": 0.05,
                "questions.prototypes.share": 0.95,
                "questions.neighbours": None,
            },
        },
    }


def proposed(name: str, split: Changes) -> dict[str, Any]:
    """Return the shares that the planner proposes for the plan with these changes, as changes."""
    shares = propose(vary(plan_of(name, DEMONSTRATIONS[name].epsilon, 1), split).plan)
    found: dict[str, Any] = {}
    for kind in ("counts", "prototypes", "neighbours"):
        share = shares.get(kind, 0.0)
        found |= {f"questions.{kind}.share": share} if share else {f"questions.{kind}": None}
    return found


def one(agreed: Agreed, parts: Split, folder: Path, student: str, metric: str) -> dict[str, float]:
    """Run a plan and return its student's metric, the lowest recall of a class, and the last generation's spread."""
    spreads: list[float] = []

    def watch(generation: Generation) -> None:
        spreads.append(generation.spread)

    open_run(folder, agreed)
    made = study.make(agreed, parts.train, folder, watch)
    judges = study.Judges(students=(student,), metric=metric, chance=0.0)
    return {
        "metric": study.judge_made(made, parts.test, judges)[student],
        "recall": min(recalls(made, parts.test, student)),
        "spread": spreads[-1],
    }


def recalls(made: study.Made, test: Records, student: str) -> list[float]:
    """Return the student's recall of every class on held-out records, each class judged by its own records alone."""
    released = made.finished.released
    model = STUDENTS[student]().fit(released.features, released.samples.classes)
    predicted = model.predict(made.finished.tools.encoder.encode(test.values))
    classes = range(len(made.agreed.plan.data.classes))
    return [float(np.mean(predicted[test.classes == cls] == cls)) for cls in classes]


def main() -> None:
    """Print a table per study as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", choices=sorted(DEMONSTRATIONS), default=["heart"])
    parser.add_argument("--only", nargs="+", default=None, help="studies (default: all)")
    parser.add_argument("--rows", nargs="+", default=None, help="rows whose name has one of these (default: all)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write every run's figures to this file")
    options = parser.parse_args()
    kept: list[dict[str, Any]] = []
    for name in options.data:
        demonstration = DEMONSTRATIONS[name]
        student, metric = demonstration.judges.students[0], demonstration.judges.metric
        classes = len(plan_of(name, demonstration.epsilon, 1).plan.data.classes)
        done: dict[tuple[str, int], dict[str, float]] = {}
        for what, rows in studies(name, classes).items():
            if options.only and what not in options.only:
                continue
            print(f"\n{what}, {name}, ε = {demonstration.epsilon:g}, {options.seeds} seeds\n")
            print(f"| | {metric} ({student}) | lowest recall of a class | spread |\n|---|---|---|---|")
            for row, changes in rows.items():
                if options.rows and not any(word in row for word in options.rows):
                    continue
                found = [cached(done, name, changes, seed, (student, metric)) for seed in range(1, options.seeds + 1)]
                cells = [_cell([one[key] for one in found]) for key in ("metric", "recall", "spread")]
                print(f"| {row} | " + " | ".join(cells) + " |", flush=True)
                kept.append({"data": name, "study": what, "row": row, "seeds": found})
                if options.json:
                    options.json.write_text(json.dumps({"rows": kept}, indent=1, ensure_ascii=False) + "\n")


def cached(
    done: dict[tuple[str, int], dict[str, float]], name: str, changes: Changes, seed: int, judge: tuple[str, str]
) -> dict[str, float]:
    """Return the figures of one run; rows that several studies share are run once."""
    agreed = vary(plan_of(name, DEMONSTRATIONS[name].epsilon, seed), changes)
    tools_of(agreed.plan)
    key = (agreed.sha256, seed)
    if key not in done:
        with tempfile.TemporaryDirectory() as folder:
            done[key] = one(agreed, data_of(name, agreed.plan, seed), Path(folder) / "run", *judge)
    return done[key]


def _cell(values: list[float]) -> str:
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1) if len(values) > 1 else 0.0:.3f}"


if __name__ == "__main__":
    main()
