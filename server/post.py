"""Getting requests to sites and responses back: deadlines, retries that replay bytes, late and doubled replies.

A site is judged by its replies alone: a node may look alive while nothing behind it answers. A request that brought no
reply is sent again, the same bytes; whichever reply comes first counts, also one to an earlier sending.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from patevolve.shared.contacts import Contacts
from patevolve.shared.envelopes import OK, Action, Response, decode_response
from patevolve.shared.errors import LedgerError, MessageError

log = logging.getLogger(__name__)
T = TypeVar("T")

BUSY = (
    LedgerError.code
)  # another process of the site holds its ledger, such as one that still answers an earlier sending


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One request on its way to a node."""

    node: int
    action: Action
    data: bytes


class Post(Protocol):
    """What carries letters: Flower's grid, or a simulated one in tests."""

    def nodes(self) -> Collection[int]:
        """Return the nodes that are there now."""

    def push(self, letters: Sequence[Letter], ttl: float) -> Sequence[str]:
        """Send the letters, each to be answered within ``ttl`` seconds, and return an id for each."""

    def pull(self, ids: Collection[str]) -> Mapping[str, bytes | None]:
        """Return the replies that have come: bytes, or None where the transport says that none will come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long to wait, seconds.

    deadline:  for all replies to one request, retries included
    grace:     for the others, once as many have answered as the plan needs
    patience:  for one reply before the same bytes are sent again
    rest:      before sending again what the transport could not deliver
    poll:      between two looks for replies
    """

    deadline: float = 900.0
    grace: float = 120.0
    patience: float = 120.0
    rest: float = 5.0
    poll: float = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave(Generic[T]):
    """What came back: what was made of each site's response, and the codes of those who refused."""

    accepted: Mapping[str, T]
    refused: Mapping[str, str]


@dataclass(kw_only=True, eq=False)
class Exchange(Generic[T]):
    """One request to each of several sites, until they have answered.

    bodies:   site -> the bytes that it is sent, always the same
    node_of:  where a site is reached now; None while it is not there
    accept:   makes something of a site's response; raises MessageError for a damaged or foreign one, which is then
              asked for again
    """

    post: Post
    action: Action
    bodies: Mapping[str, bytes]
    node_of: Callable[[str], int | None]
    accept: Callable[[str, Response], T]
    timing: Timing
    contacts: Contacts = field(default_factory=Contacts)
    _accepted: dict[str, T] = field(default_factory=dict)
    _refused: dict[str, str] = field(default_factory=dict)
    _unsettled: dict[str, str] = field(default_factory=dict)  # site -> code that may yet turn into an answer
    _sent: dict[str, str] = field(default_factory=dict)  # id -> site, of every sending that may still be answered
    _due: dict[str, float] = field(default_factory=dict)  # site -> when to send (again)

    def run(self, awaited: Collection[str], *, least: int, enough: int) -> Wave[T]:
        """Send, and send again, until every awaited site or ``enough`` have answered or the time is up.

        Once ``least`` have answered, the others have ``timing.grace`` seconds. Sites that are not awaited count if they
        answer in time.
        """
        start = time.monotonic()
        end = start + self.timing.deadline
        self._due = dict.fromkeys(self.bodies, start)
        while self._open(awaited, enough) and (now := time.monotonic()) < end:
            self._send(now, end)
            for sending, data in self.post.pull(list(self._sent)).items():
                site = self._sent.pop(sending, None)
                if site is not None and site in self._due:
                    self._receive(site, data)
            if len(self._accepted) >= least:
                end, least = min(end, time.monotonic() + self.timing.grace), len(self.bodies) + 1  # once
            if self._open(awaited, enough):
                time.sleep(self.timing.poll)
        return Wave(accepted=self._accepted, refused={**self._unsettled, **self._refused})

    def _open(self, awaited: Collection[str], most: int) -> bool:
        return len(self._accepted) < most and any(site in self._due for site in awaited)

    def _send(self, now: float, end: float) -> None:
        letters, sites = [], []
        for site in [site for site, when in self._due.items() if when <= now]:
            node = self.node_of(site)
            self._due[site] = now + (self.timing.rest if node is None else self.timing.patience)
            if node is not None:
                letters.append(Letter(node=node, action=self.action, data=self.bodies[site]))
                sites.append(site)
        if not letters:
            return
        for site, sending in zip(sites, self.post.push(letters, end - now), strict=True):
            self.contacts.sent(site, self.action, len(self.bodies[site]))
            if sending:
                self._sent[sending] = site
            else:
                self._due[site] = now + self.timing.rest

    def _receive(self, site: str, data: bytes | None) -> None:
        if data is None:
            log.info("%s: %s was not delivered; it is sent again", site, self.action)
            self._again(site)
            return
        self.contacts.received(site, self.action, len(data))
        try:
            response = decode_response(data, self.action)
            code = _refusal(site, response)
            if code == BUSY:
                self._again(site, BUSY)
                return
            if code == OK:
                self._accepted[site] = self.accept(site, response)
            else:
                log.warning("%s refused %s: %s", site, self.action, code)
                self._refused[site] = code
            self.contacts.settled(site, code)
        except MessageError as reason:
            log.warning("%s: a reply to %s cannot be used: %s", site, self.action, reason)
            self._again(site, MessageError.code)
            return
        self._unsettled.pop(site, None)
        del self._due[site]

    def _again(self, site: str, code: str | None = None) -> None:
        self._due[site] = min(self._due[site], time.monotonic() + self.timing.rest)
        if code is not None:
            self._unsettled[site] = code


def _refusal(site: str, response: Response) -> str:
    """Return the code of a refusal, or OK. Raises MessageError if it is another site's."""
    code = OK if response.parts else response.codes[0]
    if code != OK and response.site not in {site, ""}:
        raise MessageError(f"a refusal of {response.site!r} found; {site!r} was asked.")
    return code
