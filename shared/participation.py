"""Which sites took part in which question, as the run folder tells it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from patevolve.shared.islands import turn_of
from patevolve.shared.plan import Plan
from patevolve.shared.runfolder import RunFolder


def participation(folder: RunFolder, plan: Plan, names: Sequence[str], sites: Collection[str]) -> list[dict[str, Any]]:
    """Return, for each question that was answered, how many sites did, who refused why, and who was silent."""
    rows = []
    for name in names:
        found = folder.who_answered(name)
        if found is None:
            continue
        answered, refused = found
        silent = sorted(set(sites) - set(answered) - set(refused))
        rows.append(
            {
                "question": name,
                "when": _when(plan, name),
                "sites": len(set(sites) | set(answered)),
                "answered": len(answered),
                "refused": dict(refused),
                "silent": silent,
            }
        )
    return rows


def _when(plan: Plan, name: str) -> str:
    kind, _, number = name.partition("/")
    votes = {"neighbours": plan.questions.neighbours, "choices": plan.questions.choices}
    votes["confidence"] = plan.questions.confidence
    if kind in votes:
        return f"generation {plan.evolution.generations - votes[kind].times + int(number)}"
    if kind == "islands":
        return f"generation {turn_of(plan, name).number}"
    return (
        "before the first generation" if kind in {"counts", "prototypes", "gradients"} else "after the last generation"
    )


def answered_by(rows: Sequence[Mapping[str, Any]], site: str) -> int:
    """Return how many of these questions a site answered."""
    return sum(site not in row["refused"] and site not in row["silent"] for row in rows)
