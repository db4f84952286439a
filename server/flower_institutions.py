"""The sites of a run, reached over Flower: the transport of the one loop in ``shared/rounds.py``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from patevolve.server.cohort import Directory, missing
from patevolve.server.post import Exchange, Letter, Post, Timing, Wave
from patevolve.server.secure_sum import SecureSum
from patevolve.shared.contacts import Contacts
from patevolve.shared.envelopes import MAX_REQUEST, OK, Action, Request, Response, encode_request
from patevolve.shared.errors import MessageError
from patevolve.shared.institutions import Migration, Reply, Voyage, checked, checked_migrants, migration, total
from patevolve.shared.messages import Answer, Migrants, Question, digest, encode_question
from patevolve.shared.plan import Agreed
from patevolve.shared.privacy.signing import head_from_json
from patevolve.shared.schedule import Ask

if TYPE_CHECKING:
    from flwr.serverapp import Grid

log = logging.getLogger(__name__)
RECORD, FIELD = "patevolve", "data"
NODES_SECONDS = 1.0  # between two looks at the list of nodes, each of them a request to the SuperLink
T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class GridPost:
    """Letters over Flower's grid."""

    grid: Grid
    _nodes: tuple[int, ...] = ()
    _seen: float = float("-inf")

    def nodes(self) -> Collection[int]:
        """Return the nodes that Flower takes for alive, at most a second ago; only their replies prove it."""
        if time.monotonic() - self._seen > NODES_SECONDS:
            self._nodes, self._seen = tuple(self.grid.get_node_ids()), time.monotonic()
        return self._nodes

    def push(self, letters: Sequence[Letter], ttl: float) -> Sequence[str]:
        """Send the letters; a letter that Flower does not take has an empty id."""
        from flwr.app import ConfigRecord, Message, RecordDict  # noqa: PLC0415 - an extra: deployments alone have it

        messages = [
            Message(
                content=RecordDict({RECORD: ConfigRecord({FIELD: letter.data})}),
                dst_node_id=letter.node,
                message_type=f"query.{letter.action}",
                ttl=ttl,
            )
            for letter in letters
        ]
        ids = list(self.grid.push_messages(messages))
        return [*ids, *[""] * (len(letters) - len(ids))]

    def pull(self, ids: Collection[str]) -> Mapping[str, bytes | None]:
        """Return what has come, by the message that it replies to: error replies carry no sender."""
        found: dict[str, bytes | None] = {}
        for message in self.grid.pull_messages(ids) if ids else ():
            data = None
            if message.has_error():
                log.info("Flower reports error %d for a message", message.error.code)  # its text may be a site's
            elif RECORD in message.content.config_records:
                value = message.content.config_records[RECORD].get(FIELD)
                data = value if isinstance(value, bytes) else b""
            else:
                data = b""
            found[message.metadata.reply_to_message_id] = data
        return found


