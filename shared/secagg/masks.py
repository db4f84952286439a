"""Masks: short seeds expanded by ChaCha20 to vectors modulo 2^32."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import ArrayLike, NDArray

from patevolve.shared.errors import ParameterError

Words = NDArray[np.uint32]
SEED = 16  # bytes
MAX_LENGTH = 1 << 23  # entries: 32 MiB, half of the largest message
_NONCE = bytes(16)  # a seed's key is used for one stream, so counter and nonce may start at zero


def expand(seed: bytes, zeros: bytes) -> Words:
    """Return the mask of a 16-byte seed: one uint32 for every four bytes of ``zeros`` (a buffer to be reused)."""
    return np.frombuffer(_keystream(seed).update(zeros), "<u4")


def add_masks(words: Words, seeds: bytes, added: Iterable[bool]) -> None:
    """Add to ``words``, or subtract, in place, the mask of each 16-byte seed, one after the other in one buffer."""
    zeros, stream = bytes(words.nbytes), bytearray(words.nbytes)
    mask = np.frombuffer(stream, "<u4")
    for start, plus in zip(range(0, len(seeds), SEED), added, strict=True):
        _keystream(seeds[start : start + SEED]).update_into(zeros, stream)
        (np.add if plus else np.subtract)(words, mask, out=words)


def _keystream(seed: bytes) -> CipherContext:
    key = hashlib.sha256(b"patevolve secagg mask 1\n" + seed).digest()
    return Cipher(ChaCha20(key, _NONCE), mode=None).encryptor()


def to_words(values: ArrayLike) -> Words:
    """Return integers in [-2^31, 2^31) as a fresh vector modulo 2^32. Raises ParameterError outside."""
    array = np.asarray(values)
    if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or array.size == 0):
        raise ParameterError(f"{array.dtype} values of shape {array.shape} found; expected one vector of integers.")
    if array.size > MAX_LENGTH:
        raise ParameterError(f"{array.size} values found; expected at most {MAX_LENGTH}. Ask for fewer at once.")
    if array.size and not (int(array.min()) >= -(2**31) and int(array.max()) < 2**31):  # label: range
        raise ParameterError("a value outside [-2^31, 2^31) found; use a coarser lattice.")
    return array.astype(np.uint32)  # wraps: negative integers are taken modulo 2^32


def to_integers(words: Words) -> NDArray[np.int64]:
    """Return a vector modulo 2^32 as the integers in [-2^31, 2^31) that it stands for."""
    return words.astype(np.uint32).view(np.int32).astype(np.int64)
