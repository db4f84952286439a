"""The signed proof of a release: the coordinator's whole ledger, what was charged, the ε of it, and who vouches for it.

``proof.json`` signs the manifest and so is not listed in it: under one plan and one noise the manifest is the same in
every mode, while keys and ledgers differ from run to run. The rows are public to the cohort: questions with their
events, the sites' public keys and signed heads; a head tells no value of an answer (messages.Answer.salt).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from patevolve.shared.errors import InputError, LedgerError, ParameterError, PatevolveError, ReleaseError
from patevolve.shared.plan import Agreed
from patevolve.shared.privacy import accountant
from patevolve.shared.privacy.accountant import Epsilon
from patevolve.shared.privacy.chain import Head, canonical
from patevolve.shared.privacy.events import Event, from_record, to_record
from patevolve.shared.privacy.global_ledger import Account, read_rows
from patevolve.shared.privacy.ledger_rows import label, sha256
from patevolve.shared.privacy.signing import Identity, signed_by
from patevolve.shared.release.folder import PROOF

__all__ = ["PROOF", "Claim", "Keys", "Proven", "Signer", "check_proof", "read_keys", "write_proof"]

FORMAT = "patevolve-proof/2"
ROUNDING = 1e-6  # relative; other builds of the accountant's arithmetic may differ in the last digits
Role = Literal["coordinator", "site"]
_CONTEXT = b"patevolve release proof 2\n"  # keeps a signature over a proof from being one over anything else
_HEX = re.compile(r"[0-9a-f]{128}")  # one spelling: a letter in upper case would be another file


@dataclass(frozen=True, slots=True, kw_only=True)
class Signer:
    """Who vouches for a release: the coordinator of a deployment, or each site of a run in one process."""

    role: Role
    name: str
    identity: Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Public keys that the reader of a release got by another way than with the release."""

    sites: Mapping[str, str]
    coordinator: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a run says of its release. ``events``: (question, event) of everything that the plan charges."""

    plan_sha256: str
    run: str
    events: tuple[tuple[str, Event], ...]
    epsilon: float
    delta: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """What a proof shows, all of it checked.

    spent:       ε of the events, computed anew
    signers:     (role, name, public key) of those who signed
    sites:       public keys of the sites whose heads the ledger holds
    unrecorded:  what the ε pays for and the ledger does not hold: not asked before it was signed, or charged by the
                 sites themselves
    """

    claim: Claim
    spent: Epsilon
    manifest_sha256: str
    head: Head
    signers: tuple[tuple[Role, str, str], ...]
    sites: Mapping[str, str]
    unrecorded: tuple[str, ...]


def write_proof(
    claim: Claim, *, manifest_sha256: str, rows: Sequence[tuple[str, str]], signers: Iterable[Signer]
) -> bytes:
    """Return the bytes of ``proof.json``. ``rows``: the coordinator's ledger (``GlobalLedger.rows``)."""
    body = {
        "plan_sha256": claim.plan_sha256,
        "run": claim.run,
        "manifest_sha256": manifest_sha256,
        "epsilon": claim.epsilon,
        "delta": claim.delta,
        "events": [{"question": name, **to_record(event)} for name, event in claim.events],
        "ledger": [list(row) for row in rows],
    }
    signed = _signed_bytes(body)
    signatures = [
        {
            "role": signer.role,
            "name": signer.name,
            "public_key": signer.identity.public_key,
            "signature": signer.identity.key.sign(signed).hex(),
        }
        for signer in signers
    ]
    return (canonical({"format": FORMAT, "body": body, "signatures": signatures}) + "\n").encode("ascii")


def _signed_bytes(body: Mapping[str, Any]) -> bytes:
    # The digest, not the body: every site signs, and a body grows with the sites, so that all would grow by the square.
    return _CONTEXT + hashlib.sha256(canonical(body).encode("ascii")).digest()


