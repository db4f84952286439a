"""Where a command's time goes, as a flame graph."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from patevolve.shared.errors import InputError
from patevolve.shared.files import write_atomic


@contextlib.contextmanager
def sampled(path: Path) -> Iterator[None]:
    """Sample the stack of this thread a thousand times a second and write it, for the length of the block.

    Names of functions and times alone are kept, no values; but times depend on private records, so the file is for
    the site. Helper processes are not sampled. Raises InputError, before the block, if it cannot be done.
    """
    if path.exists() or not path.parent.is_dir():
        found = "exists" if path.exists() else "is in a folder that does not exist"
        raise InputError(f"--flamegraph {path} {found}; expected a new file in a folder that is there. Choose another.")
    try:
        from pyinstrument import Profiler  # noqa: PLC0415 - an extra: only this option needs it
        from pyinstrument.renderers import SpeedscopeRenderer  # noqa: PLC0415 - the same
    except ImportError as reason:
        raise InputError("--flamegraph needs pyinstrument; install it: pip install 'patevolve[profile]'") from reason
    profiler = Profiler()
    profiler.start()
    try:
        yield
    finally:
        profiler.stop()
        write_atomic(path, profiler.output(SpeedscopeRenderer()).encode(), mode=0o600)
