"""Check a site's ledger from its first row to its last, against its derived tables and against trusted heads.

A verifier raises LedgerError and nothing else, whatever the file holds. Without trusted heads it proves that the file
is one well-formed chain whose totals follow from its rows; a consistent older copy, or a chain written anew by
someone who can write the file, is told apart only by a head that was signed and kept elsewhere.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patevolve.shared.errors import LedgerError
from patevolve.shared.privacy import budget
from patevolve.shared.privacy.chain import Head, Link, parse, sha256_of, walk
from patevolve.shared.privacy.chain_file import verified
from patevolve.shared.privacy.ledger_rows import (
    LEDGER,
    Charge,
    event_text,
    label,
    read_answer,
    read_charge,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable

ROUNDING = 1e-6  # relative; other builds of the accountant's arithmetic may differ in the last digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What a successful verification found. ``trusted_heads`` counts the heads that the chain was held against."""

    path: str
    head: Head
    charges: int
    answers: int
    unanswered: int
    order: float | None
    trusted_heads: int
    answers_read: bool


@dataclass(slots=True, kw_only=True)
class _Replay:
    """The derived tables as the rows imply them."""

    site: str = ""
    order: float | None = None
    used: float = 0.0
    totals: Counter[str] = field(default_factory=Counter)
    spending: Counter[tuple[str, ...]] = field(default_factory=Counter)
    questions: dict[int, list[Any]] = field(default_factory=dict)
    names: dict[tuple[str, str, str], str] = field(default_factory=dict)
    answers: dict[int, str] = field(default_factory=dict)
    digests: dict[int, str] = field(default_factory=dict)
    tail: Link | None = None


def verify(
    path: str | os.PathLike[str], *, trusted_heads: Iterable[Head] = (), read_answers: bool = True
) -> Verification:
    """Verify the ledger at ``path``. Raises LedgerError, and only that, at the first fault.

    trusted_heads: heads of this site whose signatures the caller has checked; each must be a row of the chain
    read_answers:  also hash the bytes of every stored answer (``Ledger.open`` leaves that to ``Ledger.answer``)
    """
    target, heads = Path(path).absolute(), tuple(trusted_heads)
    return verified(target, LEDGER, lambda connection: _verify(connection, target, heads, read_answers=read_answers))


def _verify(connection: sqlite3.Connection, path: Path, heads: tuple[Head, ...], *, read_answers: bool) -> Verification:
    wanted = {head.seq for head in heads}
    replay = _Replay()
    for link in walk(lambda statement, values: connection.execute(statement, values).fetchall(), path):
        _replay(replay, link, path)
        if link.seq in wanted:
            replay.digests[link.seq] = link.digest
    _compare_tables(connection, replay, path)
    for head in heads:
        _compare_head(replay, head, path)
    _compare_answers(connection, replay, path, read=read_answers)
    return _verification(replay, path, len(heads), answers_read=read_answers)


def _verification(replay: _Replay, path: Path, heads: int, *, answers_read: bool) -> Verification:
    tail = _tail(replay)
    return Verification(
        path=str(path),
        head=Head(seq=tail.seq, digest=tail.digest, site=replay.site),
        charges=len(replay.questions),
        answers=len(replay.answers),
        unanswered=sum(row[-1] is None for row in replay.questions.values()),
        order=replay.order,
        trusted_heads=heads,
        answers_read=answers_read,
    )


def _tail(replay: _Replay) -> Link:
    if replay.tail is None:
        raise LedgerError("the chain has no rows; restore the newest copy")
    return replay.tail


def _replay(replay: _Replay, link: Link, path: Path) -> None:
    where = f"{path}: row {link.seq}"
    replay.tail = link
    match link.kind:
        case "genesis" if link.seq == 0:
            replay.site = _site(link, where)
        case "filter" if link.seq == 1:
            replay.order = _order(link, where)
        case "charge" if link.seq > 1:
            _replay_charge(replay, read_charge(link), where)
        case "answer" if link.seq > 2:
            _replay_answer(replay, link, where)
        case _:
            raise LedgerError(f"{where}: a row of kind {link.kind!r} cannot stand here; the row was forged")


