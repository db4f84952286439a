"""The report page: complete, offline, escaped, repeatable, small, and honest about what is missing."""

from __future__ import annotations

import copy
import itertools
import json
import math
import re
import socket
import struct
import subprocess
import sys
import zlib
from base64 import b64encode
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from patevolve.shared.report import words
from patevolve.shared.report.page import render

ATTACK = "<script>alert(1)</script>"
LONG = "W" * 200
VOID = {"meta", "img", "br", "wbr", "link", "input", "hr"}
FORBIDDEN = re.compile(r"anonym|safe|complian|guaranteed private", re.IGNORECASE)


class Page(HTMLParser):
    """The parts of a page that the tests look at; raises on tags that do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)

    def named(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == name]

    @property
    def visible(self) -> str:
        return " ".join(" ".join(self.text).split())


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((Path(__file__).parent / "example.json").read_text(encoding="utf-8"))
    return content


@pytest.fixture
def light(example: dict[str, Any]) -> dict[str, Any]:
    """The example with no charts but those of the utility rows: quick to draw."""
    fewer: dict[str, Any] = {"distributions": [], "generations": [], "rdp": None, "parts": []}
    report = copy.deepcopy(example | fewer)
    report["synthetic"]["classes"] = {}
    return report


@pytest.fixture(scope="module")
def html(example: dict[str, Any]) -> str:
    return render(example)


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def png(side: int) -> str:
    """A gallery picture of this many pixels a side."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = (b"\0" + bytes(side)) * side
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    whole = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 0)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + b64encode(whole).decode()


def test_the_page_says_what_happened_and_what_it_cost(page: Page) -> None:
    assert "Four hospitals made 2,000 synthetic rows together" in page.visible
    assert "Each spent ε = 1.0 of patient-level privacy budget (δ = 10⁻⁵)." in page.visible
    for expected in ("0.873 ± 0.007", "Secure sum", "4 of 4 ledgers verified", "best order 18", "higher is better",
                     "What the budget does not cover", "patevolve demo heart --epsilon 1"):  # fmt: skip
        assert expected in page.visible


def test_every_number_of_the_tables_is_on_the_page(example: dict[str, Any], page: Page) -> None:
    for row in example["utility"]:
        assert words.spread(row["mean"], row["sd"]) in page.visible
    for row in example["ledger"]:
        assert row["digest"][:12] in page.visible
    for row in example["statement"] + example["gate"]:
        assert all(str(text) in page.visible for text in row.values() if isinstance(text, str))


def test_sections_come_in_the_stated_order(page: Page) -> None:
    ids = [attributes["id"] for attributes in page.named("section")]
    assert ids == ["usefulness", "spent", "institutions", "synthetic", "generations", "gate", "audit", "guarantee",
                   "rdp", "ledger", "reproduce", "terms"]  # fmt: skip


def test_the_page_asks_for_nothing_outside_itself(html: str, page: Page) -> None:
    assert not page.named("script")
    assert not page.named("link")
    for tag, attributes in page.tags:
        for name in ("src", "href", "xlink:href", "action", "data", "srcset", "poster"):
            value = attributes.get(name)
            assert value in {None, "explain.html"} or value.startswith(("#", "data:image/png")), (tag, name, value)
        assert not any(name.startswith("on") for name in attributes)
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)
    assert "http://" not in html
    assert "https://" not in html


