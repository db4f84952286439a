"""Shamir's threshold shares of many short secrets at once, as one matrix product.

A secret is 16 bytes read as 8 limbs below the prime 65521, each shared by its own polynomial (Shamir 1979): T shares
give the secret, fewer tell nothing of it. Why no library: docs/decisions/0003-secure-sum.md.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from patevolve.shared import checks
from patevolve.shared.errors import MessageError, ParameterError
from patevolve.shared.secagg.masks import expand

PRIME = 65521  # the largest below 2^16, so that a limb fits two bytes
SECRET = 16  # bytes
LIMBS = SECRET // 2
_FEW = 256  # words: more come faster by the stream
Bytes = NDArray[np.uint8]


def split(secrets: Bytes, *, threshold: int, holders: int) -> Bytes:
    """Return (holders, m, 16) uint8 shares of the (m, 16) uint8 secrets; holder h has row h.

    Guarantee: any threshold - 1 rows are independent of the secrets.
    Raises ParameterError for limbs that are no field elements, or a threshold outside 1 to ``holders``.
    """
    checks.integer(holders=holders, at_least=1, at_most=PRIME - 1)
    checks.integer(threshold=threshold, at_least=1, at_most=holders)
    limbs = secrets.reshape(-1).view("<u2")
    if limbs.size and int(limbs.max()) >= PRIME:
        raise ParameterError("a secret with a limb of 65521 or more found; make secrets by random_secrets or to_field.")
    coefficients = np.empty((threshold, limbs.size), np.float64)
    coefficients[0] = limbs
    coefficients[1:] = _uniform((threshold - 1) * limbs.size).reshape(threshold - 1, limbs.size)
    return _modulo(_powers(holders, threshold) @ coefficients).reshape(holders, -1, SECRET)


def combine(shares: Bytes, holders: Sequence[int], *, threshold: int) -> Bytes:
    """Return the (m, 16) secrets from (h, m, 16) shares of the holders named by row number.

    Shares beyond the threshold must lie on the same polynomial.
    Raises MessageError for too few, repeated or disagreeing shares.
    """
    points = [checks.integer(holder=holder, at_least=0, at_most=PRIME - 2) + 1 for holder in holders]
    if len(points) < threshold or len(set(points)) != len(points) or len(points) != len(shares):
        raise MessageError(f"shares of {len(set(points))} holders found; expected >= {threshold}, each once.")
    limbs = np.ascontiguousarray(shares).reshape(len(points), -1).view("<u2").astype(np.float64)
    base, given = points[:threshold], limbs[:threshold]
    if limbs.size and limbs.max() >= PRIME:
        raise MessageError("a share with a limb of 65521 or more found; the message is damaged.")
    if len(points) > threshold:
        rows = np.array([_lagrange(base, point) for point in points[threshold:]], np.float64)
        if not np.array_equal(_modulo(rows @ given), _modulo(limbs[threshold:])):
            raise MessageError("shares that contradict one another found; a site's share is wrong, so no sum is made.")
    return _modulo(np.array(_lagrange(base, 0), np.float64) @ given).reshape(-1, SECRET)


def random_secrets(count: int) -> Bytes:
    """Return (count, 16) uint8 uniform secrets from the operating system's generator (127.99 bits each)."""
    return _uniform(count * LIMBS).view(np.uint8).reshape(count, SECRET)


def to_field(wide: bytes) -> Bytes:
    """Return (m, 16) uint8 secrets from 32 pseudo-random bytes for each: four bytes to a limb, bias below 2^-16."""
    return (np.frombuffer(wide, "<u4") % PRIME).astype("<u2").view(np.uint8).reshape(-1, SECRET)


def _uniform(count: int) -> NDArray[np.uint16]:
    """Return uniform field elements by rejection: a biased coefficient would make shares tell of the secret.

    Many come from the ChaCha20 stream of 32 bytes of the operating system's generator, which is slower for many.
    """
    kept = np.empty(0, "<u2")
    while kept.size < count:  # once, as a rule: one in 4,000 is rejected
        words = (count - kept.size) // 2 + 32
        few = words <= _FEW
        drawn = np.frombuffer(os.urandom(4 * words), "<u2") if few else _stream(words)
        good = drawn[drawn < PRIME]  # label: uniform-coefficients
        kept = np.concatenate([kept, good]) if kept.size else good
    return kept[:count]


def _stream(words: int) -> NDArray[np.uint16]:
    return expand(os.urandom(2 * SECRET), bytes(4 * words)).view("<u2")


def _modulo(product: NDArray[np.float64]) -> Bytes:
    """Return limbs as bytes. The product is exact: whole numbers below T * 2^32 <= 2^48 < 2^53."""
    return (product.astype(np.int64) % PRIME).astype("<u2").view(np.uint8)


@functools.lru_cache(maxsize=8)
def _powers(holders: int, count: int) -> NDArray[np.float64]:
    """Return (holders, count): the powers of each holder's point, 1 to ``holders``, modulo PRIME."""
    points = np.arange(1, holders + 1)
    table = np.ones((holders, count), np.int64)
    for column in range(1, count):
        table[:, column] = table[:, column - 1] * points % PRIME
    return table.astype(np.float64)


def _lagrange(points: Sequence[int], at: int) -> list[int]:
    """Return the weights with which values at ``points`` give the value at ``at``, modulo PRIME."""
    weights = []
    for mine in points:
        above, below = 1, 1
        for other in points:
            if other != mine:
                above, below = above * (at - other) % PRIME, below * (mine - other) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return weights
