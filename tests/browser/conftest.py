"""A real browser, Debian's Chromium, driven by Playwright. No other browser is downloaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "browser" in item.path.parts:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser for one module: its driver keeps a loop. Without one: failed where CI=true, skipped elsewhere."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        missing = f"none of {', '.join(NAMES)} found; install one: apt-get install chromium"
        if os.environ.get("CI", "").lower() in {"true", "1"}:
            pytest.fail(missing)
        pytest.skip(missing)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])  # CI runs as root
        yield browser
        browser.close()
