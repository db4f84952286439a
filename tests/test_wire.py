"""Canonical bytes: one value, one encoding; anything else is refused by one error and little memory."""

import json
import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from patevolve.shared import wire
from patevolve.shared.errors import MessageError

SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
FIELDS = st.dictionaries(
    TEXTS,
    st.recursive(
        SCALARS | TEXTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3)
    ),
    max_size=4,
)
ARRAYS = st.dictionaries(
    TEXTS,
    arrays.arrays(
        st.sampled_from([np.dtype(name) for name in wire.DTYPES]),
        arrays.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4),
    ),
    max_size=3,
)


def packet():
    return wire.Packet(
        kind="answer",
        fields={"question": "a" * 64, "std": 1.5, "full": True, "list": [1, 2.0, None, "ü"]},
        arrays={"values": np.arange(40, dtype=np.int64) - 20, "pixels": np.zeros((2, 3, 4), np.uint8)},
    )


def raw(header):
    data = header if isinstance(header, bytes) else json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    return wire.MAGIC + len(data).to_bytes(4, "little") + data


def same(left, right):
    assert (left.kind, dict(left.fields), set(left.arrays)) == (right.kind, dict(right.fields), set(right.arrays))
    for name, array in left.arrays.items():
        assert array.dtype == right.arrays[name].dtype
        assert array.shape == right.arrays[name].shape
        assert array.tobytes() == right.arrays[name].tobytes()


@given(TEXTS, FIELDS, ARRAYS)
def test_round_trip(kind, fields, named):
    before = wire.Packet(kind=kind, fields=fields, arrays=named)
    data = wire.encode(before)
    after = wire.decode(data)
    same(before, after)
    assert wire.encode(after) == data


@given(FIELDS, ARRAYS)
def test_the_order_of_keys_does_not_matter(fields, named):
    turned = {key: fields[key] for key in reversed(fields)}, {key: named[key] for key in reversed(named)}
    assert wire.encode(wire.Packet(kind="k", fields=fields, arrays=named)) == wire.encode(
        wire.Packet(kind="k", fields=turned[0], arrays=turned[1])
    )


def test_byte_order_and_strides_do_not_matter():
    values = np.arange(12, dtype="<i4").reshape(3, 4)
    packets = [wire.Packet(kind="k", arrays={"v": v}) for v in (values, values.astype(">i4"), values.T.copy().T)]
    assert len({wire.encode(p) for p in packets}) == 1


def mutations(data, rng, count):
    """Yield ``count`` changed copies: flipped, inserted, deleted, repeated and cut bytes, in header and arrays."""
    while count:
        changed = bytearray(data)
        for _ in range(rng.integers(1, 4)):
            position = int(rng.integers(max(len(changed), 1)))
            changed = changed or bytearray(1)  # every byte was deleted before
            match rng.integers(6):
                case 0:
                    changed[position] ^= 1 << int(rng.integers(8))
                case 1:
                    changed[position] = int(rng.integers(256))
                case 2:
                    changed[position:position] = rng.bytes(int(rng.integers(1, 9)))
                case 3:
                    del changed[position : position + int(rng.integers(1, 9))]
                case 4:
                    changed[position:position] = changed[position : position + 8]
                case 5:
                    del changed[max(position, 1) :]
        if bytes(changed) != data:
            yield bytes(changed)
            count -= 1


def test_a_hundred_thousand_mutations_are_refused_or_are_another_message():
    """10^5 mutated messages: MessageError alone; an accepted one is the canonical encoding of another value."""
    data, accepted = wire.encode(packet()), 0
    for changed in mutations(data, np.random.default_rng(1), 100_000):
        try:
            found = wire.decode(changed)
        except MessageError:
            continue
        accepted += 1
        assert wire.encode(found) == changed != data
    # A flipped bit in an array is a message of its own; what names a message is its hash, and that differs.
    assert 0 < accepted < 50_000


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_by_the_one_error(data):
    for candidate in (data, wire.MAGIC + data, raw(data)):
        with pytest.raises(MessageError):
            wire.decode(candidate)


