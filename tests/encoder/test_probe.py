"""A library that kills its process is found out in another process and told in words."""

import os
import signal
import subprocess
import sys

import pytest

from patevolve.shared.encoder.probe import check_runs
from patevolve.shared.errors import InputError

FAKES = {
    "SIGILL": "import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n",
    "SIGSEGV": "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n",
}


@pytest.fixture
def fake(tmp_path, monkeypatch):
    def make(body):
        (tmp_path / "onnxruntime.py").write_text(body)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return tmp_path / "n.onnx"

    return make


@pytest.mark.parametrize("name", FAKES)
def test_a_wheel_that_dies_gives_a_message_not_a_death(fake, name):
    with pytest.raises(InputError, match=f"killed by {name} on this machine") as found:
        check_runs(fake(FAKES[name]))
    assert ("does not have" in str(found.value)) == (getattr(signal, name) is signal.SIGILL)


@pytest.mark.parametrize("body", ["raise ImportError\n", "raise SystemExit(3)\n"])
def test_what_only_fails_is_left_to_whoever_opens_the_network(fake, body):
    check_runs(fake(body))


@pytest.mark.parametrize("more", [[], ["--require-gpu"]])
def test_a_command_outlives_such_a_wheel(fake, tmp_path, more):
    network = fake(FAKES["SIGILL"])
    network.write_bytes(b"never read by a library that dies")
    command = [sys.executable, "-c", "from patevolve.shared.cli import main; main()", "client", "doctor"]
    command += ["--home", str(tmp_path), "--profile", "jetson_orin", "--network", str(network), *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == InputError.exit_code
    assert "killed by SIGILL on this machine: an instruction" in done.stderr
