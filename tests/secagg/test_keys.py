"""Keys and masks against published vectors and a ChaCha20 written out by hand."""

import hashlib
import struct

import numpy as np
import pytest

from patevolve.shared.errors import MessageError, ParameterError
from patevolve.shared.secagg import keys
from patevolve.shared.secagg.masks import expand, to_integers, to_words


def test_hkdf_vector_of_rfc_5869_case_1():
    root = keys.hkdf_extract(bytes(range(13)), b"\x0b" * 22)
    assert root.hex() == "077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5"
    expected = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"
    assert keys.hkdf_expand(root, bytes(range(0xF0, 0xFA))).hex() == expected


def rotate(value, by):
    return (value << by | value >> (32 - by)) & 0xFFFFFFFF


def chacha20_block(key, counter, nonce):
    """RFC 8439 section 2.3, by hand."""
    start = [
        *struct.unpack("<4I", b"expand 32-byte k"),
        *struct.unpack("<8I", key),
        counter,
        *struct.unpack("<3I", nonce),
    ]
    state = list(start)
    rounds = [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]
    rounds += [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]
    for a, b, c, d in rounds * 10:
        for first, second, third, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            state[first] = (state[first] + state[second]) & 0xFFFFFFFF
            state[third] = rotate(state[third] ^ state[first], by)
    return [(one + two) & 0xFFFFFFFF for one, two in zip(state, start, strict=True)]


def test_the_oracle_meets_rfc_8439():
    nonce = bytes.fromhex("000000090000004a00000000")
    assert chacha20_block(bytes(range(32)), 1, nonce)[:4] == [0xE4E7F110, 0x15593BD1, 0x1FDD0F50, 0xC47120A3]


@pytest.mark.parametrize("length", [0, 1, 16, 17, 40])
def test_masks_are_the_chacha20_stream_of_the_seed(length):
    seed = bytes(range(16))
    key = hashlib.sha256(b"patevolve secagg mask 1\n" + seed).digest()
    words = [word for counter in range(3) for word in chacha20_block(key, counter, bytes(12))]
    assert expand(seed, bytes(4 * length)).tolist() == words[:length]


def test_words_and_integers_round_trip():
    values = np.array([0, 1, -1, 2**31 - 1, -(2**31)])
    assert to_integers(to_words(values)).tolist() == values.tolist()
    assert to_words([]).size == 0
    with pytest.raises(ParameterError, match="at most"):
        to_words(np.zeros((1 << 23) + 1, np.int8))


def test_two_sites_agree_and_contexts_differ():
    one, other = keys.new_run_key(), keys.new_run_key()
    assert keys.agree(one, other.public, b"x") == keys.agree(other, one.public, b"x")
    assert keys.agree(one, other.public, b"x") != keys.agree(one, other.public, b"y")
    stored = keys.stored_run_key(one.key.private_bytes_raw())
    assert stored.public == one.public
    with pytest.raises(MessageError):
        keys.stored_run_key(b"short")


@pytest.mark.parametrize("point", [bytes(32), b"\x01" + bytes(31), (2**255 - 20).to_bytes(32, "little")])
def test_keys_of_small_order_are_refused(point):
    with pytest.raises(MessageError, match="no secret"):
        keys.agree(keys.new_run_key(), point, b"x")


def test_envelopes_open_for_their_key_nonce_and_binding_only():
    one, other = keys.channel(b"k" * 32, b"use"), keys.channel(b"K" * 32, b"use")
    sealed = keys.seal(one, b"n" * 12, b"plain", b"bound")
    assert keys.unseal(keys.channel(b"k" * 32, b"use"), b"n" * 12, sealed, b"bound") == b"plain"
    for wrong in (
        (other, b"n" * 12, sealed, b"bound"),
        (keys.channel(b"k" * 32, b"another use"), b"n" * 12, sealed, b"bound"),
        (one, b"N" * 12, sealed, b"bound"),
        (one, b"n" * 12, sealed[:-1], b"bound"),
        (one, b"n" * 12, sealed, b"other"),
        (one, b"n" * 12, b"", b"bound"),
    ):
        with pytest.raises(MessageError):
            keys.unseal(*wrong)


def test_a_code_fits_its_channel_and_body_only():
    one = keys.channel(b"k" * 32, b"replies")
    message = keys.mark(b"body", one)
    assert keys.unmark(message, keys.channel(b"k" * 32, b"replies")) == b"body"
    assert keys.mark(b"body", one) != message  # nonces are fresh: no key and nonce serve two messages
    for length in range(len(message)):
        with pytest.raises(MessageError, match="code"):
            keys.unmark(message[:length], one)
    for wrong in (keys.channel(b"K" * 32, b"replies"), keys.channel(b"k" * 32, b"envelopes")):
        with pytest.raises(MessageError, match="code"):
            keys.unmark(message, wrong)


def test_the_coordinators_key_is_one_for_each_run_and_identity(harness):
    chief = harness.identity("coordinator")
    keys_of = {keys.coordinator_run_key(one, context).public for one, context in [(chief, "ab"), (chief, "cd")]}
    keys_of.add(keys.coordinator_run_key(harness.identity("another"), "ab").public)
    assert len(keys_of) == 3
    assert keys.coordinator_run_key(chief, "ab").public in keys_of
    seeds = {keys.one_time_seed(one, name) for one in (chief, harness.identity("another")) for name in (b"q1", b"q2")}
    assert len(seeds) == 4
    assert keys.one_time_seed(chief, b"q1") in seeds


def test_signatures_of_heads_are_no_signatures_of_messages(harness):
    identity = harness.identity()
    assert keys.verify(keys.sign(b"body", identity), identity.public_key) == b"body"
    bare = identity.key.sign(b"body") + b"body"
    for message in (bare, b"", b"short", keys.sign(b"body", harness.identity())):
        with pytest.raises(MessageError):
            keys.verify(message, identity.public_key)
