"""The report of an in-process run: whoever runs it holds the sites' folders, so it may show what the sites know."""

from __future__ import annotations

import base64
import dataclasses
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from patevolve.client.home import LEDGER
from patevolve.client.simulate import Finished, Site
from patevolve.shared.files import write_atomic
from patevolve.shared.finish import Released, charged
from patevolve.shared.plan import Agreed, Plan
from patevolve.shared.privacy import ledger_view
from patevolve.shared.privacy.ledger import Ledger, verify
from patevolve.shared.report.statement import MODES
from patevolve.shared.report.summary import SiteSummary, Utility, report
from patevolve.shared.report.write import rendered
from patevolve.shared.rounds import Generation
from patevolve.shared.runfolder import finite
from patevolve.shared.tools import Tools

PREVIEW = 10  # rows of a table shown in the report
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


def site_summary(site: Site, finished: Finished) -> SiteSummary:
    """Return one site's part of the report from its verified ledger. Raises LedgerError if it does not verify."""
    path, cap = site.home.path / LEDGER, site.home.policy.budget
    with finished.folder.open_ledger() as joined:
        verify(path, trusted_heads=joined.trusted_heads(site.home.policy.site))
    with Ledger.open(path) as ledger:
        described, head = ledger_view.describe(ledger, cap), ledger.head()
        own = [charge for charge in described["charges"] if charge["run"] == finished.run]
    return SiteSummary(
        site=site.home.policy.site,
        units=finished.units[site.home.policy.site],
        epsilon=described["spent"]["epsilon"],
        cap=cap.epsilon,
        remaining=max(0.0, cap.epsilon - described["remaining"]["epsilon"]),
        questions=tuple(charge["question"] for charge in own),
        charges=len(own),
        head=head.digest,
        verified=True,
        ledger=tuple({"site": site.home.policy.site, **charge} for charge in described["charges"]),
    )


def write_report(agreed: Agreed, finished: Finished, sites: Mapping[str, Site], context: Context) -> dict[str, Any]:
    """Write report.json and report.html into the run folder and return the report."""
    plan, outcome, released = agreed.plan, finished.outcome, finished.released
    counts = {name: int(np.sum(released.samples.classes == i)) for i, name in enumerate(plan.data.classes)}
    parts = {
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
        "warnings": _warnings(plan, finished),
        "reproduce": list(context.reproduce),
        "score": None if finished.score is None else dataclasses.asdict(finished.score),
        "wall_seconds": context.wall_seconds,
    }
    made = report(
        agreed,
        [ask.event for ask in charged(finished.asks, outcome)],
        mode=context.mode,
        sites=[site_summary(site, finished) for site in sites.values()],
        utility=context.utility,
        seeds=context.seeds,
        parts=parts,
    )
    value: dict[str, Any] = finite(made)
    finished.folder.write_json("report.json", value)
    write_atomic(finished.folder.path / "report.html", rendered(value).encode())
    return value


def seen(generation: Generation, plan: Plan, tools: Tools, *, gallery: bool) -> dict[str, Any]:
    """Return a generation as the report shows it; images get a gallery, rows are seen in the preview."""
    picture = _gallery(generation, plan, tools) if gallery and plan.data.kind == "image" else None
    return {
        "generation": generation.number,
        "asked": list(generation.asked),
        "spread": generation.spread,
        "match": generation.match,
        "gallery": picture,
    }


def _gallery(generation: Generation, plan: Plan, tools: Tools) -> str:
    from PIL import Image  # noqa: PLC0415 - an extra: only image plans need it

    rows = []
    for cls in range(len(plan.data.classes)):
        own = generation.population.of_class(cls)
        shown = own.pick(np.linspace(0, len(own) - 1, GALLERY).astype(np.int64))
        rows.append(np.concatenate(list(tools.generator.render(shown.genomes, shown.classes)), axis=1))
    buffer = io.BytesIO()
    Image.fromarray(255 - np.concatenate(rows, axis=0)).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _preview(plan: Plan, released: Released) -> dict[str, Any]:
    samples = released.samples
    if plan.data.kind != "table":
        return {}
    shown = np.linspace(0, len(samples.classes) - 1, PREVIEW).astype(int)
    rows = [[*samples.rows[i], plan.data.classes[samples.classes[i]]] for i in shown]
    return {"preview": {"columns": [*samples.columns, plan.data.label], "rows": rows}}


def _distributions(plan: Plan, released: Released) -> list[dict[str, Any]]:
    if plan.data.kind != "table":
        return []
    found = []
    for position, column in enumerate(plan.data.columns):
        labels = list(column.values) or [
            f"{a:g} to {b:g}" for a, b in zip(column.edges, column.edges[1:], strict=False)
        ]
        labels += ["missing"] if column.missing else []
        codes = _codes(released, position, len(plan.data.columns), plan)
        series = {}
        for cls, name in enumerate(plan.data.classes):
            own = codes[released.samples.classes == cls]
            series[f"{plan.data.label}: {name}"] = (
                np.bincount(own, minlength=column.levels) / max(len(own), 1)
            ).tolist()
        found.append({"column": column.name, "labels": labels, "series": series})
    return found


def _codes(released: Released, position: int, columns: int, plan: Plan) -> Any:
    start = sum(column.levels for column in plan.data.columns[:position])
    del columns
    return np.argmax(released.features[:, start : start + plan.data.columns[position].levels], axis=1)


def _warnings(plan: Plan, finished: Finished) -> list[str]:
    warnings = []
    for ask in finished.asks:
        units = plan.sites.count * plan.sites.expected_units / len(plan.data.classes)
        noise = ask.mechanism.std / ask.bounds.scale
        if ask.kind == "counts" and noise > units / 4:
            warnings.append(
                f"class counts are mostly noise: its standard deviation is {noise:.0f} of about {units:.0f} units"
            )
    return warnings
