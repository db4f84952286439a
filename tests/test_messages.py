"""The closed list of what travels, and what cannot be put into a message at all."""

import copy
import dataclasses
import json
import pickle
import typing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patevolve.client.private_index import PrivateIndex, Voters
from patevolve.shared import messages, wire
from patevolve.shared.data.records import Records
from patevolve.shared.errors import MessageError
from patevolve.shared.messages import (
    Answer,
    Migrants,
    Question,
    decode_answer,
    decode_migrants,
    decode_question,
    encode_answer,
    encode_migrants,
    encode_question,
)
from patevolve.shared.tally import ExactTally
from patevolve.shared.votes.ballots import Electorate

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def question(**changes):
    arrays = {"genomes": np.arange(6.0).reshape(2, 3), "classes": np.array([0, 1])}
    start = {"kind": "neighbours", "name": "neighbours/1", "plan": "a" * 64, "run": "r", "arrays": arrays}
    return Question(**(start | changes))


def answer(**changes):
    start = {"question": "b" * 64, "site": "s", "values": np.arange(5), "std": 2.5, "full": True, "head": "{}"}
    return Answer(**(start | changes))


@given(st.sampled_from(messages.KINDS), TEXTS, TEXTS, TEXTS)
def test_a_question_comes_back_as_it_was(kind, name, plan, run):
    data = encode_question(question(kind=kind, name=name, plan=plan, run=run))
    found = decode_question(data)
    assert (found.kind, found.name, found.plan, found.run) == (kind, name, plan, run)
    assert np.array_equal(found.arrays["genomes"], np.arange(6.0).reshape(2, 3))
    assert encode_question(found) == data


@given(
    TEXTS,
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=10),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
)
def test_an_answer_comes_back_as_it_was(site, values, std, full):
    data = encode_answer(answer(site=site, values=np.array(values, np.int64), std=std, full=full))
    found = decode_answer(data)
    assert (found.site, found.values.tolist(), found.std, found.full) == (site, values, std, full)
    assert encode_answer(found) == data


def test_ten_thousand_changed_answers_are_refused_or_named_differently():
    """One changed byte: MessageError, or a message whose hash (its name) and content both differ."""
    rng, data = np.random.default_rng(2), encode_answer(answer(values=np.arange(60)))
    before, accepted = decode_answer(data), 0
    for _ in range(10_000):
        changed = bytearray(data)
        changed[int(rng.integers(len(data)))] ^= int(rng.integers(1, 256))
        try:
            found = decode_answer(bytes(changed))
        except MessageError:
            continue
        accepted += 1
        assert messages.digest(bytes(changed)) != messages.digest(data)
        fields = ("question", "site", "std", "full", "head", "salt")
        same = all(getattr(found, name) == getattr(before, name) for name in fields)
        assert not (same and np.array_equal(found.values, before.values))
    assert accepted


def test_the_list_of_messages_is_closed():
    """A new field of a message is a new way out of a site: whoever adds one changes this test in the open."""
    assert (
        *("counts", "prototypes", "gradients", "neighbours", "choices", "confidence"),
        *("labels", "copies", "score", "islands"),
    ) == messages.KINDS
    assert typing.get_args(messages.Kind) == messages.KINDS
    names = ["question", "site", "values", "std", "full", "head", "salt"]
    assert [field.name for field in dataclasses.fields(Answer)] == names
    assert [field.name for field in dataclasses.fields(Question)] == ["kind", "name", "plan", "run", "arrays"]
    encoders = [name for name in vars(messages) if name.startswith("encode_")]
    assert sorted(encoders) == ["encode_answer", "encode_migrants", "encode_question"]
    assert [field.name for field in dataclasses.fields(Migrants)] == ["question", "site", "genomes", "head"]


def migrants(**changes):
    start = {"question": "b" * 64, "site": "s", "genomes": np.arange(6.0).reshape(2, 3), "head": ""}
    return Migrants(**(start | changes))


@given(TEXTS, TEXTS, st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=6, max_size=6))
def test_migrants_come_back_as_they_were(site, head, values):
    data = encode_migrants(migrants(site=site, head=head, genomes=np.array(values).reshape(3, 2)))
    found = decode_migrants(data)
    assert (found.site, found.head, found.genomes.ravel().tolist()) == (site, head, values)
    assert encode_migrants(found) == data


def test_ten_thousand_changed_migrants_are_refused_or_named_differently():
    rng, data = np.random.default_rng(5), encode_migrants(migrants(genomes=np.arange(60.0).reshape(20, 3) / 7))
    before, accepted = decode_migrants(data), 0
    for _ in range(10_000):
        changed = bytearray(data)
        changed[int(rng.integers(len(data)))] ^= int(rng.integers(1, 256))
        try:
            found = decode_migrants(bytes(changed))
        except MessageError:
            continue
        accepted += 1
        same = all(getattr(found, name) == getattr(before, name) for name in ("question", "site", "head"))
        assert not (same and found.genomes.tobytes() == before.genomes.tobytes())
    assert accepted


