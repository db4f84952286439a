"""The coordinator's ledger: what was asked of whom, and how far each site's own ledger had come.

It is a chain of the same make as a site's. It holds public values only: questions with their events as the coordinator
sees them, the sites' public keys, and their signed heads. A head that goes backwards or forks is refused; with an
``Extension`` beside it, also one that does not grow from the last. ``trusted_heads`` are what a site's auditor holds
the site's ledger against.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, get_args

import numpy as np

from patevolve.shared import checks
from patevolve.shared.errors import LedgerError, MessageError, ParameterError, PatevolveError
from patevolve.shared.privacy import accountant, budget, events
from patevolve.shared.privacy.chain import Extension, Head, Link, canonical, extend, next_link, parse, walk
from patevolve.shared.privacy.chain_file import Chain, Format, verified
from patevolve.shared.privacy.ledger_rows import Scope, event_text, label, sha256
from patevolve.shared.privacy.signing import SignedHead, head_from_json, head_to_json, verify_head

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Mapping
    from types import TracebackType

    from patevolve.shared.privacy.accountant import Epsilon
    from patevolve.shared.privacy.events import Event

SITE, HEADS, QUESTION = "site", "heads", "question"

_TOTALS = (
    "CREATE TABLE totals (scope TEXT, site TEXT, event TEXT, questions INTEGER NOT NULL, "
    "PRIMARY KEY (scope, site, event)) WITHOUT ROWID"
)

GLOBAL_LEDGER = Format(
    name="patevolve-global-ledger",
    version=1,
    application_id=0x70457647,
    schema=(
        "CREATE TABLE sites (site TEXT PRIMARY KEY, public_key TEXT NOT NULL) WITHOUT ROWID",
        "CREATE TABLE heads (site TEXT, seq INTEGER, digest TEXT NOT NULL, PRIMARY KEY (site, seq)) WITHOUT ROWID",
        "CREATE TABLE questions (name TEXT PRIMARY KEY, row INTEGER NOT NULL) WITHOUT ROWID",
        _TOTALS,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalVerification:
    """What a successful verification of the coordinator's ledger found."""

    path: str
    head: Head
    sites: int
    questions: int
    heads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What the rows of a coordinator's ledger say, after they were checked.

    sites:      by name, the public keys that sign the sites' heads
    questions:  the bodies of the recorded questions, in order
    heads:      by name, the last head that each site signed
    """

    head: Head
    sites: Mapping[str, str]
    questions: tuple[Mapping[str, Any], ...]
    heads: Mapping[str, Head]


class GlobalLedger:
    """An open coordinator's ledger. Threads may share it; use one coordinator per file."""

    def __init__(self, chain: Chain) -> None:
        """Hold an opened chain; use ``create`` or ``open`` instead."""
        self._chain = chain
        self.coordinator: str = parse(chain.link_at(0).body, where=f"{chain.path}: row 0")["coordinator"]

    @classmethod
    def create(cls, path: str | os.PathLike[str], *, coordinator: str) -> Self:
        """Create the ledger once, durably. Raises LedgerError when the file exists."""
        label(coordinator=coordinator)
        Chain.create(path, GLOBAL_LEDGER, {"coordinator": coordinator, "id": os.urandom(16).hex()}).close()
        return cls.open(path)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Verify and open the ledger. Raises LedgerError when missing, damaged or of another version."""
        verify_global(path)
        return cls(Chain.open(path, GLOBAL_LEDGER))

    def close(self) -> None:
        """Close the file."""
        self._chain.close()

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

    def register_site(self, site: str, public_key: str) -> None:
        """Record a site's public key, learnt by a way that the site trusts. Raises LedgerError for a second key."""
        self.register_sites({site: public_key})

    def register_sites(self, keys: Mapping[str, str]) -> None:
        """Record a cohort's public keys by site, in one transaction: all or none; known ones are left as they are.

        The rows, one for each new site in the order of ``keys``, are those of ``register_site`` one by one.
        """
        bodies = {
            site: canonical({"site": label(site=site), "public_key": sha256(public_key=key)})
            for site, key in keys.items()
        }
        with self._chain.transaction():
            known = dict(self._chain.rows("SELECT site, public_key FROM sites"))
            for site, body in bodies.items():
                if site not in known:
                    self._chain.append(SITE, body)
                    self._chain.write("INSERT INTO sites VALUES (?, ?)", (site, keys[site]))
                elif known[site] != keys[site]:
                    raise LedgerError(f"site {site!r} is registered with another key; register it under a new name")

    def record_question(
        self,
        *,
        plan_sha256: str,
        run: str,
        question: str,
        question_sha256: str,
        part: str,
        event: Event,
        sites: Iterable[str],
        scope: Scope = "shared",
    ) -> int:
        """Record a question to ``sites``, with its event as the coordinator sees it; return its row.

        Recording the same again does nothing, so a resumed run may repeat itself; other sites for the same question
        are a new row (a second cohort is a new cost). Raises MessageError when the name has other content.
        """
        body = {
            "plan_sha256": sha256(plan_sha256=plan_sha256),
            "run": label(run=run),
            "question": label(question=question),
            "question_sha256": sha256(question_sha256=question_sha256),
            "part": label(part=part),
            "scope": _scope(scope),
            "event": events.to_record(event),
            "sites": sorted({label(site=site) for site in sites}),
        }
        if not body["sites"]:
            raise ParameterError("sites=[] found; expected the sites that were asked. Correct sites.")
        name, text = _question_name(body), canonical(body)
        with self._chain.transaction():
            known = self._chain.rows("SELECT row FROM questions WHERE name = ?", (name,))
            if known:
                if self._chain.link_at(known[0][0]).body != text:
                    raise MessageError(f"question {question!r} was asked before with other content; give it a new name")
                return int(known[0][0])
            link = self._chain.append(QUESTION, text)
            self._chain.write("INSERT INTO questions VALUES (?, ?)", (name, link.seq))
            for key in _total_keys(body, event_text(event)):
                self._chain.write(
                    "INSERT INTO totals VALUES (?, ?, ?, 1) "
                    "ON CONFLICT (scope, site, event) DO UPDATE SET questions = questions + 1",
                    key,
                )
            return link.seq

    def record_heads(
        self,
        run: str,
        generation: int,
        heads: Iterable[SignedHead],
        *,
        extensions: Mapping[str, Extension] | None = None,
    ) -> None:
        """Join the sites' signed heads of one generation, all or none.

        extensions: by site, the proof that its chain grew from the last recorded head (``Ledger.extension``); a site
        that left it out is taken at its word until its ledger is verified against ``trusted_heads``
        Raises LedgerError for an unknown site, a wrong signature, a head that goes backwards, a fork, a wrong proof.
        """
        signed, proofs = sorted(heads, key=lambda one: one.head.site), extensions or {}
        body = {
            "run": label(run=run),
            "generation": checks.integer(generation=generation, at_least=0),
            "heads": [head_to_json(one) for one in signed],
        }
        with self._chain.transaction():
            for one in signed:
                head = verify_head(one, self._public_key(one.head.site))
                _check_growth(self._last(head.site), self._recorded(head), head, proofs.get(head.site))
                self._chain.write(
                    "INSERT INTO heads VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (head.site, head.seq, head.digest)
                )
            self._chain.append(HEADS, canonical(body))

    def trusted_heads(self, site: str) -> list[Head]:
        """Return the recorded heads of ``site``, oldest first: what its ledger has to contain."""
        rows = self._chain.rows("SELECT seq, digest FROM heads WHERE site = ? ORDER BY seq", (site,))
        return [Head(seq=seq, digest=digest, site=site) for seq, digest in rows]

    def newest_heads(self) -> dict[str, str]:
        """Return site -> the JSON text of its last signed head: what is shown to a site that may have gone back."""
        found: dict[str, tuple[int, str]] = {}
        for link in self._chain.links():
            for text in parse(link.body, where=f"row {link.seq}")["heads"] if link.kind == HEADS else ():
                head = head_from_json(text).head
                found[head.site] = max(found.get(head.site, (-1, "")), (head.seq, text))
        return {site: text for site, (_, text) in found.items()}

    def epsilon(self, delta: float, unseen: Iterable[Event] = ()) -> Epsilon:
        """Return ε at ``delta`` of all recorded questions, for one privacy unit that is held by one site.

        unseen: what each site charges in its own ledger alone, such as its private head

        Shared tallies add up; mechanisms local to a site run on disjoint units, so the worst site counts at each
        order. Valid for questions fixed in advance; each site's own filter is what stops adaptive spending.
        """
        rows = self._chain.rows("SELECT scope, site, event, questions FROM totals")
        shared = budget.curve_of([(event, n) for scope, _, event, n in rows if scope == "shared"])
        local: dict[str, list[tuple[str, int]]] = {}
        for scope, site, event, n in rows:
            if scope == "local":
                local.setdefault(site, []).append((event, n))
        curves = [budget.curve_of(totals) for totals in local.values()]
        worst = np.max(curves, axis=0) if curves else np.zeros_like(shared)
        return accountant.epsilon(shared + worst + accountant.compose(list(unseen)), delta)

    def questions(self) -> list[dict[str, Any]]:
        """Return the recorded questions in order, as JSON-able mappings with their row numbers."""
        links = (link for link in self._chain.links() if link.kind == QUESTION)
        return [{"row": link.seq, **parse(link.body, where=f"row {link.seq}")} for link in links]

    def rows(self) -> list[tuple[str, str]]:
        """Return every row as (kind, body), oldest first: what ``read_rows`` takes."""
        return [(link.kind, link.body) for link in self._chain.links()]

    def head(self) -> Head:
        """Return the last row's number and digest."""
        tail = self._chain.tail()
        return Head(seq=tail.seq, digest=tail.digest, site=self.coordinator)

    def _public_key(self, site: str) -> str:
        known = self._chain.rows("SELECT public_key FROM sites WHERE site = ?", (site,))
        if not known:
            raise LedgerError(
                f"a head of site {site!r} came in, which is not registered; register its public key first"
            )
        return str(known[0][0])

    def _last(self, site: str) -> Head | None:
        heads = self._chain.rows("SELECT seq, digest FROM heads WHERE site = ? ORDER BY seq DESC LIMIT 1", (site,))
        return Head(seq=heads[0][0], digest=heads[0][1], site=site) if heads else None

    def _recorded(self, head: Head) -> str | None:
        rows = self._chain.rows("SELECT digest FROM heads WHERE site = ? AND seq = ?", (head.site, head.seq))
        return str(rows[0][0]) if rows else None


