"""The report's JSON: everything the page shows, from the plan, the run's public values and the sites' ledgers."""

from __future__ import annotations

import dataclasses
import datetime as dt
import importlib.metadata
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from patevolve.shared.plan import Agreed, Plan
from patevolve.shared.privacy import accountant, tight, viewers
from patevolve.shared.privacy.events import Event
from patevolve.shared.privacy.head_part import head_events, head_part
from patevolve.shared.privacy.planner import Part, spend
from patevolve.shared.privacy.viewers import Exposure


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSummary:
    """One site's part. ``units`` is private: it is given only where the reader holds the data (local, simulated).

    A coordinator knows neither a site's cap nor its ledger: it gives NaN, and None for ``verified``.
    """

    site: str
    units: int | None
    epsilon: float
    cap: float
    remaining: float
    questions: tuple[str, ...]
    charges: int
    head: str
    verified: bool | None
    ledger: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Utility:
    """One row of the utility table: what a student was trained on and how it did on real held-out records."""

    trained_on: str
    model: str
    metric: str
    chance: float
    epsilon: float | None
    values: tuple[float, ...]

    def row(self) -> dict[str, Any]:
        """Return the JSON row: mean and sample standard deviation over seeds."""
        values = np.array(self.values)
        spread = float(values.std(ddof=1)) if len(values) > 1 else None
        return {
            "trained_on": self.trained_on,
            "model": self.model,
            "metric": self.metric,
            "direction": "higher is better",
            "mean": float(values.mean()),
            "sd": spread,
            "chance": self.chance,
            "epsilon": self.epsilon,
            "values": list(self.values),
        }


def privacy_part(agreed: Agreed, shared: Sequence[Event], local: Sequence[Event] = ()) -> dict[str, Any]:
    """Return ε, the RDP curve, its conversion, the tight figure, the parts and the viewers of a run's events.

    local: what each site's own island cost its units, beside what was asked of all sites together; the cost of the
           plan's private head is added here
    """
    plan, local = agreed.plan, (*local, *head_events(agreed.plan))
    events = (*shared, *local)
    curve = accountant.compose(events)
    spent = accountant.epsilon(curve, plan.privacy.delta)
    figure = tight.figure(events, plan.privacy.delta) if events else None
    return {
        "epsilon": spent.epsilon,
        "delta": plan.privacy.delta,
        "epsilon_planned": plan.privacy.epsilon,
        "epsilon_order": spent.order if events else None,
        "conversion": accountant.CONVERSION,
        "rdp": {"orders": list(accountant.ORDERS), "values": curve.tolist()},
        "tight": dataclasses.asdict(figure) if figure else None,
        "trust": plan.privacy.trust,
        "cohort": {
            "sites": plan.sites.count,
            "dropouts": plan.privacy.dropouts,
            "colluders": plan.privacy.colluders,
        },
        "unit": plan.privacy.unit,
        "neighbouring": f"add or remove one {plan.privacy.unit} at one site",
        "parts": _parts(agreed),
        "viewers": _viewers(agreed, shared, local),
    }


def _head(agreed: Agreed) -> list[dict[str, Any]]:
    head, unit = head_part(agreed.plan), agreed.plan.privacy.unit
    if head is None:
        return []
    alone = accountant.epsilon(accountant.compose(head.events), agreed.plan.privacy.delta)
    return [
        {
            "part": "head",
            "share": head.share,
            "times": len(head.rates),
            "rho": None,  # the curve of sampled steps is no line in the order
            "noise_multiplier": head.noise_multiplier,
            "epsilon_alone": alone.epsilon,
            "words": f"noise of {head.noise_multiplier:.1f} times a {unit}'s longest gradient, in each of "
            f"{len(head.rates)} steps at each site; the result never leaves it",
        }
    ]


