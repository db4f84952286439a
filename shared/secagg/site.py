"""A site's side of the secure sum: bytes in, bytes out, no input or output of its own.

Rules that hold whatever a coordinator sends:

- it signs every question and, in it, commits to one set of survivors; it names the same plan, run, cohort and
  parameters as the site's own copy;
- a question is masked once: asked again in the same bytes, the same bytes return; in other bytes, it is refused;
- for each question one set of survivors is answered, of at least n - d sites; another set is refused;
- for a survivor only its self mask is opened, and only pair masks with the lost: never both kinds for one site.

The caller stores ``export_state()`` durably after every call that returns bytes and before they are sent.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from patevolve.shared import wire
from patevolve.shared.errors import MessageError, ParameterError
from patevolve.shared.privacy.signing import Identity
from patevolve.shared.secagg import graph as graphs
from patevolve.shared.secagg import keys, once, packets
from patevolve.shared.secagg.cohort import Cohort, check_enough, envelope_size, lost_pairs, open_cohort
from patevolve.shared.secagg.masks import add_masks, to_words
from patevolve.shared.secagg.shares import SECRET, Bytes, random_secrets, split
from patevolve.shared.secagg.spec import SumSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a coordinator asks for, once its message was checked.

    length:   values expected
    members:  the sites that may be in the sum: what a minimum cohort applies to
    reply:    the bytes that were sent before, if this question was masked already: send them, draw no noise again
    """

    question: str
    length: int
    members: tuple[str, ...]
    reply: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """Which request of a question was answered, in both exchanges ('' if not)."""

    ask: str = ""
    unmask: str = ""


class Replies(Protocol):
    """Where a site keeps the replies of its sums, so that each can be sent again."""

    def get(self, slot: str) -> bytes | None:
        """Return a kept reply, or None."""

    def put(self, slot: str, reply: bytes) -> None:
        """Keep a reply; durably, if this outlives the process."""

    def drop(self, slot: str) -> None:
        """Forget a reply, if there is one."""

    def inside(self) -> dict[str, bytes]:
        """Return the replies that have to go into the exported state: none, if they are kept elsewhere."""


@dataclass(frozen=True, slots=True)
class InMemory:
    """Replies in this process, which go into the exported state."""

    kept: dict[str, bytes] = field(default_factory=dict)

    def get(self, slot: str) -> bytes | None:
        """Return a kept reply, or None."""
        return self.kept.get(slot)

    def put(self, slot: str, reply: bytes) -> None:
        """Keep a reply."""
        self.kept[slot] = reply

    def drop(self, slot: str) -> None:
        """Forget a reply, if there is one."""
        self.kept.pop(slot, None)

    def inside(self) -> dict[str, bytes]:
        """Return them all."""
        return self.kept


