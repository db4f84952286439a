"""No process is left behind: not children, not what they started, not when this process is killed."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from patevolve.shared.processes import Children, ProcessError, own_children, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux alone")
SLEEPER = [sys.executable, "-c", "import time; time.sleep(300)"]
# A child that ignores SIGTERM and starts a grandchild in a session of its own, as Flower's executors are.
STUBBORN = """
import pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
pathlib.Path(sys.argv[1]).write_text(str(inner.pid))
time.sleep(300)
"""


def alive(pid):
    """Return whether a process runs; a zombie counts, for somebody would have to bury it."""
    return pathlib.Path(f"/proc/{pid}").exists()


def read_pid(path):
    wait_for(lambda: path.exists() and path.read_text(), "a process id", timeout=20)
    return int(path.read_text())


def test_all_children_have_ended_after_the_block_even_when_it_raises(tmp_path):
    def start():
        pids.extend(children.start(name, SLEEPER, tmp_path / "log").process.pid for name in "abc")
        raise RuntimeError

    pids = []
    with pytest.raises(RuntimeError), Children() as children:
        start()
    assert len(pids) == 3
    assert not any(alive(pid) for pid in pids)


def test_a_child_that_will_not_end_and_what_it_started_elsewhere_are_killed_and_buried(tmp_path):
    with Children(grace=0.5) as children:
        child = children.start("stubborn", [sys.executable, "-c", STUBBORN, str(tmp_path / "pid")], tmp_path / "log")
        inner = read_pid(tmp_path / "pid")
        assert os.getsid(inner) != os.getsid(child.process.pid)
    assert not alive(child.process.pid)
    assert not alive(inner)


def test_children_that_were_there_before_are_left_alone(tmp_path):
    with contextlib.ExitStack() as stack:
        other = subprocess.Popen(SLEEPER)
        stack.callback(other.wait)
        stack.callback(other.kill)
        with Children(grace=0.5) as children:
            children.start("one", SLEEPER, tmp_path / "log")
        assert other.poll() is None
        assert other.pid in own_children()


# A suite that a shell started in the background ignores SIGINT, and its children would inherit that.
PARENT = """
import pathlib, signal, sys, time
from patevolve.shared.processes import Children, ending_on_signals
signal.signal(signal.SIGINT, signal.default_int_handler)
with ending_on_signals(), Children(grace=2) as children:
    folder = pathlib.Path(sys.argv[1])
    child = children.start("one", [sys.executable, "-c", "import time; time.sleep(300)"], folder / "log")
    (folder / "pid").write_text(str(child.process.pid))
    time.sleep(300)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_a_parent_that_is_ended_by_a_signal_takes_its_children_along(tmp_path, number):
    with Children():  # adopts the child of a parent that was killed, so that it is buried and not left to init
        parent = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PARENT), str(tmp_path)], stderr=subprocess.DEVNULL
        )
        pid = read_pid(tmp_path / "pid")
        assert alive(pid)
        parent.send_signal(number)
        parent.wait(timeout=20)
    assert not alive(pid)


def test_a_child_that_ends_early_is_reported_with_the_end_of_its_log(tmp_path):
    with Children() as children:
        children.start("brief", [sys.executable, "-c", "print('the reason'); raise SystemExit(5)"], tmp_path / "log")
        with pytest.raises(ProcessError, match=r"code 5(.|\n)*the reason"):
            wait_for(lambda: False, "nothing", timeout=20, children=children)


def test_what_does_not_happen_in_time_is_said(tmp_path):
    with pytest.raises(ProcessError, match="the dawn did not happen"):
        wait_for(lambda: False, "the dawn", timeout=0.1, poll=0.01)
    assert time.monotonic() > 0
