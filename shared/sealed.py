"""Requests and responses carried by file: the same bytes as over the network, signed by whoever wrote the file.

A question names its site and is signed by the coordinator; an answer names the question's hash and is signed by the
site. So a file that was changed, swapped between sites, or answers another question is refused at either end.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from patevolve.shared import wire
from patevolve.shared.envelopes import ACTIONS, MAX_REQUEST, Action
from patevolve.shared.errors import InputError, MessageError
from patevolve.shared.privacy.signing import Identity, signed_by

_CONTEXT = {  # keeps a signature over one kind of file from being one over anything else
    "sealed question": b"patevolve sealed question 1\n",
    "sealed answer": b"patevolve sealed answer 1\n",
}
_HASH = re.compile(r"[0-9a-f]{64}")
MAX_FILE = MAX_REQUEST + (1 << 16)  # bytes; the signed fields take far less than 64 KiB


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SealedQuestion:
    """A request for one site."""

    site: str
    action: Action
    body: bytes

    @property
    def sha256(self) -> str:
        """The hash that an answer names."""
        return hashlib.sha256(
            _signed("sealed question", {"site": self.site, "action": self.action}, self.body)
        ).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SealedAnswer:
    """A site's response; ``question`` is the SealedQuestion.sha256 that it answers."""

    site: str
    action: Action
    question: str
    body: bytes


def seal_question(question: SealedQuestion, coordinator: Identity) -> bytes:
    """Return the file of a question."""
    return _seal("sealed question", {"site": question.site, "action": question.action}, question.body, coordinator)


def open_question(data: bytes, *, coordinator: str, site: str) -> SealedQuestion:
    """Return the question in a file. Raises MessageError unless ``coordinator`` signed it and it is for this site."""
    fields, body = _open("sealed question", data, {"site", "action"}, coordinator)
    if fields["site"] != site:
        raise MessageError(
            f"a question for site {fields['site']!r} found; this is {site!r}. Carry it to the right one."
        )
    return SealedQuestion(site=site, action=_action(fields["action"]), body=body)


def seal_answer(answer: SealedAnswer, site: Identity) -> bytes:
    """Return the file of an answer."""
    fields = {"site": answer.site, "action": answer.action, "question": answer.question}
    return _seal("sealed answer", fields, answer.body, site)


def open_answer(data: bytes, *, key: str | None) -> tuple[SealedAnswer, str]:
    """Return the answer in a file and the public key that signed it. Raises MessageError unless it is ``key``.

    With ``key`` None any key is accepted, which is right for a site's first greeting alone.
    """
    fields, body = _open("sealed answer", data, {"site", "action", "question"}, key)
    if not _HASH.fullmatch(fields["question"]):  # it becomes a file's name at the coordinator
        raise MessageError("a sealed answer to a question that is no SHA-256 found; it was not written by patevolve.")
    answer = SealedAnswer(site=fields["site"], action=_action(fields["action"]), question=fields["question"], body=body)
    return answer, fields["public_key"]


def read_sealed(path: Path) -> bytes:
    """Return the bytes of a carried file. Raises InputError, also for one too large to be any."""
    try:
        if path.stat().st_size > MAX_FILE:
            raise InputError(
                f"{path} has {path.stat().st_size} bytes; expected at most {MAX_FILE}. It is another file."
            )
        return path.read_bytes()
    except OSError as reason:
        raise InputError(f"{path} cannot be read ({reason.strerror}); check the path.") from reason


def _seal(kind: str, fields: Mapping[str, str], body: bytes, identity: Identity) -> bytes:
    signature = identity.key.sign(_signed(kind, fields, body)).hex()
    signed = {**fields, "public_key": identity.public_key, "signature": signature}
    return wire.encode(wire.Packet(kind=kind, fields=signed, arrays={"body": np.frombuffer(body, np.uint8)}))


def _open(kind: str, data: bytes, names: set[str], key: str | None) -> tuple[dict[str, str], bytes]:
    packet = wire.decode(data, kind=kind)
    fields = dict(packet.fields)
    if set(fields) != names | {"public_key", "signature"} or not all(isinstance(v, str) for v in fields.values()):
        raise MessageError(f"a {kind} with the fields {sorted(fields)} found; it was not written by patevolve.")
    body = packet.arrays.get("body")
    if set(packet.arrays) != {"body"} or body is None or body.dtype != np.uint8 or body.ndim != 1:
        raise MessageError(f"a {kind} without a body found; it was not written by patevolve.")
    if key is not None and fields["public_key"] != key:
        raise MessageError(
            f"a {kind} signed by key {fields['public_key'][:16]}… found; expected {key[:16]}…, the one agreed on. "
            f"Refuse it and ask its sender by another way."
        )
    content = body.tobytes()
    signed = {name: fields[name] for name in names}
    if not signed_by(fields["public_key"], fields["signature"], _signed(kind, signed, content)):
        raise MessageError(f"a {kind} whose signature does not fit found; it was changed on its way.")
    return fields, content


def _signed(kind: str, fields: Mapping[str, str], body: bytes) -> bytes:
    return _CONTEXT[kind] + wire.canonical_json([dict(fields), hashlib.sha256(body).hexdigest()])


def _action(text: str) -> Action:
    for action in ACTIONS:
        if action == text:
            return action
    raise MessageError(f"action {text!r} found; expected one of {', '.join(ACTIONS)}.")
