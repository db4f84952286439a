"""The sites that hold keys in one run, as one of them sees it: verified keys, shared roots, who masks with whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.errors import MessageError, QuorumError
from patevolve.shared.secagg import keys, packets
from patevolve.shared.secagg.graph import Graph
from patevolve.shared.secagg.keys import RunKey
from patevolve.shared.secagg.shares import SECRET, Bytes, to_field
from patevolve.shared.secagg.spec import SumSpec


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Cohort:
    """Site number ``me`` among the members. Its representation shows no root.

    digest:   names the list of keys; every mask and envelope is bound to it
    members:  (n,) bool, the sites whose keys are in the list; ``names``: who they are
    roots:    what each peer shares with this site: neighbours and deciders (every member, if it is a decider)
    columns:  where, in this site's row of the graph, neighbours stand that hold keys; ``peers``: their numbers
    sealed:   the channel with each peer, for envelopes; ``replies``: the one with the coordinator
    """

    me: int
    digest: str
    members: NDArray[np.bool_]
    names: tuple[str, ...]
    roots: Mapping[int, bytes]
    columns: NDArray[np.int64]
    peers: tuple[int, ...]
    sealed: Mapping[int, keys.Channel]
    replies: keys.Channel

    def __repr__(self) -> str:
        """Show counts only: representations end up in logs."""
        return f"Cohort(me={self.me}, members={int(self.members.sum())})"

    def pair_seeds(self, peers: Sequence[int], question: bytes) -> Bytes:
        """Return the (m, 16) seeds that this site and each peer have in common for one question."""
        info = b"mask" + question
        return to_field(b"".join([keys.hkdf_expand(self.roots[peer], info) for peer in peers]))

    def envelope(self, sender: int, receiver: int, question: bytes) -> tuple[keys.Channel, bytes]:
        """Return the channel of one envelope and the bytes that it is bound to."""
        bound = question + sender.to_bytes(4, "big") + receiver.to_bytes(4, "big")
        return self.sealed[receiver if sender == self.me else sender], bound


def check_enough(present: NDArray[np.bool_], spec: SumSpec, graph: Graph) -> None:
    """Raise QuorumError if too few sites are present, or if too many are absent in one place of the circle."""
    count, least = int(present.sum()), spec.count - spec.dropouts
    if not count >= least:  # label: enough-survivors
        raise QuorumError(f"{count} of {spec.count} sites are left; expected at least {least}.")
    gap = graph.widest_gap(present)
    if not gap <= graph.sizes.gap:  # label: no-wide-gap
        raise QuorumError(f"{gap} absent sites stand together in the graph; expected at most {graph.sizes.gap}.")


def open_cohort(data: bytes, *, spec: SumSpec, graph: Graph, site: str, key: RunKey) -> Cohort:
    """Return the cohort of a ``keys`` message. Raises MessageError, QuorumError.

    Only registered identities can have signed the keys, so that a coordinator cannot add a peer of its own.
    """
    packet = packets.read(data, "keys", context=spec.context, sender=spec.coordinator)
    members = packets.flags(packet, "members", spec.count)
    count, me = int(members.sum()), spec.names.index(site)
    packets.shaped(packet, keys=(count, keys.KEY), signatures=(count, keys.SIGNATURE), coordinator=(keys.KEY,))
    check_enough(members, spec, graph)
    listed = {int(number): row for row, number in enumerate(np.flatnonzero(members))}
    if me not in listed or packet.arrays["keys"][listed[me]].tobytes() != key.public:
        raise MessageError("a list of keys without this site's own found; the set-up of this run was another.")
    deciders = {int(number) for number in graph.deciders}
    peers = set(listed) if me in deciders else {me, *deciders, *(int(number) for number in graph.neighbours[me])}
    roots: dict[int, bytes] = {}
    for peer in sorted(peers & set(listed)):
        public = packet.arrays["keys"][listed[peer]].tobytes()
        body = packets.advert_body(spec.context, spec.names[peer], public)
        keys.verify(packet.arrays["signatures"][listed[peer]].tobytes() + body, spec.sites[spec.names[peer]])
        # A colluder may sign another site's key as its own: named by the two sites, the roots differ all the same.
        pair = b"".join(number.to_bytes(4, "big") for number in sorted((me, peer)))
        roots[peer] = keys.agree(key, public, bytes.fromhex(spec.context) + b"pair" + pair)  # label: pair-named
    row = graph.neighbours[me]
    columns = np.flatnonzero(members[row])
    chief = keys.agree(key, packet.arrays["coordinator"].tobytes(), bytes.fromhex(spec.context))
    return Cohort(
        me=me,
        digest=packets.digest(data),
        members=members,
        names=tuple(spec.names[number] for number in listed),
        roots=roots,
        columns=columns,
        peers=tuple(row[columns].tolist()),
        sealed={peer: keys.channel(root, b"envelopes") for peer, root in roots.items()},
        replies=keys.channel(chief, b"replies"),
    )


def envelope_size(graph: Graph) -> int:
    """Return the bytes of one envelope: a share of the self mask and one of each pair mask, and the tag."""
    return SECRET * (1 + int(graph.neighbours.shape[1])) + keys.TAG


def lost_pairs(survivors: NDArray[np.bool_], members: NDArray[np.bool_], graph: Graph) -> NDArray[np.int64]:
    """Return (p, 2) int64: each survivor with the column, in its neighbours' row, of a member that was lost.

    No row has a survivor in its column: the pair mask of two survivors has no place in any answer.
    """
    alive = np.flatnonzero(survivors)
    lost = members & ~survivors
    if not lost.any():  # as a rule
        return np.empty((0, 2), np.int64)
    rows, columns = np.nonzero(lost[graph.neighbours[alive]])  # label: lost-only
    return np.stack([alive[rows], columns], axis=1).astype(np.int64)
