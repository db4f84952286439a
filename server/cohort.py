"""Who takes part: sites are found by greeting every node, and stay the run's cohort until its end.

The cohort is written into the run's folder before anything is asked. A resumed run asks the same sites, so that their
stored answers are replayed and never charged again.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from patevolve.server.needs import Needs, lacking
from patevolve.server.post import BUSY, Letter, Post, Timing
from patevolve.shared.contacts import Contacts
from patevolve.shared.envelopes import (
    OK,
    Request,
    Welcome,
    decode_response,
    decode_welcome,
    encode_head,
    encode_request,
)
from patevolve.shared.errors import (
    BudgetError,
    InputError,
    MessageError,
    PatevolveError,
    PolicyError,
    QuorumError,
    RollbackError,
)
from patevolve.shared.files import write_atomic
from patevolve.shared.plan import Agreed

log = logging.getLogger(__name__)
FILE = "cohort.json"
_REASONS: Mapping[str, type[PatevolveError]] = {
    cls.code: cls for cls in (PolicyError, BudgetError, MessageError, RollbackError)
}


@dataclass(kw_only=True, eq=False)
class Directory:
    """Where each site is reached, found by greeting.

    known:  the sites' public keys, learnt beforehand or in an earlier part of the run; empty to take whoever comes
    needs:  what a site has to be able to do
    heads:  site -> the newest signed head of its ledger that is held here. A site for which there is one is greeted a
            second time, with it, and looks whether its ledger still has that row
    """

    post: Post
    request: Request
    known: Mapping[str, str]
    needs: Needs
    heads: Mapping[str, str] = field(default_factory=dict)
    contacts: Contacts = field(default_factory=Contacts)
    nodes: dict[str, int] = field(default_factory=dict)  # site -> node
    keys: dict[str, str] = field(default_factory=dict)  # site -> public key
    unsafe: set[str] = field(default_factory=set)  # sites that answer with recorded noise
    refused: dict[str, str] = field(default_factory=dict)  # site, or node without a name -> code
    limits: dict[str, int] = field(default_factory=dict)  # site -> bytes of the longest request that it reads
    _asked: dict[int, float] = field(default_factory=dict)  # node -> when to greet again
    _sent: dict[str, int] = field(default_factory=dict)
    _done: set[int] = field(default_factory=set)
    _showing: dict[int, str] = field(default_factory=dict)  # node -> the head that it is shown

    def greet(self, timing: Timing, *, least: int, enough: int) -> None:
        """Greet nodes until ``enough`` sites have answered, welcome or refusal, or the time is up.

        Once ``least`` are there, the others have ``timing.grace`` seconds.
        """
        start = time.monotonic()
        end = start + timing.deadline
        while True:
            self.step(timing)
            if len(self.nodes) >= least:
                end = min(end, time.monotonic() + timing.grace)
                least = enough + 1  # once
            if len(self.nodes) + len(self.refused) >= enough or time.monotonic() >= end:
                log.info("hello: %d sites in %.1f s", len(self.nodes), time.monotonic() - start)
                self.contacts.save()
                return
            time.sleep(timing.poll)

    def step(self, timing: Timing) -> None:
        """Greet the nodes that are new or did not answer, and take in what has come."""
        now = time.monotonic()
        new = [node for node in self.post.nodes() if node not in self._done and self._asked.get(node, now) <= now]
        if new:
            letters = [Letter(node=node, action="hello", data=self._greeting(node)) for node in new]
            for node, sending in zip(new, self.post.push(letters, timing.deadline), strict=True):
                self._asked[node] = now + (timing.patience if sending else timing.rest)
                if sending:
                    self._sent[sending] = node
        for sending, reply in self.post.pull(list(self._sent)).items():
            node = self._sent.pop(sending)
            if reply is None:
                self._asked[node] = now + timing.rest
            elif node not in self._done:
                self._take(node, reply, now + timing.rest)

    def forget(self, site: str) -> None:
        """Greet the site's node anew before it is used again."""
        self._done.discard(self.nodes.get(site, 0))

    def _take(self, node: int, data: bytes, again: float) -> None:
        try:
            response = decode_response(data, "hello")
        except MessageError as reason:  # such as of another version
            log.warning("node %d: a greeting cannot be read: %s", node, reason)
            self.refused[str(node)] = MessageError.code
            self._done.add(node)
            return
        name = response.site or f"node {node}"
        self.contacts.sent(name, "hello", len(self._greeting(node)))
        self.contacts.received(name, "hello", len(data))
        if response.codes == (BUSY,):  # such as by a greeting that is still being answered
            self._asked[node] = again
            return
        self._done.add(node)
        if response.codes == (OK,):
            try:
                self._welcome(node, decode_welcome(response.parts[0], self.request))
            except MessageError as reason:  # not counted: the site itself may yet come
                log.warning("node %d: a greeting cannot be used: %s", node, reason)
        elif not self.known or response.site in {*self.known, ""}:
            log.warning("%s refused the run: %s", name, response.codes[0])
            self.contacts.settled(name, response.codes[0])
            self.refused[response.site or str(node)] = response.codes[0]

    def _greeting(self, node: int) -> bytes:
        shown = self._showing.get(node)
        parts = () if shown is None else (encode_head(shown),)
        return encode_request(replace(self.request, parts=parts))

    def _welcome(self, node: int, welcome: Welcome) -> None:
        site, key = welcome.site, welcome.public_key
        if self.known and self.known.get(site) != key:
            raise MessageError(f"site {site!r} with a key that is not the registered one found; it takes no part.")
        if site in self.nodes and self.keys[site] != key:
            raise MessageError(f"two nodes with the name {site!r} and different keys found; the second is refused.")
        code, words = lacking(self.needs, welcome.capabilities)
        if code:
            log.warning("%s is left out: %s", site, words)
            self.contacts.settled(site, code)
            self.refused[site] = code
            return
        if site in self.heads and node not in self._showing:
            self._showing[node] = self.heads[site]
            self._done.discard(node)
            self._asked.pop(node, None)
            return
        self.nodes[site], self.keys[site], self.limits[site] = node, key, welcome.capabilities.message
        if welcome.unsafe:
            log.warning("UNSAFE: %s answers with recorded noise, which protects nobody", site)
            self.unsafe.add(site)
        self.refused.pop(site, None)