HEADER = {"version": 1, "kind": "k", "fields": {}, "arrays": []}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PVM1",
        b"PVM2" + raw(HEADER)[4:],
        raw(HEADER) + b"\0",
        raw({**HEADER, "version": 2}),
        raw({**HEADER, "version": True}),
        raw({**HEADER, "version": 1.0}),
        raw({**HEADER, "extra": 1}),
        raw({key: value for key, value in HEADER.items() if key != "fields"}),
        raw([HEADER]),
        raw({**HEADER, "kind": 1}),
        raw({**HEADER, "fields": []}),
        raw({**HEADER, "arrays": {}}),
        raw({**HEADER, "arrays": [["a", "|O", [1]]]}) + b"\0" * 8,
        raw({**HEADER, "arrays": [["a", "<i8", [-1]]]}),
        raw({**HEADER, "arrays": [["a", "<i8", [True]]]}) + b"\0" * 8,
        raw({**HEADER, "arrays": [["a", "<i8", [1.0]]]}) + b"\0" * 8,
        raw({**HEADER, "arrays": [["a", "<i8", []]]}) + b"\0" * 8,
        raw({**HEADER, "arrays": [["a", "<i8", [1] * 5]]}) + b"\0" * 8,
        raw({**HEADER, "arrays": [["a", "<i8", [1 << 26] * 4]]}),
        raw({**HEADER, "arrays": [["a", "<i8", [1 << 80]]]}),
        raw({**HEADER, "arrays": [["a", "<i8", [2]]]}) + b"\0" * 8,
        raw({**HEADER, "arrays": [["b", "|u1", [1]], ["a", "|u1", [1]]]}) + b"\0" * 2,
        raw({**HEADER, "arrays": [["a", "|u1", [1]], ["a", "|u1", [1]]]}) + b"\0" * 2,
        raw({**HEADER, "arrays": [[["a"], "|u1", [1]]]}) + b"\0",
        raw(b'{"arrays":[],"fields":{},"fields":{},"kind":"k","version":1}'),
        raw(b'{"arrays":[],"fields":{"x":NaN},"kind":"k","version":1}'),
        raw(b'{"arrays":[],"fields":{"x":1e999},"kind":"k","version":1}'),
        raw(b'{"arrays":[],"fields":{"x":"\\ud800"},"kind":"k","version":1}'),
        raw(b'{"arrays":[],"fields":{"x":"\\u00fc"},"kind":"k","version":1}'),
        raw(b'{"arrays":[],"fields":{"x":1.50},"kind":"k","version":1}'),
        raw(b'{"arrays":[],"fields":{"x":' + b"9" * 5000 + b'},"kind":"k","version":1}'),
        raw(b'{"arrays":[],"fields":{"x":' + b"[" * 100_000 + b"]" * 100_000 + b'},"kind":"k","version":1}'),
        raw(b'{ "arrays":[],"fields":{},"kind":"k","version":1}'),
        wire.MAGIC + (1 << 31).to_bytes(4, "little") + b"{}",
        pickle.dumps(HEADER),
    ],
)
def test_hostile_bytes_are_refused(data):
    with pytest.raises(MessageError):
        wire.decode(data)


def test_a_header_of_any_depth_is_read_or_refused():
    for depth in range(1, 3000, 61):
        data = raw(b'{"arrays":[],"fields":{"x":' + b"[" * depth + b"]" * depth + b'},"kind":"k","version":1}')
        try:
            assert wire.encode(wire.decode(data)) == data
        except MessageError:
            continue


def test_the_wrong_kind_is_refused():
    with pytest.raises(MessageError, match="expected 'question'"):
        wire.decode(wire.encode(packet()), kind="question")


