"""The seam between the loop and the sites: whose answers are summed, and when the sum is abandoned."""

import dataclasses
import logging

import numpy as np
import pytest

from patevolve.shared.errors import BudgetError, MessageError, PolicyError, QuorumError
from patevolve.shared.institutions import InProcess, checked, total
from patevolve.shared.messages import Answer, Question, decode_question, digest, encode_answer, encode_question
from patevolve.shared.noise.discrete_gaussian import DiscreteGaussianMechanism
from patevolve.shared.privacy.chain import Head
from patevolve.shared.privacy.signing import create_identity, head_to_json, sign_head
from patevolve.shared.schedule import Ask
from patevolve.shared.votes.lattice import Bounds

ASK = Ask(
    name="counts",
    kind="counts",
    part="counts",
    bounds=Bounds(size=3, support=1),
    mechanism=DiscreteGaussianMechanism(sigma=5.0, l2=1024.0),
    full=True,
)
QUESTION = Question(kind="counts", name="counts", plan="a" * 64, run="r")
NAME = digest(encode_question(QUESTION))


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    identity = create_identity(tmp_path_factory.mktemp("identity") / "identity.key")
    return head_to_json(sign_head(Head(seq=3, digest="d" * 64, site="a"), identity))


def answer(site, head, **changes):
    start = Answer(question=NAME, site=site, values=np.array([1, 2, 3]), std=5.0, full=True, head=head)
    return encode_answer(dataclasses.replace(start, **changes))


def fail(error):
    def handle(data):
        raise error

    return handle


def sites(head, **handlers):
    names = {name: (lambda _, name=name: answer(name, head)) for name in "abc"}
    return InProcess(handlers=names | handlers, public_keys={}, minimum=2)


def test_the_sum_over_the_sites(head):
    reply = sites(head).ask(QUESTION, ASK)
    assert reply.tally.values.tolist() == [3, 6, 9]
    assert reply.tally.std == pytest.approx(5.0 * np.sqrt(3))
    assert reply.sites == ("a", "b", "c")
    assert reply.refusals == {}
    assert len(reply.heads) == 3


def test_every_site_gets_the_same_bytes(head):
    seen = []

    def handle(data):
        seen.append(data)
        return answer("a", head)

    sites(head, a=handle).ask(QUESTION, ASK)
    assert decode_question(seen[0]).name == "counts"
    assert seen == [encode_question(QUESTION)]


def test_a_site_that_fails_is_left_out_and_named_by_its_code_alone(head, caplog):
    secret = "/home/site/patients.csv, row 17"  # noqa: S105 - stands for what an error text may hold
    with caplog.at_level(logging.WARNING):
        reply = sites(head, b=fail(BudgetError(secret))).ask(QUESTION, ASK)
    assert reply.sites == ("a", "c")
    assert reply.tally.values.tolist() == [2, 4, 6]
    assert reply.tally.std == pytest.approx(5.0 * np.sqrt(2))
    assert reply.refusals == {"b": "budget"}
    assert secret not in repr(reply)
    assert secret in caplog.text  # the reason is for the site's own eyes


def test_too_few_answers_abandon_the_sum(head):
    few = sites(head, b=fail(BudgetError("b's reason")), c=fail(PolicyError("c's reason")))
    with pytest.raises(
        QuorumError, match=r"1 of 3 sites answered; expected >= 2.*b \(budget\), c \(policy\)"
    ) as caught:
        few.ask(QUESTION, ASK)
    assert "reason" not in str(caught.value)
    assert caught.value.exit_code == 8


def test_an_unforeseen_error_is_not_swallowed(head):
    with pytest.raises(ZeroDivisionError):
        sites(head, b=fail(ZeroDivisionError())).ask(QUESTION, ASK)


BAD = {
    "another question": {"question": "c" * 64},
    "too short": {"values": np.array([1, 2])},
    "too long": {"values": np.arange(4)},
    "a share for a whole": {"full": False},
    "negative noise": {"std": -1.0},
    "less noise than planned": {"std": 4.9},
    "no noise": {"std": 0.0},
}


@pytest.mark.parametrize("name", BAD)
def test_an_answer_that_does_not_fit_is_refused(head, name):
    data = answer("a", head, **BAD[name])
    with pytest.raises(MessageError):
        checked(data, NAME, "a", ASK)
    reply = sites(head, a=lambda _: data).ask(QUESTION, ASK)
    assert reply.refusals == {"a": "message"}
    assert reply.sites == ("b", "c")


def test_an_answer_in_anothers_name_is_refused(head):
    with pytest.raises(MessageError):
        checked(answer("z", head), NAME, "a", ASK)


@pytest.mark.parametrize("data", [b"", b"PVM1", encode_question(QUESTION)])
def test_bytes_that_are_no_answer_are_refused(head, data):
    assert sites(head, a=lambda _: data).ask(QUESTION, ASK).refusals == {"a": "message"}


def test_independent_noises_add_in_variance():
    parts = [
        Answer(question=NAME, site="a", values=np.array([2**40]), std=std, full=True, head="{}")
        for std in (3.0, 4.0, 12.0)
    ]
    found = total(parts)
    assert found.std == pytest.approx(13.0)
    assert found.values.tolist() == [3 * 2**40]
