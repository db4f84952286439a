"""The live page in a real browser, over a real socket: it follows a run, in both schemes, and asks nobody else."""

from __future__ import annotations

import json
import re
import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from patevolve.client import study
from patevolve.client.demo import data_of, plan_of
from patevolve.server.dashboard import app
from patevolve.shared.plan_edit import vary

ATTACK = "<script>alert(1)</script>"
SMALL = {"evolution.population": 200, "evolution.generations": 3, "release.samples": 400}
TOKEN = "t" * 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder as it stands while the run goes on: one question is answered, the other asked."""
    agreed = vary(plan_of("heart", 1.0, 1), {**SMALL, "name": ATTACK})
    path: Path = tmp_path_factory.mktemp("dashboard") / "run"
    study.make(agreed, data_of("heart", agreed.plan, 1).train, path)
    (path / "status.json").write_text('{"state": "running"}', encoding="utf-8")
    return path


@pytest.fixture
def run(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "run"))


@pytest.fixture
def served() -> Iterator[Callable[..., str]]:
    """Serve a folder and return its address; stopped at the end."""
    import uvicorn

    running = []

    def serve(path: Path, token: str | None = None) -> str:
        bound = app.listening("127.0.0.1", 0)
        config = uvicorn.Config(app.application(path, token), log_level="warning", lifespan="off", ws="none")
        server = uvicorn.Server(config)
        server.install_signal_handlers = lambda: None
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        running.append((server, thread, bound))
        return f"http://127.0.0.1:{bound.getsockname()[1]}/"

    yield serve
    for server, thread, bound in running:
        server.should_exit = True
        thread.join(20)
        bound.close()


@pytest.fixture
def opened(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Open an address; the page carries ``problems``: console messages, errors and requests to anybody else."""
    contexts = []

    def open_page(url: str, **settings: Any) -> Any:
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings})
        contexts.append(context)
        tab = context.new_page()
        tab.problems = []
        tab.on("console", lambda message: tab.problems.append(f"console: {message.text}"))
        tab.on("pageerror", lambda error: tab.problems.append(f"error: {error}"))
        tab.on(
            "request",
            lambda request: None if request.url.startswith((url, "data:"))
            else tab.problems.append(f"request: {request.url}"),
        )  # fmt: skip
        tab.goto(url)
        return tab

    yield open_page
    for context in contexts:
        context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_whole_in_both_schemes_and_on_a_phone(
    served: Any, opened: Any, folder: Path, scheme: str, width: int
) -> None:
    tab = opened(served(folder), color_scheme=scheme, viewport={"width": width, "height": 844})
    text = tab.inner_text("body")
    for words in (ATTACK, "Cleveland", "VA Long Beach", "prototypes", "4 of 4", "running", "of 1.0 in the plan"):
        assert words in text
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert not re.search(r"NaN|undefined|Infinity", text)
    assert tab.locator("svg.chart:visible").count() == 1
    dark = tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 23, 29)"
    assert dark is (scheme == "dark")
    tab.click("summary")
    assert tab.locator("details[open] tbody tr").count() == 4
    assert tab.problems == []


def test_the_page_follows_the_run_and_keeps_what_was_opened(served: Any, opened: Any, run: Path) -> None:
    tab = opened(served(run))
    tab.click("summary")
    tab.focus('[role=region][aria-label="Sites"]')
    assert tab.inner_text("#generation") == "3"
    with (run / "progress.jsonl").open("a", encoding="utf-8") as lines:
        lines.write(json.dumps({"generation": 4, "asked": [], "spread": 1.5, "match": 0.5}) + "\n")
    tab.locator("#generation", has_text=re.compile("^4$")).wait_for(timeout=20_000)
    assert tab.locator("details[open] tbody tr").count() == 5
    assert tab.evaluate("document.activeElement.getAttribute('aria-label')") == "Sites"
    assert tab.problems == []


def test_updates_can_be_paused_by_keyboard(served: Any, opened: Any, run: Path) -> None:
    tab = opened(served(run))
    tab.focus("#pause")
    tab.keyboard.press("Enter")
    assert tab.get_attribute("#pause", "aria-pressed") == "true"
    asked = []
    tab.on("request", lambda request: asked.append(request.url))
    tab.wait_for_timeout(3_000)  # one and a half rounds
    assert asked == []
    tab.keyboard.press("Enter")
    with tab.expect_response(lambda reply: reply.url.endswith("/part"), timeout=20_000):
        pass
    assert tab.get_attribute("#pause", "aria-pressed") == "false"
    assert tab.problems == []


def test_a_browser_asks_for_the_token_and_sends_it(served: Any, opened: Any, folder: Path) -> None:
    url = served(folder, TOKEN)
    tab = opened(url, http_credentials={"username": "any", "password": TOKEN})
    assert "Cleveland" in tab.inner_text("body")
    with tab.expect_response(lambda reply: reply.url.endswith("/part") and reply.ok, timeout=20_000):
        pass  # the script's own requests carry it too
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(url)  # noqa: S310 - the server of this test
    assert refused.value.code == 401
    refused.value.close()


def test_every_control_and_region_has_a_name(served: Any, opened: Any, folder: Path) -> None:
    tab = opened(served(folder))
    unnamed = tab.evaluate("""[...document.querySelectorAll("button, meter, [role=img], [role=region]")].filter((e) =>
      !e.getAttribute("aria-label") && !e.getAttribute("aria-labelledby") && !e.textContent.trim())
      .map((e) => e.outerHTML)""")
    assert unnamed == []
    assert tab.get_attribute("html", "lang") == "en"
    assert tab.locator("h1").count() == 1
