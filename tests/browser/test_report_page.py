"""The report in a real browser: whole in both schemes and on a phone, silent, alone, and quick for 200 sites."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from patevolve.shared.report import words
from patevolve.shared.report.page import render

EXAMPLE = Path(__file__).parents[1] / "report" / "example.json"
ATTACK = "<script>alert(1)</script>"
FORBIDDEN = re.compile(r"anonym|\bsafe\b|complian|guaranteed private", re.IGNORECASE)


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(EXAMPLE.read_text(encoding="utf-8"))
    return content


@pytest.fixture(scope="module")
def opened(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Open a report; the page carries ``problems``: console messages, errors and foreign requests."""
    folder: Path = tmp_path_factory.mktemp("report")
    tabs = []

    def open_page(report: dict[str, Any], **settings: Any) -> Any:
        file = folder / f"{len(tabs)}.html"
        file.write_text(render(report), encoding="utf-8")
        tab = chromium.new_page(**{"viewport": {"width": 1280, "height": 900}, **settings})
        tab.problems = []
        tab.on("console", lambda message: tab.problems.append(f"console: {message.text}"))
        tab.on("pageerror", lambda error: tab.problems.append(f"error: {error}"))
        tab.on("dialog", lambda dialog: tab.problems.append(f"dialog: {dialog.message}"))
        tab.on(
            "request",
            lambda request: None if request.url == file.as_uri() or request.url.startswith("data:")
            else tab.problems.append(f"request: {request.url}"),
        )  # fmt: skip
        tab.goto(file.as_uri())
        tabs.append(tab)
        return tab

    yield open_page
    for tab in tabs:
        tab.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_every_link_and_fold_works_in_both_schemes_and_on_a_phone(
    opened: Any, example: dict[str, Any], scheme: str, width: int
) -> None:
    tab = opened(example, color_scheme=scheme, viewport={"width": width, "height": 844})
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    for link in tab.locator("nav a").all():
        link.click()
        target = str(link.get_attribute("href"))
        assert tab.evaluate("location.hash") == target
        assert tab.locator(target).bounding_box()["height"] > 40
    for fold in tab.locator("summary").all():
        fold.click()
    assert tab.locator("details:not([open])").count() == 0
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    visible = tab.locator("svg.chart:visible")
    assert visible.count() >= 8
    assert all(box["width"] <= width for one in visible.all() if (box := one.bounding_box()))
    assert (tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 23, 29)") is (scheme == "dark")
    assert not re.search(r"NaN|undefined|Infinity|None", tab.inner_text("body"))
    assert not FORBIDDEN.search(tab.inner_text("body"))
    assert tab.problems == []


def test_figures_on_the_page_are_the_reports(opened: Any, example: dict[str, Any]) -> None:
    text = opened(example).inner_text("body")
    for row in example["utility"]:
        assert words.spread(row["mean"], row["sd"]) in text
    for row in example["parts"]:
        assert words.epsilon(row["epsilon_alone"]) in text
    assert f"best order {example['epsilon_order']:g}" in opened(example).text_content("#rdp")


def test_contrast_of_text_is_enough_in_both_schemes(opened: Any, example: dict[str, Any]) -> None:
    """WCAG 2.2, 1.4.3: at least 4.5 for body text, notes, links and alerts."""
    ratio = """() => {
      const light = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number).map((v) => v / 255)
        .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
      const behind = (e) => { const own = getComputedStyle(e).backgroundColor;
        return /rgba\\(.*, 0\\)/.test(own) ? behind(e.parentElement) : own; };
      return Math.min(...[...document.querySelectorAll("p, td, th, dd, dt, a, li, figcaption, summary")]
        .filter((e) => e.checkVisibility() && e.textContent.trim()).map((e) => {
        const pair = [light(getComputedStyle(e).color), light(behind(e))].sort((a, b) => b - a);
        return (pair[0] + 0.05) / (pair[1] + 0.05); }));
    }"""
    for scheme in ("light", "dark"):
        assert opened(example, color_scheme=scheme).evaluate(ratio) >= 4.5


def test_names_that_attack_long_names_and_missing_metrics_stay_text(opened: Any, example: dict[str, Any]) -> None:
    report = copy.deepcopy(example)
    report["name"] = ATTACK
    report["synthetic"]["classes"] = {ATTACK: 900, "W" * 200: 1100}
    report["sites"][0]["site"] = "W" * 200
    report["diversity"]["classes"][0]["class"] = ATTACK
    for row in report["utility"]:
        row.update(mean=math.nan, sd=math.inf, values=[math.nan])
    report["calibration"]["error"] = math.nan
    for width in (390, 1280):
        tab = opened(report, viewport={"width": width, "height": 844})
        text = tab.inner_text("body")
        assert ATTACK in text
        assert "not measured" in text
        assert not re.search(r"\bNaN\b|\bInfinity\b", text)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert tab.problems == []


def big(example: dict[str, Any], sites: int, generations: int) -> dict[str, Any]:
    report = copy.deepcopy(example)
    names = [f"Site {number:03d} of a long list" for number in range(sites)]
    report["sites"] = [example["sites"][0] | {"site": name} for name in names]
    report["ledger"] = [example["ledger"][0] | {"site": n, "seq": i} for i in range(generations) for n in names]
    report["generations"] = [
        {"generation": i, "asked": [f"neighbours/{i}"], "spread": 0.9, "match": i / 60, "gallery": None}
        for i in range(generations)
    ]
    asked = [f"neighbours/{i}" for i in range(generations)]
    report["participation"] = [
        {"question": q, "when": f"generation {q}", "sites": sites, "answered": sites - 3,
         "refused": {names[0]: "policy"}, "silent": names[1:3]} for q in asked
    ]  # fmt: skip
    report["traffic"] = [
        {"site": name, "questions": q, "request": "ask", "bytes_down": 1000, "bytes_up": 2000}
        for q in asked for name in names
    ]  # fmt: skip
    return report


LOADED = "(() => { const t = performance.getEntriesByType('navigation')[0]; return t.loadEventEnd - t.startTime; })()"


def test_two_hundred_sites_and_fifty_generations_open_quickly(opened: Any, example: dict[str, Any]) -> None:
    """Under 5 MB, and at most 15 times as long as a page of 4 sites, which opens in some 0.1 s: about 1.5 s."""
    few, many = opened(example), opened(big(example, 200, 50))
    size = many.evaluate("new TextEncoder().encode(document.documentElement.outerHTML).length")
    assert size < 5_000_000
    assert many.evaluate(LOADED) < 15 * max(few.evaluate(LOADED), 100.0)
    assert many.locator("tbody tr").count() > 4_000
    assert many.problems == []
