"""``patevolve verify``: whether a release is whole, signed, and of the ε that its ledger's charges cost.

It needs the folder and, to be sure who signed, public keys that came by another way. Nothing is trusted that the folder
says of itself: files are hashed, the coordinator's ledger is chained anew, every signature is checked, ε is computed
from the charged events, and the events are held against those that the plan's text implies.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from patevolve.shared.errors import InputError, PatevolveError, ReleaseError
from patevolve.shared.plan import Agreed, read_plan
from patevolve.shared.privacy.accountant import CONVERSION
from patevolve.shared.privacy.events import to_record
from patevolve.shared.privacy.head_part import NAME as HEAD
from patevolve.shared.privacy.head_part import head_items
from patevolve.shared.privacy.planner import spend
from patevolve.shared.release.folder import MANIFEST, SOURCE, read_manifest, verify_manifest
from patevolve.shared.release.proof import PROOF, Keys, Proven, check_proof
from patevolve.shared.schedule import schedule
from patevolve.shared.tools import tools_of

EXPORT = (
    "This is an export: plan, guarantee and ledger are the signed ones; the converted files are covered by this "
    "folder's checksums alone. Who must be sure of every record verifies the release itself."
)
OWN_KEYS = (
    "The signatures were held against the keys in the folder only: that shows damage, not who made it. Compare these "
    "keys by another way, or give them with --keys:"
)
CARD, GUARANTEE, PLAN = "README.md", "guarantee.json", "plan.toml"
QUOTED = re.compile(r"ε = ((?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What a successful verification found.

    files:       how many files are as the manifest says
    export:      whether the files were made from the signed release and are not the signed ones themselves
    own_keys:    whether the signatures were held against the keys in the folder alone
    unchecked:   what could not be checked on this machine, in words
    """

    files: int
    proven: Proven
    export: bool
    own_keys: bool
    unchecked: tuple[str, ...]


