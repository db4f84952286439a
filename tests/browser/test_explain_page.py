"""The PATE page in a real browser: every control moved, every number compared with the library."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patevolve.shared import explain
from patevolve.shared.noise.distributed import share_sigma
from patevolve.shared.privacy import accountant, calibrate, odds, pate
from patevolve.shared.privacy.events import DiscreteGaussian, LaplaceNoisyMax
from patevolve.shared.privacy.pate_view import Question, answer, private_part
from patevolve.shared.randomness import SystemNoise, stream
from patevolve.shared.report.explain import costs, page

BUDGETS = (0.25, 0.5, 1, 2, 4, 8, 16)
STOPS = {
    "noise": 7, "teachers": 5, "classes": 3, "queries": 10, "delta": 4, "budget": 7, "sample": 12,
    "sites": 5, "dropouts": 3, "colluders": 3, "teacher": 10,
}  # fmt: skip
STATES = 30
GRID = np.array(accountant.ORDERS)


@pytest.fixture(scope="module")
def tables() -> dict[str, Any]:
    return explain.tables(SystemNoise())


@pytest.fixture(scope="module")
def opened(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Open a page made of tables; the page carries ``problems``: console messages, errors and foreign requests."""
    folder: Path = tmp_path_factory.mktemp("page")
    pages = []

    def open_page(value: dict[str, Any], **settings: Any) -> Any:
        file = folder / f"{len(pages)}.html"
        file.write_text(page.render(value), encoding="utf-8")
        tab = chromium.new_page(**{"viewport": {"width": 1280, "height": 900}, **settings})
        tab.problems = []
        tab.on("console", lambda message: tab.problems.append(f"console: {message.text}"))
        tab.on("pageerror", lambda error: tab.problems.append(f"error: {error}"))
        tab.on(
            "request",
            lambda request: None if request.url == file.as_uri() or request.url == "data:,"
            else tab.problems.append(f"request: {request.url}"),
        )  # fmt: skip
        tab.goto(file.as_uri())
        pages.append(tab)
        return tab

    yield open_page
    for tab in pages:
        tab.close()


MOVE = """(wanted) => {
  for (const [id, value] of Object.entries(wanted)) {
    const radio = document.querySelector(`input[type=radio][name=${id}][value="${value}"]`);
    if (radio) { radio.click(); continue; }
    const range = document.getElementById(id);
    range.value = value;
    range.dispatchEvent(new Event("input", { bubbles: true }));
  }
  const shown = Object.fromEntries([...document.querySelectorAll("[data-value]")].map((e) => [e.id, e.dataset.value]));
  return { shown, state: JSON.parse(document.documentElement.dataset.state) };
}"""


def choose(random: np.random.Generator, mech: str) -> dict[str, Any]:
    wanted: dict[str, Any] = {name: int(random.integers(size)) for name, size in STOPS.items()}
    return {"mech": mech, "trust": str(random.choice(["secure-sum", "each-site"])), "leaver": 1, **wanted}


def expected(state: dict[str, Any], tables: dict[str, Any]) -> dict[str, float]:
    """Return the library's figures for a state of the page, by the element that shows them."""
    teachers, classes = costs.TEACHERS[state["teachers"]], costs.CLASSES[state["classes"]]
    q, delta, budget = costs.QUERIES[state["queries"]], costs.DELTAS[state["delta"]], BUDGETS[state["budget"]]
    line = tables["worlds"][state["classes"]]["votes"][state["teachers"]][state["sample"]]
    votes = [line.count(str(cls)) for cls in range(classes)]
    sigma, gamma = costs.SIGMAS[state["noise"]], costs.GAMMAS[state["noise"]]
    noise = {"gamma": gamma} if state["mech"] == "lnmax" else {"sigma": sigma}
    question = Question(teachers=teachers, classes=classes, queries=q, delta=delta, budget=float(budget), **noise)
    private = private_part(question, votes).open_at_site()
    found = {"margin": private["margin"], "flip": private["flip_probability"]}
    if state["mech"] == "confident":
        found |= _confident(np.array([votes]), teachers, sigma, q, delta, budget)
    else:
        record = answer(question)
        found |= {
            "single": record["epsilon"]["one_answer"],
            "naive": record["epsilon"]["naive_sum"],
            "rdp": record["epsilon"]["rdp"],
            "order": record["epsilon"]["rdp_order"],
            "dependent": private["epsilon"],
            "qmax": record["q_max"]["rdp"],
            "qnaive": record["q_max"]["naive"],
        }
    found["left"] = found["qmax"] - q
    return found | _sites(state, teachers, classes, sigma)


