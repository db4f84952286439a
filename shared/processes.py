"""Child processes that never outlive their parent: started in groups of their own, stopped by process id.

A child is told to end when this process dies, even by SIGKILL (Linux); what it starts itself is in its group and is
stopped with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType

from patevolve.shared.errors import PatevolveError

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
GRACE_SECONDS = 10.0  # between asking a process to end and killing its group


class ProcessError(PatevolveError):
    """A process that is needed could not start or has ended."""

    exit_code = 11
    code = "process"


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A started process and its log."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def alive(self) -> bool:
        """Return whether it still runs."""
        return self.process.poll() is None

    def tail(self, lines: int = 15) -> str:
        """Return the last lines of its log."""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


@dataclass(slots=True)
class Children:
    """The children of one ``with`` block; all of them have ended when it is left, however it is left.

    Within the block nothing else in this process may start children: they would be taken for orphans of these.

    grace:  seconds between asking a child to end and killing its group; more than a child needs to end its own
    """

    running: list[Child] = field(default_factory=list)
    grace: float = GRACE_SECONDS
    _before: set[int] = field(default_factory=set)

    def __enter__(self) -> Children:
        """Return the empty set of children, and adopt what they leave behind, so that it can be waited for."""
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._before = own_children()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop every child, the last started first."""
        self.stop()

    def start(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> Child:
        """Start a process in a group of its own with its output appended to ``log``."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            process = subprocess.Popen(  # noqa: S603 - a list of arguments, never a shell
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - calls one function of libc
            )
        child = Child(name=name, process=process, log=log)
        self.running.append(child)
        return child

    def check(self) -> None:
        """Raise ProcessError, with the end of its log, if a child has ended."""
        for child in self.running:
            if not child.alive():
                raise ProcessError(
                    f"{child.name} ended with exit code {child.process.returncode}; its log {child.log} ends with:\n"
                    f"{child.tail()}"
                )

    def stop(self) -> None:
        """Ask every group to end, then kill what is left of it, and what it left behind in groups of its own."""
        for child in reversed(self.running):
            _signal(child.process.pid, signal.SIGTERM)
        deadline = time.monotonic() + self.grace
        for child in reversed(self.running):
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.0, deadline - time.monotonic()))
            _signal(child.process.pid, signal.SIGKILL)
            child.process.wait()
        self.running.clear()
        self._bury(deadline)

    def _bury(self, deadline: float) -> None:
        """End and wait for the orphans that this process adopted; nobody else would wait for them."""
        while orphans := own_children() - self._before:
            late = time.monotonic() > deadline
            for orphan in orphans:
                with contextlib.suppress(ProcessLookupError, ChildProcessError):
                    os.kill(orphan, signal.SIGKILL if late else signal.SIGTERM)
                    os.waitpid(orphan, 0 if late else os.WNOHANG)
            time.sleep(0.05)


_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _die_with_parent() -> None:
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def own_children() -> set[int]:
    """Return the process ids of this process's children, adopted ones included; none where /proc does not tell."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if int(entry.read_text(encoding="latin-1").rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(entry.parent.name))
    return found


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


class Stopped(BaseException):
    """The process was asked to end by a signal; like KeyboardInterrupt, nothing but a ``finally`` may hold it up."""


@contextlib.contextmanager
def ending_on_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into Stopped within the block, so that its ``finally`` clauses run."""

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        raise Stopped(signal.Signals(number).name)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait_for(
    ready: Callable[[], bool], what: str, *, timeout: float, children: Children | None = None, poll: float = 0.2
) -> None:
    """Return when ``ready()`` does. Raises ProcessError after ``timeout`` seconds, or when a child has ended."""
    deadline = time.monotonic() + timeout
    while not ready():
        if children is not None:
            children.check()
        if time.monotonic() > deadline:
            raise ProcessError(f"{what} did not happen within {timeout:g} s; look into the logs.")
        time.sleep(poll)