def test_rendering_is_pure(example: dict[str, Any], html: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib as mpl

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    before, settings = copy.deepcopy(example), {"font.size": 31, "axes.grid": True, "lines.linewidth": 9}
    with mpl.rc_context(settings):
        assert render(example) == html
        assert {key: mpl.rcParams[key] for key in settings} == settings
    assert example == before


def test_the_same_report_gives_the_same_bytes_in_another_process(html: str) -> None:
    program = (
        "import json, pathlib, sys; from patevolve.shared.report.page import render;"
        "sys.stdout.buffer.write(render(json.loads(pathlib.Path(sys.argv[1]).read_text('utf-8'))).encode())"
    )
    source = str(Path(__file__).parent / "example.json")
    again = subprocess.run([sys.executable, "-c", program, source], check=True, capture_output=True)
    assert again.stdout == html.encode()


def test_a_series_has_the_colour_that_the_legend_gives_it(light: dict[str, Any]) -> None:
    light["distributions"] = [{"column": "a", "labels": ["x"], "series": {"one": [1], "two": [2]}},
                              {"column": "b", "labels": ["x"], "series": {"two": [2]}}]  # fmt: skip
    shown = render(light | {"utility": []})
    assert re.search(r"--c: var\(--s2\)\"></span>two", shown)
    first, second = (shown[shown.index(f'id="column-{i}-title"') :].partition("</svg>")[0] for i in (0, 1))
    assert "var(--s1)" in first
    assert "var(--s2)" in first
    assert "var(--s2)" in second
    assert "var(--s1)" not in second


def test_ids_are_unique_and_every_reference_resolves(html: str, page: Page) -> None:
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    pointed = set(re.findall(r"url\(#([^)]+)\)", html)) | {
        value[1:] for _, a in page.tags if (value := a.get("href") or "").startswith("#")
    }
    spoken = {one for _, a in page.tags for one in (a.get("aria-labelledby") or "").split()}
    assert pointed | spoken <= set(ids)


def test_charts_follow_the_colour_scheme_and_speak(page: Page, html: str) -> None:
    drawn = page.named("svg")
    assert len(drawn) >= 10
    assert all(a["role"] == "img" and a["aria-labelledby"] for a in drawn)
    assert not re.search(r"(?:fill|stroke)(?::|=\")\s*#", html)  # no fixed colour is left in a drawing
    assert "font-family: 'DejaVu" not in html


def test_the_page_is_built_for_keyboard_and_screen_reader(page: Page) -> None:
    names = [tag for tag, _ in page.tags]
    assert page.named("html")[0]["lang"] == "en"
    assert names.count("h1") == 1
    assert {"header", "nav", "main", "footer"} <= set(names)
    assert names.count("table") == names.count("caption")
    assert all(a.get("scope") in {"row", "col"} for a in page.named("th"))
    assert all(a.get("alt") for a in page.named("img"))
    levels = [int(name[1]) for name in names if re.fullmatch(r"h[1-6]", name)]
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


HOSTILE = [
    ATTACK,
    '"><img src=x onerror=alert(1)>',
    "$\\frac{",
    "{{ 7 * 7 }}",
    "a\x00b\ud800\x1b",
    "]]>-->",
    "健康 🩺 عربي",
    LONG,
]


def _poison(value: Any, texts: Iterator[str]) -> Any:
    """Replace every text by the next hostile one."""
    if isinstance(value, dict):
        return {key: _poison(item, texts) for key, item in value.items()}
    if isinstance(value, list):
        return [_poison(item, texts) for item in value]
    return next(texts) if isinstance(value, str) else value


@pytest.mark.parametrize("first", [0, 3])  # so that each text stands in several kinds of place
def test_any_text_anywhere_is_shown_as_text(light: dict[str, Any], example: dict[str, Any], first: int) -> None:
    texts = itertools.cycle(HOSTILE[first:] + HOSTILE[:first])
    names = [text + str(first) for text in HOSTILE]
    report = _poison(light, texts)
    report["synthetic"]["classes"] = dict.fromkeys(names, 900)
    report["parts"] = [example["parts"][0] | {"part": name, "share": 1 / len(names), "words": name} for name in names]
    series = {name: [1] * len(names) for name in names}
    report["distributions"] = [{"column": next(texts), "labels": names, "series": series}]
    row = {"generation": next(texts), "asked": HOSTILE, "spread": 0.5, "match": 0.5, "gallery": next(texts)}
    report["generations"] = [row]
    shown = render(report)
    shown.encode("utf-8")
    page = Page(shown)
    assert not page.named("script")
    assert not page.named("img")
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert not re.search(r"(?:fill|stroke)(?::|=\")\s*#", shown)
    whole = "".join(page.text)
    assert all(whole.count(words.clean(text)) > 5 for text in HOSTILE)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, "text", True, [], {}])
def test_a_score_that_is_no_number_reads_not_measured(light: dict[str, Any], value: object) -> None:
    report = light
    for row in report["utility"]:
        row.update(mean=value, sd=value, values=[value], chance=value)
    page = Page(render(report))
    assert page.visible.count("not measured") >= 2 * len(report["utility"])
    assert not re.search(r"\b(nan|inf)\b", page.visible, re.IGNORECASE)


def test_an_empty_report_still_gives_a_page() -> None:
    shown = Page(render({})).visible
    assert "Usefulness was not measured" in shown
    assert "An empty gate counts as failed" in shown
    assert "No finite ε" in shown


@pytest.mark.parametrize("damage", [None, [], {}, "text", 3, [None], ["x"], [{}], {"a": None}, [[]]], ids=repr)
def test_any_damaged_part_leaves_the_rest_standing(example: dict[str, Any], damage: object) -> None:
    lists = {key for key, value in example.items() if isinstance(value, list | dict)}
    page = Page(render({key: damage if key in lists else value for key, value in example.items()}))
    assert len(page.named("section")) == 12


@pytest.mark.parametrize("key", ["epsilon", "delta", "epsilon_order", "wall_seconds", "unit", "trust", "mode", "made"])
@pytest.mark.parametrize("value", [None, math.nan, -1, 0, "x", [1], {"a": 1}, 10**400])
def test_any_damaged_figure_leaves_the_rest_standing(example: dict[str, Any], key: str, value: object) -> None:
    few = {name: example[name] for name in ("epsilon", "delta", "sites", "unit", "trust", "mode")}
    if key in {"delta", "epsilon_order"}:
        few["rdp"] = {"orders": [2, 4, 8], "values": [0.1, 0.2, 0.4]}
    assert len(Page(render({**few, key: value})).named("section")) == 12


