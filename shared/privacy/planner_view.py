"""What a plan asks and costs, for people and for machines: the budget arithmetic behind ``patevolve plan``."""

from __future__ import annotations

import dataclasses
from typing import Any

from patevolve.shared.plan import Agreed
from patevolve.shared.privacy.planner import choose_labels, spend


def describe(agreed: Agreed) -> dict[str, Any]:
    """Return the plan's budget as a JSON-able mapping."""
    plan = agreed.plan
    return {
        "name": plan.name,
        "sha256": agreed.sha256,
        "epsilon": plan.privacy.epsilon,
        "delta": plan.privacy.delta,
        "unit": plan.privacy.unit,
        "trust": plan.privacy.trust,
        "sites": plan.sites.count,
        "parts": [dataclasses.asdict(part) for part in spend(plan)],
        "labels": dataclasses.asdict(choose_labels(plan)),
    }


def describe_text(agreed: Agreed) -> str:
    """Return the plan's budget in words."""
    found = describe(agreed)
    lines = [
        f"Plan {found['name']} ({found['sha256'][:12]}…)",
        f"ε = {found['epsilon']:g} at δ = {found['delta']:g} per {found['unit']}",
        f"{found['sites']} site(s), trust model {found['trust']}",
        *(
            f"  {part['kind']:<11} {part['share']:>4.0%} of the budget, {part['times']}×: noise like "
            f"{part['noise_multiplier']:.1f} whole {found['unit']}s on each value"
            for part in found["parts"]
        ),
        f"Labels: {found['labels']['reason']}",
    ]
    return "\n".join(lines)
