"""The live page shows what the coordinator sees, whatever lies in the folder, and only to whom it may."""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import datetime as dt
import json
import re
import shutil
import signal
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from patevolve.client import study
from patevolve.client.demo import data_of, plan_of
from patevolve.server.dashboard import access, app
from patevolve.server.dashboard.cli import dashboard
from patevolve.server.dashboard.snapshot import snapshot
from patevolve.shared.contacts import load_contacts
from patevolve.shared.errors import InputError
from patevolve.shared.plan_edit import vary
from patevolve.shared.privacy.events import from_record
from patevolve.shared.privacy.global_ledger import GlobalLedger

NOW = dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)
ATTACK = "<script>alert(1)</script>"
SMALL = {"evolution.population": 200, "evolution.generations": 3, "release.samples": 400}
TOKEN = "t" * 32
FORBIDDEN = re.compile(r"anonym|\bsafe\b|complian|guaranteed private", re.IGNORECASE)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of four hospitals, whose plan has a hostile name."""
    agreed = vary(plan_of("heart", 1.0, 1), {**SMALL, "name": ATTACK})
    train = data_of("heart", agreed.plan, 1).train
    path: Path = tmp_path_factory.mktemp("dashboard") / "run"
    study.make(agreed, train, path)
    return path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def shown(path: Path) -> str:
    return app.page_of(snapshot(path, NOW), "page.html")


def test_a_finished_run_is_told_as_its_ledger_has_it(finished: Path) -> None:
    found = snapshot(finished, NOW)
    assert (found["state"], found["left"], found["generation"], found["alerts"]) == ("finished", 0, 3, [])
    with GlobalLedger.open(finished / "global.sqlite") as ledger:
        spent = ledger.epsilon(found["delta"]).epsilon
        heads = {site: ledger.trusted_heads(site)[-1].digest for site in ("Hungary", "Switzerland")}
    assert found["epsilon"] == pytest.approx(spent, rel=1e-12)
    assert [row["state"] for row in found["questions"]] == ["answered", "answered"]
    by_name = {row["site"]: row for row in found["sites"]}
    assert len(by_name) == 4
    for site, digest in heads.items():
        assert by_name[site]["head"] == digest
        assert by_name[site]["epsilon"] == pytest.approx(spent, rel=1e-12)
        assert (by_name[site]["answered"], by_name[site]["asked"], by_name[site]["vetoed"]) == (2, 2, [])
        assert by_name[site]["bytes_up"] > 500
    assert [row["generation"] for row in found["generations"]] == [0, 1, 2, 3]


def test_names_are_shown_as_text(run: Path) -> None:
    """A ledger takes plain names alone; a greeting or a damaged file may hold any."""
    (run / "cohort.json").write_text(json.dumps({"sites": {"W" * 200: "key", f"{ATTACK}\x00\u202e": "key"}}))
    note = load_contacts(run / "contacts.json")
    note.settled(ATTACK, ATTACK)
    note.save()
    page = shown(run)
    assert ATTACK not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 3
    assert "W" * 200 in page
    assert page.count("<script") == 1  # its own
    assert not FORBIDDEN.search(page)


def test_nothing_but_the_coordinators_own_files_is_opened(run: Path) -> None:
    """The folder of an in-process run holds the sites' folders and a report with their exact sizes."""
    opened: list[str] = []

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event in {"open", "sqlite3.connect"} and str(run) in str(arguments[0]):
            opened.append(str(arguments[0]))

    watching = True
    sys.addaudithook(heard)
    page = shown(run)
    watching = False
    names = {re.sub(r".*?/run/", "", name.partition("?")[0]) for name in opened}
    assert {"plan.toml", "global.sqlite", "tallies/counts.pv"} <= names
    assert not [name for name in names if name.startswith(("sites", "report", "student", "release"))]
    assert "four hospitals" not in page


def test_an_empty_folder_has_no_run_yet(tmp_path: Path) -> None:
    assert snapshot(tmp_path, NOW)["state"] == "empty"
    assert "No run yet" in shown(tmp_path)


def test_a_plan_that_cannot_be_read_is_said(run: Path) -> None:
    (run / "plan.toml").write_text("format = [", encoding="utf-8")
    found = snapshot(run, NOW)
    assert found["state"] == "broken"
    assert "the plan cannot be read" in found["alerts"][0]
    assert "cannot be read" in shown(run)


DAMAGE = {
    "global.sqlite": "the coordinator's ledger cannot be read",
    "progress.jsonl": "the progress cannot be read",
    "status.json": "the run's status cannot be read",
    "cohort.json": "the list of sites cannot be read",
    "tallies/counts.pv": "a sum cannot be read",
}