def _check_growth(last: Head | None, recorded: str | None, head: Head, proof: Extension | None) -> None:
    """Raise LedgerError unless ``head`` can follow the last recorded head of its site."""
    if last is None:
        return
    if recorded is not None and recorded != head.digest:
        raise LedgerError(
            f"site {head.site!r} signed two different rows {head.seq}: its ledger was forked. Stop the run"
        )
    if head.seq < last.seq:
        raise LedgerError(
            f"site {head.site!r} sent head {head.seq}, but had signed head {last.seq}: its ledger was rolled back. "
            "Stop the run until the site has restored its newest ledger"
        )
    if proof is not None and extend(last, proof) != head:
        raise LedgerError(
            f"the ledger of site {head.site!r} did not grow from its signed row {last.seq}: it was forked"
        )


def _scope(scope: str) -> str:
    if scope not in get_args(Scope):
        raise ParameterError(f"scope={scope!r} found; expected 'shared' or 'local'. Correct scope.")
    return scope


def _question_name(body: Mapping[str, Any]) -> str:
    return canonical({key: body[key] for key in ("plan_sha256", "run", "question", "part", "sites")})


def _total_keys(body: Mapping[str, Any], text: str) -> list[tuple[str, str, str]]:
    """Return the totals that a question counts in: one for the cohort, or one for each site by itself."""
    sites = [""] if body["scope"] == "shared" else body["sites"]
    return [(body["scope"], site, text) for site in sites]


