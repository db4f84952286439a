"""A site's ledger: every privacy charge, committed before its noise is drawn, for the life of the site.

``charge`` checks, writes and syncs in one transaction, or writes nothing. ``answer`` and ``store_answer`` keep the
noised bytes, so that a question asked again costs nothing and reveals nothing new. Nothing is ever refunded: a crash
after a charge costs the budget, never the guarantee. Schema, bytes and promises: LEDGER.md.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from patevolve.shared.errors import BudgetError, LedgerError, MessageError, ParameterError
from patevolve.shared.privacy import budget
from patevolve.shared.privacy.budget import Cap, Remaining
from patevolve.shared.privacy.chain import Extension, Head, canonical, extension_of, parse, sha256_of
from patevolve.shared.privacy.chain_file import Chain
from patevolve.shared.privacy.ledger_rows import (
    ANSWER,
    CHARGE,
    FILTER,
    LEDGER,
    AnswerKey,
    Charge,
    Scope,
    charge_body,
    event_text,
    label,
    read_answer,
    read_charge,
)
from patevolve.shared.privacy.ledger_verify import Verification, verify

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from patevolve.shared.privacy.accountant import Epsilon
    from patevolve.shared.privacy.events import Event

__all__ = ["AnswerKey", "Cap", "Charge", "Extension", "Head", "Ledger", "Remaining", "Verification", "verify"]

MAX_ANSWER_BYTES = 64 * 2**20  # one answer is one SQLite value, read into memory when replayed

_BREAKDOWNS = {
    "part": "SELECT part, event, SUM(charges) FROM spending GROUP BY part, event",
    "plan": "SELECT plan_sha256, event, SUM(charges) FROM spending GROUP BY plan_sha256, event",
    "run": "SELECT run, event, SUM(charges) FROM spending GROUP BY run, event",
    "scope": "SELECT scope, event, SUM(charges) FROM spending GROUP BY scope, event",
}


class Ledger:
    """An open ledger. Threads may share it; other processes may append to the same file at the same time."""

    def __init__(self, chain: Chain, lock: int | None) -> None:
        """Hold an opened chain; use ``create`` or ``open`` instead."""
        self._chain = chain
        self._lock = lock
        genesis = parse(chain.rows("SELECT body FROM chain WHERE seq = 0")[0][0], where=f"{chain.path}: row 0")
        self.site: str = genesis["site"]

    @classmethod
    def create(cls, path: str | os.PathLike[str], *, site: str) -> Self:
        """Create the site's ledger once, durably. Raises LedgerError when the file exists."""
        label(site=site)
        # The random id makes two ledgers of one site name different from their first row on.
        Chain.create(path, LEDGER, {"site": site, "id": secrets.token_hex(16)}).close()
        return cls.open(path)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, exclusive: bool = False, trusted_heads: Iterable[Head] = ()) -> Self:
        """Open and verify the ledger; ``exclusive`` refuses a second exclusive opener at once.

        Raises LedgerError when the file is missing, damaged, of another version, in use, or behind a trusted head.
        """
        target = Path(path).resolve()
        lock = _take_lock(target) if exclusive else None
        try:
            verify(target, trusted_heads=trusted_heads, read_answers=False)
            return cls(Chain.open(target, LEDGER), lock)
        except BaseException:
            _release(lock)
            raise

    def close(self) -> None:
        """Close the file and give up the exclusive lock."""
        self._chain.close()
        _release(self._lock)
        self._lock = None

    def rest(self) -> None:
        """Close the file until the next use; the exclusive lock stays. For processes with many sites."""
        self._chain.rest()

    def __enter__(self) -> Self:
        """Return the open ledger."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the ledger."""
        self.close()

    @property
    def path(self) -> Path:
        """Where the ledger lies."""
        return self._chain.path

    def charge(
        self,
        key: AnswerKey,
        *,
        part: str,
        event: Event,
        cap: Cap,
        scope: Scope = "shared",
        time: str | None = None,
    ) -> Charge:
        """Spend ``event`` under ``cap``; when this returns, the row is on the disk and noise may be drawn.

        Guarantee: over the ledger's life the accepted events satisfy (ε, δ)-DP for the largest cap ever in force,
        also when plans are chosen after seeing answers (see budget.py).
        Raises BudgetError when the cap does not cover the event, MessageError when the question's name was used
        with other content, ParameterError or UnsupportedEventError for what cannot be accounted, LedgerError when
        the answer is stored already or the file cannot be written. Nothing is written then.
        """
        body = canonical(charge_body(key=key, part=part, scope=scope, event=event, cap=cap, time=time))
        text = event_text(event)
        with self._chain.transaction():
            if self._answered(key) is not None:
                raise LedgerError(
                    f"question {key.question!r} is answered already; return Ledger.answer's bytes instead"
                )
            self._check_budget(text, cap)
            link = self._chain.append(CHARGE, body)
            self._add_up(link.seq, key, part, scope, text)
            return read_charge(link)

    def answer(self, key: AnswerKey) -> bytes | None:
        """Return the stored answer's bytes, or None. Raises MessageError when the name was used with other content."""
        seq = self._answered(key)
        if seq is None:
            return None
        chained = read_answer(self._chain.link_at(seq))
        found = self._chain.rows("SELECT data FROM answers WHERE seq = ?", (seq,))
        if not found or not isinstance(found[0][0], bytes) or sha256_of(found[0][0]) != chained.sha256:
            raise LedgerError(f"{self.path}: the answer in row {seq} was altered. Run `patevolve ledger verify`")
        return found[0][0]

    def store_answer(self, key: AnswerKey, data: bytes, charge_seq: int) -> None:
        """Keep an answer's bytes durably under ``key``, paid for by row ``charge_seq``.

        Storing the same bytes again does nothing. Raises LedgerError when other bytes are stored already (two
        workers answered at once: return ``answer(key)``) or when that row is no charge for this key.
        """
        if not isinstance(data, bytes) or len(data) > MAX_ANSWER_BYTES:
            raise ParameterError(f"an answer is at most {MAX_ANSWER_BYTES} bytes; {type(data).__name__} found")
        digest = sha256_of(data)
        with self._chain.transaction():
            if self._answered(key) is not None:
                if self.answer(key) == data:
                    return
                raise LedgerError(f"question {key.question!r} has another stored answer; return Ledger.answer's bytes")
            self._check_paid(key, charge_seq)
            link = self._chain.append(ANSWER, canonical({"charge": charge_seq, "sha256": digest, "size": len(data)}))
            self._chain.write("INSERT INTO answers VALUES (?, ?)", (link.seq, data))
            self._chain.write("UPDATE questions SET answer = ? WHERE charge = ?", (link.seq, charge_seq))

    def unanswered(self) -> list[Charge]:
        """Return the charges without a stored answer: the process ended between charge and answer, or is at it."""
        found = self._chain.rows("SELECT charge FROM questions WHERE answer IS NULL ORDER BY charge")
        return [self._charge_at(seq) for (seq,) in found]

    def charges(self) -> Iterator[Charge]:
        """Yield all charges in order, each row checked against its digest."""
        return (read_charge(link) for link in self._chain.links() if link.kind == CHARGE)

    def head(self) -> Head:
        """Return the last row's number and digest: what is signed and handed to the coordinator."""
        tail = self._chain.tail()
        return Head(seq=tail.seq, digest=tail.digest, site=self.site)

    def extension(self, since: int) -> Extension:
        """Return the proof that the chain grew from row ``since``: for the coordinator, beside a signed head."""
        return extension_of(self._chain.links(after=since), since)

    def spent(self, delta: float) -> Epsilon:
        """Return ε at ``delta`` of everything charged, smallest over the orders.

        A figure for reports: smallest-over-orders holds for events fixed in advance. What holds for adaptively
        chosen plans is ``remaining(cap)``, at the ledger's one order. Costs one step per distinct event.
        """
        return budget.epsilon_of(self._totals(), delta)

    def spent_by(self, by: Literal["part", "plan", "run", "scope"], delta: float) -> dict[str, Epsilon]:
        """Return ε at ``delta`` of each part, plan or run alone; they need not add up to ``spent``."""
        if by not in _BREAKDOWNS:
            raise ParameterError(f"by={by!r} found; expected one of {', '.join(_BREAKDOWNS)}. Correct by.")
        grouped: dict[str, list[tuple[str, int]]] = {}
        for name, event, charges in self._chain.rows(_BREAKDOWNS[by]):
            grouped.setdefault(name, []).append((event, charges))
        return {name: budget.epsilon_of(totals, delta) for name, totals in sorted(grouped.items())}

    def remaining(self, cap: Cap) -> Remaining:
        """Return what ``cap`` still affords at the ledger's order, by the same arithmetic as ``charge``."""
        return budget.remaining(self._totals(), cap, self._order())

    def affords(self, events: Iterable[Event], cap: Cap) -> bool:
        """Return whether ``charge`` would accept all these events now: ask before a plan starts, nothing is written."""
        left = self.remaining(cap)
        texts = [(event_text(event), 1) for event in events]
        return not texts or budget.fits(left.used, budget.used_at(texts, left.order), left.budget)

    def _totals(self) -> list[tuple[str, int]]:
        return [(event, charges) for event, charges in self._chain.rows("SELECT event, charges FROM totals")]

    def _order(self) -> float | None:
        rows = self._chain.rows("SELECT body FROM chain WHERE seq = 1 AND kind = ?", (FILTER,))
        return float(parse(rows[0][0], where=f"{self.path}: row 1")["order"]) if rows else None

    def _check_budget(self, text: str, cap: Cap) -> None:
        """Raise BudgetError unless ``cap`` covers one more event; fix the order before the first charge."""
        order = self._order()
        if order is None:
            order = budget.choose_order(cap)
            self._chain.append(FILTER, canonical({"order": order}))
        left = budget.remaining(self._totals(), cap, order)
        cost = budget.cost_at(text, order)
        if not budget.fits(left.used, cost, left.budget):
            raise BudgetError(
                f"the question costs {cost:.6g} at order {order:g}, {left.left:.6g} of {left.budget:.6g} is left under "
                f"ε={cap.epsilon:g}, δ={cap.delta:g}; nothing was charged. Decline it, or raise the policy's cap"
            )

    def _add_up(self, seq: int, key: AnswerKey, part: str, scope: str, text: str) -> None:
        """Bring the derived tables up to date within the charge's transaction."""
        self._chain.write(
            "INSERT INTO totals VALUES (?, 1) ON CONFLICT (event) DO UPDATE SET charges = charges + 1", (text,)
        )
        self._chain.write(
            "INSERT INTO spending VALUES (?, ?, ?, ?, ?, 1) "
            "ON CONFLICT (plan_sha256, run, part, scope, event) DO UPDATE SET charges = charges + 1",
            (key.plan_sha256, key.run, part, scope, text),
        )
        self._chain.write(
            "INSERT INTO questions VALUES (?, ?, ?, ?, ?, ?, NULL)",
            (seq, key.plan_sha256, key.run, key.question, key.question_sha256, key.cohort_sha256),
        )

    def _answered(self, key: AnswerKey) -> int | None:
        """Return the row of the stored answer, or None; raises MessageError when the name has other content."""
        found = self._chain.rows(
            "SELECT question_sha256, cohort_sha256, answer FROM questions WHERE plan_sha256=? AND run=? AND question=?",
            (key.plan_sha256, key.run, key.question),
        )
        if any(content != key.question_sha256 for content, _, _ in found):
            raise MessageError(
                f"question {key.question!r} of run {key.run!r} was asked before with other content; expected the same "
                "content under one name. Give the new question its own name"
            )
        answers = [answer for _, cohort, answer in found if cohort == key.cohort_sha256 and answer is not None]
        return answers[0] if answers else None

    def _check_paid(self, key: AnswerKey, charge_seq: int) -> None:
        if type(charge_seq) is not int or self._charge_at(charge_seq).key != key:
            raise LedgerError(
                f"row {charge_seq!r} is no charge for question {key.question!r}; store it with its own charge"
            )

    def _charge_at(self, seq: int) -> Charge:
        link = self._chain.link_at(seq)
        if link.kind != CHARGE:
            raise LedgerError(f"{self.path}: row {seq} is no charge; expected the row number that charge() returned")
        return read_charge(link)


def _take_lock(path: Path) -> int:
    """Lock the file beside the ledger for this process; the lock ends with the process, however it ends."""
    try:
        import fcntl  # noqa: PLC0415 - not on Windows
    except ImportError as error:
        raise LedgerError(f"{path}: this system has no file locks that end with a process; run on POSIX") from error
    handle = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(handle, 32).decode("ascii", "replace").strip() or "unknown"
        os.close(handle)
        raise LedgerError(
            f"{path}: in use by process {holder}; one institution runs on a ledger at a time. End that process first"
        ) from error
    os.ftruncate(handle, 0)
    os.write(handle, f"{os.getpid()}\n".encode())
    return handle


def _release(lock: int | None) -> None:
    if lock is not None:
        os.close(lock)