def load_cohort(folder: Path) -> dict[str, str]:
    """Return the sites and keys of the run in this folder; empty if it has not begun. Raises InputError."""
    path = folder / FILE
    return load_roster(path) if path.exists() else {}


def load_roster(path: Path) -> dict[str, str]:
    """Return sites and their public keys from ``{"sites": {name: key}}``. Raises InputError."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["sites"]
        return {str(site): str(key) for site, key in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as reason:
        raise InputError(f"{path} cannot be read as a list of sites ({reason}); restore it.") from reason


def save_cohort(folder: Path, keys: Mapping[str, str]) -> None:
    """Keep the run's sites and their keys."""
    text = json.dumps({"sites": dict(sorted(keys.items()))}, indent=1, ensure_ascii=False)
    write_atomic(folder / FILE, (text + "\n").encode())


def missing(agreed: Agreed, what: str, found: int, refusals: Mapping[str, str]) -> PatevolveError:
    """Return the error of a lost quorum: the sites' own reason if refusals alone explain it, else QuorumError."""
    plan = agreed.plan
    least = plan.sites.count - plan.privacy.dropouts
    words = ", ".join(f"{site} ({code})" for site, code in sorted(refusals.items())) or "nobody refused"
    text = f"{what}: {found} of {plan.sites.count} sites answered; expected >= {least}. Refused: {words}."
    codes = [code for code in refusals.values() if code in _REASONS]
    if len(codes) <= plan.privacy.dropouts:
        return QuorumError(text)
    return _REASONS[max(sorted(set(codes)), key=codes.count)](text)
