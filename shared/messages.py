"""The closed list of what travels: questions out, noised answers and migrants back, heads of ledgers, error codes.

Anything else (class counts, image means, accuracies, error texts, file names) has no message, so it cannot be sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from patevolve.shared import wire
from patevolve.shared.errors import MessageError

Kind = Literal[
    "counts", "prototypes", "gradients", "neighbours", "choices", "confidence", "labels", "copies", "score", "islands"
]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Question:
    """What the coordinator asks every site, all of it public.

    kind:     one of KINDS; its ballot and bounds are defined in ``votes/``
    name:     unique within a run, such as ``neighbours/3``
    plan:     SHA-256 of the plan; a site with another plan refuses
    arrays:   ``genomes`` (P, G) float64 and ``classes`` (P,) int64 of candidates; ``weights`` (classes, e) of the
              classifier for ``gradients``; ``weights``, ``bias`` of a student for ``score``; ``model`` (classes, m) of
              the released prototypes beside the candidates for ``islands``
    """

    kind: Kind
    name: str
    plan: str
    run: str
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """One site's contribution to a tally: ballots plus noise, on the integer lattice.

    head:  the signed head of the site's ledger with the charge in it (JSON text)
    full:  True if ``values`` carries the whole noise of its question; False if it carries one share of it, so that
           only the sum over the cohort has the promised noise and the values must not be shown singly.
    salt:  random text of the site. The ledger chains the answer's hash and the coordinator sees the chain grow; without
           it, whoever knows the rest could try values until the hash fits, and so learn a share that masks hide.
    """

    question: str  # SHA-256 of the question's bytes
    site: str
    values: NDArray[np.int64]
    std: float
    full: bool
    head: str
    salt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Migrants:
    """What a site sends home from its island: synthetic candidates, as many as the plan says, and nothing else.

    genomes:  (classes · migrants, G) float64, class by class
    head:     the signed head of the site's ledger with the charge in it (JSON text); empty where nothing was charged
    """

    question: str  # SHA-256 of the question's bytes
    site: str
    genomes: NDArray[np.float64]
    head: str


def encode_question(question: Question) -> bytes:
    """Return the question's canonical bytes; candidates travel in the smallest type that holds them exactly."""
    fields = {"kind": question.kind, "name": question.name, "plan": question.plan, "run": question.run}
    arrays = {name: _compact(name, np.asarray(array)) for name, array in question.arrays.items()}
    return wire.encode(wire.Packet(kind="question", fields=fields, arrays=arrays))


def _compact(name: str, array: NDArray[Any]) -> NDArray[Any]:
    # Classes that are no integers are a fault of the asker, which a smaller type would hide.
    return array if name == "classes" and array.dtype.kind not in "iu" else wire.compact(array)


def decode_question(data: bytes) -> Question:
    """Return the question in ``data``. Raises MessageError for anything but a well-formed question."""
    packet = wire.decode(data, kind="question")
    fields = packet.fields
    if set(fields) != {"kind", "name", "plan", "run"} or not all(isinstance(v, str) for v in fields.values()):
        raise MessageError(
            f"a question with the fields {sorted(fields)} found; expected kind, name, plan, run as text."
        )
    if fields["kind"] not in KINDS:
        raise MessageError(f"a question of kind {fields['kind']!r} found; this version answers {', '.join(KINDS)}.")
    arrays = {name: _widened(name, array) for name, array in packet.arrays.items()}
    return Question(kind=fields["kind"], name=fields["name"], plan=fields["plan"], run=fields["run"], arrays=arrays)


def _widened(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Undo ``wire.compact``: classes are int64, everything else a question carries is float64."""
    return array.astype(np.int64 if name == "classes" and array.dtype.kind in "iu" else np.float64)


def encode_answer(answer: Answer) -> bytes:
    """Return the answer's canonical bytes."""
    fields = {
        "question": answer.question,
        "site": answer.site,
        "std": answer.std,
        "full": answer.full,
        "head": answer.head,
        "salt": answer.salt,
    }
    return wire.encode(wire.Packet(kind="answer", fields=fields, arrays={"values": answer.values}))


def decode_answer(data: bytes) -> Answer:
    """Return the answer in ``data``. Raises MessageError for anything but a well-formed answer."""
    packet = wire.decode(data, kind="answer")
    types = {"question": str, "site": str, "std": float, "full": bool, "head": str, "salt": str}
    if set(packet.fields) != set(types) or not all(type(packet.fields[k]) is t for k, t in types.items()):
        raise MessageError(f"an answer with the fields {sorted(packet.fields)} found; expected {sorted(types)}.")
    values = packet.arrays.get("values")
    if set(packet.arrays) != {"values"} or values is None or values.dtype != np.dtype("<i8") or values.ndim != 1:
        raise MessageError("an answer without one int64 vector of values found; it was not written by patevolve.")
    return Answer(values=values, **packet.fields)


def encode_migrants(migrants: Migrants) -> bytes:
    """Return the migrants' canonical bytes."""
    fields = {"question": migrants.question, "site": migrants.site, "head": migrants.head}
    return wire.encode(wire.Packet(kind="migrants", fields=fields, arrays={"genomes": wire.compact(migrants.genomes)}))


def decode_migrants(data: bytes) -> Migrants:
    """Return the migrants in ``data``. Raises MessageError for anything but one finite matrix of genomes."""
    packet = wire.decode(data, kind="migrants")
    names = ("question", "site", "head")
    if set(packet.fields) != set(names) or not all(isinstance(packet.fields[name], str) for name in names):
        raise MessageError(f"migrants with the fields {sorted(packet.fields)} found; expected {sorted(names)} as text.")
    genomes = packet.arrays.get("genomes")
    if set(packet.arrays) != {"genomes"} or genomes is None or genomes.ndim != 2:
        raise MessageError("migrants without one matrix of genomes found; they were not written by patevolve.")
    wide = genomes.astype(np.float64)
    if not np.isfinite(wide).all():
        raise MessageError("migrants with genomes that are not finite found; they are of no use.")
    return Migrants(genomes=wide, **packet.fields)


def digest(data: bytes) -> str:
    """Return the hex SHA-256 that names a message."""
    return hashlib.sha256(data).hexdigest()
