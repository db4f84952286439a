"""Whether onnxruntime runs here, found out in another process: a wheel for another processor kills the one it is in."""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
from pathlib import Path

from patevolve.shared.errors import InputError

PATIENCE = 120.0  # seconds
LOOK = """
import sys
try:
    import onnxruntime
except ImportError:
    sys.exit(0)
if len(sys.argv) > 1:
    import numpy
    session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
    feeds = {}
    for feed in session.get_inputs():
        shape = [size if isinstance(size, int) and size > 0 else 64 for size in feed.shape]
        shape[0] = 1
        feeds[feed.name] = numpy.zeros(shape, numpy.int64 if "int64" in feed.type else numpy.float32)
    session.run(None, feeds)
"""


@functools.lru_cache(maxsize=16)
def check_runs(path: Path | None = None) -> None:
    """Raise InputError if a process that loads onnxruntime, and runs this network once, is killed by a signal.

    A missing library and an unusable file are no deaths; what opens the network says so in words.
    """
    command = [sys.executable, "-c", LOOK, *([] if path is None else [str(path)])]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE)  # noqa: S603 - this Python
    except subprocess.TimeoutExpired as reason:
        raise InputError(f"onnxruntime did not start and run within {PATIENCE:g} s on this machine.") from reason
    if done.returncode < 0:
        number = -done.returncode
        cause = ": an instruction that this processor does not have" if number == signal.SIGILL else ""
        raise InputError(
            f"onnxruntime was killed by {signal.Signals(number).name} on this machine{cause}. Install a build for this "
            f"processor, or agree on a plan without an ONNX encoder."
        )
