"""The PATE screen: right figures, badges, and nothing private in its JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from patevolve.shared.errors import ParameterError
from patevolve.shared.privacy import pate_view
from patevolve.shared.privacy.pate_view import Question
from patevolve.shared.privacy.site_only import SiteOnly

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "privacy.json").read_text(encoding="utf-8"))
COMMON = {"teachers": 250, "classes": 5, "queries": 1000, "delta": 1e-5, "budget": 8.0}


def test_sigma_40_and_1000_answers():
    record = pate_view.answer(Question(sigma=40.0, **COMMON))
    assert record["epsilon"]["rdp"] == pytest.approx(5.378, abs=5e-4)  # 3.617 if √2 is forgotten
    assert record["epsilon"]["exact_gaussian"] < record["epsilon"]["rdp"] < record["epsilon"]["naive_sum"]


@pytest.mark.parametrize("row", VECTORS["q_max"], ids=lambda row: f"s{row['sigma']}-e{row['budget']}")
def test_q_max_rows(row):
    shape = COMMON | {"budget": float(row["budget"]), "delta": row["delta"]}
    limit = pate_view.answer(Question(sigma=float(row["sigma"]), **shape))["q_max"]
    assert limit["exact_gaussian"] == row["exact"]
    # the order grid here is finer than the rows', so it never allows less
    assert row["rdp"] <= limit["rdp"] <= row["exact"]
    assert row["naive"] <= limit["naive"] <= row["rdp"]


def test_a_larger_gamma_is_less_private():
    costs = [pate_view.answer(Question(gamma=g, **COMMON))["epsilon"] for g in (0.05, 0.2, 1.0)]
    assert [c["one_answer"] for c in costs] == pytest.approx([0.05, 0.2, 1.0], rel=1e-3)
    assert costs[0]["rdp"] < costs[1]["rdp"] < costs[2]["rdp"]
    assert costs[0]["rdp"] < costs[0]["advanced_composition"] < costs[0]["naive_sum"]


def test_the_margin_lowers_flips_and_cost():
    for noise in ({"sigma": 40.0}, {"gamma": 0.1}, {"sigma": 300.0}):
        rows = pate_view.answer(Question(**noise, **COMMON))["margins"]
        flips = [row["flip_probability"] for row in rows]
        costs = [row["epsilon_data_dependent"] for row in rows]
        assert flips[0] == pytest.approx(0.5)
        assert flips == sorted(flips, reverse=True)
        assert costs == sorted(costs, reverse=True)
        assert [row["margin"] for row in rows] == sorted({row["margin"] for row in rows})


def test_the_articles_margin_formula_under_reports():
    # γ = 2 as in the article's demo: its formula has the exponent m/γ where the noise Lap(2/γ) gives m·γ/2, and the
    # factor 2/γ where one answer costs γ. At a tie it claims ε = 1 for an answer that costs 2.
    row = pate_view.answer(Question(gamma=2.0, **(COMMON | {"teachers": 10, "classes": 4})))["margins"][0]
    assert row["article_formula"] == pytest.approx(1.0)
    assert row["one_answer_pure_epsilon"] == 2.0


def test_the_json_holds_nothing_of_the_votes():
    question = Question(sigma=40.0, **COMMON)
    record = pate_view.answer(question)
    private = pate_view.private_part(question, [200, 30, 10, 6, 4])
    assert isinstance(private, SiteOnly)
    assert record == pate_view.answer(question)
    json.dumps(record, allow_nan=False)
    with pytest.raises(TypeError):
        json.dumps(record | {"private": private})
    text = pate_view.screen(record, private)
    assert "not releasable" in text
    assert "margin 170" in text
    assert "not releasable" not in pate_view.screen(record)


def test_the_screen_fits_one_screen():
    for noise in ({"sigma": 40.0}, {"gamma": 0.1}):
        question = Question(**noise, **COMMON)
        text = pate_view.screen(pate_view.answer(question), pate_view.private_part(question, [200, 30, 10, 6, 4]))
        assert len(text.splitlines()) <= 36
        assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("votes", [[200, 30, 10, 6], [200, 30, 10, 6, 5], [260, -10, 0, 0, 0], [0.5, 249.5, 0, 0, 0]])
def test_votes_that_do_not_fit_are_refused(votes):
    with pytest.raises(ParameterError):
        pate_view.private_part(Question(sigma=40.0, **COMMON), votes)


@pytest.mark.parametrize(
    "noise", [{}, {"sigma": 40.0, "gamma": 0.1}, {"sigma": math.nan}, {"gamma": -1.0}, {"sigma": True}]
)
def test_exactly_one_sound_noise_is_asked_for(noise):
    with pytest.raises(ParameterError):
        Question(**noise, **COMMON)


def test_every_option_has_a_help_text():
    names = [name for name, _, _ in pate_view.OPTIONS]
    assert len(names) == len(set(names))
    assert all(name.startswith("--") and text.endswith(".") for name, _, text in pate_view.OPTIONS)
