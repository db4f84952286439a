"""The six messages of a secure sum as canonical bytes: what proves the sender, then a wire packet.

keys exchange     site -> coordinator   advert     signed     the site's key of this run
first exchange    coordinator -> site   keys       signed     all adverts, with their signatures; the coordinator's key
                  coordinator -> site   ask        signed     question and length, the same bytes to every site, and a
                                                              commitment to the set of survivors, whichever it will be
                  site -> coordinator   masked     code       masked vector, and an envelope for each decider
second exchange   coordinator -> site   unmask     one-time   the ask, the survivors, the envelopes to this decider
                  site -> coordinator   unmasked   code       shares: of self masks of survivors, of pair masks with
                                                              the lost

Signed: a 64-byte Ed25519 signature stands before the packet. Code: a nonce and a tag under the key of site and
coordinator (``keys.mark``). One-time: the survivors open the commitment in the signed ask (``once``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.shared import wire
from patevolve.shared.errors import MessageError
from patevolve.shared.privacy.signing import Identity
from patevolve.shared.secagg import keys
from patevolve.shared.secagg.masks import MAX_LENGTH

MAX_NAME = 200  # characters of a question's name
Shape = tuple[int | None, ...]  # None: any length


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The fields and arrays that a message must have, no more and no less."""

    fields: Mapping[str, type]
    arrays: Mapping[str, str]  # name -> dtype


_TEXT = {"context": str}
_QUESTION = {**_TEXT, "keys": str, "question": str, "length": int}
FORMS = {
    "secagg-advert": Form(fields={**_TEXT, "site": str}, arrays={"key": "|u1"}),
    "secagg-keys": Form(
        fields=_TEXT, arrays={"members": "|u1", "keys": "|u1", "signatures": "|u1", "coordinator": "|u1"}
    ),
    "secagg-ask": Form(fields=_QUESTION, arrays={"commitment": "|u1"}),
    "secagg-masked": Form(
        fields={**_QUESTION, "site": str}, arrays={"words": "<i4", "nonce": "|u1", "envelopes": "|u1"}
    ),
    "secagg-unmask": Form(
        fields={**_TEXT, "site": str},
        arrays={"ask": "|u1", "survivors": "|u1", "signature": "|u1", "nonces": "|u1", "envelopes": "|u1"},
    ),
    "secagg-unmasked": Form(
        fields={**_TEXT, "site": str, "question": str, "request": str}, arrays={"selves": "|u1", "pairs": "|u1"}
    ),
}


def write(kind: str, identity: Identity, fields: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the signed message."""
    return keys.sign(write_bare(kind, fields, arrays), identity)


def write_marked(
    kind: str, between: keys.Channel, fields: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> bytes:
    """Return the message with its code."""
    return keys.mark(write_bare(kind, fields, arrays), between)


def write_bare(kind: str, fields: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the packet of a message alone."""
    return wire.encode(wire.Packet(kind=f"secagg-{kind}", fields=fields, arrays=arrays))


def read(data: bytes, kind: str, *, context: str, sender: str | Mapping[str, str]) -> wire.Packet:
    """Return the message if its sender signed it for this context and it has the form of its kind.

    sender:  a public key, or the keys by name where the message names its site
    Raises MessageError for anything else.
    """
    packet = read_bare(data[keys.SIGNATURE :], kind, context=context)
    if not isinstance(sender, str):
        name = packet.fields["site"]
        if name not in sender:
            raise MessageError(f"a message of the unregistered site {name!r} found; expected one of the plan's sites.")
        sender = sender[name]
    keys.verify(data, sender)
    return packet


def read_marked(data: bytes, kind: str, *, context: str, between: Callable[[str], keys.Channel]) -> wire.Packet:
    """Return the message if its code fits the channel with the site that it names. Raises MessageError."""
    packet = read_bare(data[keys.MARK :], kind, context=context)
    keys.unmark(data, between(packet.fields["site"]))
    return packet


def read_bare(data: bytes, kind: str, *, context: str) -> wire.Packet:
    """Return a packet of its kind's form and this context, whoever wrote it. Raises MessageError."""
    packet = wire.decode(data, kind=f"secagg-{kind}")
    _check_form(packet)
    if packet.fields["context"] != context:
        raise MessageError(f"a message of another plan, run or cohort found ({kind}); expected this run's.")
    return packet


def _check_form(packet: wire.Packet) -> None:
    form = FORMS[packet.kind]
    fields, arrays = packet.fields, packet.arrays
    if set(fields) != set(form.fields) or any(type(fields[name]) is not kind for name, kind in form.fields.items()):
        raise MessageError(f"a {packet.kind} message with the fields {sorted(fields)} found; expected others.")
    if {name: array.dtype.str for name, array in arrays.items()} != dict(form.arrays):
        raise MessageError(f"a {packet.kind} message with the arrays {sorted(arrays)} found; expected others.")
    if "length" in fields and not (0 <= fields["length"] <= MAX_LENGTH and 0 < len(fields["question"]) <= MAX_NAME):
        raise MessageError("a question without a name, or of more values than this version sums, found.")


def shaped(packet: wire.Packet, **shapes: Shape) -> None:
    """Refuse arrays of other shapes. Raises MessageError."""
    for name, shape in shapes.items():
        found = packet.arrays[name].shape
        if len(found) != len(shape) or any(want not in (None, have) for have, want in zip(found, shape, strict=True)):
            raise MessageError(f"{name} of shape {found} found in a {packet.kind} message; expected {shape}.")


def flags(packet: wire.Packet, name: str, count: int) -> NDArray[np.bool_]:
    """Return an array of ``count`` zeros and ones as booleans. Raises MessageError for anything else."""
    shaped(packet, **{name: (count,)})
    array = packet.arrays[name]
    if array.size and int(array.max()) > 1:
        raise MessageError(f"{name} with a flag of {int(array.max())} found; expected 0 or 1.")
    return array.astype(bool)


def advert_body(context: str, site: str, key: bytes) -> bytes:
    """Return the bytes that a site signs to say which key is its own in this run."""
    fields, array = {"context": context, "site": site}, np.frombuffer(key, np.uint8)
    return wire.encode(wire.Packet(kind="secagg-advert", fields=fields, arrays={"key": array}))


def question_digest(ask: bytes) -> bytes:
    """Return the 32 bytes to which every mask and envelope of a question is bound: all that its request says."""
    return hashlib.sha256(b"patevolve secagg question 2\n" + ask[keys.SIGNATURE :]).digest()  # label: question-bound


def digest(data: bytes) -> str:
    """Return the hex SHA-256 that names a message."""
    return hashlib.sha256(data).hexdigest()
