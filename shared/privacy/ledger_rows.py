"""The site ledger's entries as values, their canonical JSON bodies, and the tables derived from them."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, get_args

from patevolve.shared.errors import LedgerError, ParameterError
from patevolve.shared.privacy import events
from patevolve.shared.privacy.budget import Cap
from patevolve.shared.privacy.chain import Link, canonical, parse
from patevolve.shared.privacy.chain_file import Format

if TYPE_CHECKING:
    from patevolve.shared.privacy.events import Event

Scope = Literal["shared", "local"]
CHARGE, ANSWER, FILTER = "charge", "answer", "filter"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 ._:/+=@-]{0,126}[A-Za-z0-9._:/+=@-])?")
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z")
_APPEND_ONLY = "BEGIN SELECT RAISE(ABORT, 'append-only'); END"

_SPENDING = (
    "CREATE TABLE spending (plan_sha256 TEXT, run TEXT, part TEXT, scope TEXT, event TEXT, charges INTEGER NOT NULL, "
    "PRIMARY KEY (plan_sha256, run, part, scope, event)) WITHOUT ROWID"
)
_QUESTIONS = (
    "CREATE TABLE questions (charge INTEGER PRIMARY KEY, plan_sha256 TEXT NOT NULL, run TEXT NOT NULL, "
    "question TEXT NOT NULL, question_sha256 TEXT NOT NULL, cohort_sha256 TEXT NOT NULL, answer INTEGER)"
)

# `totals`, `spending` and `questions` can be rebuilt from the chain; `answers` holds bytes whose SHA-256 is chained.
LEDGER = Format(
    name="patevolve-ledger",
    version=1,
    application_id=0x7045764C,
    schema=(
        "CREATE TABLE totals (event TEXT PRIMARY KEY, charges INTEGER NOT NULL) WITHOUT ROWID",
        _SPENDING,
        _QUESTIONS,
        "CREATE INDEX questions_by_name ON questions (plan_sha256, run, question)",
        "CREATE TABLE answers (seq INTEGER PRIMARY KEY, data BLOB NOT NULL)",
        f"CREATE TRIGGER answers_keep_rows BEFORE DELETE ON answers {_APPEND_ONLY}",
        f"CREATE TRIGGER answers_keep_values BEFORE UPDATE ON answers {_APPEND_ONLY}",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerKey:
    """What makes two requests the same: asked again with an equal key, the stored bytes are the answer."""

    plan_sha256: str
    run: str
    question: str
    question_sha256: str
    cohort_sha256: str

    def __post_init__(self) -> None:
        """Refuse digests that are not 64 lower-case hexadecimal digits, and labels that are not short plain text."""
        sha256(plan_sha256=self.plan_sha256)
        sha256(question_sha256=self.question_sha256)
        sha256(cohort_sha256=self.cohort_sha256)
        label(run=self.run)
        label(question=self.question)


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """One committed spending of privacy budget.

    time:   UTC, ISO 8601 in seconds
    scope:  "shared" goes into a tally shared with the cohort, "local" is a mechanism of this site alone
    cap:    the site policy's cap that was in force
    """

    seq: int
    time: str
    plan_sha256: str
    run: str
    question: str
    question_sha256: str
    cohort_sha256: str
    part: str
    scope: Scope
    event: Event
    cap: Cap
    previous: str
    digest: str

    @property
    def key(self) -> AnswerKey:
        """The key under which this charge's answer is stored."""
        return AnswerKey(
            plan_sha256=self.plan_sha256,
            run=self.run,
            question=self.question,
            question_sha256=self.question_sha256,
            cohort_sha256=self.cohort_sha256,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The chained row of a stored answer: which charge paid for it, and the SHA-256 and length of its bytes."""

    charge: int
    sha256: str
    size: int


def charge_body(*, key: AnswerKey, part: str, scope: Scope, event: Event, cap: Cap, time: str | None) -> dict[str, Any]:
    """Return a charge's body after checking every field; raises ParameterError or UnsupportedEventError."""
    present = _check_fields(part, scope, utc_now() if time is None else time)
    record = events.to_record(event)
    dataclasses.replace(event)  # the event's own door once more: nothing that slipped past it is ever charged
    return {
        "time": present,
        "plan_sha256": key.plan_sha256,
        "run": key.run,
        "question": key.question,
        "question_sha256": key.question_sha256,
        "cohort_sha256": key.cohort_sha256,
        "part": part,
        "scope": scope,
        "event": record,
        "cap": {"epsilon": cap.epsilon, "delta": cap.delta},
    }


def read_charge(link: Link) -> Charge:
    """Return the charge that a chained row holds. Raises LedgerError or UnsupportedEventError."""
    body = parse(link.body, where=f"row {link.seq}")
    try:
        event, cap = _event(canonical(body.pop("event"))), _cap(canonical(body.pop("cap")))
        charge = Charge(**body, event=event, cap=cap, seq=link.seq, previous=link.previous, digest=link.digest)
        _check_fields(charge.part, charge.scope, charge.time)
        charge.key  # noqa: B018 - building the key checks its fields
    except (TypeError, KeyError, AttributeError, ParameterError) as error:
        raise LedgerError(f"row {link.seq} is no charge of this version ({error}); forged or damaged") from error
    return charge


@functools.lru_cache(maxsize=4096)
def _event(text: str) -> Event:
    """Return the event with this canonical text, if it is the one text that this version writes for it."""
    event = events.from_record(json.loads(text))
    if event_text(event) != text:
        raise LedgerError("an event is not in the one form of its kind; the row was forged or damaged")
    return event


@functools.lru_cache(maxsize=4096)
def _cap(text: str) -> Cap:
    cap = Cap(**json.loads(text))
    if canonical(dataclasses.asdict(cap)) != text:
        raise LedgerError("a cap is not in its one form; the row was forged or damaged")
    return cap


def _check_fields(part: str, scope: str, time: str) -> str:
    label(part=part)
    if scope not in get_args(Scope):
        raise ParameterError(f"scope={scope!r} found; expected 'shared' or 'local'. Correct scope.")
    return utc(time)


def read_answer(link: Link) -> Answer:
    """Return the answer that a chained row describes. Raises LedgerError."""
    body = parse(link.body, where=f"row {link.seq}")
    try:
        answer = Answer(**body)
    except TypeError as error:
        raise LedgerError(f"row {link.seq} is no answer of this version ({error}); the row was forged") from error
    if type(answer.charge) is not int or type(answer.size) is not int or not _SHA256.fullmatch(str(answer.sha256)):
        raise LedgerError(f"row {link.seq} is no answer of this version; the row was forged or damaged")
    return answer


@functools.lru_cache(maxsize=4096)
def event_text(event: Event) -> str:
    """Return the one text of an event, under which equal events are counted together."""
    return canonical(events.to_record(event))


def sha256(**named: object) -> str:
    """Return the one keyword's value as 64 lower-case hexadecimal digits. Raises ParameterError otherwise."""
    ((name, value),) = named.items()
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise ParameterError(f"{name}={value!r} found; expected 64 lower-case hexadecimal digits. Correct {name}.")
    return value


def label(**named: object) -> str:
    """Return the one keyword's value as a label of 1 to 128 plain ASCII characters. Raises ParameterError otherwise."""
    ((name, value),) = named.items()
    if not isinstance(value, str) or not _LABEL.fullmatch(value):
        raise ParameterError(
            f"{name}={value!r} found; expected 1 to 128 ASCII letters, digits or ._:/+=@- . Correct {name}."
        )
    return value


def utc(time: str) -> str:
    """Return ``time`` if it is an existing UTC second as YYYY-MM-DDTHH:MM:SSZ. Raises ParameterError otherwise."""
    try:
        if not _TIME.fullmatch(time):
            raise ValueError("not YYYY-MM-DDTHH:MM:SSZ")  # noqa: TRY301 - one message for both faults
        datetime.fromisoformat(time)
    except (TypeError, ValueError) as error:
        raise ParameterError(f"time={time!r} found; expected UTC as YYYY-MM-DDTHH:MM:SSZ. Correct time.") from error
    return time


def utc_now() -> str:
    """Return the present UTC second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
