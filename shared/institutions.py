"""The seam between the loop and the world: ask the sites, get the noisy sum.

``InProcess`` serves the local and the simulated mode; a federated transport implements the same two members. In process
the sum of shares is formed in the clear, which stands for the masked sum of a deployment: the loop sees only the sum.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np

from patevolve.shared.contacts import Contacts
from patevolve.shared.errors import MessageError, PatevolveError, QuorumError
from patevolve.shared.messages import (
    Answer,
    Migrants,
    Question,
    decode_answer,
    decode_migrants,
    digest,
    encode_question,
)
from patevolve.shared.privacy.signing import SignedHead, head_from_json
from patevolve.shared.protocols import Genomes
from patevolve.shared.schedule import Ask
from patevolve.shared.tally import NoisyTally

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The noisy sum over the sites that answered, and who they were."""

    tally: NoisyTally
    sites: tuple[str, ...]
    heads: tuple[SignedHead, ...]
    refusals: Mapping[str, str]  # site -> error code


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """What the sites' islands sent home, and the heads of the ledgers that paid for it, if anything was paid.

    genomes:  site -> (classes · migrants, G)
    """

    genomes: Mapping[str, Genomes]
    heads: tuple[SignedHead, ...] = ()
    refusals: Mapping[str, str] = field(default_factory=dict)  # site -> error code


@dataclass(frozen=True, slots=True, kw_only=True)
class Voyage:
    """What is expected of every site's migrants: the shape of their genomes, and the charge, if the plan has one."""

    shape: tuple[int, int]
    ask: Ask | None


class Institutions(Protocol):
    """The sites of a run, however they are reached."""

    @property
    def public_keys(self) -> Mapping[str, str]:
        """The sites' names and the public keys that sign their ledgers' heads."""

    def ask(self, question: Question, ask: Ask) -> Reply:
        """Return the noisy sum of the sites' answers. Raises QuorumError under the plan's minimum."""

    def ask_all(self, questions: Sequence[tuple[Question, Ask]]) -> Iterable[Reply]:
        """Return the noisy sums of several questions, in order; over a network they travel in one message."""

    def evolve(self, question: Question, voyage: Voyage) -> Migration:
        """Return the migrants of the sites' islands. Raises QuorumError under the plan's minimum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InProcess:
    """Institutions in this process: each a function from question bytes to answer bytes.

    islands:  the same from an island's question to its migrants
    minimum:  reporters under which the noise would be too small (all sites less the plan's drop-outs)
    contacts: notes who answered, and the size that each message would have
    """

    handlers: Mapping[str, Callable[[bytes], bytes]]
    public_keys: Mapping[str, str]
    minimum: int
    contacts: Contacts = field(default_factory=Contacts)
    islands: Mapping[str, Callable[[bytes], bytes]] = field(default_factory=dict)

    def ask(self, question: Question, ask: Ask) -> Reply:
        """Return the noisy sum. Raises QuorumError if fewer than ``minimum`` sites answered."""

        def check(found: bytes, sha256: str, site: str) -> Answer:
            return checked(found, sha256, site, ask)

        answers, refusals = self._collected("ask", self.handlers, question, check)
        return Reply(
            tally=total(answers),
            sites=tuple(answer.site for answer in answers),
            heads=tuple(head_from_json(answer.head) for answer in answers),
            refusals=refusals,
        )

    def evolve(self, question: Question, voyage: Voyage) -> Migration:
        """Return the migrants of the sites' islands. Raises QuorumError if fewer than ``minimum`` sites sent some."""

        def check(found: bytes, sha256: str, site: str) -> Migrants:
            return checked_migrants(found, sha256, site, voyage)

        found, refusals = self._collected("evolve", self.islands, question, check)
        return migration(found, refusals)

    def _collected(
        self,
        action: str,
        handlers: Mapping[str, Callable[[bytes], bytes]],
        question: Question,
        check: Callable[[bytes, str, str], T],
    ) -> tuple[list[T], dict[str, str]]:
        """Return what was made of each site's bytes, and the codes of those that sent none, if they are few enough."""
        data = encode_question(question)
        answers, refusals = [], {}
        failure: PatevolveError | None = None
        self.contacts.about = question.name
        for name, handle in handlers.items():
            self.contacts.sent(name, action, len(data))
            try:
                found = handle(data)
                self.contacts.received(name, action, len(found))
                answers.append(check(found, digest(data), name))
            except PatevolveError as reason:
                log.warning("%s did not answer %s: %s", name, question.name, reason)
                refusals[name], failure = reason.code, reason
            self.contacts.settled(name, refusals.get(name, ""))
        self.contacts.save()
        if len(answers) < self.minimum:
            raise QuorumError(
                f"{question.name}: {len(answers)} of {len(handlers)} sites answered; expected >= {self.minimum}. "
                f"Refused: {', '.join(f'{site} ({code})' for site, code in refusals.items())}."
            ) from failure
        return answers, refusals

    def ask_all(self, questions: Sequence[tuple[Question, Ask]]) -> Iterable[Reply]:
        """Yield the noisy sums, each asked for when it is taken: a question waits until the one before is on record."""
        for question, ask in questions:
            yield self.ask(question, ask)


def checked(data: bytes, question_sha256: str, site: str, ask: Ask) -> Answer:
    """Return a site's answer if it fits the question. Raises MessageError."""
    answer = decode_answer(data)
    if answer.question != question_sha256 or answer.site != site:
        raise MessageError(
            f"an answer of {answer.site!r} to another question found; expected {site!r} on {ask.name!r}."
        )
    if answer.values.shape != (ask.bounds.size,) or answer.full != ask.full:
        raise MessageError(
            f"an answer of {answer.values.shape} values from {site!r} found; expected {ask.bounds.size}."
        )
    if not math.isclose(answer.std, ask.mechanism.std, rel_tol=1e-9):  # NaN is close to nothing
        raise MessageError(
            f"an answer with noise of std {answer.std} from {site!r} found; the plan says {ask.mechanism.std}."
        )
    return answer


def checked_migrants(data: bytes, question_sha256: str, site: str, voyage: Voyage) -> Migrants:
    """Return a site's migrants if they fit what was sent to its island. Raises MessageError."""
    found = decode_migrants(data)
    if found.question != question_sha256 or found.site != site:
        raise MessageError(f"migrants of {found.site!r} from another island found; expected those of {site!r}.")
    if found.genomes.shape != voyage.shape:
        raise MessageError(f"migrants {found.genomes.shape} of {site!r} found; the plan says {voyage.shape}.")
    if bool(found.head) != (voyage.ask is not None):
        raise MessageError(f"migrants of {site!r} {'without' if voyage.ask else 'with'} a ledger's head found.")
    return found


def migration(found: Sequence[Migrants], refusals: Mapping[str, str]) -> Migration:
    """Return what came home, by site."""
    return Migration(
        genomes={migrants.site: migrants.genomes for migrants in sorted(found, key=lambda one: one.site)},
        heads=tuple(head_from_json(migrants.head) for migrants in found if migrants.head),
        refusals=refusals,
    )


def total(answers: list[Answer]) -> NoisyTally:
    """Return the sum of the answers; independent noises add in variance."""
    values = np.stack([answer.values for answer in answers]).sum(axis=0, dtype=np.int64)
    return NoisyTally(values=values, std=math.sqrt(math.fsum(answer.std**2 for answer in answers)))
