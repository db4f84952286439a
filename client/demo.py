"""``patevolve demo``: the main job on real public data, with its report.

The first seed's run is the one reported; the further seeds repeat it, with baselines, to show the spread. A hospital
would run a plan once: every repetition here starts from ledgers of its own.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from patevolve.client import study
from patevolve.client.digits import load_digits
from patevolve.client.reporting import write_report
from patevolve.client.simulate import load_records
from patevolve.client.study import HISTOGRAM, ONE, OURS, PUBLIC, REAL, Judges, Made, Scores, Split
from patevolve.shared.described import Context, seen
from patevolve.shared.plan import Agreed, Plan, agree
from patevolve.shared.plan_edit import vary
from patevolve.shared.report.summary import Utility
from patevolve.shared.rounds import Generation
from patevolve.shared.runfolder import open_run
from patevolve.shared.students.calibrate import calibration, probabilities
from patevolve.shared.tools import tools_of

FOLDER = resources.files("patevolve.client") / "demo_data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """One demonstration: its plan, data, judges and how Private Evolution is set up beside it."""

    plan: str
    epsilon: float
    seeds: int
    hold_out: float
    judges: Judges
    words: Mapping[str, str]
    evolution: Mapping[str, Any]
    noun: str


SELECTED: Mapping[str, str] = {
    "histogram": "selection 'histogram' (Private Evolution), 5 rounds of votes",
    "pcevolve": "selection 'pcevolve' (as published), 5 rounds of choices",
    "classifier-laplace": "selection 'classifier-laplace' (the seed article's), 5 rounds",
    "pcevolve-prototype": "selection 'pcevolve-prototype', prototypes once",
}
DEMONSTRATIONS: Mapping[str, Demonstration] = {
    "heart": Demonstration(
        plan="heart.toml",
        epsilon=1.0,
        seeds=5,
        hold_out=280 / 920,
        judges=Judges(students=("logistic", "boosted"), metric="AUROC", chance=0.5),
        words={
            OURS: "patevolve, four hospitals together",
            PUBLIC: "the public schema alone (nothing asked)",
            ONE: "patevolve, each hospital alone (mean of four)",
            HISTOGRAM: "Private Evolution's histogram, four hospitals together",
            REAL: "the real rows (no privacy)",
        },
        evolution={"evolution.population": 400, "questions.neighbours.candidates": 400, "release.samples": 400},
        noun="hospital",
    ),
    "digits": Demonstration(
        plan="digits.toml",
        epsilon=4.0,
        seeds=3,
        hold_out=0.2,
        judges=Judges(students=("svm",), metric="accuracy", chance=0.1),
        words={
            OURS: "patevolve, five sites together",
            PUBLIC: "the glyph simulator alone (nothing asked)",
            ONE: "patevolve, each site alone (mean of five)",
            HISTOGRAM: "Private Evolution's histogram, five sites together",
            REAL: "the real images (no privacy)",
        },
        evolution={"evolution.population": 1000, "questions.neighbours.candidates": 1000},
        noun="site",
    ),
}


def plan_of(name: str, epsilon: float, seed: int) -> Agreed:
    """Return the demonstration's plan at this ε and seed."""
    text = (FOLDER / DEMONSTRATIONS[name].plan).read_text(encoding="utf-8")
    return vary(agree(text, where=DEMONSTRATIONS[name].plan), {"privacy.epsilon": epsilon, "seed": seed})


def data_of(name: str, plan: Plan, seed: int) -> Split:
    """Return the demonstration's private and held-out records."""
    if name == "digits":
        return load_digits(seed)
    with resources.as_file(FOLDER / "heart.csv") as path:
        return study.split(load_records(path, plan), seed, DEMONSTRATIONS[name].hold_out)


