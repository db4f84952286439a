"""The tables of the PATE page are the library's figures, and the page is one closed file."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patevolve.shared import explain
from patevolve.shared.privacy import accountant, calibrate
from patevolve.shared.privacy.events import DiscreteGaussian, LaplaceNoisyMax
from patevolve.shared.privacy.pate_view import Question, private_part
from patevolve.shared.randomness import SystemNoise
from patevolve.shared.report.explain import costs, page

FORBIDDEN = ("anonymous", "safe", "compliant", "guaranteed private")


@pytest.fixture(scope="module")
def tables() -> dict[str, Any]:
    return explain.tables(SystemNoise())


def test_independent_rows_are_the_accountants(tables: dict[str, Any]) -> None:
    for stop, sigma in enumerate(costs.SIGMAS):
        gaussian = accountant.rdp(DiscreteGaussian(sigma=sigma, l2=math.sqrt(2)))
        np.testing.assert_allclose(tables["rows"]["gnmax"][stop], gaussian, rtol=1e-11)
        test = accountant.rdp(DiscreteGaussian(sigma=costs.TEST_NOISE * sigma, l2=1.0))
        np.testing.assert_allclose(tables["rows"]["confident"][stop], test + gaussian / 2, rtol=1e-11)
    for stop, gamma in enumerate(costs.GAMMAS):
        laplace = accountant.rdp(LaplaceNoisyMax(scale=2 / gamma))
        np.testing.assert_allclose(tables["rows"]["lnmax"][stop], laplace, rtol=1e-11)


@pytest.mark.parametrize("margin", [0, 1, 7, 40, 250])
def test_flips_are_those_of_the_command_line(tables: dict[str, Any], margin: int) -> None:
    votes = [margin + 1, 1]
    for name, stops in (("sigma", costs.SIGMAS), ("gamma", costs.GAMMAS)):
        for stop, value in enumerate(stops):
            question = Question(teachers=sum(votes), classes=2, queries=1, delta=1e-5, budget=1.0, **{name: value})
            expected = private_part(question, votes).open_at_site()["flip_probability"]
            found = tables["flips"]["gnmax" if name == "sigma" else "lnmax"][stop][margin]
            assert found == pytest.approx(expected, rel=1e-8)


def test_one_record_changes_one_keyed_teacher_and_every_slice(tables: dict[str, Any]) -> None:
    for by_row, teachers in zip(tables["leaving"], costs.TEACHERS, strict=True):
        for changed in by_row:
            assert len(changed["keyed"]) == 1
            assert len(changed["contiguous"]) == teachers  # n/K is whole, so one row less shortens every slice


def test_slices_before_the_record_stay_if_their_size_does() -> None:
    rows, teachers, gone = 105, 10, 52  # 105 // 10 == 104 // 10: only what follows the row moves
    ids = np.arange(rows)
    stay = ids != gone
    changed = explain._changed(
        ids, explain.contiguous(rows, teachers), ids[stay], explain.contiguous(rows - 1, teachers), teachers
    )
    assert np.flatnonzero(changed).tolist() == [5, 6, 7, 8, 9]


def test_votes_shown_are_one_per_teacher(tables: dict[str, Any]) -> None:
    for world in tables["worlds"]:
        for teachers, lines in zip(costs.TEACHERS, world["votes"], strict=True):
            assert [len(line) for line in lines] == [teachers] * explain.SAMPLES
            assert all(int(vote) < world["classes"] for line in lines for vote in line)


def test_a_students_labels_are_better_with_less_noise(tables: dict[str, Any]) -> None:
    little, much = tables["students"]["gnmax"][0][1][2][-1], tables["students"]["gnmax"][-1][1][2][-1]
    assert little[1] > much[1] + 0.2
    assert little[0] > tables["students"]["baseline"][1]["chance"] + 0.3


def test_the_published_query_limit_is_in_reach_of_the_page() -> None:
    assert 40.0 in costs.SIGMAS
    assert calibrate.q_max(DiscreteGaussian(sigma=40.0, l2=math.sqrt(2)), 8.0, 1e-5) == 1967


def test_the_page_is_small_closed_and_names_no_promise(tables: dict[str, Any]) -> None:
    html = page.render(tables)
    assert len(html.encode()) < 1.5e6
    assert "default-src 'none'" in html
    assert not re.search(r"<(link|img|iframe|object)[^>]+(href|src)=.(?!data:)", html)
    assert not re.search(r"""\bfetch\(|XMLHttpRequest|import\(|@import|url\((?!#|"?data:)""", html)
    for word in FORBIDDEN:
        assert not re.search(rf"\b{word}\b", html, re.IGNORECASE), word


def test_text_in_the_tables_cannot_end_the_script() -> None:
    html = page.render({"name": "</script><script>alert(1)</script>"})
    assert "<script>alert" not in html
    assert "\\u003c/script>" in html


def test_numbers_that_json_lacks_are_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        page.render({"epsilon": math.nan})


def test_the_page_is_written_beside_a_report_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "_once", lambda: "<html>PATE</html>")
    explain.beside(tmp_path)
    assert (tmp_path / "explain.html").read_text(encoding="utf-8") == "<html>PATE</html>"
    monkeypatch.setattr(explain, "_once", lambda: "another")
    explain.beside(tmp_path)
    assert (tmp_path / "explain.html").read_text(encoding="utf-8") == "<html>PATE</html>"