@dataclass(kw_only=True, eq=False)
class FlowerInstitutions:
    """The cohort of one run behind a post.

    cohort:     the sites and their public keys; fixed for the run
    directory:  where they are reached
    secure_sum: adds up masked vectors; None if the plan trusts each site alone
    """

    agreed: Agreed
    run: str
    cohort: Mapping[str, str]
    post: Post
    directory: Directory
    timing: Timing
    secure_sum: SecureSum | None = None
    contacts: Contacts = field(default_factory=Contacts)
    _lost: set[str] = field(default_factory=set)

    @property
    def public_keys(self) -> Mapping[str, str]:
        """The sites' names and the public keys that sign their ledgers' heads."""
        return self.cohort

    def ask(self, question: Question, ask: Ask) -> Reply:
        """Return the noisy sum of the sites' answers. Raises QuorumError under the plan's minimum."""
        return self.ask_all([(question, ask)])[0]

    def ask_all(self, questions: Sequence[tuple[Question, Ask]]) -> list[Reply]:
        """Return the noisy sums of several questions, which travel in one message.

        Raises QuorumError under the plan's minimum, or the sites' own reason where their refusals alone explain it.
        """
        parts = tuple(encode_question(question) for question, _ in questions)
        asks = [ask for _, ask in questions]
        sites = sorted(self.cohort)
        self.contacts.about = ", ".join(question.name for question, _ in questions)
        if self.secure_sum is not None:
            self.secure_sum.set_up(sites, self._send)
            return self.secure_sum.ask(sites, parts, asks, self._send)
        request = Request(action="ask", plan=self.agreed.sha256, run=self.run, sites=tuple(sites), parts=parts)

        def accept(site: str, response: Response) -> list[Answer | str]:
            return _answers(site, response, parts, asks)

        wave = self._send("ask", dict.fromkeys(sites, encode_request(request)), accept, len(sites))
        return [self._reply(position, ask, wave.accepted, wave.refused) for position, ask in enumerate(asks)]

    def evolve(self, question: Question, voyage: Voyage) -> Migration:
        """Return the migrants of the sites' islands, those of sites that sent none left out.

        Raises QuorumError under the plan's minimum, or the sites' own reason where their refusals alone explain it.
        """
        data, sites = encode_question(question), sorted(self.cohort)
        self.contacts.about = question.name
        request = Request(action="evolve", plan=self.agreed.sha256, run=self.run, sites=tuple(sites), parts=(data,))

        def accept(site: str, response: Response) -> Migrants:
            if response.site != site or len(response.parts) != 1:
                raise MessageError(f"a response of {response.site!r} of {len(response.parts)} parts found.")
            return checked_migrants(response.parts[0], digest(data), site, voyage)

        wave = self._send("evolve", dict.fromkeys(sites, encode_request(request)), accept, len(sites))
        if len(wave.accepted) < self._least:
            raise missing(self.agreed, question.name, len(wave.accepted), wave.refused)
        return migration([wave.accepted[site] for site in sorted(wave.accepted)], wave.refused)

    def _send(
        self, action: Action, bodies: Mapping[str, bytes], accept: Callable[[str, Response], T], enough: int
    ) -> Wave[T]:
        start = time.monotonic()
        bodies, unread = self._readable(action, bodies)
        wave = Exchange(
            post=self.post,
            action=action,
            bodies=bodies,
            node_of=self._node_of,
            accept=accept,
            timing=self.timing,
            contacts=self.contacts,
        ).run(self._awaited(bodies), least=self._least, enough=enough)
        self.contacts.save()
        log.info("%s: %d of %d sites in %.1f s", action, len(wave.accepted), len(bodies), time.monotonic() - start)
        silent = set(bodies) - set(wave.accepted) - set(wave.refused)
        if len(wave.accepted) < enough and silent:
            log.warning("no reply to %s from %s", action, ", ".join(sorted(silent)))
        self._lost = (self._lost | silent if len(wave.accepted) < enough else self._lost) - set(wave.accepted)
        return Wave(accepted=wave.accepted, refused={**wave.refused, **dict.fromkeys(unread, MessageError.code)})

    def _readable(self, action: Action, bodies: Mapping[str, bytes]) -> tuple[Mapping[str, bytes], list[str]]:
        """Return the requests that their sites read, and the sites whose policy refuses one of that length."""
        limits = self.directory.limits
        unread = [site for site, body in bodies.items() if len(body) > limits.get(site, MAX_REQUEST)]
        for site in unread:
            log.warning("%s reads %d bytes; %s takes %d: not sent", site, limits[site], action, len(bodies[site]))
            self.contacts.settled(site, MessageError.code)
        return {site: body for site, body in bodies.items() if site not in unread}, unread

    def _awaited(self, bodies: Collection[str]) -> set[str]:
        """Return the sites to wait for: one that was lost is asked, and counts if it answers, but is not waited for."""
        awaited = set(bodies) - self._lost
        return awaited if len(awaited) >= self._least else set(bodies)

    @property
    def _least(self) -> int:
        return self.agreed.plan.sites.count - self.agreed.plan.privacy.dropouts

    def _node_of(self, site: str) -> int | None:
        node = self.directory.nodes.get(site)
        if node is not None and node in self.post.nodes():
            return node
        self.directory.step(self.timing)  # without node authentication a restarted node comes back under another id
        return self.directory.nodes.get(site)

    def _reply(
        self, position: int, ask: Ask, accepted: Mapping[str, list[Answer | str]], refused: Mapping[str, str]
    ) -> Reply:
        answers, refusals = [], dict(refused)
        for site in sorted(accepted):
            found = accepted[site][position]
            if isinstance(found, Answer):
                answers.append(found)
            else:
                refusals[site] = found
                self.contacts.settled(site, found)
        if len(answers) < self._least:
            raise missing(self.agreed, ask.name, len(answers), refusals)
        return Reply(
            tally=total(answers),
            sites=tuple(answer.site for answer in answers),
            heads=tuple(head_from_json(answer.head) for answer in answers),
            refusals=refusals,
        )


def _answers(site: str, response: Response, questions: Sequence[bytes], asks: Sequence[Ask]) -> list[Answer | str]:
    """Return a site's answers, or the code where there is none. Raises MessageError for what was not asked."""
    if response.site != site or len(response.parts) != len(questions):
        raise MessageError(f"a response of {response.site!r} of {len(response.parts)} parts found; {site!r} was asked.")
    return [
        checked(part, digest(question), site, ask) if code == OK else code
        for part, code, question, ask in zip(response.parts, response.codes, questions, asks, strict=True)
    ]
