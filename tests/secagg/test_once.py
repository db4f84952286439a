"""One signature over one set of survivors: it fits that set alone, and showing two gives both stories away."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patevolve.shared.errors import MessageError
from patevolve.shared.secagg import once

SEED = bytes(range(32))
SETS = st.lists(st.booleans(), min_size=1, max_size=20).map(lambda flags: np.array(flags, bool))


@given(survivors=SETS, place=st.integers(0, 19))
def test_it_fits_its_set_and_no_other(survivors, place):
    commitment, signature = once.commit(SEED, survivors.size), once.sign(SEED, survivors)
    assert signature.shape == (survivors.size, once.ROW)
    once.check(signature, survivors, commitment)
    survivors[place % survivors.size] ^= True
    with pytest.raises(MessageError, match="does not commit"):
        once.check(signature, survivors, commitment)


def test_the_commitment_does_not_tell_the_set_and_the_seed_makes_it():
    assert once.commit(SEED, 4) == once.commit(SEED, 4)
    assert len({once.commit(SEED, 4), once.commit(SEED, 5), once.commit(bytes(32), 4)}) == 3


def test_every_changed_bit_is_refused():
    survivors = np.array([True, False, True])
    commitment, signature = once.commit(SEED, 3), once.sign(SEED, survivors)
    for position in range(signature.size):
        changed = signature.copy()
        changed.reshape(-1)[position] ^= 1 << position % 8
        with pytest.raises(MessageError):
            once.check(changed, survivors, commitment)


def test_a_hash_is_no_secret():
    """Each row shows a secret and the other's hash: the other is not there to be shown."""
    signature = once.sign(SEED, np.array([True])).tobytes()
    told, other = signature[: once.HASH], signature[once.HASH :]
    lie = once.sign(SEED, np.array([False])).tobytes()
    assert hashlib.sha256(lie[: once.HASH]).digest() == other
    assert hashlib.sha256(told).digest() == lie[once.HASH :]
    assert lie[: once.HASH] not in signature
