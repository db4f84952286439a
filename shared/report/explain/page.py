"""Put the page together: text, style, script, the chart library and the tables in one file that needs no network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

_FOLDER = resources.files("patevolve.shared.report.explain")


def render(tables: Mapping[str, Any]) -> str:
    """Return the page as one HTML file. ``tables``: what ``shared.explain.tables`` returns."""
    page = _text("page.html")
    for mark, text in {
        "/*chart-style*/": _text("uPlot.min.css"),
        "/*style*/": _text("page.css"),
        "/*chart-script*/": _text("uPlot.iife.min.js"),
        "/*script*/": _text("page.js"),
        "/*tables*/": _data(tables),
    }.items():
        if page.count(mark) != 1:
            raise ValueError(f"the template holds {mark} {page.count(mark)} times; expected once")
        page = page.replace(mark, text)
    return page


def _text(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _data(tables: Mapping[str, Any]) -> str:
    """Return JSON that no script element can be ended by; NaN and infinity are refused."""
    text = json.dumps(_plain(tables), separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.replace("<", "\\u003c")


def _plain(value: Any) -> Any:
    """Return whole floats as integers: 300,000 characters less."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value
