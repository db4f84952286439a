"""The audit's page in a real browser: whole in both schemes and on a phone, silent, and it asks nobody for anything."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from patevolve.client.audit_page import rendered

ATTACK = "<script>alert(1)</script>"


def interval(value: float) -> dict[str, float]:
    return {"value": value, "low": value / 2, "high": min(1.0, 2 * value)}


FOUND: dict[str, Any] = {
    "alarms": [f"{ATTACK}: its answers carry no noise"],
    "answers": [{"site": site, "values": 108, "ratio": 1.02, "p": 0.4, "power_half": 1.0} for site in ("A", "W" * 200)],
    "canary": {"trials": 150, "hit": interval(0.4), "false": interval(0.3), "lower": 0.0, "lower_gaussian": 0.1,
               "ledger": 1.0},
    "one_run": {"canaries": 100, "right": 28, "guesses": 50, "lower": 0.0, "reach": 1.88},
    "membership": [{"name": "mean shift", "auc": interval(0.5), "above": 1, "expect": 4.5,
                    "low": [{"real": 0.01, "tpr": interval(0.01)}, {"real": 0.0, "tpr": interval(0.001)}]}],
    "attributes": [{"column": ATTACK, "members": 0.5, "others": float("nan"), "usual": 0.4, "z": 0.3}],
    "inversion": [{"name": "the votes: all records known but one", "found": interval(0.004), "chance": 0.002,
                   "explained": -0.2}],
    "copying": {"caveat": "Distances are a sanity check.", "copies": {"found": 0, "expected": 1e-6, "p": 1.0},
                "nearness": None},
    "repeats": {"most": 3, "next": 3},
}  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_whole_and_silent(chromium: Any, tmp_path: Path, scheme: str, width: int) -> None:
    file = tmp_path / "audit.html"
    file.write_text(rendered(ATTACK, FOUND), encoding="utf-8")
    tab = chromium.new_page(color_scheme=scheme, viewport={"width": width, "height": 844})
    problems: list[str] = []
    tab.on("console", lambda message: problems.append(message.text))
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("dialog", lambda dialog: problems.append(dialog.message))
    tab.on("request", lambda request: None if request.url == file.as_uri() else problems.append(request.url))
    tab.goto(file.as_uri())
    text = tab.inner_text("body")
    assert text.count(ATTACK) == 3
    assert "Not releasable." in text
    assert "1 alarm" in text
    assert "not measured" in text
    assert "too few others to tell" in text
    assert not re.search(r"\bnan\b|undefined|None", text)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    dark = tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 23, 29)"
    assert dark is (scheme == "dark")
    assert problems == []
    tab.close()
