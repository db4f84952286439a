"""A site's Ed25519 identity, and its signature over how far its ledger has come.

A signed head, kept by someone else, is what makes a rollback visible: an older copy of the ledger, or one written
anew, does not contain the row that was signed. The signed bytes are written down in LEDGER.md. A head tells the number
of rows and a digest; it tells nothing of what was charged or how much is left, which is the site's own business.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from patevolve.shared.errors import LedgerError, ParameterError
from patevolve.shared.files import sync
from patevolve.shared.privacy.chain import Head, canonical
from patevolve.shared.privacy.chain_file import ledger_errors
from patevolve.shared.privacy.ledger_rows import label, sha256

FORMAT = "patevolve-head/1"
_CONTEXT = b"patevolve signed head 1\n"  # keeps a signature over a head from being one over anything else
_SIGNATURE = re.compile(r"[0-9a-f]{128}")
MAX_SEQ = 2**53  # JSON numbers are exact up to here


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedHead:
    """A head and its Ed25519 signature (128 hexadecimal digits)."""

    head: Head
    signature: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Identity:
    """A site's signing key. Its representation shows the public half only."""

    key: Ed25519PrivateKey

    @property
    def public_key(self) -> str:
        """The public key as 64 hexadecimal digits."""
        return self.key.public_key().public_bytes_raw().hex()

    def __repr__(self) -> str:
        """Show the public key only: representations end up in logs."""
        return f"Identity(public_key={self.public_key})"


def create_identity(path: str | os.PathLike[str]) -> Identity:
    """Write a new private key (PEM, readable by its owner alone), durably, and return it.

    Raises LedgerError when the file exists: overwriting a key would orphan every head that it signed.
    """
    target, identity = Path(path).absolute(), Identity(key=Ed25519PrivateKey.generate())
    data = identity.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    draft = target.with_name(f".{target.name}.{os.getpid()}.draft")
    with ledger_errors(target, "creating the identity"):
        draft.unlink(missing_ok=True)  # of an earlier process with this number, killed while creating
        handle = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            _link(draft, target)
        finally:
            draft.unlink(missing_ok=True)
        sync(target.parent)
    return identity


def _link(draft: Path, target: Path) -> None:
    try:
        os.link(draft, target)
    except FileExistsError as error:
        raise LedgerError(
            f"{target} exists; an identity is never overwritten. Load it, or choose another path"
        ) from error


def load_identity(path: str | os.PathLike[str]) -> Identity:
    """Return the identity at ``path``. Raises LedgerError when missing, no Ed25519 key, or readable by others."""
    target = Path(path).absolute()
    with ledger_errors(target, "reading the identity"):
        if os.name == "posix" and target.stat().st_mode & 0o077:
            raise LedgerError(f"{target}: others can read this private key; expected mode 0600. Run chmod 600 on it")
        data = target.read_bytes()
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise LedgerError(f"{target}: no unencrypted private key found; restore the identity file") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise LedgerError(f"{target}: {type(key).__name__} found; expected an Ed25519 key. Restore the identity file")
    return Identity(key=key)


def signed_by(public_key: str, signature: str, data: bytes) -> bool:
    """Return whether ``public_key`` (64 hexadecimal digits) made this signature (128 of them) over ``data``.

    Digits are lower-case and nothing stands between them: a second spelling would be a second text with one meaning.
    """
    if not isinstance(signature, str) or not _SIGNATURE.fullmatch(signature):
        return False
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(sha256(public_key=public_key)))
        key.verify(bytes.fromhex(signature), data)
    except (InvalidSignature, ParameterError, ValueError):
        return False
    return True


def sign_head(head: Head, identity: Identity) -> SignedHead:
    """Sign a head. Raises ParameterError when it is not well formed."""
    return SignedHead(head=head, signature=identity.key.sign(_signed_bytes(head)).hex())


def verify_head(signed: SignedHead, public_key: str) -> Head:
    """Return the head if ``public_key`` (64 hexadecimal digits) signed it. Raises LedgerError, and only that."""
    try:
        fits = signed_by(public_key, signed.signature, _signed_bytes(signed.head))
    except (ParameterError, AttributeError):  # not even a head
        fits = False
    if not fits:
        raise LedgerError(
            "the head's signature does not fit the registered public key; refuse it and ask the site by another way"
        )
    return signed.head


def head_to_json(signed: SignedHead) -> str:
    """Return the one JSON text of a signed head."""
    head = signed.head
    return canonical(
        {"format": FORMAT, "site": head.site, "seq": head.seq, "digest": head.digest, "signature": signed.signature}
    )


def head_from_json(text: str) -> SignedHead:
    """Return the signed head of a JSON text; the signature is not checked here. Raises LedgerError, and only that."""
    try:
        value: dict[str, Any] = json.loads(text)
        form, signature = value.pop("format"), value.pop("signature")
        signed = SignedHead(head=Head(**value), signature=signature)
        _signed_bytes(signed.head)
    except (ParameterError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise LedgerError("no signed head found; expected the JSON text that head_to_json writes") from error
    if form != FORMAT or not isinstance(signature, str):
        raise LedgerError(f"signed head of format {form!r} found; expected {FORMAT!r}. Use the version that wrote it")
    if head_to_json(signed) != text:
        raise LedgerError("a signed head in another spelling found; expected the text that head_to_json writes")
    return signed


def _signed_bytes(head: Head) -> bytes:
    label(site=head.site)
    sha256(digest=head.digest)
    if type(head.seq) is not int or not 0 <= head.seq <= MAX_SEQ:
        raise ParameterError(f"seq={head.seq!r} found; expected a row number. Correct seq.")
    return _CONTEXT + canonical({"site": head.site, "seq": head.seq, "digest": head.digest}).encode("ascii")