def verify_release(folder: Path, keys: Keys | None = None) -> Verified:
    """Verify a release or an export of one. Raises ReleaseError, and only that, at the first fault."""
    names = verify_manifest(folder)
    missing = [name for name in (GUARANTEE, PLAN) if name not in names]
    if missing:
        raise ReleaseError(f"{folder.name} holds no {', '.join(missing)}; expected a release or an export of one.")
    try:
        agreed = read_plan(folder / PLAN)
        proven = check_proof(_bytes(folder / PROOF), agreed, keys)
        export = _check_manifests(folder, proven)
        _check_guarantee(json.loads(_bytes(folder / GUARANTEE)), proven)
        _check_card(folder / CARD, proven)
        unchecked = _check_schedule(agreed, proven)
    except ReleaseError:
        raise
    except (
        PatevolveError,
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as reason:
        raise ReleaseError(f"{folder.name} is no release that this version wrote: {reason}") from reason
    return Verified(files=len(names), proven=proven, export=export, own_keys=keys is None, unchecked=unchecked)


def _bytes(path: Path) -> bytes:
    if path.is_symlink() or not path.is_file():
        raise ReleaseError(f"{path.parent.name} holds no {path.name}; expected it as a plain file. Fetch it again.")
    return path.read_bytes()


def _check_manifests(folder: Path, proven: Proven) -> bool:
    """Return whether this is an export. Raises ReleaseError unless the signature is over this folder's manifest, or
    over the one of the release that an export was made from.
    """
    if hashlib.sha256(_bytes(folder / MANIFEST)).hexdigest() == proven.manifest_sha256:
        return False
    if not (folder / SOURCE).exists():
        raise ReleaseError(f"{PROOF} signs another manifest; files and manifest were changed, or the proof exchanged.")
    if hashlib.sha256(_bytes(folder / SOURCE)).hexdigest() != proven.manifest_sha256:
        raise ReleaseError(f"{PROOF} signs another release than the one that {SOURCE} lists.")
    here, signed = read_manifest(folder), read_manifest(folder, SOURCE)
    changed = [name for name in (GUARANTEE, PLAN) if here[name] != signed.get(name)]
    if changed:
        raise ReleaseError(f"{', '.join(changed)} is not that of the signed release.")
    return True


def _check_guarantee(guarantee: dict[str, Any], proven: Proven) -> None:
    if guarantee["plan_sha256"] != proven.claim.plan_sha256:
        raise ReleaseError(f"{GUARANTEE} is of another plan than {PROOF}.")
    if guarantee["proof"]["events"] != [{"question": name, **to_record(event)} for name, event in proven.claim.events]:
        raise ReleaseError(f"the events in {GUARANTEE} are not those in {PROOF}.")
    texts = [item["text"] for item in guarantee["statement"]]
    _check_quotes("\n".join(texts), proven, GUARANTEE)


def _check_card(path: Path, proven: Proven) -> None:
    """Hold the ε that the card states against the proof; a plan's name or notes may say what they like."""
    _, title, rest = _bytes(path).decode().partition("\n## Privacy\n")
    if not title:
        raise ReleaseError(f"{CARD} has no section on privacy; expected the guarantee there.")
    _check_quotes(rest.partition("\n## ")[0], proven, CARD)


def _check_quotes(text: str, proven: Proven, where: str) -> None:
    """Raise ReleaseError unless ε is stated, and each time as proven, rounded up at most in its last digit."""
    found = QUOTED.findall(text)
    for quoted in found:
        value = Decimal(quoted.replace(",", ""))
        last = float(Decimal(1).scaleb(int(value.as_tuple().exponent)))
        least = proven.spent.epsilon * (1 - 1e-6)
        if not least <= float(value) <= proven.spent.epsilon * (1 + 1e-6) + last:
            raise ReleaseError(f"{where} says ε = {quoted}; the ledger's events cost {proven.spent.epsilon!r}.")
    if not found:
        raise ReleaseError(f"{where} states no ε; expected the one of the ledger's events.")


def _check_schedule(agreed: Agreed, proven: Proven) -> tuple[str, ...]:
    """Raise ReleaseError unless the charged events are those that the plan implies: each of them, and no other.

    Teacher labels alone may be missing: a plan can leave it to its planner whether they are asked.
    """
    if not (proven.claim.events or spend(agreed.plan) or head_items(agreed.plan)):
        return ()
    try:
        asks = schedule(agreed.plan, tools_of(agreed.plan).encoder.embedding_size)
    except (InputError, ImportError) as reason:  # a public file, or an extra, is not on this machine
        return (f"that the events are those of the plan ({reason})",)
    implied = {ask.name: to_record(ask.event) for ask in asks}
    implied |= {name: to_record(event) for name, event in head_items(agreed.plan)}
    for name, event in proven.claim.events:
        if implied.get(name) != to_record(event):
            raise ReleaseError(
                f"question {name!r} was charged as {to_record(event)}; the plan implies {implied.get(name)}."
            )
    optional = {"labels"} if agreed.plan.release.labels != "pate" else set()
    if left := sorted(set(implied) - {name for name, _ in proven.claim.events} - optional):
        raise ReleaseError(f"{PROOF} leaves out what the plan asks, and its cost: {', '.join(left)}.")
    return ()


def describe(found: Verified) -> dict[str, Any]:
    """Return the JSON form of a successful verification."""
    proven = found.proven
    return {
        "verified": True,
        "files": found.files,
        "export": found.export,
        "plan_sha256": proven.claim.plan_sha256,
        "run": proven.claim.run,
        "epsilon": proven.spent.epsilon,
        "delta": proven.claim.delta,
        "order": proven.spent.order,
        "conversion": CONVERSION,
        "questions": [name for name, _ in proven.claim.events],
        "not_asked": list(proven.unrecorded),
        "ledger_head": {"seq": proven.head.seq, "digest": proven.head.digest},
        "signed_by": [{"role": role, "name": name, "public_key": key} for role, name, key in proven.signers],
        "sites": dict(proven.sites),
        "keys": "folder" if found.own_keys else "given",
        "not_checked": list(found.unchecked),
    }


def describe_text(found: Verified) -> str:
    """Return what a successful verification found, in words."""
    proven = found.proven
    cost = f"ε = {proven.spent.epsilon:.6g} at δ = {proven.claim.delta:g}"
    lines = [
        f"{found.files} files are as the manifest says, and nothing else is there.",
        f"{cost} follows from {len(proven.claim.events)} charged questions; the ledger holds to row {proven.head.seq}.",
        f"Signed by {', '.join(f'{role} {name}' for role, name, _ in proven.signers)}.",
    ]
    if proven.unrecorded:
        home = [name for name in proven.unrecorded if name.startswith(HEAD)]
        later = [name for name in proven.unrecorded if name not in home]
        lines += [f"Paid for, but not yet asked when it was signed: {', '.join(later)}."] if later else []
        lines += [f"In the sites' own ledgers alone, where each trained its head: {', '.join(home)}."] if home else []
    if found.export:
        lines.append(EXPORT)
    lines += [f"Not checked: {words}." for words in found.unchecked]
    if found.own_keys:
        lines += [OWN_KEYS, *(f"  {role} {name}: {key}" for role, name, key in proven.signers)]
    else:
        lines.append("The signatures are of the keys that were given.")
    return "\n".join(lines)
