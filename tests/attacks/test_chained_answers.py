"""Heads of a site's ledger are shown to others: they must not confirm a guess of an answer that masks hide."""

from __future__ import annotations

import dataclasses
import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from patevolve.client import guard
from patevolve.shared.messages import Answer, Question, decode_answer, encode_answer
from patevolve.shared.privacy.chain import Head, canonical, link_digest, sha256_of
from patevolve.shared.privacy.events import DiscreteGaussian
from patevolve.shared.privacy.ledger import AnswerKey, Cap, Ledger
from patevolve.shared.privacy.signing import Identity, create_identity, head_from_json
from patevolve.shared.tally import NoisyTally

REACH = 12  # values that the attacker tries for each of two counts: from −REACH to REACH
CAP = Cap(epsilon=8.0, delta=1e-5)
EVENT = DiscreteGaussian(sigma=4.0, l2=1.0)


def _asked(site: guard.Guard, name: str, values: tuple[int, int]) -> tuple[AnswerKey, Answer]:
    """Answer a question whose noisy sum is ``values``, of which a share alone never leaves."""
    key = AnswerKey(
        plan_sha256="a" * 64, run="r", question=name, question_sha256=sha256_of(name.encode()), cohort_sha256="c" * 64
    )
    mechanism = SimpleNamespace(
        event=lambda: EVENT, release=lambda *_: NoisyTally(values=np.array(values, np.int64), std=4.0)
    )
    ask: Any = SimpleNamespace(part="counts", mechanism=mechanism, full=False, scope="shared")
    question = Question(kind="counts", name=name, plan=key.plan_sha256, run="r")
    exact: Any = None
    return key, decode_answer(site.release(question, ask, key, exact))


def _guessed(first: Answer, seen: Head, later: Head, charge: str) -> list[tuple[int, ...]]:
    """Return the values that fit two heads, for someone who knows all but the values: the questions, times and caps."""
    fits = []
    for values in itertools.product(range(-REACH, REACH + 1), repeat=2):
        guess = encode_answer(dataclasses.replace(first, values=np.array(values, np.int64), salt=""))
        row = canonical({"charge": seen.seq, "sha256": sha256_of(guess), "size": len(guess)})
        answered = link_digest(
            seq=seen.seq + 1, kind="answer", body_sha256=sha256_of(row.encode()), previous=seen.digest
        )
        charged = link_digest(
            seq=seen.seq + 2, kind="charge", body_sha256=sha256_of(charge.encode()), previous=answered
        )
        fits += [values] if charged == later.digest else []
    return fits


def _attacked(tmp_path: Any) -> list[tuple[int, ...]]:
    identity: Identity = create_identity(tmp_path / "identity.key")
    policy: Any = SimpleNamespace(site="s", budget=CAP)
    with Ledger.create(tmp_path / "ledger.sqlite", site="s") as ledger:
        site = guard.Guard(policy=policy, ledger=ledger, identity=identity, noise=lambda *_: None)
        _, first = _asked(site, "counts", (-7, 5))
        _, second = _asked(site, "score", (3, -2))
        heads = [head_from_json(answer.head).head for answer in (first, second)]
        (charge,) = [link.body for link in ledger._chain.links() if link.seq == heads[1].seq]
    return _guessed(first, *heads, charge)


def test_two_heads_confirm_no_guess_of_the_answer_between_them(tmp_path: Any) -> None:
    assert _attacked(tmp_path) == []


def test_the_attack_finds_an_answer_without_salt(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted twin: what every answer was before it carried a salt."""
    monkeypatch.setattr(guard.secrets, "token_hex", lambda _: "")
    assert _attacked(tmp_path) == [(-7, 5)]


def test_every_answer_has_a_salt_of_its_own(tmp_path: Any) -> None:
    identity: Identity = create_identity(tmp_path / "identity.key")
    policy: Any = SimpleNamespace(site="s", budget=CAP)
    with Ledger.create(tmp_path / "ledger.sqlite", site="s") as ledger:
        site = guard.Guard(policy=policy, ledger=ledger, identity=identity, noise=lambda *_: None)
        salts = {_asked(site, name, (1, 2))[1].salt for name in ("counts", "score")}
    assert len(salts) == 2
    assert all(len(bytes.fromhex(salt)) == guard.SALT for salt in salts)
