"""A coordinator that signs for fewer questions than its plan asks, in claim, ledger and texts alike, is found out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from patevolve.shared.errors import ReleaseError
from patevolve.shared.plan import Agreed
from patevolve.shared.plan_edit import vary
from patevolve.shared.privacy import accountant
from patevolve.shared.privacy.events import to_record
from patevolve.shared.privacy.head_part import head_items
from patevolve.shared.release.samples import Samples
from patevolve.shared.schedule import schedule
from patevolve.shared.tools import tools_of
from patevolve.shared.verify import verify_release


@pytest.fixture
def asking(table_plan: Agreed) -> Agreed:
    """A plan that asks two questions, of a table."""
    return vary(table_plan, {"questions.counts.share": 0.5, "questions.prototypes.share": 0.5})


@pytest.fixture
def written(
    tmp_path: Path, asking: Agreed, table: Samples, release: Callable[..., Path], seal: Callable[..., Any]
) -> Callable[[set[str]], Path]:
    """What writes a release whose every part speaks of these questions alone."""
    return lambda names: _signed(tmp_path / "r", asking, names, (table, release, seal))


def _signed(folder: Path, agreed: Agreed, names: set[str], parts: tuple[Any, ...]) -> Path:
    samples, release, seal = parts
    asks = schedule(agreed.plan, tools_of(agreed.plan).encoder.embedding_size)
    events = [(ask.name, ask.event) for ask in asks] + list(head_items(agreed.plan))
    events = [(name, event) for name, event in events if name in names]
    spent = accountant.epsilon(accountant.compose([event for _, event in events]), agreed.plan.privacy.delta).epsilon
    quoted = f"ε = {spent!r} at δ = 1e-05"
    card = {"title": "t", "what": "w", "how": ["h"], "epsilon": spent, "delta": 1e-5, "limits": ["l"]}
    proof = {"events": [{"question": name, **to_record(event)} for name, event in events]}
    sealed = seal(agreed, events=tuple(events), epsilon=spent)
    found: Path = release(
        folder, samples, agreed, statement=(("Privacy loss", quoted),), card=card, proof=proof, seal=sealed
    )
    return found


def test_all_questions_together_pass(written: Callable[[set[str]], Path]) -> None:
    """The counter-check of what follows."""
    assert len(verify_release(written({"counts", "prototypes"})).proven.claim.events) == 2


@pytest.mark.parametrize("named", [set(), {"counts"}])
def test_a_release_that_is_silent_on_a_question_is_refused(
    written: Callable[[set[str]], Path], named: set[str]
) -> None:
    with pytest.raises(ReleaseError, match=r"leaves out what the plan asks.*prototypes"):
        verify_release(written(named))
