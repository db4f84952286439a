"""Bytes of a question in, bytes of an answer out: what is refused before any charge, and what an answer holds."""

import dataclasses
import json
import re

import numpy as np
import pytest

from patevolve.client.institution import Institution
from patevolve.shared import wire
from patevolve.shared.data.shard import teacher_of
from patevolve.shared.errors import MessageError, PatevolveError
from patevolve.shared.messages import Question, decode_answer, decode_question, encode_question
from patevolve.shared.noise.mechanism import UnsafeNoNoise
from patevolve.shared.plan import agree
from patevolve.shared.schedule import find
from patevolve.shared.votes import ballots
from patevolve.shared.votes.ballots import Electorate

GENOMES, CLASSES = np.zeros((12, 2)), np.arange(12) % 2


def candidates(**changes):
    return {"genomes": GENOMES, "classes": CLASSES} | changes


def without(name):
    return {key: value for key, value in candidates().items() if key != name}


def cell(value):
    genomes = GENOMES.copy()
    genomes[3, 1] = value
    return candidates(genomes=genomes)


BAD_CANDIDATES = {
    "none": {},
    "no genomes": without("genomes"),
    "no classes": without("classes"),
    "one too few": candidates(genomes=GENOMES[1:], classes=CLASSES[1:]),
    "one too many": candidates(genomes=np.zeros((13, 2)), classes=np.zeros(13, np.int64)),
    "classes of other length": candidates(classes=CLASSES[1:]),
    "short genomes": candidates(genomes=np.zeros((12, 1))),
    "long genomes": candidates(genomes=np.zeros((12, 3))),
    "flat": candidates(genomes=np.zeros(24)),
    "deep": candidates(genomes=np.zeros((12, 2, 1))),
    "float classes": candidates(classes=CLASSES.astype(float)),
    "a class above": candidates(classes=CLASSES + 1),
    "a class below": candidates(classes=CLASSES - 1),
    "NaN": cell(np.nan),
    "infinite": cell(np.inf),
    "minus infinite": cell(-np.inf),
}


def refused(desk, data):
    """Return the error of a question that must be refused before anything happened."""
    with pytest.raises(MessageError) as caught:
        desk.handle(data)
    assert desk.log == []
    assert desk.charges() == 0
    return caught.value


@pytest.mark.parametrize("name", BAD_CANDIDATES)
def test_candidates_that_the_plan_does_not_have_are_refused_before_any_charge(open_desk, agreed, name):
    desk = open_desk(agreed)
    refused(desk, desk.question("neighbours/1", arrays=BAD_CANDIDATES[name]))


@pytest.mark.parametrize("name", ["one too many", "NaN", "a class above", "none"])
def test_the_same_holds_for_labels(open_desk, agreed, name):
    desk = open_desk(agreed)
    refused(desk, desk.question("labels", arrays=BAD_CANDIDATES[name]))


BAD_STUDENTS = {
    "none": {},
    "no bias": {"weights": np.zeros((6, 2))},
    "no weights": {"bias": np.zeros(2)},
    "other size": {"weights": np.zeros((5, 2)), "bias": np.zeros(2)},
    "other classes": {"weights": np.zeros((6, 3)), "bias": np.zeros(3)},
    "NaN weights": {"weights": np.full((6, 2), np.nan), "bias": np.zeros(2)},
    "infinite bias": {"weights": np.zeros((6, 2)), "bias": np.array([0.0, np.inf])},
}


@pytest.mark.parametrize("name", BAD_STUDENTS)
def test_a_student_that_does_not_fit_is_refused_before_any_charge(open_desk, agreed, name):
    desk = open_desk(agreed)
    refused(desk, desk.question("score", arrays=BAD_STUDENTS[name]))


BAD_WEIGHTS = {
    "none": {},
    "transposed": {"weights": np.zeros((6, 2))},
    "other classes": {"weights": np.zeros((3, 6))},
    "flat": {"weights": np.zeros(12)},
    "NaN": {"weights": np.full((2, 6), np.nan)},
    "infinite": {"weights": np.full((2, 6), np.inf)},
}


