"""What goes between coordinator and site: five requests and their replies, as bounded canonical bytes with a version.

An envelope carries questions and answers; it has no field for anything else. A reply that is no answer is an error
code out of a fixed list: texts of errors stay at the site.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from patevolve.shared import errors, wire
from patevolve.shared.errors import MessageError, ParameterError, PatevolveError
from patevolve.shared.privacy.ledger_rows import label
from patevolve.shared.privacy.signing import Identity, signed_by

Action = Literal["hello", "setup", "ask", "unmask", "evolve"]
ACTIONS: tuple[Action, ...] = get_args(Action)
PROTOCOL = 3  # changes whenever an envelope's meaning changes
MAX_REQUEST = 16 << 20  # bytes; 10,000 candidates of 128 floats are 5 MiB
MAX_REPLY = 16 << 20  # bytes
MAX_PARTS = 4096
MAX_SITES = 100_000
OK = ""
CODES = frozenset(
    cls.code for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, PatevolveError)
)
_HEX = frozenset("0123456789abcdef")
_GREETING = b"patevolve welcome 2\n"  # keeps a signature over a greeting from being one over anything else


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """What the coordinator sends to one site.

    plan:   SHA-256 of the plan
    run:    the run's name
    sites:  the cohort whose answers are summed, sorted; empty in ``hello``
    parts:  ``ask``: questions, under secure sum after the list of keys and the sum's own request; ``unmask``: the sum's
            second request; ``setup``: none; ``hello``: none, or the newest head of the site's ledger that the
            coordinator holds, which shows a site that its folder went back in time
    """

    action: Action
    plan: str
    run: str
    sites: tuple[str, ...] = ()
    parts: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Response:
    """What a site sends back.

    parts:  ``hello``: the greeting; ``setup``: the site's key; ``ask``: one answer for each question, or under secure
            sum one masked vector and the head of the site's ledger; ``unmask``: shares
    codes:  one for each part, OK or why it is missing (the part is then empty); a request that is refused as a whole
            has one code and no part
    """

    action: Action
    site: str
    codes: tuple[str, ...]
    parts: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a site can answer and its policy lets it: the coordinator leaves out a site that lacks what the plan needs.

    kinds:    kinds of question
    trust:    trust models
    message:  bytes of the longest request that it reads
    """

    kinds: tuple[str, ...]
    trust: tuple[str, ...]
    message: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """A site's answer to ``hello``: who it is and what it can answer. It tells nothing of its data.

    unsafe:  whether the site answers with recorded noise, which protects nobody
    """

    site: str
    public_key: str
    capabilities: Capabilities
    unsafe: bool = False


@functools.cache
def version() -> str:
    """Return the installed version: both sides must run the same one."""
    return importlib.metadata.version("patevolve")


def encode_request(request: Request) -> bytes:
    """Return the request's canonical bytes. Raises MessageError if they are too many."""
    fields = {
        "protocol": PROTOCOL,
        "patevolve": version(),
        "plan": request.plan,
        "run": request.run,
        "sites": list(request.sites),
    }
    return _encode(f"{request.action} request", fields, request.parts, MAX_REQUEST)


def decode_request(data: bytes, action: Action) -> Request:
    """Return the request in ``data``. Raises MessageError for another action, version or form."""
    fields, parts = _decode(data, f"{action} request", {"plan": str, "run": str, "sites": list}, MAX_REQUEST)
    sites = fields["sites"]
    if not (len(sites) <= MAX_SITES and all(isinstance(site, str) for site in sites) and _sorted_set(sites)):
        raise MessageError("a cohort that is no sorted list of distinct names found; expected the sites of the run.")
    try:
        label(run=fields["run"])  # of another form it could never stand in a ledger
    except ParameterError as reason:
        raise MessageError(f"a run whose name is none found: {reason}") from reason
    if len(fields["plan"]) != 64 or not set(fields["plan"]) <= _HEX:
        raise MessageError("a plan that is no SHA-256 found; expected 64 hexadecimal digits.")
    return Request(action=action, plan=fields["plan"], run=fields["run"], sites=tuple(sites), parts=parts)


def encode_response(response: Response) -> bytes:
    """Return the response's canonical bytes. Raises MessageError if they are too many."""
    fields = {
        "protocol": PROTOCOL,
        "patevolve": version(),
        "site": response.site,
        "codes": list(response.codes),
    }
    return _encode(f"{response.action} response", fields, response.parts, MAX_REPLY)


def decode_response(data: bytes, action: Action) -> Response:
    """Return the response in ``data``. Raises MessageError for another action, version or form."""
    fields, parts = _decode(data, f"{action} response", {"site": str, "codes": list}, MAX_REPLY)
    codes = fields["codes"]
    if not codes or not all(isinstance(code, str) and code in CODES | {OK} for code in codes):
        raise MessageError("an error code outside the list found; the response was not written by patevolve.")
    refused = len(codes) == 1 and codes[0] != OK and not parts
    if not refused and (
        len(codes) != len(parts) or any(bool(part) != (code == OK) for code, part in zip(codes, parts, strict=True))
    ):
        raise MessageError("a response whose codes and parts do not fit found; it was not written by patevolve.")
    return Response(action=action, site=fields["site"], codes=tuple(codes), parts=parts)


def refusal(action: Action, site: str, code: str) -> bytes:
    """Return the response that refuses a whole request."""
    return encode_response(Response(action=action, site=site, codes=(code if code in CODES else "error",)))