def test_forbidden_words_appear_nowhere(light: dict[str, Any], html: str) -> None:
    assert not FORBIDDEN.search(html)
    for mode in ("simulated", "local", "deployed"):
        for trust in ("secure-sum", "each-site"):
            unsafe = ["UnsafeNoNoise", "recorded noise"]
            report = light | {"mode": mode, "trust": trust, "unsafe": unsafe, "utility": [], "synthetic": {}}
            assert not FORBIDDEN.search(render(report))
    assert not FORBIDDEN.search(render({}))


def test_a_run_without_noise_is_not_given_an_epsilon(light: dict[str, Any]) -> None:
    shown = Page(render(light | {"utility": [], "unsafe": ["UnsafeNoNoise"]}))
    assert "Not protected" in shown.visible
    assert "ε not valid" in shown.visible
    assert "tighter accountant" not in shown.visible
    assert "no noise was added" in shown.visible
    assert "The privacy guarantee does not hold" in shown.visible
    assert "Each spent" not in shown.visible
    assert "answered with noised sums" not in shown.visible
    assert any(attributes.get("role") == "alert" for attributes in shown.named("div"))


def test_a_ledger_or_gate_that_fails_is_named_at_the_top(light: dict[str, Any]) -> None:
    report = light | {"utility": []}
    report["sites"][1]["verified"] = False
    report["gate"][2]["passed"] = False
    shown = Page(render(report)).visible
    head = shown[: shown.index("Privacy budget spent")]
    assert "A ledger did not verify" in head
    assert "Hungary" in head
    assert "The release gate did not pass" in head
    assert "collapse" in head
    assert "3 of 4 ledgers verified" in shown


def test_sites_that_spent_differently_are_told_by_the_most(light: dict[str, Any]) -> None:
    report = light | {"utility": []}
    report["sites"][0]["epsilon"] = 0.25
    assert "Each spent at most ε = 1.0" in Page(render(report)).visible


def test_best_usefulness_follows_the_direction_of_the_metric(light: dict[str, Any]) -> None:
    report = light
    for row in report["utility"]:
        row.update(metric="Brier score", direction="lower is better")
    assert "Brier score 0.862" in Page(render(report)).visible  # the smaller of .873 and .862


def test_limits_in_the_statement_join_the_others(light: dict[str, Any]) -> None:
    report = light | {"utility": [], "statement": [["What is not covered", "Side channels."], ["Unit", "One patient."]]}
    shown = Page(render(report)).visible
    assert (
        shown.index("What the budget does not cover")
        < shown.index("Side channels.")
        < shown.index("Costs were added up")
    )
    assert "What is not covered" not in shown


def test_a_page_with_exact_counts_says_that_it_is_not_for_publication(light: dict[str, Any]) -> None:
    warning = "This page itself. It states exactly how many patients each hospital holds"
    assert warning in Page(render(light)).visible
    deployed = light | {"sites": [{**row, "units": None} for row in light["sites"]]}
    assert warning not in Page(render(deployed)).visible


def test_who_took_part_is_told_by_site_and_by_question(light: dict[str, Any]) -> None:
    page = Page(render(light | {"utility": []}))
    shown = page.visible
    for expected in (
        "Hungary (policy)",
        "1 of 2 policy 0",
        "1 of 2 – 1",
        "2 of 4 Hungary (policy) Switzerland",
        "2 of 2 – 0",
    ):
        assert expected in shown
    assert "380" in shown  # 190 bytes to the first site, twice
    nothing = Page(render(light | {"utility": [], "participation": [], "traffic": []})).visible
    assert "The run recorded no participation" in nothing


def test_calibration_and_variety_are_shown_or_said_to_be_missing(light: dict[str, Any]) -> None:
    page = Page(render(light | {"utility": []}))
    assert "Mean error 0.043, Brier score 0.310" in page.visible
    assert "yes 1,100 1,080 1.410 95 %" in page.visible
    names = {str(attributes["aria-labelledby"]).split("-title")[0] for attributes in page.named("svg")}
    assert {"calibration-wide", "calibration-narrow", "similarity", "scores"} <= names
    without = Page(render(light | {"utility": [], "calibration": None, "diversity": None})).visible
    assert "Calibration was not measured" in without
    assert "Coverage and variety" not in without


def test_the_page_about_pate_is_linked_where_it_was_written(light: dict[str, Any]) -> None:
    links = [a.get("href") for a in Page(render(light)).named("a")]
    assert "explain.html" in links
    hostile = Page(render(light | {"explain": "javascript:alert(1)"}))
    assert not [a for a in hostile.named("a") if not str(a.get("href")).startswith("#")]