def _site(link: Link, where: str) -> str:
    body = parse(link.body, where=where)
    if set(body) != {"format", "version", "site", "id"} or (body["format"], body["version"]) != (
        LEDGER.name,
        LEDGER.version,
    ):
        raise LedgerError(f"{where}: not the genesis of a {LEDGER.name} {LEDGER.version}; the row was forged")
    return label(site=body["site"])


def _order(link: Link, where: str) -> float:
    body = parse(link.body, where=where)
    order = body.get("order")
    if set(body) != {"order"} or type(order) is not float or not order > 1.0:
        raise LedgerError(f"{where}: not the row that fixes the filter's order; the row was forged")
    return order


def _replay_charge(replay: _Replay, charge: Charge, where: str) -> None:
    text = event_text(charge.event)
    if replay.order is None:
        raise LedgerError(f"{where}: a charge before the filter's order was fixed; the row was forged")
    replay.used += budget.cost_at(text, replay.order)
    affordable = budget.budget_at(replay.order, charge.cap)
    if not replay.used <= affordable * (1 + ROUNDING):
        raise LedgerError(f"{where}: spends beyond its cap ({replay.used:.6g} of {affordable:.6g}); the row was forged")
    name = (charge.plan_sha256, charge.run, charge.question)
    if replay.names.setdefault(name, charge.question_sha256) != charge.question_sha256:
        raise LedgerError(f"{where}: question {charge.question!r} has two contents; the row was forged")
    replay.totals[text] += 1
    replay.spending[charge.plan_sha256, charge.run, charge.part, charge.scope, text] += 1
    replay.questions[charge.seq] = [*name, charge.question_sha256, charge.cohort_sha256, None]


def _replay_answer(replay: _Replay, link: Link, where: str) -> None:
    answer = read_answer(link)
    paid = replay.questions.get(answer.charge)
    if paid is None or paid[-1] is not None:
        raise LedgerError(f"{where}: answers row {answer.charge}, which is no unanswered charge; the row was forged")
    paid[-1] = link.seq
    replay.answers[link.seq] = answer.sha256


def _compare_tables(connection: sqlite3.Connection, replay: _Replay, path: Path) -> None:
    """Raise LedgerError unless each derived table holds exactly what the rows imply."""
    questions = {row[0]: list(row[1:]) for row in connection.execute("SELECT * FROM questions")}
    spending = {tuple(row[:-1]): row[-1] for row in connection.execute("SELECT * FROM spending")}
    totals = dict(connection.execute("SELECT * FROM totals").fetchall())
    for name, found, expected in (
        ("questions", questions, replay.questions),
        ("spending", spending, replay.spending),
        ("totals", totals, replay.totals),
    ):
        if found != expected:
            raise LedgerError(f"{path}: table {name} disagrees with the chain's rows; the file was altered")


def _compare_head(replay: _Replay, head: Head, path: Path) -> None:
    tail = _tail(replay)
    if head.site != replay.site:
        raise LedgerError(
            f"{path}: ledger of {replay.site!r}, but the trusted head is of {head.site!r}; check the path"
        )
    if head.seq > tail.seq:
        raise LedgerError(
            f"{path}: ends at row {tail.seq}, but row {head.seq} was signed: rolled back to an older copy or cut off. "
            "Do not spend; restore the newest copy"
        )
    if replay.digests.get(head.seq) != head.digest:
        raise LedgerError(
            f"{path}: row {head.seq} is not the one that was signed: the chain was forked or written anew. Do not spend"
        )


def _compare_answers(connection: sqlite3.Connection, replay: _Replay, path: Path, *, read: bool) -> None:
    if {seq for (seq,) in connection.execute("SELECT seq FROM answers")} != set(replay.answers):
        raise LedgerError(f"{path}: the stored answers are not those of the chain; answers were removed or added")
    if not read:
        return
    for seq, data in connection.execute("SELECT seq, data FROM answers"):
        if not isinstance(data, bytes) or sha256_of(data) != replay.answers[seq]:
            raise LedgerError(f"{path}: the answer in row {seq} was altered; do not replay it")