def _confident(  # noqa: PLR0917 - private, called once
    votes: Any, teachers: int, sigma: float, q: int, delta: float, budget: float
) -> dict[str, float]:
    test = DiscreteGaussian(sigma=costs.TEST_NOISE * sigma, l2=1.0)
    given = DiscreteGaussian(sigma=sigma, l2=math.sqrt(2))

    def spent(pairs: int) -> accountant.Epsilon:
        return accountant.epsilon(accountant.compose([*[test, test, given] * pairs]), delta)

    log_pr = pate.log_answered(votes, costs.threshold(teachers), costs.TEST_NOISE * sigma)
    private = q * pate.threshold_bound(log_pr, costs.TEST_NOISE * sigma, GRID)[0]
    private = private + q // 2 * pate.gnmax_dependent(votes, sigma, GRID).open_at_site()
    pairs = 0  # doubling, then halves: independent of the page's own search
    for step in reversed([2**k for k in range(21)]):
        if accountant.epsilon((pairs + step) * accountant.compose([test, test, given]), delta).epsilon <= budget:
            pairs += step
    return {
        "single": spent(1).epsilon,
        "naive": q / 2 * spent(1).epsilon,
        "rdp": spent(q // 2).epsilon,
        "order": spent(q // 2).order,
        "dependent": accountant.epsilon(private, delta).epsilon,
        "qmax": 2 * pairs,
        "qnaive": 2 * math.floor(budget / spent(1).epsilon),
        "answered": math.exp(float(log_pr[0])),
    }


def _sites(state: dict[str, Any], teachers: int, classes: int, sigma: float) -> dict[str, float]:
    n, d, t = costs.SITES[state["sites"]], state["dropouts"], state["colluders"]
    each = sigma * math.sqrt(n)
    found = {"share-each": sigma, "std-each": each, "wins-each": odds.sixty_forty(n * teachers, each, classes)}
    if n - d - t >= 1:
        share = share_sigma(total_sigma=1024 * sigma, sites=n, dropouts=d, colluders=t) / 1024
        pooled = share * math.sqrt(n)
        found |= {
            "share-pooled": share,
            "std-pooled": pooled,
            "wins-pooled": odds.sixty_forty(n * teachers, pooled, classes),
        }
    return found


def differences(tab: Any, tables: dict[str, Any], mech: str, states: int) -> list[str]:
    """Return every figure that is further than 1e-6 from the library's, over random states."""
    random, wrong = stream(7, "explain page", mech), []
    for _ in range(states):
        seen = tab.evaluate(MOVE, choose(random, mech))
        for name, value in expected(seen["state"], tables).items():
            shown = float(seen["shown"][name])
            if not math.isclose(shown, value, rel_tol=1e-6, abs_tol=1e-9):
                wrong.append(f"{name}: {shown} shown, {value} by the library, at {seen['state']}")
    return wrong


@pytest.mark.parametrize("mech", ["gnmax", "lnmax", "confident"])
def test_every_figure_is_the_librarys(opened: Any, tables: dict[str, Any], mech: str) -> None:
    tab = opened(tables)
    assert differences(tab, tables, mech, STATES // 3) == []
    assert tab.problems == []


def test_a_page_with_a_wrong_row_is_found(opened: Any, tables: dict[str, Any]) -> None:
    broken = copy.deepcopy(tables)
    broken["rows"]["gnmax"] = [[cost * (1 + 1e-4) for cost in row] for row in broken["rows"]["gnmax"]]
    assert any(text.startswith("rdp:") for text in differences(opened(broken), tables, "gnmax", 5))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_every_control_moves_in_both_schemes_and_on_a_phone(
    opened: Any, tables: dict[str, Any], scheme: str, width: int
) -> None:
    tab = opened(tables, color_scheme=scheme, viewport={"width": width, "height": 844})
    for name, size in STOPS.items():
        before = tab.evaluate("document.documentElement.dataset.state")
        tab.evaluate(MOVE, {name: 1 if json.loads(before)[name] != 1 else 0})
        assert tab.evaluate("document.documentElement.dataset.state") != before, name
        for end in (0, size - 1):
            tab.evaluate(MOVE, {name: end})
    for name, values in {"mech": ["lnmax", "confident", "gnmax"], "trust": ["each-site", "secure-sum"],
                         "leaver": [0, 2, 1]}.items():  # fmt: skip
        for value in values:
            seen = tab.evaluate(MOVE, {name: value})
            assert seen["state"][name] == value
    verdict = tab.text_content("#bars text:last-of-type"), tab.text_content("#draw-out")
    tab.click("#again")
    assert (tab.text_content("#bars text:last-of-type"), tab.text_content("#draw-out")) != verdict
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert not re.search(r"NaN|undefined|Infinity", tab.inner_text("body"))
    assert tab.problems == []


def test_the_schemes_differ(opened: Any, tables: dict[str, Any]) -> None:
    ink = {
        scheme: opened(tables, color_scheme=scheme).evaluate("getComputedStyle(document.body).backgroundColor")
        for scheme in ("light", "dark")
    }
    assert ink["light"] != ink["dark"]


def test_one_record_changes_one_keyed_teacher_and_all_slices(opened: Any, tables: dict[str, Any]) -> None:
    tab = opened(tables)
    for place, teachers in enumerate(costs.TEACHERS):
        shown = tab.evaluate(MOVE, {"teachers": place, "leaver": 2})["shown"]
        assert (int(shown["keyed-out"]), int(shown["sliced-out"])) == (1, teachers)
        assert tab.locator('#keyed .disc[fill="var(--bad)"]').count() == 1
        assert tab.locator('#sliced .disc[fill="var(--bad)"]').count() == teachers


def test_a_larger_gamma_costs_more(opened: Any, tables: dict[str, Any]) -> None:
    tab = opened(tables)
    tab.evaluate(MOVE, {"mech": "lnmax", "queries": 0})
    by_gamma = {g: float(tab.evaluate(MOVE, {"noise": i})["shown"]["rdp"]) for i, g in enumerate(costs.GAMMAS)}
    assert sorted(by_gamma, key=by_gamma.__getitem__) == sorted(costs.GAMMAS)
    assert accountant.epsilon(
        accountant.compose([LaplaceNoisyMax(scale=2 / max(costs.GAMMAS), count=10)]), 1e-5
    ).epsilon == pytest.approx(by_gamma[max(costs.GAMMAS)], rel=1e-6)


def test_the_published_figures(opened: Any, tables: dict[str, Any]) -> None:
    tab = opened(tables)
    shown = tab.evaluate(MOVE, {"noise": costs.SIGMAS.index(40.0), "queries": costs.QUERIES.index(1000), "delta": 2,
                                "budget": BUDGETS.index(8)})["shown"]  # fmt: skip
    assert float(shown["rdp"]) == pytest.approx(5.378, abs=5e-4)
    assert (int(shown["qmax"]), int(shown["qnaive"])) == (1967, 65)
    assert calibrate.q_max(DiscreteGaussian(sigma=40.0, l2=math.sqrt(2)), 8.0, 1e-5) == 1967


def test_keyboard_and_screen_reader(opened: Any, tables: dict[str, Any]) -> None:
    tab = opened(tables)
    tab.focus("#noise")
    before = tab.get_attribute("#noise", "aria-valuetext")
    tab.keyboard.press("ArrowRight")
    assert tab.get_attribute("#noise", "aria-valuetext") != before
    tab.focus("input[name=mech]:checked")
    tab.keyboard.press("ArrowRight")
    assert json.loads(tab.evaluate("document.documentElement.dataset.state"))["mech"] == "lnmax"
    unnamed = tab.evaluate("""[...document.querySelectorAll("input, button, [role=img], [role=region]")].filter((e) =>
      !(e.labels && e.labels.length) && !e.getAttribute("aria-label") && !e.textContent.trim())
      .map((e) => e.outerHTML)""")
    assert unnamed == []
    assert tab.get_attribute("html", "lang") == "en"
    assert tab.locator("#verdict[aria-live=polite]").count() == 1


def test_data_dependent_figures_carry_their_badge_and_promises_are_absent(opened: Any, tables: dict[str, Any]) -> None:
    text = opened(tables).inner_text("body").lower()
    assert text.count("not releasable") >= 2
    for word in ("anonymous", "safe", "compliant", "guaranteed private"):
        assert not re.search(rf"\b{word}\b", text), word