def _parts(agreed: Agreed) -> list[dict[str, Any]]:
    parts = _head(agreed)
    for part in spend(agreed.plan):
        alone = accountant.epsilon(part.rho * np.asarray(accountant.ORDERS), agreed.plan.privacy.delta).epsilon
        parts.append(
            {
                "part": part.kind,
                "share": part.share,
                "times": part.times,
                "rho": part.rho,
                "noise_multiplier": part.noise_multiplier,
                "epsilon_alone": alone,
                "words": f"{_noise(agreed.plan, part)}, asked {part.times}×",
            }
        )
    return parts


def _noise(plan: Plan, part: Part) -> str:
    """Return in words what stands between a part's answer and one unit."""
    match part.kind:
        case "choices":
            each = 2.0 / (part.noise_multiplier * math.sqrt(len(plan.data.classes)))
            return f"one choice per class at each site, by the exponential mechanism at ε = {each:.2g} or a little more"
        case "confidence":
            scale = part.noise_multiplier * plan.questions.confidence.candidates
            return f"Laplace noise of scale {scale:,.0f} confidences or a little less on each value, at each site"
        case _:
            return f"noise like {part.noise_multiplier:.1f} whole {plan.privacy.unit}s on each value"


def _twice(plan: Plan, seen: Exposure) -> Any:
    """Return the curve of a unit with a ballot at two sites: one sum moves twice as far, two answers cost twice."""
    if plan.privacy.trust == "each-site":
        return 2 * viewers.record_curve(seen)
    return viewers.patient_curve(seen, sites=2)


def _viewers(agreed: Agreed, shared: Sequence[Event], local: Sequence[Event]) -> list[dict[str, Any]]:
    plan = agreed.plan
    delta, colluders = plan.privacy.delta, plan.privacy.colluders
    if not (shared or local):
        return []
    # Every site's island, and its head, costs the same, and nobody is known to more than two sites here.
    islands = dict.fromkeys(("one site", "another")[: plan.sites.count], tuple(local)) if local else {}
    seen = Exposure(shared=tuple(shared), local=islands)
    public = Exposure(shared=tuple(viewers.public_view(event, colluders=colluders) for event in shared), local=islands)
    whole = viewers.institution_curve(seen, units=plan.sites.expected_units)

    def row(viewer: str, level: str, curve: Any, words: str) -> dict[str, Any]:
        return {"viewer": viewer, "level": level, "epsilon": accountant.epsilon(curve, delta).epsilon, "words": words}

    unit = plan.privacy.unit
    rows = [
        row("coordinator", unit, viewers.record_curve(seen), f"with {colluders} site(s) telling it their noise shares"),
        row("public", unit, viewers.record_curve(public), "sees the released values alone"),
        row(
            "coordinator",
            f"{unit} at 2 sites",
            _twice(plan, seen),
            "the same person at two sites of the run",
        )
        if plan.sites.count > 1
        else None,
        row(
            "coordinator",
            "whole institution",
            whole,
            f"a site of {plan.sites.expected_units} units, the plan's public guess",
        ),
    ]
    return [entry for entry in rows if entry]


def report(
    agreed: Agreed,
    events: Sequence[Event],
    *,
    local: Sequence[Event] = (),
    mode: str,
    sites: Sequence[SiteSummary],
    utility: Sequence[Utility],
    seeds: Sequence[int],
    parts: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the whole report; ``parts`` holds what the run itself describes (labels, generations, gate, ...).

    events, local:  what was asked of all sites together, and what each site's own island cost its units
    """
    return {
        "format": 1,
        "patevolve": importlib.metadata.version("patevolve"),
        "name": agreed.plan.name,
        "made": dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "mode": mode,
        "plan_sha256": agreed.sha256,
        **privacy_part(agreed, events, local),
        "sites": [{key: value for key, value in dataclasses.asdict(site).items() if key != "ledger"} for site in sites],
        "ledger": sorted(
            (dict(row) for site in sites for row in site.ledger), key=lambda row: (row["time"], row["site"])
        ),
        "utility": [row.row() for row in utility],
        "seeds": list(seeds),
        **parts,
    }
