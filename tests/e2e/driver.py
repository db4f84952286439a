"""Runs commands of patevolve in forked processes and kills them where it is told to.

Reads one job as JSON from each line of standard input; writes how it ended, the exit code or minus the signal.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from patevolve.client import cli as client_cli
from patevolve.client import guard, home, reporting, simulate
from patevolve.shared import cli, files, finish, institutions, runfolder
from patevolve.shared.privacy import chain_file, global_ledger, ledger
from patevolve.shared.randomness import RecordedNoise
from patevolve.shared.release import folder

Names = Callable[..., str]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Trap:
    """Kills this process at the n-th passage of a point that carries the wanted name."""

    def __init__(self, name: str, passages: int) -> None:
        self.name = name
        self.left = itertools.count(passages, -1)

    def pass_by(self, name: str) -> None:
        if name == self.name and next(self.left) <= 1:
            die()


def before(trap: Trap, owner: Any, attribute: str, name: Names) -> None:
    original = getattr(owner, attribute)

    @functools.wraps(original)
    def stopped(*args: Any, **kwargs: Any) -> Any:
        trap.pass_by(name(*args, **kwargs))
        return original(*args, **kwargs)

    setattr(owner, attribute, stopped)


def after(trap: Trap, owner: Any, attribute: str, name: Names) -> None:
    original = getattr(owner, attribute)

    @functools.wraps(original)
    def stopped(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        trap.pass_by(name(*args, **kwargs))
        return result

    setattr(owner, attribute, stopped)


def half_written(trap: Trap) -> None:
    """Stop where a file exists under its first name and holds nothing yet."""
    original = os.fdopen

    def opened(handle: int, *args: Any, **kwargs: Any) -> Any:
        trap.pass_by(Path(f"/proc/self/fd/{handle}").readlink().name.removeprefix(".").split(".")[0])
        return original(handle, *args, **kwargs)

    files.os.fdopen = opened  # type: ignore[attr-defined]


POINTS: dict[str, Callable[[Trap], None]] = {
    "before the charge": lambda t: before(t, ledger.Ledger, "charge", lambda _self, key, **_: key.question),
    "after the charge": lambda t: after(t, ledger.Ledger, "charge", lambda _self, key, **_: key.question),
    "after the draw": lambda t: before(t, ledger.Ledger, "store_answer", lambda _self, key, *_: key.question),
    "after the answer is stored": lambda t: after(t, ledger.Ledger, "store_answer", lambda _s, key, *_: key.question),
    "after the global row": lambda t: after(
        t, global_ledger.GlobalLedger, "record_question", lambda _self, **named: named["question"]
    ),
    "after the reply": lambda t: after(t, institutions.InProcess, "ask", lambda _self, question, _: question.name),
    "before the reply is saved": lambda t: before(t, runfolder.RunFolder, "save_reply", lambda _self, name, *_: name),
    "after the reply is saved": lambda t: after(t, runfolder.RunFolder, "save_reply", lambda _self, name, *_: name),
    "after a checkpoint": lambda t: after(
        t, runfolder.RunFolder, "save_generation", lambda _self, number, *_: str(number)
    ),
    "before a checkpoint": lambda t: before(
        t, runfolder.RunFolder, "save_generation", lambda _self, number, *_: str(number)
    ),
    "during the release": lambda t: after(t, folder, "_write", lambda path, _data: path.name),
    "before the release is renamed": lambda t: after(t, folder, "_flush", lambda _path: ""),
    "before the student": lambda t: before(t, finish, "_write_student", lambda *_: ""),
    "before the report": lambda t: before(t, reporting, "write_report", lambda *_: ""),
    "between report.json and report.html": lambda t: before(t, reporting, "rendered", lambda _: ""),
    "while a file is written": half_written,
    "after a ledger is made": lambda t: after(t, chain_file.Chain, "create", lambda path, *_: path.name),
    "before the site's ledger is opened": lambda t: before(t, home.SiteHome, "open_ledger", lambda *_: ""),
}


def draw_first() -> None:
    """Plant the fault that noise is drawn, and could be sent, before the charge is on the disk."""
    release = guard.Guard.release

    def early(self: Any, question: Any, ask: Any, key: Any, exact: Any) -> bytes:
        ask.mechanism.release(exact, self.noise(self.policy.site, key.question_sha256))
        return release(self, question, ask, key, exact)

    guard.Guard.release = early  # type: ignore[method-assign]


def forget_answers() -> None:
    """Plant the fault that answers are not kept: a retry draws again."""
    ledger.Ledger.store_answer = lambda *_: None  # type: ignore[method-assign,assignment]


def refund() -> None:
    """Plant the fault that a second charge for one question is taken as paid already."""
    charge = ledger.Ledger.charge

    def once(self: Any, key: ledger.AnswerKey, **named: Any) -> Any:
        paid = [c for c in self.charges() if c.key.question_sha256 == key.question_sha256]
        return paid[0] if paid else charge(self, key, **named)

    ledger.Ledger.charge = once  # type: ignore[method-assign,assignment]


TWINS = {"draws first": draw_first, "forgets answers": forget_answers, "refunds": refund}


class Logged:
    """Recorded noise, another for every draw of one question, and a line in the log before its first byte."""

    def __init__(self, log: Path, site: str, question: str) -> None:
        self.log, self.line = log, f"{site} {question}"
        self.source: RecordedNoise | None = None

    def read(self, count: int) -> bytes:
        if self.source is None:
            drawn = self.log.read_text("utf-8").splitlines() if self.log.exists() else []
            with self.log.open("a", encoding="utf-8") as file:
                file.write(self.line + "\n")
            self.source = RecordedNoise(f"{self.line} {drawn.count(self.line)}")
        return self.source.read(count)


def run(job: dict[str, Any]) -> int:
    """Run one job in this process and return its exit code."""
    reporting.rendered = lambda report: f"<html>{report['name']}</html>"  # charts take seconds; others test the page
    reporting.beside = lambda _: None  # the same
    noise = functools.partial(Logged, Path(job["draws"]))
    client_cli.simulate = functools.partial(simulate.simulate, noise=noise, run="run-1")  # type: ignore[assignment]
    if job["twin"] is not None:
        TWINS[job["twin"]]()
    if job["kill"] is not None:
        point, name, passages = job["kill"]
        POINTS[point](Trap(name, passages))
    sys.argv = ["patevolve", *job["arguments"]]
    try:
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:  # noqa: BLE001 - as the interpreter would end: a traceback and code 1
        traceback.print_exc()
        return 1
    return 0


def forked(job: dict[str, Any]) -> int:
    """Run one job in a child process and return how it ended."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for name, descriptor in (("out", 1), ("err", 2)):
        os.dup2(os.open(job[name], os.O_WRONLY | os.O_CREAT), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    code = run(job)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    import sklearn.linear_model  # noqa: F401 - imported once here instead of in every child

    for line in sys.stdin:
        sys.stdout.write(f"{forked(json.loads(line))}\n")
        sys.stdout.flush()