def packed(kind, fields, **arrays):
    return wire.encode(wire.Packet(kind=kind, fields=fields, arrays=arrays))


ASKED = {"kind": "counts", "name": "counts", "plan": "p", "run": "r"}
ANSWERED = {"question": "q", "site": "s", "std": 1.0, "full": True, "head": "{}", "salt": ""}


@pytest.mark.parametrize(
    "data",
    [
        encode_answer(answer()),
        packed("question", {**ASKED, "extra": "x"}),
        packed("question", {key: value for key, value in ASKED.items() if key != "run"}),
        packed("question", {**ASKED, "name": 1}),
        packed("question", {**ASKED, "kind": "means"}),
        packed("query", ASKED),
        b"",
    ],
)
def test_what_is_no_question_is_refused(data):
    with pytest.raises(MessageError):
        decode_question(data)


@pytest.mark.parametrize(
    "data",
    [
        encode_question(question()),
        packed("answer", {**ANSWERED, "accuracy": 0.9}, values=np.arange(3)),
        packed("answer", {**ANSWERED, "std": 1}, values=np.arange(3)),
        packed("answer", {**ANSWERED, "std": "1.0"}, values=np.arange(3)),
        packed("answer", {**ANSWERED, "full": 1}, values=np.arange(3)),
        packed("answer", ANSWERED),
        packed("answer", ANSWERED, values=np.arange(3), counts=np.arange(3)),
        packed("answer", ANSWERED, values=np.arange(3.0)),
        packed("answer", ANSWERED, values=np.arange(3, dtype=np.int32)),
        packed("answer", ANSWERED, values=np.arange(4).reshape(2, 2)),
    ],
)
def test_what_is_no_answer_is_refused(data):
    with pytest.raises(MessageError):
        decode_answer(data)


SENT = {"question": "q", "site": "s", "head": ""}


@pytest.mark.parametrize(
    "data",
    [
        encode_answer(answer()),
        packed("migrants", {**SENT, "votes": "1"}, genomes=np.zeros((2, 2))),
        packed("migrants", {**SENT, "head": 1}, genomes=np.zeros((2, 2))),
        packed("migrants", SENT),
        packed("migrants", SENT, genomes=np.zeros(4)),
        packed("migrants", SENT, genomes=np.zeros((2, 2)), votes=np.zeros(2)),
        packed("migrants", SENT, genomes=np.array([[0.0, np.nan]])),
        packed("migrants", SENT, genomes=np.array([[0.0, np.inf]])),
        packed("migrants", SENT, genomes=np.array([[0.0, -np.inf]], np.float32)),
    ],
)
def test_what_are_no_migrants_is_refused(data):
    with pytest.raises(MessageError):
        decode_migrants(data)


SECRET = 987654321


def private():
    units = np.array([f"patient-{SECRET}"])
    records = Records(values=np.array([[SECRET]]), classes=np.array([0]), units=units)
    voters = Voters(records=records, features=np.array([[float(SECRET)]]), electorate=Electorate(units))
    return {
        "exact": ExactTally(values=np.array([SECRET]), l1=1.0, l2=1.0),
        "records": records,
        "voters": voters,
        "index": PrivateIndex(members=voters, held_out=voters, units=1),
    }


@pytest.mark.parametrize("name", ["exact", "records", "voters", "index"])
def test_private_values_have_no_written_form(name):
    value = private()[name]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match="serialised"):
            pickle.dumps(value, protocol)
    for copied in (copy.copy, copy.deepcopy) if name != "index" else (copy.deepcopy,):
        with pytest.raises(TypeError, match="serialised"):
            copied(value)
    with pytest.raises(TypeError):
        json.dumps(value)
    with pytest.raises(MessageError):
        wire.encode(wire.Packet(kind="k", fields={"v": value}))
    with pytest.raises((MessageError, TypeError)):
        wire.encode(wire.Packet(kind="k", arrays={"v": value}))
    with pytest.raises((MessageError, TypeError, AttributeError)):
        encode_answer(answer(values=value))
    for text in (repr(value), str(value), f"{value}", repr([value]), repr({"v": value})):
        assert str(SECRET) not in text


def test_a_planted_open_twin_is_caught():
    """The same questions, put to a plain dataclass, are answered: the test above can fail."""

    @dataclasses.dataclass
    class Open:
        values: int

    assert str(SECRET) in repr(Open(values=SECRET))
    assert copy.deepcopy(Open(values=SECRET)).values == SECRET
