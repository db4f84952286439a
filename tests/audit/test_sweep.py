"""The sweep measures what it says: a huge ε gives records away, a small one does not, and its table is whole."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.neighbors import KNeighborsClassifier

from patevolve.client import sweep
from patevolve.client.audit_cli import sweep_command
from patevolve.shared.errors import InputError
from patevolve.shared.plan_edit import vary

SHORT = {"evolution.population": 600, "evolution.generations": 10, "release.samples": 600}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sweep.plan_of
    monkeypatch.setattr(sweep, "plan_of", lambda *words: vary(whole(*words), SHORT))


@pytest.mark.usefixtures("short")
def test_a_huge_budget_gives_records_away_and_a_small_one_does_not() -> None:
    ended = CliRunner().invoke(
        sweep_command, ["heart", "--epsilons", "1,200", "--seeds", "1", "--format", "json"], catch_exceptions=False
    )
    found = json.loads(ended.stdout)
    small, huge = found["rows"]
    assert huge["inversion"]["mean"] > 0.5
    assert small["inversion"]["mean"] < 0.1
    assert 0.4 < small["membership"]["mean"] < 0.6
    assert found["chance"]["inversion"] == pytest.approx(1 / 501)
    for row in found["rows"]:
        assert row["downstream"]["mean"] - found["beside"]["public"]["mean"] == pytest.approx(row["gain"]["mean"])
        assert row["gain"]["sd"] is None
    assert found["beside"]["real_near"]["mean"] > 0.7
    table = sweep.text(found)
    assert table.count("\n|") == 6
    assert "| 200 |" in table
    assert "nan" not in table


def test_nearest_accuracy_is_scikit_learns() -> None:
    random = np.random.default_rng(1)
    known, rows = random.normal(size=(300, 4)), random.normal(size=(500, 4))
    classes, wanted = (group[:, 0] + group[:, 1] > 0 for group in (known, rows))
    theirs = KNeighborsClassifier(sweep.NEAREST).fit(known, classes).score(rows, wanted)
    pairs: Any = [(known, classes.astype(np.int64)), (rows, wanted.astype(np.int64))]
    assert sweep.nearest_accuracy(*pairs) == pytest.approx(theirs)


def test_spread_is_that_of_the_seeds() -> None:
    assert sweep._spread([1.0, 3.0]) == {"mean": 2.0, "sd": pytest.approx(2**0.5), "values": [1.0, 3.0]}


def test_budgets_that_are_no_numbers_are_refused() -> None:
    ended = CliRunner().invoke(sweep_command, ["heart", "--epsilons", "1,two"])
    assert isinstance(ended.exception, InputError)