def test_figures_of_the_audit_are_not_in_a_page_that_travels(light: dict[str, Any]) -> None:
    secret = {"membership": [{"name": "mean shift", "auc": {"value": 0.987654}}]}
    shown = Page(render(light | {"audit": secret})).visible
    assert "0.987" not in shown
    assert "patevolve audit RUN --data FILE --page audit.html" in shown


def test_only_png_pictures_are_let_in(example: dict[str, Any]) -> None:
    report = {"generations": copy.deepcopy(example["generations"])}
    good = png(8)
    for row, source in zip(report["generations"], ["https://example.org/a.png", "data:text/html;base64,PGI+", good,
                           good + '" onload="x', "javascript:alert(1)", 7], strict=True):  # fmt: skip
        row["gallery"] = source
    assert [a["src"] for a in Page(render(report)).named("img")] == [good]


def test_two_hundred_sites_and_fifty_generations_stay_small(
    example: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = copy.deepcopy(example)
    names = [f"Site {i:03d} " + LONG[:60] for i in range(200)]
    report["sites"] = [example["sites"][0] | {"site": name} for name in names]
    report["ledger"] = [example["ledger"][0] | {"site": name, "seq": i} for i in range(50) for name in names]
    picture = png(600)
    report["generations"] = [{"generation": i, "asked": ["neighbours"], "spread": 0.9 - i / 100, "match": i / 60,
                              "gallery": picture} for i in range(50)]  # fmt: skip
    report["distributions"] = example["distributions"][1:2] * 60
    monkeypatch.setattr("patevolve.shared.report.page.DISTRIBUTIONS", 2)
    shown = render(report)
    page = Page(shown)
    assert len(shown.encode()) < 5_000_000
    pictures = page.named("img")
    assert pictures[0]["alt"] == "Synthetic samples of generation 0"
    assert pictures[-1]["alt"] == "Synthetic samples of generation 49"
    assert sum(len(a["src"] or "") for a in pictures) <= 2_500_000
    assert "200 hospitals made" in page.visible
    assert "10,000 charges in order of time" in page.visible
    assert "The last 4,000 are shown" in page.visible
    assert "All 200 hospitals" in page.visible
    assert "2 of 60 columns are drawn" in page.visible


EPSILONS = {1.0: "1.0", 0.9999: "1.0", 1 + 1e-10: "1.0", 1.0001: "1.001", 0.0: "0", 1e-9: "0.001", 12.3456: "12.346",
            1234.0: "1,234.0", None: "no bound", "1": "no bound"}  # fmt: skip
DELTAS = {1e-5: "10⁻⁵", 2.5e-6: "2.5 × 10⁻⁶", 2.51e-6: "2.6 × 10⁻⁶", 1e-3: "10⁻³", 9.99e-6: "10⁻⁵", 1e-300: "10⁻³⁰⁰",
          0: "0", None: "not measured"}  # fmt: skip


@pytest.mark.parametrize(("value", "shown"), EPSILONS.items())
def test_epsilon_is_never_rounded_down(value: object, shown: str) -> None:
    assert words.epsilon(value) == shown


CELLS = {"94": 94.0, "0.5": 0.5, "1.0": 1.0, "": None, "  ": None, 3: 3, None: None}
CELLS |= {text: text for text in ("007", "1e400", "nan", "inf", "1_0", "male", "٣")}


@pytest.mark.parametrize(("text", "value"), CELLS.items())
def test_a_cell_is_a_number_only_where_its_text_is_one(text: object, value: object) -> None:
    assert words.parsed(text) == value


def test_the_accountants_fall_back_is_not_called_tighter(light: dict[str, Any]) -> None:
    report = light | {"utility": [], "tight": {"epsilon": 1.0, "accountant": "rdp", "reason": "unknown mechanism"}}
    assert "no tighter figure was computed" in Page(render(report)).visible


def test_a_ledger_without_running_totals_shows_single_costs(light: dict[str, Any]) -> None:
    for row in light["ledger"]:
        row.update(epsilon_after=None, epsilon_alone=0.321)
    shown = Page(render(light | {"utility": []})).visible
    assert shown.count("0.321") == len(light["ledger"])
    assert "ε after" not in shown


def test_a_bool_is_not_an_epsilon() -> None:
    assert words.epsilon(True) == "no bound"


@pytest.mark.parametrize(("value", "shown"), DELTAS.items())
def test_delta_is_never_rounded_down(value: object, shown: str) -> None:
    assert words.power(value) == shown


def test_importing_the_page_loads_no_drawing_library() -> None:
    program = (
        "import sys, patevolve.shared.report.page; print([m for m in ('matplotlib', 'jinja2') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout == "[]\n"