def check_proof(data: bytes, agreed: Agreed, keys: Keys | None) -> Proven:
    """Return what ``proof.json`` shows of a release of this plan.

    keys: what the signatures are held against; None: against the keys in the proof itself, which shows only that one
          hand made all of it
    Raises ReleaseError, and only that: another form, a wrong signature or key, a ledger that does not hold together,
    events that are not those of the ledger, or an ε that does not follow from them.
    """
    try:
        return _check(data, agreed, keys)
    except ReleaseError:
        raise
    except (PatevolveError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as reason:
        raise ReleaseError(
            f"{PROOF} is no proof that this version wrote ({reason}). Fetch the release again."
        ) from reason


def _check(data: bytes, agreed: Agreed, keys: Keys | None) -> Proven:
    body, signatures = _read(data)
    signers = _check_signatures(body, signatures)
    account = _account(body)
    _check_signers(signers, account, keys)
    claim = _claim(body)
    if claim.plan_sha256 != agreed.sha256:
        raise ReleaseError(
            f"{PROOF} is of plan {claim.plan_sha256[:12]}…; the release holds plan {agreed.sha256[:12]}…. Another's."
        )
    unrecorded = _check_questions(claim, account)
    spent = accountant.epsilon(accountant.compose([event for _, event in claim.events]), claim.delta)
    if claim.delta != agreed.plan.privacy.delta:
        raise ReleaseError(f"{PROOF} says δ = {claim.delta}; the plan says {agreed.plan.privacy.delta}.")
    if not math.isclose(claim.epsilon, spent.epsilon, rel_tol=ROUNDING, abs_tol=1e-12):
        raise ReleaseError(f"{PROOF} says ε = {claim.epsilon!r}; the ledger's events cost {spent.epsilon!r}.")
    if not spent.epsilon <= agreed.plan.privacy.epsilon * (1 + ROUNDING):
        raise ReleaseError(
            f"the ledger's events cost ε = {spent.epsilon!r}; the plan allows {agreed.plan.privacy.epsilon}."
        )
    return Proven(
        claim=claim,
        spent=spent,
        manifest_sha256=sha256(manifest_sha256=body["manifest_sha256"]),
        head=account.head,
        signers=signers,
        sites=account.sites,
        unrecorded=unrecorded,
    )


def _read(data: bytes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    value = json.loads(data)
    if canonical(value).encode("ascii") + b"\n" != data:
        raise ReleaseError(f"{PROOF} is changed: it is not in the one form that a proof has. Fetch the release again.")
    if set(value) != {"format", "body", "signatures"} or value["format"] != FORMAT:
        raise ReleaseError(
            f"a proof of format {value.get('format')!r} found; expected {FORMAT!r}. Use another version."
        )
    expected = {"plan_sha256", "run", "manifest_sha256", "epsilon", "delta", "events", "ledger"}
    if set(value["body"]) != expected:
        raise ReleaseError(f"a proof of {sorted(value['body'])} found; expected {sorted(expected)}.")
    return value["body"], value["signatures"]


def _check_signatures(
    body: Mapping[str, Any], signatures: Sequence[Mapping[str, Any]]
) -> tuple[tuple[Role, str, str], ...]:
    signed, signers = _signed_bytes(body), []
    for each in signatures:
        if set(each) != {"role", "name", "public_key", "signature"} or each["role"] not in ("coordinator", "site"):
            raise ReleaseError(f"{PROOF} has a signature of another form; expected role, name, public_key, signature.")
        if not _HEX.fullmatch(each["signature"]) or not signed_by(each["public_key"], each["signature"], signed):
            raise ReleaseError(
                f"the signature of {each['role']} {each['name']!r} does not fit; the release or its proof was changed."
            )
        signers.append((each["role"], label(name=each["name"]), each["public_key"]))
    if not signers:
        raise ReleaseError(f"nobody signed {PROOF}; expected the coordinator, or the sites of a run in one process.")
    return tuple(signers)


def _account(body: Mapping[str, Any]) -> Account:
    try:
        return read_rows((kind, row) for kind, row in body["ledger"])
    except LedgerError as reason:
        raise ReleaseError(f"the ledger in {PROOF} does not hold together: {reason}.") from reason


def _check_signers(signers: Sequence[tuple[Role, str, str]], account: Account, keys: Keys | None) -> None:
    """Raise ReleaseError unless the coordinator signed, or every site did, each with the key it is known by."""
    known = {("site", name): key for name, key in account.sites.items()}
    if keys is not None:
        trusted = {("site", name): key for name, key in keys.sites.items()}
        trusted |= {("coordinator", account.head.site): keys.coordinator} if keys.coordinator else {}
        for who in (*known, *((role, name) for role, name, _ in signers)):
            if who not in trusted:
                raise ReleaseError(
                    f"the keys that were given hold none of {who[0]} {who[1]!r}; add it, or refuse this."
                )
        if any(trusted[who] != key for who, key in known.items()):
            raise ReleaseError("a site of the ledger has another key than the one given; this is not its ledger.")
        known = trusted
    for role, name, key in signers:
        if known.get((role, name), key) != key or (role == "coordinator" and name != account.head.site):
            raise ReleaseError(
                f"{role} {name!r} signed with another key than the one it is known by; refuse the release."
            )
    by_sites = {name for role, name, _ in signers if role == "site"}
    left = sorted(set(account.sites) - by_sites)
    if left and not any(role == "coordinator" for role, _, _ in signers):
        raise ReleaseError(f"{', '.join(left)} did not sign and neither did a coordinator; expected one or the other.")


def _claim(body: Mapping[str, Any]) -> Claim:
    events = []
    for record in body["events"]:
        event = from_record({name: value for name, value in record.items() if name != "question"})
        events.append((label(question=record["question"]), event))
    numbers = body["epsilon"], body["delta"]
    if not all(type(number) is float for number in numbers):
        raise ParameterError(f"ε and δ {numbers} found; expected decimal numbers")
    return Claim(
        plan_sha256=sha256(plan_sha256=body["plan_sha256"]),
        run=label(run=body["run"]),
        events=tuple(events),
        epsilon=numbers[0],
        delta=numbers[1],
    )


def _check_questions(claim: Claim, account: Account) -> tuple[str, ...]:
    """Return the claimed questions without a row. Raises ReleaseError for a row that the claim does not pay for."""
    claimed = Counter((name, canonical(to_record(event))) for name, event in claim.events)
    for row in account.questions:
        if (row["plan_sha256"], row["run"]) != (claim.plan_sha256, claim.run):
            raise ReleaseError(
                f"the ledger in {PROOF} holds a question of another plan or run; expected this one alone."
            )
        paid = (row["question"], canonical(row["event"]))
        if not claimed[paid]:
            raise ReleaseError(
                f"the ledger in {PROOF} holds question {row['question']!r}, which the stated ε does not pay for."
            )
        claimed[paid] -= 1
    return tuple(name for (name, _), count in claimed.items() if count)


def read_keys(path: Path) -> Keys:
    """Return the public keys in a JSON file {"sites": {name: key}, "coordinator": key}. Raises InputError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        sites = {str(name): sha256(public_key=key) for name, key in dict(value.get("sites", {})).items()}
        coordinator = sha256(coordinator=value["coordinator"]) if "coordinator" in value else ""
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as reason:
        raise InputError(
            f'{path} cannot be read as public keys ({reason}); expected {{"sites": {{"NAME": "64 hexadecimal '
            f'digits"}}, "coordinator": "..."}}, as a roster has them.'
        ) from reason
    return Keys(sites=sites, coordinator=coordinator)
