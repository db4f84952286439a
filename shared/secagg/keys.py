"""Keys of one run: X25519 between each two sites and with the coordinator, HKDF per question, and what they protect.

What a third party may have to believe is signed (adverts, lists of keys, requests). What only its receiver has to
believe carries a code under a key that the two share (sites' answers), which costs a tenth of a signature.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import os
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from patevolve.shared.errors import MessageError
from patevolve.shared.privacy.signing import Identity

KEY = 32  # bytes
SIGNATURE = 64  # bytes
NONCE = 12  # bytes
TAG = 16  # bytes that sealing adds
MARK = NONCE + TAG  # bytes before a message with a code
Channel = ChaCha20Poly1305  # what two parties share for all messages of a run between them; nonces are drawn at random
_SIGNED = b"patevolve secagg message 1\n"  # keeps these signatures from being ones over anything else


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RunKey:
    """A site's X25519 key of one run. Its representation shows nothing."""

    key: X25519PrivateKey

    @property
    def public(self) -> bytes:
        """The public half, 32 bytes."""
        return self.key.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        """Show no key: representations end up in logs."""
        return "RunKey(<withheld>)"


def new_run_key() -> RunKey:
    """Return a fresh key from the operating system's generator."""
    return RunKey(key=X25519PrivateKey.generate())


def stored_run_key(private: bytes) -> RunKey:
    """Return the key of its 32 private bytes. Raises MessageError for another length."""
    if len(private) != KEY:
        raise MessageError(f"a stored key of {len(private)} bytes found; expected {KEY}. Begin another run.")
    return RunKey(key=X25519PrivateKey.from_private_bytes(private))


def coordinator_run_key(identity: Identity, context: str) -> RunKey:
    """Return the coordinator's key of the run of this context: a function of its identity, so that no file keeps it."""
    info = b"patevolve secagg coordinator key 1\n" + bytes.fromhex(context)
    return RunKey(
        key=X25519PrivateKey.from_private_bytes(hmac.digest(identity.key.private_bytes_raw(), info, "sha256"))
    )


def one_time_seed(identity: Identity, question: bytes) -> bytes:
    """Return the 32 bytes from which the secrets of one question's survivors are drawn: again the same, if restored."""
    info = b"patevolve secagg survivors seed 1\n" + question
    return hmac.digest(identity.key.private_bytes_raw(), info, "sha256")


def agree(mine: RunKey, theirs: bytes, context: bytes) -> bytes:
    """Return the 32-byte root that two parties share in this context. Raises MessageError for an unusable key."""
    try:
        secret = mine.key.exchange(X25519PublicKey.from_public_bytes(theirs))
    except ValueError as reason:  # a point of small order gives the all-zero secret
        raise MessageError("a public key with which no secret can be agreed found; refuse its site.") from reason
    return hkdf_extract(context, secret)


def hkdf_extract(salt: bytes, material: bytes) -> bytes:
    """Return the pseudo-random key of RFC 5869 section 2.2, SHA-256."""
    return hmac.digest(salt, material, "sha256")


def hkdf_expand(root: bytes, info: bytes) -> bytes:
    """Return the first 32 bytes of RFC 5869 section 2.3: one block, which is one HMAC."""
    return hmac.digest(root, info + b"\x01", "sha256")  # label: one-key-per-question


def channel(root: bytes, use: bytes) -> Channel:
    """Return the channel of two parties for one use, under its own key."""
    return ChaCha20Poly1305(hkdf_expand(root, use))


def seal(between: Channel, nonce: bytes, plain: bytes, bound: bytes) -> bytes:
    """Return ``plain`` encrypted and bound to ``bound`` (ChaCha20-Poly1305)."""
    return between.encrypt(nonce, plain, bound)


def unseal(between: Channel, nonce: bytes, sealed: bytes, bound: bytes) -> bytes:
    """Return what was sealed in this channel and for this binding. Raises MessageError, and only that."""
    try:
        return between.decrypt(nonce, sealed, bound)  # label: envelope-bound
    except InvalidTag as reason:
        raise MessageError("an envelope that was not sealed for this site and question found.") from reason


def mark(body: bytes, between: Channel) -> bytes:
    """Return a fresh nonce, the code of the body, and the body."""
    nonce = os.urandom(NONCE)
    return b"".join([nonce, between.encrypt(nonce, b"", body), body])


def unmark(message: bytes, between: Channel) -> bytes:
    """Return the body whose code fits this channel. Raises MessageError, and only that."""
    body = message[MARK:]
    try:
        between.decrypt(message[:NONCE], message[NONCE:MARK], body)
    except (InvalidTag, ValueError) as reason:  # ValueError: not even a nonce
        raise MessageError("a message without the code of its sender found; refuse it.") from reason
    return body


def sign(body: bytes, identity: Identity) -> bytes:
    """Return the signature, which is over the body's SHA-256, and the body."""
    return identity.key.sign(_digest(body)) + body


def verify(message: bytes, public_key: str) -> bytes:
    """Return the body that ``public_key`` (hexadecimal) signed. Raises MessageError, and only that."""
    body = message[SIGNATURE:]
    try:
        _public(public_key).verify(message[:SIGNATURE], _digest(body))  # label: signed-by-identity
    except InvalidSignature as reason:
        raise MessageError("a message without the signature of its sender found; refuse it.") from reason
    return body


def _digest(body: bytes) -> bytes:
    # Ed25519 hashes what it signs twice, by SHA-512: for a long vector that took longer than its masks.
    return _SIGNED + hashlib.sha256(body).digest()


@functools.lru_cache(maxsize=4096)
def _public(public_key: str) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))
