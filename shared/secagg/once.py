"""A signature over one set of survivors, checked by one hash for each site: Lamport's one-time signature (1979).

Two secrets stand for each site: showing the first says that it survives, showing the second that it is lost. The
request of a question, which is signed, commits to the hashes of all of them. Who shows both secrets of one site has
told two stories of one question, and anyone can check that: the signed request is at hand, and the hashes fit.
"""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from patevolve.shared.errors import MessageError

HASH = 32  # bytes of a secret, and of a hash
ROW = 2 * HASH  # bytes that a signature has for each site: one secret, and the hash of the other
_COMMITTED = b"patevolve secagg survivors 1\n"


def commit(seed: bytes, sites: int) -> bytes:
    """Return the 32 bytes that commit to one set of survivors, whichever it will be; ``seed``: 32 secret bytes."""
    return _root([_hash(secret) for secret in _secrets(seed, sites)])


def sign(seed: bytes, survivors: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return the (n, 64) uint8 signature over (n,) flags. Sign one set only: two give away what commits to neither."""
    secrets = _secrets(seed, survivors.size)
    rows = []
    for place, alive in enumerate(survivors.tolist()):
        told, other = (2 * place, 2 * place + 1) if alive else (2 * place + 1, 2 * place)
        rows += [secrets[told], _hash(secrets[other])]
    return np.frombuffer(b"".join(rows), np.uint8).reshape(-1, ROW)


def check(signature: NDArray[np.uint8], survivors: NDArray[np.bool_], commitment: bytes) -> None:
    """Raise MessageError unless the (n, 64) signature opens ``commitment`` to these (n,) flags."""
    raw, hashes = signature.tobytes(), []
    for start, alive in zip(range(0, len(raw), ROW), survivors.tolist(), strict=True):
        told, other = _hash(raw[start : start + HASH]), raw[start + HASH : start + ROW]
        hashes += [told, other] if alive else [other, told]
    if not hmac.compare_digest(_root(hashes), commitment):  # label: survivors-signed
        raise MessageError("a set of survivors that the question's request does not commit to found; refuse it.")


def _secrets(seed: bytes, sites: int) -> list[bytes]:
    stream = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor().update(bytes(ROW * sites))
    return [stream[start : start + HASH] for start in range(0, len(stream), HASH)]


def _hash(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


def _root(hashes: list[bytes]) -> bytes:
    return hashlib.sha256(_COMMITTED + b"".join(hashes)).digest()