@dataclass(slots=True, kw_only=True)
class _Replay:
    coordinator: str = ""
    sites: dict[str, str] = field(default_factory=dict)
    heads: dict[tuple[str, int], str] = field(default_factory=dict)
    last: dict[str, Head] = field(default_factory=dict)
    questions: dict[str, int] = field(default_factory=dict)
    totals: Counter[tuple[str, str, str]] = field(default_factory=Counter)


def read_rows(rows: Iterable[tuple[str, str]]) -> Account:
    """Return what the rows (kind, body) of a coordinator's ledger say, each chained to the one before.

    Checks the rows' contents, the signatures of the sites' heads and the growth of each site's ledger.
    Raises LedgerError, and only that.
    """
    replay, questions, tail = _Replay(), [], None
    try:
        for kind, body in rows:
            tail = next_link(tail, kind, body)
            _replay(replay, tail, f"row {tail.seq}")
            questions += [parse(body, where=f"row {tail.seq}")] if kind == QUESTION else []
    except (PatevolveError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise LedgerError(f"the rows are no coordinator's ledger ({error}); they were forged or damaged") from error
    if tail is None:
        raise LedgerError("no rows found; expected those of a coordinator's ledger")
    head = Head(seq=tail.seq, digest=tail.digest, site=replay.coordinator)
    return Account(head=head, sites=replay.sites, questions=tuple(questions), heads=replay.last)


def verify_global(path: str | os.PathLike[str]) -> GlobalVerification:
    """Verify a coordinator's ledger: rows, signatures, growth of each site's heads, derived tables.

    Raises LedgerError, and only that, at the first fault.
    """
    target = Path(path).absolute()
    return verified(target, GLOBAL_LEDGER, lambda connection: _verify(connection, target))


def _verify(connection: sqlite3.Connection, path: Path) -> GlobalVerification:
    replay, tail = _Replay(), None
    for link in walk(lambda statement, values: connection.execute(statement, values).fetchall(), path):
        _replay(replay, link, f"{path}: row {link.seq}")
        tail = link
    heads = {(site, seq): digest for site, seq, digest in connection.execute("SELECT * FROM heads")}
    totals = {tuple(row[:-1]): row[-1] for row in connection.execute("SELECT * FROM totals")}
    for name, found, expected in (
        ("sites", dict(connection.execute("SELECT * FROM sites").fetchall()), replay.sites),
        ("heads", heads, replay.heads),
        ("questions", dict(connection.execute("SELECT * FROM questions").fetchall()), replay.questions),
        ("totals", totals, replay.totals),
    ):
        if found != expected:
            raise LedgerError(f"{path}: table {name} disagrees with the chain's rows; the file was altered")
    if tail is None:
        raise LedgerError(f"{path}: the chain has no rows; restore the newest copy")
    return GlobalVerification(
        path=str(path),
        head=Head(seq=tail.seq, digest=tail.digest, site=replay.coordinator),
        sites=len(replay.sites),
        questions=len(replay.questions),
        heads=len(replay.heads),
    )


def _replay(replay: _Replay, link: Link, where: str) -> None:
    body = parse(link.body, where=where)
    match link.kind:
        case "genesis" if link.seq == 0 and body["format"] == GLOBAL_LEDGER.name:
            replay.coordinator = label(coordinator=body["coordinator"])
        case "site" if link.seq > 0 and body["site"] not in replay.sites:
            replay.sites[label(site=body["site"])] = sha256(public_key=body["public_key"])
        case "heads" if link.seq > 0:
            for text in body["heads"]:
                _replay_head(replay, head_from_json(text), where)
        case "question" if link.seq > 0 and _question_name(body) not in replay.questions:
            replay.questions[_question_name(body)] = link.seq
            _scope(body["scope"])
            replay.totals.update(_total_keys(body, event_text(events.from_record(body["event"]))))
        case _:
            raise LedgerError(f"{where}: a row of kind {link.kind!r} cannot stand here; the row was forged")


def _replay_head(replay: _Replay, signed: SignedHead, where: str) -> None:
    if signed.head.site not in replay.sites:
        raise LedgerError(f"{where}: a head of an unregistered site; the row was forged")
    head = verify_head(signed, replay.sites[signed.head.site])
    _check_growth(replay.last.get(head.site), replay.heads.get((head.site, head.seq)), head, None)
    replay.heads[head.site, head.seq] = head.digest
    replay.last[head.site] = head
