"""A run as its report describes it, from public values alone: the same for every mode."""

from __future__ import annotations

import base64
import dataclasses
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from patevolve.shared.evolution.population import Population
from patevolve.shared.finish import Released, Score
from patevolve.shared.plan import Plan
from patevolve.shared.report.diversity import collapse, diversity
from patevolve.shared.report.page import EXPLAIN
from patevolve.shared.report.statement import MODES
from patevolve.shared.report.summary import Utility
from patevolve.shared.report.tensorboard import binned
from patevolve.shared.rounds import Generation, Outcome
from patevolve.shared.schedule import Ask
from patevolve.shared.tools import Tools, tools_of

PREVIEW = 10  # rows of a table, or texts, shown in the report
GALLERY = 12  # images of each class shown for a generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a report says beyond the run itself."""

    mode: str
    seeds: Sequence[int]
    utility: Sequence[Utility]
    generations: Sequence[Mapping[str, Any]]
    reproduce: Sequence[str]
    wall_seconds: float
    unsafe: Sequence[str] = ()
    noun: str = "institution"
    calibration: Mapping[str, Any] | None = None


def parts_of(
    plan: Plan, asks: Sequence[Ask], outcome: Outcome, released: Released, score: Score | None, *, context: Context
) -> dict[str, Any]:
    """Return what a report says of the run itself."""
    counts = {name: int(np.sum(released.samples.classes == i)) for i, name in enumerate(plan.data.classes)}
    return {
        "site_noun": context.noun,
        "labels": {"method": outcome.labelling.method, "reason": outcome.labelling.reason},
        "generations": list(context.generations),
        "gate": [
            {"check": c.name, "passed": c.passed, "found": c.found, "expected": c.expected, "reason": c.reason}
            for c in released.gate
        ],
        "synthetic": {"rows": len(released.samples.classes), "classes": counts, **_preview(plan, released)},
        "distributions": _distributions(plan, released),
        "statement": [
            {"item": item, "text": text} for item, text in (*released.statement, ("This run", MODES[context.mode]))
        ],
        "unsafe": list(context.unsafe),
        "warnings": [*_warnings(plan, asks), *filter(None, [collapse(context.generations)])],
        "diversity": _diversity(plan, outcome, released),
        "calibration": None if context.calibration is None else dict(context.calibration),
        "reproduce": list(context.reproduce),
        "score": None if score is None else dataclasses.asdict(score),
        "wall_seconds": context.wall_seconds,
        "explain": EXPLAIN,
    }


def seen(generation: Generation, plan: Plan, tools: Tools, *, gallery: bool) -> dict[str, Any]:
    """Return a generation as the report shows it; images get a gallery, rows and texts are seen in the preview."""
    picture = pictures(generation.population, plan, tools) if gallery and plan.data.kind == "image" else None
    return {
        "generation": generation.number,
        "asked": list(generation.asked),
        "spread": generation.spread,
        "match": generation.match,
        "scores": binned(generation.margins),
        "gallery": picture,
    }


def pictures(population: Population, plan: Plan, tools: Tools) -> str:
    """Return some candidates of each class of an image plan, one row a class, as an inline PNG."""
    from PIL import Image  # noqa: PLC0415 - an extra: only image plans need it

    rows = []
    for cls in range(len(plan.data.classes)):
        own = population.of_class(cls)
        shown = own.pick(np.linspace(0, len(own) - 1, GALLERY).astype(np.int64))
        rows.append(np.concatenate(list(tools.generator.render(shown.genomes, shown.classes)), axis=1))
    buffer = io.BytesIO()
    page = np.concatenate(rows, axis=0)
    # Grey is shown as ink on paper; colours are shown as they are.
    Image.fromarray(255 - page if plan.data.channels == 1 else page).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _diversity(plan: Plan, outcome: Outcome, released: Released) -> dict[str, Any]:
    model, fit = outcome.learnt.model, None
    if model is not None:
        fit = (tools_of(plan).encoder.statistic(released.features), model)
    return diversity(released.features, released.samples.classes, plan.data.classes, fit)


def _preview(plan: Plan, released: Released) -> dict[str, Any]:
    samples = released.samples
    if plan.data.kind == "image":
        return {}
    shown = np.linspace(0, len(samples.classes) - 1, PREVIEW).astype(int)
    rows = [[*samples.rows[i], plan.data.classes[samples.classes[i]]] for i in shown]
    noun = {"noun": "text"} if plan.data.kind == "text" else {}
    return {"preview": {"columns": [*samples.columns, plan.data.label], "rows": rows}, **noun}


def _distributions(plan: Plan, released: Released) -> list[dict[str, Any]]:
    if plan.data.kind != "table":
        return []
    found = []
    for position, column in enumerate(plan.data.columns):
        labels = list(column.values) or [
            f"{a:g} to {b:g}" for a, b in zip(column.edges, column.edges[1:], strict=False)
        ]
        labels += ["missing"] if column.missing else []
        codes = _codes(released, position, plan)
        series = {}
        for cls, name in enumerate(plan.data.classes):
            own = codes[released.samples.classes == cls]
            series[f"{plan.data.label}: {name}"] = (
                np.bincount(own, minlength=column.levels) / max(len(own), 1)
            ).tolist()
        found.append({"column": column.name, "labels": labels, "series": series})
    return found


def _codes(released: Released, position: int, plan: Plan) -> Any:
    start = sum(column.levels for column in plan.data.columns[:position])
    return np.argmax(released.features[:, start : start + plan.data.columns[position].levels], axis=1)


def _warnings(plan: Plan, asks: Sequence[Ask]) -> list[str]:
    warnings = []
    for ask in asks:
        units = plan.sites.count * plan.sites.expected_units / len(plan.data.classes)
        noise = ask.mechanism.std / ask.bounds.scale
        if ask.kind == "counts" and noise > units / 4:
            warnings.append(
                f"class counts are mostly noise: its standard deviation is {noise:.0f} of about {units:.0f} units"
            )
    return warnings
