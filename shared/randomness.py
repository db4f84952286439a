"""Two kinds of randomness, never mixed: public named streams, and secret noise bytes.

Public choices (a population, a mutation) come from streams named under the plan's seed: everyone can repeat them.
Privacy noise comes from the operating system's generator and from nothing else outside tests.
"""

from __future__ import annotations

import hashlib
import os
from typing import Protocol

import numpy as np

from patevolve.shared.errors import ParameterError

RECORDED_NOISE_VARIABLE = "PATEVOLVE_RECORDED_NOISE_FOR_TESTS"


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """Return the public random stream of this name under ``seed``.

    The stream depends on (seed, names) alone, so that adding a consumer moves no other one's draws.
    Never use it for privacy noise.
    """
    text = "\x1f".join([str(int(seed)), *(str(name) for name in names)])
    digest = hashlib.sha256(text.encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))


class NoiseSource(Protocol):
    """Uniform secret bytes for privacy noise."""

    def read(self, count: int) -> bytes:
        """Return ``count`` fresh uniform bytes."""


class SystemNoise:
    """The operating system's cryptographic generator (``os.urandom``)."""

    def read(self, count: int) -> bytes:
        """Return ``count`` bytes of the operating system's CSPRNG."""
        return os.urandom(count)


class RecordedNoise:
    """A repeatable byte stream for tests of equality across transports. It gives no privacy.

    Raises ParameterError unless the environment opts in by ``PATEVOLVE_RECORDED_NOISE_FOR_TESTS=1``.
    """

    def __init__(self, name: str) -> None:
        """Open the stream of this name."""
        if os.environ.get(RECORDED_NOISE_VARIABLE) != "1":
            raise ParameterError(
                f"RecordedNoise({name!r}) asked for outside a test; expected the system's noise. "
                f"Recorded noise can be repeated by anyone and protects nobody. Use SystemNoise()."
            )
        self._name = name
        self._counter = 0

    def read(self, count: int) -> bytes:
        """Return the next ``count`` bytes of the recorded stream."""
        seed = f"{self._name}\x1f{self._counter}".encode()
        self._counter += 1
        return hashlib.shake_256(seed).digest(count)
