"""Do islands pay? The demonstrations with none, with free and with charged islands, at the same ε, over seeds.

    python benchmarks/islands.py heart --seeds 5 --epsilons 1 4
    python benchmarks/islands.py digits --seeds 3
    python benchmarks/islands.py deployed        # does a deployment give the simulated mode's bytes? Some minutes

The table stands in docs/planning.md ("Islands"). Each run has ledgers of its own; the share of charged islands is taken
from what else steers the result: prototypes (heart), neighbours (digits). "shared votes" gives that share of heart's
budget to one question of all sites together, which secure sum makes far less noisy; "2 free generations more" gives the
coordinator the steps that the islands of digits have beside it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from patevolve.client import study
from patevolve.client.demo import DEMONSTRATIONS, data_of, plan_of
from patevolve.client.demo_deployed import demonstrate_deployed
from patevolve.shared.plan_edit import vary
from patevolve.shared.randomness import RECORDED_NOISE_VARIABLE

Changes = Mapping[str, Any]
_HEART: Changes = {"islands.migrants": 300, "islands.candidates": 1200, "islands.generations": 10}
# A quarter to half of the demonstration's numbers, for all variants alike: the comparison is what counts here.
_SMALL: Changes = {
    "evolution.population": 1000,
    "questions.neighbours.candidates": 3000,
    "release.samples": 2000,
}
_DIGITS: Changes = {**_SMALL, "islands.migrants": 10, "islands.candidates": 1000, "islands.generations": 2}
_DEPLOYED: Changes = {
    "islands.migrants": 50,
    "islands.candidates": 400,
    "islands.generations": 2,
    "islands.times": 2,
    "islands.share": 0.1,
    "islands.nearest": 3,
    "questions.prototypes.share": 0.86,
    "evolution.population": 1000,
    "evolution.generations": 6,
    "release.samples": 1000,
}
VARIANTS: Mapping[str, Mapping[str, Changes]] = {
    "heart": {
        "none": {},
        "free": _HEART,
        "charged, 10 %": {**_HEART, "islands.share": 0.1, "islands.nearest": 5, "questions.prototypes.share": 0.86},
        "charged, 20 %": {**_HEART, "islands.share": 0.2, "islands.nearest": 5, "questions.prototypes.share": 0.76},
        "shared votes, 20 %": {
            "questions.neighbours.share": 0.2,
            "questions.neighbours.candidates": 1200,
            "questions.neighbours.nearest": 5,
            "questions.prototypes.share": 0.76,
        },
    },
    "digits": {
        "none": _SMALL,
        "none, 2 free generations more": {**_SMALL, "evolution.generations": 9},
        "free": _DIGITS,
        "charged, 20 %": {**_DIGITS, "islands.share": 0.2, "islands.nearest": 20, "questions.neighbours.share": 0.5},
    },
}


def one(name: str, changes: Changes, epsilon: float, seed: int) -> dict[str, float]:
    """Return each student's metric after a run of the demonstration's plan with these changes."""
    agreed, demonstration = vary(plan_of(name, epsilon, seed), changes), DEMONSTRATIONS[name]
    parts = data_of(name, agreed.plan, seed)
    with tempfile.TemporaryDirectory() as folder:
        made = study.make(agreed, parts.train, Path(folder))
        return study.judge_made(made, parts.test, demonstration.judges)


def deployed() -> None:
    """Run heart with charged islands over a SuperLink and four SuperNodes under secure sum, and compare its bytes."""
    os.environ[RECORDED_NOISE_VARIABLE] = "1"
    with tempfile.TemporaryDirectory() as folder:
        found = demonstrate_deployed(
            "heart",
            epsilon=1.0,
            out=Path(folder) / "run",
            tick=lambda piece: print(piece, flush=True),
            changes=_DEPLOYED,
        )
    print(f"equal to the simulated mode, byte for byte: {found['equals_simulated']}; {found['seconds']} s")


def main() -> None:
    """Print the table as Markdown, and the paired difference from no islands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=[*VARIANTS, "deployed"])
    parser.add_argument("--epsilons", type=float, nargs="+")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--variants", nargs="+", default=[], help="Beside none; all by default.")
    options = parser.parse_args()
    if options.name == "deployed":
        deployed()
        return
    judges, seeds = DEMONSTRATIONS[options.name].judges, range(1, options.seeds + 1)
    print(f"{judges.metric}, mean ± sd over seeds 1 to {options.seeds}; in brackets the paired difference from none\n")
    print("| ε | islands | " + " | ".join(judges.students) + " |")
    print("|---|---|" + "---|" * len(judges.students), flush=True)
    for epsilon in options.epsilons or [DEMONSTRATIONS[options.name].epsilon]:
        without: list[dict[str, float]] = []
        for variant, changes in VARIANTS[options.name].items():
            if without and options.variants and variant not in options.variants:
                continue
            scores = [one(options.name, changes, epsilon, seed) for seed in seeds]
            without = without or scores
            cells = " | ".join(_cell(scores, without, student) for student in judges.students)
            print(f"| {epsilon:g} | {variant} | {cells} |", flush=True)


def _cell(scores: list[dict[str, float]], without: list[dict[str, float]], student: str) -> str:
    values = np.array([score[student] for score in scores])
    cell = f"{values.mean():.3f} ± {values.std(ddof=1):.3f}"
    if scores is without:
        return cell
    apart = values - np.array([score[student] for score in without])
    return f"{cell} ({apart.mean():+.4f} ± {apart.std(ddof=1) / len(apart) ** 0.5:.4f})"


if __name__ == "__main__":
    main()