class SiteSum:
    """One site in the secure sums of one run. Methods raise MessageError for a call or message out of order."""

    def __init__(
        self,
        spec: SumSpec,
        *,
        site: str,
        identity: Identity,
        key: keys.RunKey | None = None,
        replies: Replies | None = None,
    ) -> None:
        """Start with a fresh key. Raises ParameterError if the identity is not the one registered for ``site``.

        replies:  where the replies are kept; by default in memory and in the exported state, which grows with them
        """
        if spec.sites.get(site) != identity.public_key:
            raise ParameterError(f"site {site!r} is not registered with this identity; correct the plan's sites.")
        self._spec, self._site, self._identity = spec, site, identity
        self._graph = graphs.build(spec)
        self._key = key or keys.new_run_key()
        self._cohort: Cohort | None = None
        self._keys = b""
        self._records: dict[str, _Record] = {}
        self._last_ask: tuple[bytes, wire.Packet] | None = None  # the request whose signature was checked last
        self._replies = replies or InMemory()  # by _slot(exchange, question), until forgotten

    def __repr__(self) -> str:
        """Show no key: representations end up in logs."""
        return f"SiteSum(site={self._site!r}, run={self._spec.run!r}, questions={len(self._records)})"

    def advert(self) -> bytes:
        """Return the site's answer in the set-up exchange: its key of this run. The same bytes each time."""
        key = np.frombuffer(self._key.public, np.uint8)
        return packets.write("advert", self._identity, self._fields(), {"key": key})

    def accept_keys(self, data: bytes) -> tuple[str, ...]:
        """Take the list of all sites' keys, once in a run, and return their names.

        Raises MessageError for another list than before, or one with a key that its site did not sign; QuorumError
        for a list of too few sites.
        """
        if self._cohort is None:
            self._cohort = open_cohort(data, spec=self._spec, graph=self._graph, site=self._site, key=self._key)
            self._keys = data
        elif data != self._keys:  # label: one-key-list
            raise MessageError("a second list of keys in one run found; expected the first. Begin another run.")
        return self._members()

    def read_ask(self, data: bytes) -> Ask:
        """Return what is asked, before anything is charged or drawn. Raises MessageError."""
        packet = self._checked(data)
        question, length = packet.fields["question"], packet.fields["length"]
        record, reply = self._records.get(question), None
        if record is not None:
            reply = self._replies.get(_slot("masked", question))
            if reply is None or record.ask != packets.digest(data):  # label: masked-once
                raise MessageError(f"{question!r} is closed, or was asked otherwise before; expected a new question.")
        return Ask(question=question, length=length, members=self._members(), reply=reply)

    def mask(self, data: bytes, values: ArrayLike) -> bytes:
        """Return the masked message for integers in [-2^31, 2^31), noise already in them.

        The sum is exact if it lies in [-2^31, 2^31); beyond, it wraps modulo 2^32. Asked again, the stored bytes
        return and ``values`` is not looked at. Raises MessageError; ParameterError for values of another length or
        out of range.
        """
        ask = self.read_ask(data)
        if ask.reply is not None:
            return ask.reply
        words = to_words(values)
        if words.size != ask.length:
            raise ParameterError(f"{words.size} values found for {ask.question!r}; expected {ask.length}.")
        cohort = self._joined()
        question = packets.question_digest(data)
        secrets = self._add_masks(words, question)
        nonce = os.urandom(keys.NONCE)
        arrays: dict[str, NDArray[Any]] = {
            "words": words.view(np.int32),
            "nonce": np.frombuffer(nonce, np.uint8),
            "envelopes": self._envelopes(secrets, nonce, question),
        }
        fields = {**self._fields(), "keys": cohort.digest, "question": ask.question, "length": ask.length}
        reply = packets.write_marked("masked", cohort.replies, fields, arrays)
        self._records[ask.question] = _Record(ask=packets.digest(data))
        self._replies.put(_slot("masked", ask.question), reply)
        return reply

    def unmask(self, data: bytes) -> bytes:
        """Return this decider's shares for one set of survivors.

        Raises MessageError for a second set, a closed question, an envelope of another question; QuorumError for too
        few survivors.
        """
        packet = packets.read_bare(data, "unmask", context=self._spec.context)
        packets.shaped(packet, ask=(None,))
        named = packets.digest(data)
        ask = packet.arrays["ask"].tobytes()
        question = self._checked(ask).fields["question"]
        record = self._records.get(question, _Record())
        if record.unmask:
            reply = self._replies.get(_slot("unmasked", question))
            if reply is None or record.unmask != named:
                raise MessageError(f"a second set of survivors for {question!r} found; expected the first.")
            return reply
        if record.ask and record.ask != packets.digest(ask):
            raise MessageError(f"shares of {question!r} as it was not asked here found; expected the first request.")
        survivors = self._check_survivors(packet, record)
        selves, pairs = self._open(packet, survivors)
        fields = {**self._fields(), "question": question, "request": named}
        reply = packets.write_marked("unmasked", self._joined().replies, fields, {"selves": selves, "pairs": pairs})
        # Also if it was not masked here: once shares were given, this site no longer joins the question.
        self._records[question] = _Record(ask=record.ask, unmask=named)  # label: one-survivor-set
        self._replies.put(_slot("unmasked", question), reply)
        return reply

    def forget(self, question: str) -> None:
        """Drop the stored replies of a question that is over; it stays answered, so that it cannot be asked again."""
        self._records.setdefault(question, _Record())
        for exchange in ("masked", "unmasked"):
            self._replies.drop(_slot(exchange, question))

    def export_state(self) -> bytes:
        """Return all that a restarted site needs: keep it in a file of mode 0600, replaced whole and synced.

        It holds the private key of this run, the list of public keys, which questions were answered, and the replies
        that were not forgotten. It holds no vote, no identity key and no share in the clear. Whoever reads it beside
        the messages of the run can open this site's envelopes and pair masks, past and future: delete it after the run.
        """
        blobs = {"private": self._key.key.private_bytes_raw(), "keys": self._keys, **self._replies.inside()}
        records = {name: [record.ask, record.unmask] for name, record in self._records.items()}
        fields = {**self._fields(), "records": records}
        arrays = {name: np.frombuffer(blob, np.uint8) for name, blob in blobs.items()}
        return wire.encode(wire.Packet(kind="secagg-state", fields=fields, arrays=arrays))

    @classmethod
    def restore(cls, state: bytes, spec: SumSpec, *, identity: Identity, replies: Replies | None = None) -> Self:
        """Return the site as it was when it exported ``state``. Raises MessageError if that was of another run."""
        packet = wire.decode(state, kind="secagg-state")
        fields: dict[str, Any] = dict(packet.fields)
        blobs = {name: array.tobytes() for name, array in packet.arrays.items()}
        if fields.get("context") != spec.context or not {"private", "keys"} <= set(blobs):
            raise MessageError("a stored state of another run found; expected this run's. Begin another run.")
        key = keys.stored_run_key(blobs.pop("private"))
        site = cls(spec, site=fields["site"], identity=identity, key=key, replies=replies)
        if stored := blobs.pop("keys"):
            site.accept_keys(stored)
        for slot, reply in blobs.items():
            site._replies.put(slot, reply)
        site._records = {name: _Record(ask=ask, unmask=unmask) for name, (ask, unmask) in fields["records"].items()}
        return site

    def _fields(self) -> dict[str, Any]:
        return {"context": self._spec.context, "site": self._site}

    def _joined(self) -> Cohort:
        if self._cohort is None:
            raise MessageError("a question before the list of keys found; expected the keys first.")
        return self._cohort

    def _members(self) -> tuple[str, ...]:
        return self._joined().names

    def _checked(self, ask: bytes) -> wire.Packet:
        """Return the signed request of a question; what was checked is not checked again when its bytes come back."""
        if self._last_ask is None or self._last_ask[0] != ask:
            packet = packets.read(ask, "ask", context=self._spec.context, sender=self._spec.coordinator)
            packets.shaped(packet, commitment=(once.HASH,))
            self._last_ask = (ask, packet)
        packet = self._last_ask[1]
        if packet.fields["keys"] != self._joined().digest:
            raise MessageError("a question on another list of keys found; expected the list that was accepted.")
        return packet

    def _add_masks(self, words: NDArray[np.uint32], question: bytes) -> Bytes:
        """Add the self mask and the pair masks in place; return the (1 + k, 16) seeds, zeros for absent neighbours."""
        cohort = self._joined()
        secrets = np.zeros((1 + self._graph.neighbours.shape[1], SECRET), np.uint8)
        secrets[:1] = own = random_secrets(1)  # label: fresh-self-mask
        secrets[1 + cohort.columns] = pairs = cohort.pair_seeds(cohort.peers, question)
        added = [True, *(cohort.me < peer for peer in cohort.peers)]  # label: pairs-cancel
        add_masks(words, own.tobytes() + pairs.tobytes(), added)
        return secrets

    def _envelopes(self, secrets: Bytes, nonce: bytes, question: bytes) -> Bytes:
        """Return (K, e) uint8: the shares for each decider, sealed for it; zeros for an absent one."""
        cohort, sizes = self._joined(), self._graph.sizes
        shares = split(secrets, threshold=sizes.threshold, holders=sizes.deciders).tobytes()
        size, sealed = SECRET * len(secrets), []
        for place, decider in enumerate(self._graph.deciders.tolist()):
            if decider in cohort.sealed:
                channel, bound = cohort.envelope(cohort.me, decider, question)
                sealed.append(keys.seal(channel, nonce, shares[size * place : size * (place + 1)], bound))
            else:
                sealed.append(bytes(envelope_size(self._graph)))
        return np.frombuffer(b"".join(sealed), np.uint8).reshape(sizes.deciders, -1)

    def _check_survivors(self, packet: wire.Packet, record: _Record) -> NDArray[np.bool_]:
        cohort = self._joined()
        survivors = packets.flags(packet, "survivors", self._spec.count)
        if packet.fields["site"] != self._site or cohort.me not in self._graph.deciders:
            raise MessageError("a request for the shares of another site found; expected one to this decider.")
        if (survivors & ~cohort.members).any() or (survivors[cohort.me] and not record.ask):
            raise MessageError("survivors that hold no key, or this site before it answered, found.")
        check_enough(survivors, self._spec, self._graph)
        count = int(survivors.sum())
        packets.shaped(
            packet,
            signature=(survivors.size, once.ROW),
            nonces=(count, keys.NONCE),
            envelopes=(count, envelope_size(self._graph)),
        )
        commitment = self._checked(packet.arrays["ask"].tobytes()).arrays["commitment"].tobytes()
        once.check(packet.arrays["signature"], survivors, commitment)
        return survivors

    def _open(self, packet: wire.Packet, survivors: NDArray[np.bool_]) -> tuple[Bytes, Bytes]:
        """Return the shares to reveal: (s, 16) of survivors' self masks, (p, 16) of their pair masks with the lost."""
        cohort, question = self._joined(), packets.question_digest(packet.arrays["ask"].tobytes())
        alive, size = np.flatnonzero(survivors), envelope_size(self._graph)
        nonces, envelopes = packet.arrays["nonces"].tobytes(), packet.arrays["envelopes"].tobytes()
        opened = []
        for row, sender in enumerate(alive.tolist()):
            channel, bound = cohort.envelope(sender, cohort.me, question)
            nonce = nonces[row * keys.NONCE : (row + 1) * keys.NONCE]
            opened.append(keys.unseal(channel, nonce, envelopes[row * size : (row + 1) * size], bound))
        shares = np.frombuffer(b"".join(opened), np.uint8).reshape(alive.size, -1, SECRET)
        pairs = lost_pairs(survivors, cohort.members, self._graph)
        rows = np.searchsorted(alive, pairs[:, 0])
        return shares[:, 0], shares[rows, 1 + pairs[:, 1]]  # label: never-both


def _slot(exchange: str, question: str) -> str:
    return f"{exchange}/{question}"


def store_name(spec: SumSpec, site: str) -> str:
    """Return a name for what a site keeps of this run, fit for any file system."""
    return hashlib.sha256(f"{spec.context}/{site}".encode()).hexdigest()[:32]