@pytest.mark.parametrize("name", DAMAGE)
@pytest.mark.parametrize("content", [b"", b"{\n", b"\x00\xff\n", b"[]\n", b'{"generation": []}\n'])
def test_a_damaged_file_is_an_alert_and_the_rest_stands(run: Path, name: str, content: bytes) -> None:
    for tail in ("", "-wal", "-shm"):
        (run / f"{name}{tail}").unlink(missing_ok=True)
    (run / name).write_bytes(content)
    page, found = shown(run), snapshot(run, NOW)
    harmless = (name, content) in {("progress.jsonl", b""), ("status.json", b'{"generation": []}\n')}
    assert any(DAMAGE[name] in alert for alert in found["alerts"]) is not harmless
    assert "Switzerland" in page
    assert (found["epsilon"] is None) is (name == "global.sqlite")  # not known is not zero
    json.dumps(found, allow_nan=False)


def test_a_run_that_goes_on_shows_what_is_left_and_who_is_quiet(run: Path) -> None:
    (run / "status.json").write_text('{"state": "running"}', encoding="utf-8")
    (run / "tallies" / "prototypes.pv").unlink()
    lines = (run / "progress.jsonl").read_text(encoding="utf-8")
    (run / "progress.jsonl").write_text(lines[:-20], encoding="utf-8")  # the last line is being written
    note = load_contacts(run / "contacts.json")
    note.seen = dict.fromkeys(note.seen, "2026-11-30T11:59:00Z") | {"Switzerland": "2026-11-30T11:29:00Z"}
    note.settled("VA Long Beach", "policy")
    note.seen["VA Long Beach"] = "2026-11-30T11:59:30Z"
    note.save()
    found = snapshot(run, NOW)
    assert (found["state"], found["generation"]) == ("running", 2)
    assert [row["state"] for row in found["questions"]] == ["answered", "asked"]
    assert found["alerts"] == ["VA Long Beach refused: policy", "Switzerland has not been heard for 31 minutes"]
    assert {row["site"]: row["vetoed"] for row in found["sites"]}["VA Long Beach"] == ["policy"]


def test_a_failed_run_says_why_and_a_collapse_is_pointed_out(run: Path) -> None:
    (run / "status.json").write_text('{"state": "failed", "code": "quorum", "message": "too few"}', encoding="utf-8")
    with (run / "progress.jsonl").open("a", encoding="utf-8") as lines:
        lines.write('{"generation": 4, "asked": [], "spread": 0.001, "match": null}\n')
    found = snapshot(run, NOW)
    assert (found["state"], found["alerts"][0]) == ("failed", "too few")
    assert "becoming alike" in found["alerts"][1]


def test_a_fresh_ledger_row_is_seen_at_the_next_look(run: Path) -> None:
    before = snapshot(run, NOW)["epsilon"]
    with GlobalLedger.open(run / "global.sqlite") as ledger:
        body = ledger.questions()[0]
        ledger.record_question(
            plan_sha256=body["plan_sha256"], run="again", question="counts", question_sha256=body["question_sha256"],
            part="counts", event=from_record(body["event"]), sites=body["sites"],
        )  # fmt: skip
    after = snapshot(run, NOW)
    assert after["epsilon"] > before
    assert any("the plan allows 1" in alert for alert in after["alerts"])


Reply = tuple[int, dict[str, str], bytes]


@pytest.fixture
def call(finished: Path) -> Callable[..., Reply]:
    """Ask the application without a network."""

    def ask(at: str, token: str | None = None, method: str = "GET", **headers: str) -> Reply:
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        given = {"host": "localhost:8780"} | {name.replace("_", "-"): value for name, value in headers.items()}
        pairs = [(name.encode(), value.encode()) for name, value in given.items()]
        scope = {"type": "http", "method": method, "path": at, "raw_path": at.encode(), "query_string": b"",
                 "root_path": "", "headers": pairs, "http_version": "1.1", "scheme": "http"}  # fmt: skip
        # In a thread of its own: the browser tests' driver may keep a loop running in this one.
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, app.application(finished, token)(scope, receive, send)).result()
        start, body = sent[0], b"".join(message.get("body", b"") for message in sent[1:])
        return start["status"], {k.decode(): v.decode() for k, v in start["headers"]}, body

    return ask


@pytest.mark.parametrize("at", ["/", "/part", "/snapshot.json", "/page.css", "/page.js", "/nothing", "/../plan.toml"])
def test_every_reply_carries_the_headers_and_names_no_outside_asset(call: Callable[..., Reply], at: str) -> None:
    status, headers, body = call(at)
    assert status == (404 if at in {"/nothing", "/../plan.toml"} else 200)
    assert headers.items() >= access.HEADERS.items()
    assert "unsafe-eval" not in headers["content-security-policy"]
    assert b"http://" not in body.replace(b'xmlns="http://www.w3.org/2000/svg"', b"").replace(
        b"http://www.w3.org/1999/xlink", b""
    )
    assert b"https://" not in body


