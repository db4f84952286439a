"""What `ledger show` and `ledger verify` print: JSON-able mappings, and the same as text."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from patevolve.shared.privacy import accountant
from patevolve.shared.privacy.events import to_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from patevolve.shared.privacy.ledger import Cap, Charge, Ledger, Verification

_COLUMNS = ("row", "time", "plan", "run", "question", "part", "scope", "event", "ε alone", "answer")


def describe(ledger: Ledger, cap: Cap, *, last: int | None = None) -> dict[str, Any]:
    """Return who asked what, when, under which plan, at what cost, and what is left under ``cap``.

    ``last`` limits the charges listed; the totals always cover the ledger's whole life. ε figures are at cap.delta:
    "spent" is smallest over orders (a report), "remaining" is at the one order that the ledger enforces.
    """
    charges = list(ledger.charges())
    shown = charges if last is None else charges[max(0, len(charges) - last) :]
    open_rows = {charge.seq for charge in ledger.unanswered()}
    return {
        "site": ledger.site,
        "path": str(ledger.path),
        "head": dataclasses.asdict(ledger.head()),
        "cap": dataclasses.asdict(cap),
        "conversion": accountant.CONVERSION,
        "spent": dataclasses.asdict(ledger.spent(cap.delta)),
        "spent_by_part": _epsilons(ledger, "part", cap),
        "spent_by_plan": _epsilons(ledger, "plan", cap),
        "remaining": dataclasses.asdict(ledger.remaining(cap)),
        "charges_in_all": len(charges),
        "charges": [_charge(charge, cap.delta, answered=charge.seq not in open_rows) for charge in shown],
    }


def describe_text(ledger: Ledger, cap: Cap, *, last: int | None = 20) -> str:
    """Return ``describe`` as a table with a few lines of totals above it."""
    found = describe(ledger, cap, last=last)
    spent, left = found["spent"], found["remaining"]
    lines = [
        f"Ledger of {found['site']}: {found['charges_in_all']} charges",
        f"Last row: {found['head']['seq']}, digest {found['head']['digest']}",
        f"Cap for its life: ε = {cap.epsilon:g} at δ = {cap.delta:g}",
        f"Reached: ε = {left['epsilon']:.4f} at the enforced order {left['order']:g}",
        f"Left of the budget: {_percent(left['left'], left['budget'])}",
        f"Report (smallest over orders, plans fixed in advance): ε = {spent['epsilon']:.4f}",
        *(f"  part {part}: ε = {value:.4f} alone" for part, value in found["spent_by_part"].items()),
    ]
    rows = [_row(charge) for charge in found["charges"]]
    return "\n".join([*lines, "", *_table(rows)]) + "\n"


def verification(found: Verification) -> dict[str, Any]:
    """Return a successful verification as a JSON-able mapping."""
    return {"sound": True, **dataclasses.asdict(found)}


def verification_text(found: Verification) -> str:
    """Return a successful verification as text, with what it could not show."""
    lines = [
        f"{found.path}: sound",
        f"site {found.head.site}, last row {found.head.seq}, digest {found.head.digest}",
        f"{found.charges} charges, {found.answers} stored answers, {found.unanswered} charges without an answer",
    ]
    if found.trusted_heads:
        lines.append(f"held against {found.trusted_heads} signed heads kept elsewhere: none is missing")
    else:
        lines.append(
            "no signed head was given: an older copy of this ledger, or one written anew, would look the same. "
            "Give the heads that the coordinator keeps."
        )
    return "\n".join(lines) + "\n"


def _epsilons(ledger: Ledger, by: Any, cap: Cap) -> dict[str, float]:
    return {name: value.epsilon for name, value in ledger.spent_by(by, cap.delta).items()}


def _charge(charge: Charge, delta: float, *, answered: bool) -> dict[str, Any]:
    return {
        "seq": charge.seq,
        "time": charge.time,
        "plan_sha256": charge.plan_sha256,
        "run": charge.run,
        "question": charge.question,
        "question_sha256": charge.question_sha256,
        "cohort_sha256": charge.cohort_sha256,
        "part": charge.part,
        "scope": charge.scope,
        "event": to_record(charge.event),
        "cap": dataclasses.asdict(charge.cap),
        "epsilon_alone": accountant.epsilon(accountant.rdp(charge.event), delta).epsilon,
        "answered": answered,
        "digest": charge.digest,
    }


def _row(charge: dict[str, Any]) -> tuple[str, ...]:
    event = dict(charge["event"])
    kind = event.pop("kind")
    values = " ".join(f"{name}={value:g}" for name, value in event.items())
    return (
        str(charge["seq"]),
        charge["time"],
        charge["plan_sha256"][:12],
        charge["run"],
        charge["question"],
        charge["part"],
        charge["scope"],
        f"{kind} {values}",
        f"{charge['epsilon_alone']:.4f}",
        "stored" if charge["answered"] else "none",
    )


def _table(rows: Sequence[tuple[str, ...]]) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]
    for row in (_COLUMNS, tuple("-" * width for width in widths), *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole > 0 else "0 %"