def one_seed(*, name: str, epsilon: float, seed: int, folder: str, ours: bool, selections: bool) -> Scores:
    """Return the metrics of one seed; ``ours`` says whether the method itself is to be run here too.

    selections: whether every other selection is to be run beside it
    """
    agreed = plan_of(name, epsilon, seed)
    parts, demonstration = data_of(name, agreed.plan, seed), DEMONSTRATIONS[name]
    path = Path(folder)
    scores: Scores = {}
    if ours:
        made = study.make(agreed, parts.train, path / "patevolve")
        scores[OURS] = study.judge_made(made, parts.test, demonstration.judges)
    if selections:
        scores |= study.side_by_side(agreed, parts, path, demonstration.judges)
    return scores | study.baselines(agreed, parts, path, demonstration.judges, demonstration.evolution)


def demonstrate(
    name: str,
    *,
    epsilon: float,
    seeds: Sequence[int],
    out: Path,
    tick: Callable[[str], None],
    selections: bool = False,
) -> dict[str, Any]:
    """Run the demonstration into ``out`` and return its report. ``tick`` hears of each finished piece.

    selections: measure every selection of docs/evolution.md beside the plan's own
    """
    started = time.monotonic()
    demonstration, first = DEMONSTRATIONS[name], seeds[0]
    same: dict[str, Any] = {"name": name, "epsilon": epsilon, "selections": selections}
    jobs = [
        {**same, "seed": seed, "folder": str(out / "repeats" / f"seed-{seed}"), "ours": seed != first} for seed in seeds
    ]
    agreed = plan_of(name, epsilon, first)
    open_run(out, agreed)
    # One helper process beside this one: two cores are what the smallest machine has.
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as helper:
        far = [helper.submit(one_seed, **job) for job in jobs[1::2]]
        parts = data_of(name, agreed.plan, first)
        made, generations = _reported(agreed, parts, out)
        tick("the reported run")
        found = {}
        for job in jobs[0::2]:
            found[job["seed"]] = one_seed(**job)
            tick(f"seed {job['seed']}")
        found |= {job["seed"]: future.result() for job, future in zip(jobs[1::2], far, strict=True)}
    scores = [found[seed] for seed in seeds]
    scores[0][OURS] = study.judge_made(made, parts.test, demonstration.judges)
    context = Context(
        mode="simulated",
        seeds=seeds,
        utility=_utility(demonstration, scores, epsilon),
        generations=generations,
        noun=demonstration.noun,
        calibration=_calibration(made, parts),
        reproduce=[
            f"patevolve demo {name} --epsilon {epsilon:g} --seeds {len(seeds)}"
            + (" --selections" if selections else "")
        ],
        wall_seconds=time.monotonic() - started,
    )
    return write_report(agreed, made.finished, made.sites, context)


def _reported(agreed: Agreed, parts: Split, out: Path) -> tuple[Made, list[dict[str, Any]]]:
    """Return the run that the report shows, and its generations as the report shows them."""
    tools, generations = tools_of(agreed.plan), []

    def watch(generation: Generation) -> None:
        generations.append(seen(generation, agreed.plan, tools, gallery=True))

    return study.make(agreed, parts.train, out, watch), generations


def _calibration(made: Made, parts: Split) -> dict[str, Any]:
    """Return whether the released student's probabilities hold on the held-out records, which are public here."""
    features = made.finished.tools.encoder.encode(parts.test.values)
    chances = probabilities(made.finished.released.student, features)
    return {"model": "the released linear student", **calibration(chances, parts.test.classes)}


def _utility(demonstration: Demonstration, scores: Sequence[Scores], epsilon: float) -> list[Utility]:
    spent = {PUBLIC: 0.0, REAL: None}
    return [
        Utility(
            trained_on=words,
            model=student,
            metric=demonstration.judges.metric,
            chance=demonstration.judges.chance,
            epsilon=spent.get(method, epsilon),
            values=tuple(one[method][student] for one in scores),
        )
        for method, words in {**demonstration.words, **SELECTED}.items()
        if method in scores[0]
        for student in demonstration.judges.students
    ]