def encode_welcome(request: Request, welcome: Welcome, identity: Identity) -> bytes:
    """Return a site's greeting, signed over the request's plan and run."""
    signature = identity.key.sign(_greeting(request, welcome)).hex()
    return wire.encode(wire.Packet(kind="welcome", fields={**_welcome_fields(welcome), "signature": signature}))


def decode_welcome(data: bytes, request: Request) -> Welcome:
    """Return the greeting in ``data`` if its own key signed it for this plan and run. Raises MessageError."""
    packet = wire.decode(data, kind="welcome")
    types = {"site": str, "public_key": str, "unsafe": bool, "kinds": list, "trust": list, "message": int}
    fields = dict(packet.fields)
    wanted = {**types, "signature": str}
    if set(fields) != set(wanted) or packet.arrays or not all(type(fields[k]) is kind for k, kind in wanted.items()):
        raise MessageError(f"a greeting with the fields {sorted(fields)} found; expected {sorted(wanted)}.")
    if not all(isinstance(name, str) for name in [*fields["kinds"], *fields["trust"]]):
        raise MessageError("a greeting whose capabilities are no names found; it was not written by patevolve.")
    can = Capabilities(kinds=tuple(fields["kinds"]), trust=tuple(fields["trust"]), message=fields["message"])
    welcome = Welcome(site=fields["site"], public_key=fields["public_key"], capabilities=can, unsafe=fields["unsafe"])
    if not signed_by(welcome.public_key, fields["signature"], _greeting(request, welcome)):
        raise MessageError(f"a greeting of {welcome.site!r} that its key did not sign found; refuse it.")
    if not welcome.site:
        raise MessageError("a greeting without a name found; expected the site's.")
    return welcome


def _welcome_fields(welcome: Welcome) -> dict[str, Any]:
    can = welcome.capabilities
    return {
        "site": welcome.site,
        "public_key": welcome.public_key,
        "unsafe": welcome.unsafe,
        "kinds": list(can.kinds),
        "trust": list(can.trust),
        "message": can.message,
    }


def _greeting(request: Request, welcome: Welcome) -> bytes:
    return _GREETING + wire.canonical_json([request.plan, request.run, _welcome_fields(welcome)])


def encode_head(head: str) -> bytes:
    """Return the bytes of a ledger's signed head, which goes with a masked vector."""
    return wire.encode(wire.Packet(kind="head", fields={"head": head}))


def decode_head(data: bytes) -> str:
    """Return the signed head's JSON text. Raises MessageError."""
    packet = wire.decode(data, kind="head")
    if set(packet.fields) != {"head"} or not isinstance(packet.fields["head"], str) or packet.arrays:
        raise MessageError("a ledger's head of another form found; it was not written by patevolve.")
    return packet.fields["head"]


def cohort_sha256(plan: str, sites: Sequence[str], asking: bytes = b"") -> str:
    """Return the hash that names a cohort; part of what makes a question the same question.

    asking:  under secure sum the sum's own request: it names the list of keys and the batch, so that an answer, which
             keeps its noise, is given again in the same sum alone
    """
    one_sum = [hashlib.sha256(asking).hexdigest()] if asking else []
    return hashlib.sha256(wire.canonical_json([plan, sorted(sites), *one_sum])).hexdigest()


def batch_name(questions: Sequence[bytes]) -> str:
    """Return the name under which the answers to these questions are summed together: it is bound to their bytes."""
    return hashlib.sha256(
        wire.canonical_json([hashlib.sha256(question).hexdigest() for question in questions])
    ).hexdigest()


def _encode(kind: str, fields: Mapping[str, Any], parts: Sequence[bytes], most: int) -> bytes:
    if len(parts) > MAX_PARTS:
        raise MessageError(f"{len(parts)} parts found; expected at most {MAX_PARTS} in one {kind}.")
    arrays = {f"{number:04d}": np.frombuffer(part, np.uint8) for number, part in enumerate(parts)}
    data = wire.encode(wire.Packet(kind=kind, fields=fields, arrays=arrays))
    if len(data) > most:
        raise MessageError(f"a {kind} of {len(data)} bytes was built; expected at most {most}. Send fewer candidates.")
    return data


def _decode(
    data: bytes, kind: str, types: Mapping[str, type], most: int
) -> tuple[Mapping[str, Any], tuple[bytes, ...]]:
    if not isinstance(data, bytes) or len(data) > most:
        raise MessageError(f"a message of the wrong type or over {most} bytes found; expected a {kind}.")
    packet = wire.decode(data, kind=kind)
    types = {"protocol": int, "patevolve": str, **types}
    fields = packet.fields
    if set(fields) != set(types) or not all(type(fields[name]) is kind for name, kind in types.items()):
        raise MessageError(f"a {kind} with the fields {sorted(fields)} found; expected {sorted(types)}.")
    if fields["protocol"] != PROTOCOL or fields["patevolve"] != version():
        raise MessageError(
            f"a {kind} of patevolve {fields['patevolve']} (protocol {fields['protocol']}) found; this is {version()} "
            f"({PROTOCOL}). Install one version on both sides."
        )
    names = [f"{number:04d}" for number in range(len(packet.arrays))]
    if sorted(packet.arrays) != names or len(names) > MAX_PARTS:
        raise MessageError(f"a {kind} with parts {sorted(packet.arrays)[:5]} found; expected them numbered.")
    arrays = [packet.arrays[name] for name in names]
    if any(array.dtype != np.uint8 or array.ndim != 1 for array in arrays):
        raise MessageError(f"a {kind} whose parts are no bytes found.")
    return fields, tuple(array.tobytes() for array in arrays)


def _sorted_set(names: Sequence[str]) -> bool:
    return all(first < second for first, second in itertools.pairwise(names))