@pytest.mark.parametrize("name", BAD_WEIGHTS)
def test_a_classifier_that_does_not_fit_is_refused_before_any_charge(open_desk, agreed, name):
    asked = "[questions.gradients]\nshare = 0.3\ntimes = 2"
    teachers = "[questions.labels]\nshare = 0.2\ncandidates = 10\nteachers = 4\n"  # they would name the samples
    text = agreed.text.replace("[questions.prototypes]\nshare = 0.3", asked).replace(teachers, "")
    desk = open_desk(agree(text))
    refused(desk, desk.question("gradients/1", arrays=BAD_WEIGHTS[name]))
    desk.handle(desk.question("gradients/1", arrays={"weights": np.zeros((2, 6))}))
    assert desk.charges() == 1


def test_another_plan_is_refused(open_desk, agreed):
    desk = open_desk(agreed)
    reason = refused(desk, desk.question("counts", plan="0" * 64))
    assert "plan 000000000000" in str(reason)


def test_one_changed_byte_of_the_plan_is_another_plan(open_desk, agreed):
    desk = open_desk(agreed)
    other = agree(agreed.text + "# a note\n")
    refused(desk, desk.question("counts", plan=other.sha256))


@pytest.mark.parametrize("name", ["neighbours/3", "neighbours/0", "means", "counts/1", ""])
def test_a_question_that_the_plan_lacks_is_refused(open_desk, agreed, name):
    desk = open_desk(agreed)
    refused(desk, desk.question("counts", name=name))


def test_a_question_of_another_kind_under_a_known_name_is_refused(open_desk, agreed):
    desk = open_desk(agreed)
    refused(desk, desk.question("counts", kind="score"))


@pytest.mark.parametrize("data", [b"", b"PVM1", b"\x80\x04N.", b"{}", b"PVM1" + b"\xff" * 100])
def test_bytes_that_are_no_question_are_refused(open_desk, agreed, data):
    refused(open_desk(agreed), data)


def test_an_answer_is_no_question(open_desk, agreed):
    desk = open_desk(agreed)
    answer = desk.handle(desk.question("counts"))
    with pytest.raises(MessageError):
        desk.handle(answer)
    assert desk.charges() == 1


def test_a_question_cannot_name_its_own_noise(open_desk, agreed):
    """There is no field for it: whatever a message claims, the scale is that of the site's own copy of the plan."""
    desk = open_desk(agreed)
    for field in ("std", "sigma", "epsilon", "clip", "noise"):
        fields = {"kind": "counts", "name": "counts", "plan": agreed.sha256, "run": "r1", field: 1e-9}
        refused(desk, wire.encode(wire.Packet(kind="question", fields=fields)))


@pytest.mark.parametrize("name", ["counts", "prototypes", "neighbours/1", "labels", "score"])
def test_without_noise_the_answer_is_the_sum_of_the_ballots(open_desk, agreed, monkeypatch, name):
    """The exact tally that each question stands for, built from the site's records by another way."""
    desk = open_desk(agreed)
    asks = desk.asks
    question = decode_question(desk.question(name))
    exact = desk.institution._tally(question, find(asks, name))
    members, held_out = desk.institution.index.members, desk.institution.index.held_out
    voters, bounds = Electorate(members.records.units), find(asks, name).bounds
    encoder = desk.institution.encoder
    match question.kind:
        case "counts":
            expected = ballots.counts(voters, members.records.classes, bounds)
            assert expected.values.sum() == pytest.approx(bounds.scale * voters.size, abs=voters.size)
        case "prototypes":
            embedded = encoder.embed(encoder.encode(members.records.values))
            sums = np.stack([embedded[members.records.classes == cls].sum(axis=0) / 2 for cls in range(2)])
            assert np.abs(exact.values / bounds.scale - sums.ravel()).max() < voters.size / bounds.scale
            return
        case "neighbours":
            pool = encoder.encode(question.arrays["genomes"].astype(np.int64))
            expected = ballots.neighbours(
                voters,
                encoder.encode(members.records.values),
                members.records.classes,
                (pool, question.arrays["classes"]),
                nearest=3,
                bounds=bounds,
            )
        case "labels":
            assert exact.values.sum() <= 4 * 10 * bounds.scale
            assert (exact.values.reshape(10, 2).sum(axis=1) % bounds.scale == 0).all()
            return
        case "score":
            weights, bias = question.arrays["weights"], question.arrays["bias"]
            predicted = np.argmax(encoder.encode(held_out.records.values) @ weights + bias, axis=1)
            right = predicted == held_out.records.classes
            expected = ballots.score(Electorate(held_out.records.units), right, bounds)
    assert np.array_equal(exact.values, expected.values)