def test_a_body_that_has_not_changed_is_not_sent_again(call: Callable[..., Reply]) -> None:
    _, headers, body = call("/part")
    again = call("/part", if_none_match=headers["etag"])
    assert (again[0], again[2]) == (304, b"")
    assert len(body) > 1000


BASIC = "Basic " + base64.b64encode(f"any:{TOKEN}".encode()).decode()
BENT = "Basic " + base64.b64encode(f"user:{TOKEN}".encode()).decode().replace("dA==", "dB==")  # the same, spelt oddly


@pytest.mark.parametrize("header", [BASIC, f"Bearer {TOKEN}", f"bearer  {TOKEN}"])
def test_the_token_opens(call: Callable[..., Reply], header: str) -> None:
    assert call("/", TOKEN, authorization=header)[0] == 200
    assert call("/", TOKEN, host="elsewhere.example", authorization=header)[0] == 200


@pytest.mark.parametrize(
    "header",
    ["", "Basic", "Basic !!", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer ", f"Digest {TOKEN}", TOKEN,
     BENT, "Basic " + base64.b64encode(TOKEN.encode()).decode(), "Basic " + base64.b64encode(b"any:").decode()],
)  # fmt: skip
@pytest.mark.parametrize("at", ["/", "/part", "/snapshot.json", "/page.css", "/nothing"])
def test_nothing_is_shown_without_the_token(call: Callable[..., Reply], header: str, at: str) -> None:
    status, headers, body = call(at, TOKEN, **({"authorization": header} if header else {}))
    assert (status, body) == (401, b"The token is needed.\n")
    assert headers["www-authenticate"].startswith("Basic ")


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    monkeypatch.setattr(access.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or False)
    assert not access.allowed(b"Bearer x", TOKEN)
    assert compared == [(b"x", TOKEN.encode())]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_the_page_can_only_be_read(call: Callable[..., Reply], method: str) -> None:
    assert call("/", method=method)[0] == 405
    assert call("/", TOKEN, method=method, authorization=BASIC)[0] == 405


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8780", "127.0.0.1.evil.example", "", "localhost.evil"])
def test_a_name_that_was_made_to_point_here_is_refused_without_a_token(call: Callable[..., Reply], host: str) -> None:
    assert call("/", host=host)[0] == 400


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8780", "[::1]:8780"])
def test_this_machine_is_served(call: Callable[..., Reply], host: str) -> None:
    assert call("/", host=host)[0] == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "coordinator.example", ""])  # noqa: S104 - refused
def test_any_other_address_demands_a_token(host: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="token"):
        access.token_of(None, host)
    made = access.token_of(tmp_path / "token", host)
    assert made is not None
    assert len(made) >= 40
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
    assert access.token_of(tmp_path / "token", host) == made


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "localhost"])
def test_loopback_needs_none(host: str) -> None:
    assert access.token_of(None, host) is None


def test_a_token_that_can_be_guessed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("short\n", encoding="utf-8")
    with pytest.raises(InputError, match="at least 20"):
        access.token_of(tmp_path / "token", "127.0.0.1")


@pytest.mark.parametrize(
    ("words", "message"),
    [(("--bind", "0.0.0.0:8780"), "token"), (("--bind", "127.0.0.1"), "host:port"), (("--bind", ":80"), "host:port"),
     (("--bind", "127.0.0.1:99999"), "host:port")],
)  # fmt: skip
def test_the_command_refuses_what_would_be_open(finished: Path, words: tuple[str, ...], message: str) -> None:
    ended = CliRunner().invoke(dashboard, [str(finished), *words])
    assert isinstance(ended.exception, InputError)
    assert message in str(ended.exception)


def test_the_command_wants_a_folder(tmp_path: Path) -> None:
    ended = CliRunner().invoke(dashboard, [str(tmp_path / "nothing")])
    assert isinstance(ended.exception, InputError)


def test_a_taken_port_is_said() -> None:
    with app.listening("127.0.0.1", 0) as bound, pytest.raises(InputError, match="--bind"):
        app.listening("127.0.0.1", bound.getsockname()[1])


def test_the_command_serves_until_it_is_stopped(finished: Path) -> None:
    program = [sys.executable, "-c", "from patevolve.shared.cli import main; main()"]
    words = ["server", "dashboard", str(finished), "--bind", "127.0.0.1:0", "--format", "json"]
    with subprocess.Popen([*program, *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = json.loads("".join(process.stdout.readline() for _ in range(4)))
            with urllib.request.urlopen(said["url"] + "snapshot.json", timeout=60) as reply:  # noqa: S310 - ours
                assert json.load(reply)["state"] == "finished"
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()