def test_a_message_that_claims_much_allocates_little():
    """Peak memory while 200 messages that claim up to 2^104 bytes are refused: under 1 MiB."""
    hostile = [
        raw({**HEADER, "arrays": [["a", "<f8", [1 << size] * dimensions]]})
        for size in range(20, 27)
        for dimensions in (1, 2, 3, 4)
    ]
    tracemalloc.start()
    try:
        for data in hostile * 8:
            with pytest.raises(MessageError):
                wire.decode(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_decoding_a_message_allocates_a_few_times_its_size():
    data = wire.encode(wire.Packet(kind="k", arrays={"a": np.zeros(1 << 20, np.uint8)}))
    tracemalloc.start()
    try:
        wire.decode(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(data)


@pytest.mark.parametrize(
    "bad",
    [
        wire.Packet(kind="k", arrays={"a": np.array([object()])}),
        wire.Packet(kind="k", arrays={"a": np.array(["text"])}),
        wire.Packet(kind="k", arrays={"a": np.array([True])}),
        wire.Packet(kind="k", arrays={"a": np.array([1j])}),
        wire.Packet(kind="k", arrays={"a": np.array([1], np.int16)}),
        wire.Packet(kind="k", arrays={"a": np.array([1.5], np.longdouble)}),
        wire.Packet(kind="k", arrays={"a": np.zeros((1,) * 5)}),
        wire.Packet(kind="k", fields={"a": float("nan")}),
        wire.Packet(kind="k", fields={"a": float("inf")}),
        wire.Packet(kind="k", fields={"a": object()}),
        wire.Packet(kind="k", fields={"a": b"bytes"}),
        wire.Packet(kind="k", fields={"a": "\ud800"}),
        wire.Packet(kind="k", fields={"a": "x" * (wire.MAX_HEADER + 1)}),
    ],
)
def test_what_has_no_canonical_form_is_not_encoded(bad):
    with pytest.raises(MessageError):
        wire.encode(bad)


def test_too_large_a_message_is_neither_written_nor_read(monkeypatch):
    data = wire.encode(packet())
    monkeypatch.setattr(wire, "MAX_BYTES", len(data) - 1)
    with pytest.raises(MessageError, match="Send fewer candidates"):
        wire.encode(packet())
    with pytest.raises(MessageError):
        wire.decode(data)


def test_an_over_long_header_is_not_blamed_on_the_candidates():
    with pytest.raises(MessageError, match=f"bytes of fields was built; expected at most {wire.MAX_HEADER}"):
        wire.encode(wire.Packet(kind="k", fields={"a": "x" * wire.MAX_HEADER}))


@settings(max_examples=200)
@given(
    arrays.arrays(
        np.float64,
        st.integers(0, 8),
        elements=st.floats(allow_nan=False) | st.integers(0, 255).map(float) | st.integers(-(2**31), 2**31).map(float),
    )
)
def test_compact_keeps_every_value(array):
    small = wire.compact(array)
    assert np.array_equal(small.astype(np.float64), array)
    assert small.dtype.newbyteorder("<").str in wire.DTYPES
    assert small.nbytes <= array.nbytes


def test_compact_takes_the_smallest_type():
    assert wire.compact(np.array([0.0, 255.0])).dtype == np.uint8
    assert wire.compact(np.array([-1.0, 0.5, 2048.0])).dtype == np.float16
    assert wire.compact(np.array([-1.0, 2049.0])).dtype == np.int32
    assert wire.compact(np.array([0.5, 2049.0])).dtype == np.float32
    assert wire.compact(np.array([0.1])).dtype == np.float64
    assert wire.compact(np.array([1e300, np.inf])).dtype == np.float64


@pytest.mark.parametrize(("values", "dtype"), [([0, 255], "|u1"), ([-1, 300], "<i4"), ([0, 2**40], "<i8")])
def test_integers_stay_integers(values, dtype):
    assert wire.compact(np.array(values)).dtype.str == dtype