def test_the_held_out_units_answer_score_alone(open_desk, agreed):
    desk = open_desk(agreed)
    index = desk.institution.index
    members, apart = set(index.members.records.units.tolist()), set(index.held_out.records.units.tolist())
    assert members
    assert apart
    assert not members & apart
    assert len(members) + len(apart) == index.units == 60


MARK = 86420135


class SecretError(PatevolveError):
    """An error whose text holds private things."""


def test_error_texts_and_names_never_enter_an_answer(open_desk, agreed, monkeypatch):
    """Nothing of a failed attempt is in the next answer: its text is hashes, numbers and the site's own name."""
    desk = open_desk(agreed)

    def fail(*_):
        raise SecretError(f"/home/site/patients-{MARK}.csv, row 17")

    monkeypatch.setattr(Institution, "_tally", fail)
    with pytest.raises(SecretError):
        desk.handle(desk.question("counts"))
    assert desk.charges() == 0
    monkeypatch.undo()
    data = desk.handle(desk.question("counts"))
    assert str(MARK).encode() not in data
    packet = wire.decode(data)
    assert set(packet.fields) == {"question", "site", "std", "full", "head", "salt"}
    assert set(packet.arrays) == {"values"}
    head = json.loads(packet.fields["head"])
    assert set(head) == {"digest", "format", "seq", "signature", "site"}
    assert not any(unit.encode() in data for unit in desk.records.units.tolist() if len(unit) > 3)


def test_representations_show_no_record(open_desk, agreed):
    desk = open_desk(agreed)
    text = repr(desk.institution) + repr(desk.institution.index) + repr(desk.records)
    assert "u17" not in text
    assert "array(" not in text


def test_no_seed_reaches_the_noise(open_desk, agreed):
    """Two sites of one plan (one seed) and one data set answer differently."""
    answers = []
    for folder in ("one", "two"):
        desk = open_desk(agreed, folder=folder)
        answers.append(decode_answer(desk.handle(desk.question("prototypes"))).values)
    assert not np.array_equal(*answers)


def test_noise_that_is_switched_off_cannot_be_charged(open_desk, agreed):
    """UnsafeNoNoise has no finite cost, so the ledger refuses it and no exact value leaves."""
    desk = open_desk(agreed)
    asks = tuple(dataclasses.replace(ask, mechanism=UnsafeNoNoise()) for ask in desk.asks)
    desk.institution = dataclasses.replace(desk.institution, asks=asks)
    with pytest.raises(PatevolveError, match="infinite"):
        desk.handle(desk.question("counts"))
    assert desk.log == []


def test_shards_follow_the_sites_secret(open_desk, agreed):
    desk = open_desk(agreed)
    units = desk.institution.index.members.records.units
    first = teacher_of(desk.home.secret, units, 4)
    other = open_desk(agreed, folder="other")
    assert not np.array_equal(first, teacher_of(other.home.secret, units, 4))


def test_a_question_names_its_content():
    """Two questions that differ in one candidate have different names on the ledger."""
    one = encode_question(Question(kind="neighbours", name="n", plan="p", run="r", arrays=candidates()))
    two = encode_question(Question(kind="neighbours", name="n", plan="p", run="r", arrays=cell(1.0)))
    assert one != two


CHOICES = """[questions.choices]
share = 0.2
candidates = 12
"""


def test_choices_among_candidates_in_another_order_are_refused(open_desk, agreed):
    """The mechanism's groups are the plan's: a class that stood elsewhere would be chosen from with another's."""
    text = agreed.text.replace("[questions.neighbours]", CHOICES + "[questions.nobody]")
    text = re.sub(r"\[questions\.nobody\]\n(?:[a-z_]+ = .*\n)*", "", text)
    chosen = agree(text.replace("[evolution]\n", '[evolution]\nselection = "pcevolve"\n'))
    desk = open_desk(chosen)
    refused(desk, desk.question("choices/1", arrays=candidates()))
    sorted_classes = candidates(classes=np.repeat([0, 1], 6))
    values = decode_answer(desk.handle(desk.question("choices/1", arrays=sorted_classes))).values
    assert values.reshape(2, 6).sum(axis=1).tolist() == [1, 1]
    assert desk.log == ["charge", "read", "read", "store_answer", "returned"]
