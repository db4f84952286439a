"""Four hospitals at several ε: AUROC on real held-out patients beside the baselines, mean ± sd over seeds.

    python benchmarks/heart.py --epsilons 0.5 1 2 4 --seeds 5

Rows: patevolve under each trust model, each hospital alone, Private Evolution's histogram, nothing asked, real rows.
The held-out patients take no part in any synthesis; testing on them is outside the guarantee (the data are public).
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from patevolve.client import study
from patevolve.client.demo import DEMONSTRATIONS, data_of, plan_of
from patevolve.client.study import OURS, Scores
from patevolve.shared.plan_edit import vary

EACH_SITE = "each-site"


def one(epsilon: float, seed: int, folder: Path) -> Scores:
    """Return every method's metrics at one ε and seed."""
    agreed, demonstration = plan_of("heart", epsilon, seed), DEMONSTRATIONS["heart"]
    parts = data_of("heart", agreed.plan, seed)
    apart = vary(agreed, {"privacy.trust": "each-site"})
    return {
        OURS: study.judge_made(study.make(agreed, parts.train, folder / "ours"), parts.test, demonstration.judges),
        EACH_SITE: study.judge_made(study.make(apart, parts.train, folder / "apart"), parts.test, demonstration.judges),
        **study.baselines(agreed, parts, folder, demonstration.judges, demonstration.evolution),
    }


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.5, 1.0, 2.0, 4.0])
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    words = {**DEMONSTRATIONS["heart"].words, EACH_SITE: "the same, each site adds the whole noise"}
    print(f"AUROC, logistic / boosted trees, mean ± sd over seeds 1 to {options.seeds}\n")
    print("| trained on | " + " | ".join(f"ε = {epsilon:g}" for epsilon in options.epsilons) + " |")
    print("|---|" + "---|" * len(options.epsilons))
    columns = []
    for epsilon in options.epsilons:
        with tempfile.TemporaryDirectory() as name:
            seeds = range(1, options.seeds + 1)
            columns.append([one(epsilon, seed, Path(name) / str(seed)) for seed in seeds])
    for method in columns[0][0]:
        cells = [
            " / ".join(_cell(scores, method, student) for student in ("logistic", "boosted")) for scores in columns
        ]
        print(f"| {words[method]} | " + " | ".join(cells) + " |")


def _cell(scores: list[Scores], method: str, student: str) -> str:
    values = [one[method][student] for one in scores]
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"


if __name__ == "__main__":
    main()
