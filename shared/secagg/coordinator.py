"""The coordinator's side of the secure sum: it collects signed bytes and learns one sum per question.

A coordinator that was killed is restored from the journal of what it had received: Ed25519 signatures are
deterministic, so that it sends the same requests again and the sites replay their answers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from patevolve.shared import wire
from patevolve.shared.errors import MessageError, ParameterError, QuorumError
from patevolve.shared.privacy.signing import Identity
from patevolve.shared.secagg import graph as graphs
from patevolve.shared.secagg import keys, once, packets
from patevolve.shared.secagg.cohort import check_enough, envelope_size, lost_pairs
from patevolve.shared.secagg.masks import Words, add_masks, to_integers
from patevolve.shared.secagg.shares import SECRET, Bytes, combine
from patevolve.shared.secagg.spec import SumSpec


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Opened:
    """The sum of the survivors' values.

    values:  (m,) int64 in [-2^31, 2^31)
    sites:   the survivors, sorted by name
    """

    question: str
    values: NDArray[np.int64]
    sites: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class _Question:
    """One question under way."""

    name: str
    length: int
    seed: bytes
    asking: bytes
    masked: dict[str, bytes] = field(default_factory=dict)
    packets: dict[str, wire.Packet] = field(default_factory=dict)
    requests: dict[str, bytes] = field(default_factory=dict)
    unmasked: dict[str, bytes] = field(default_factory=dict)
    shares: dict[str, tuple[Bytes, Bytes]] = field(default_factory=dict)
    survivors: NDArray[np.bool_] | None = None


class CoordinatorSum:
    """The coordinator in the secure sums of one run. Methods raise MessageError for a call out of order.

    Any number of sites may be lost between any two messages: a caller closes an exchange when its deadline passes.
    """

    def __init__(self, spec: SumSpec, *, identity: Identity) -> None:
        """Start. Raises ParameterError if the identity is not the registered coordinator's."""
        if spec.coordinator != identity.public_key:
            raise ParameterError(
                "this identity is not the coordinator's of the specification; load the registered one."
            )
        self._spec, self._identity, self._graph = spec, identity, graphs.build(spec)
        self._adverts: dict[str, bytes] = {}
        self._key = keys.coordinator_run_key(identity, spec.context)
        self._channels: dict[str, keys.Channel] = {}  # with each site whose key came
        self._keys, self._digest = b"", ""
        self._members = np.zeros(spec.count, bool)
        self._questions: dict[str, _Question] = {}
        self._done: set[str] = set()
        self._journal: list[tuple[str, str, bytes]] = []

    @property
    def least(self) -> int:
        """The number of sites under which no sum is opened: n - d."""
        return self._spec.count - self._spec.dropouts

    @property
    def least_shares(self) -> int:
        """The number of deciders that must answer the second exchange: T."""
        return self._graph.sizes.threshold

    def receive_advert(self, data: bytes) -> str:
        """Take a site's key and return its name. The same bytes again change nothing. Raises MessageError."""
        packet = packets.read(data, "advert", context=self._spec.context, sender=self._spec.sites)
        packets.shaped(packet, key=(keys.KEY,))
        if self._keys:
            raise MessageError("a key after the set-up was closed found; the site joins in the next run.")
        root = keys.agree(self._key, packet.arrays["key"].tobytes(), bytes.fromhex(self._spec.context))
        name = self._take(self._adverts, ("advert", ""), str(packet.fields["site"]), data)
        self._channels[name] = keys.channel(root, b"replies")
        return name

    def close_setup(self) -> bytes:
        """Return the list of keys, to be sent to every site before its first question, once or with each.

        Raises QuorumError under n - d sites.
        """
        if not self._keys:
            members = np.array([name in self._adverts for name in self._spec.names])
            check_enough(members, self._spec, self._graph)
            self._members, self._keys = members, self._write_keys(members)
            self._digest = packets.digest(self._keys)
            self._journal.append(("keys", "", b""))
        return self._keys

    def ask(self, question: str, length: int) -> bytes:
        """Begin a question of ``length`` values and return the request for every member; several may be under way.

        Asked again with the same length, the same bytes return. Raises MessageError for a name that was used before.
        """
        if not self._keys:
            raise MessageError("a question before the set-up was closed found; close it first.")
        now = self._questions.get(question)
        if now is None:
            if question in self._done:
                raise MessageError(f"{question!r} was asked before; expected a new name for each question.")
            self._questions[question] = now = self._begin(question, length)
            self._journal.append(("ask", question, str(length).encode()))
        if now.length != length:
            raise MessageError(f"{question!r} of {length} values found; it was asked for {now.length} before.")
        return now.asking

    def receive_masked(self, data: bytes) -> str:
        """Take a site's masked vector and return its name. The same bytes again change nothing. Raises MessageError."""
        packet = packets.read_marked(data, "masked", context=self._spec.context, between=self._channel)
        now = self._open(packet.fields["question"])
        self._check_question(packet, now)
        sizes = self._graph.sizes
        packets.shaped(
            packet, words=(now.length,), nonce=(keys.NONCE,), envelopes=(sizes.deciders, envelope_size(self._graph))
        )
        name = str(packet.fields["site"])
        if now.survivors is not None and now.masked.get(name) != data:
            raise MessageError(f"a masked vector of {name!r} after the exchange was closed found; it is lost.")
        self._take(now.masked, ("masked", now.name), name, data)
        now.packets[name] = packet
        return name

    def close_masked(self, question: str) -> dict[str, bytes]:
        """End a question's first exchange: return decider -> request of the second. Every other site has nothing to do.

        Raises QuorumError under n - d masked vectors, or if the lost ones stand too close together in the graph.
        """
        now = self._open(question)
        if now.survivors is None:
            survivors = np.array([name in now.masked for name in self._spec.names])
            check_enough(survivors, self._spec, self._graph)
            now.survivors = survivors
            now.requests = self._write_requests(now, survivors)
            self._journal.append(("unmask", question, b""))
        return now.requests

    def receive_unmasked(self, data: bytes) -> str:
        """Take a decider's shares and return its name. The same bytes again change nothing. Raises MessageError."""
        packet = packets.read_marked(data, "unmasked", context=self._spec.context, between=self._channel)
        now = self._open(packet.fields["question"])
        name = str(packet.fields["site"])
        if now.survivors is None or name not in now.requests:
            raise MessageError(f"shares of {name!r} that were not asked for found.")
        if packet.fields["request"] != packets.digest(now.requests[name]):
            raise MessageError(f"shares of {name!r} for another request found.")
        pairs = len(lost_pairs(now.survivors, self._members, self._graph))
        packets.shaped(packet, selves=(int(now.survivors.sum()), SECRET), pairs=(pairs, SECRET))
        self._take(now.unmasked, ("unmasked", now.name), name, data)
        now.shares[name] = (packet.arrays["selves"], packet.arrays["pairs"])
        return name

    def result(self, question: str) -> Opened:
        """Return the sum. Raises QuorumError under T deciders; MessageError if their shares contradict one another."""
        now = self._open(question)
        if now.survivors is None:
            raise MessageError("a result before the first exchange was closed found; close it first.")
        if len(now.shares) < self.least_shares:
            raise QuorumError(f"shares of {len(now.shares)} deciders found; expected at least {self.least_shares}.")
        total = np.zeros(now.length, np.uint32)
        for packet in now.packets.values():
            np.add(total, packet.arrays["words"].view(np.uint32), out=total)
        self._take_masks_off(total, now, now.survivors)
        sites = tuple(self._spec.names[number] for number in np.flatnonzero(now.survivors))
        return Opened(question=now.name, values=to_integers(total), sites=sites)

    def forget(self, question: str) -> None:
        """Drop what was received for a question that is over, or given up; its name cannot be asked again."""
        self._open(question)
        del self._questions[question]
        self._done.add(question)
        self._journal = [entry for entry in self._journal if entry[1] != question]

    def export_state(self) -> bytes:
        """Return the journal of this run's set-up and of the questions under way.

        It holds public keys, masked vectors and shares: no more than was sent here, but as private as the run.
        """
        steps = [[step, question, len(data)] for step, question, data in self._journal]
        head = wire.canonical_json([self._spec.context, sorted(self._done), steps])
        return b"".join([len(head).to_bytes(8, "little"), head, *(data for _, _, data in self._journal)])

    @classmethod
    def restore(cls, state: bytes, spec: SumSpec, *, identity: Identity) -> Self:
        """Return the coordinator as it was when it exported ``state``. Raises MessageError for another run's."""
        coordinator = cls(spec, identity=identity)
        done, journal = _read_journal(state, spec.context)
        coordinator._done = done
        for step, question, data in journal:
            match step:
                case "keys":
                    coordinator.close_setup()
                case "ask":
                    coordinator.ask(question, int(data))
                case "unmask":
                    coordinator.close_masked(question)
                case "advert":
                    coordinator.receive_advert(data)
                case "masked":
                    coordinator.receive_masked(data)
                case "unmasked":
                    coordinator.receive_unmasked(data)
                case _:
                    raise MessageError(f"a journal with the step {step!r} found; begin another run.")
        return coordinator

    def _begin(self, question: str, length: int) -> _Question:
        fields = self._fields(question, length)
        seed = keys.one_time_seed(self._identity, wire.canonical_json(fields))
        commitment = np.frombuffer(once.commit(seed, self._spec.count), np.uint8)
        asking = packets.write("ask", self._identity, fields, {"commitment": commitment})
        return _Question(name=question, length=length, seed=seed, asking=asking)

    def _fields(self, question: str, length: int) -> dict[str, object]:
        return {"context": self._spec.context, "keys": self._digest, "question": question, "length": length}

    def _channel(self, name: str) -> keys.Channel:
        if name not in self._channels:
            raise MessageError(f"a message of the site {name!r}, which holds no key in this run, found.")
        return self._channels[name]

    def _open(self, question: str) -> _Question:
        if question not in self._questions:
            raise MessageError(f"{question!r} is not under way; ask it first.")
        return self._questions[question]

    def _check_question(self, packet: wire.Packet, now: _Question) -> None:
        if any(packet.fields[name] != value for name, value in self._fields(now.name, now.length).items()):
            raise MessageError(f"an answer to another question than {now.name!r} found.")

    def _take(self, kept: dict[str, bytes], step: tuple[str, str], name: str, data: bytes) -> str:
        if name not in kept:
            kept[name] = data
            self._journal.append((*step, data))
        elif kept[name] != data:
            raise MessageError(f"a second, different message of {name!r} found; expected one.")
        return name

    def _write_keys(self, members: NDArray[np.bool_]) -> bytes:
        signed = [self._adverts[self._spec.names[number]] for number in np.flatnonzero(members)]
        public = [wire.decode(data[keys.SIGNATURE :]).arrays["key"] for data in signed]
        signatures = [np.frombuffer(data[: keys.SIGNATURE], np.uint8) for data in signed]
        arrays = {
            "members": members.astype(np.uint8),
            "keys": np.stack(public),
            "signatures": np.stack(signatures),
            "coordinator": np.frombuffer(self._key.public, np.uint8),
        }
        return packets.write("keys", self._identity, {"context": self._spec.context}, arrays)

    def _write_requests(self, now: _Question, survivors: NDArray[np.bool_]) -> dict[str, bytes]:
        kept = [now.packets[self._spec.names[number]].arrays for number in np.flatnonzero(survivors)]
        same = {
            "ask": np.frombuffer(now.asking, np.uint8),
            "survivors": survivors.astype(np.uint8),
            "signature": once.sign(now.seed, survivors),
            "nonces": np.stack([arrays["nonce"] for arrays in kept]),
        }
        requests = {}
        for place, decider in enumerate(self._graph.deciders.tolist()):
            if self._members[decider]:
                name = self._spec.names[decider]
                envelopes = np.stack([arrays["envelopes"][place] for arrays in kept])
                fields = {"context": self._spec.context, "site": name}
                requests[name] = packets.write_bare("unmask", fields, {**same, "envelopes": envelopes})
        return requests

    def _take_masks_off(self, total: Words, now: _Question, survivors: NDArray[np.bool_]) -> None:
        places = {self._spec.names[number]: place for place, number in enumerate(self._graph.deciders.tolist())}
        holders = [places[name] for name in now.shares]
        alive = int(survivors.sum())
        shares = np.stack([np.concatenate(both) for both in now.shares.values()])
        seeds = combine(shares, holders, threshold=self.least_shares)
        add_masks(total, seeds[:alive].tobytes(), [False] * alive)
        sites, columns = lost_pairs(survivors, self._members, self._graph).T
        added = sites < self._graph.neighbours[sites, columns]
        add_masks(total, seeds[alive:].tobytes(), (~added).tolist())


def _read_journal(state: bytes, context: str) -> tuple[set[str], list[tuple[str, str, bytes]]]:
    try:
        offset = 8 + int.from_bytes(state[:8], "little")
        found, done, steps = json.loads(state[8:offset])
        journal = []
        for step, question, size in steps:
            journal.append((str(step), str(question), state[offset : offset + size]))
            offset += size
    except (ValueError, TypeError) as reason:
        raise MessageError("a journal that this version did not write found; begin another run.") from reason
    if found != context or offset != len(state):
        raise MessageError("a journal of another run, or a cut one, found; expected this run's.")
    return set(done), journal
