"""--flamegraph writes samples that a viewer reads, with the slow function in them, and refuses before any work."""

from __future__ import annotations

import json
import sys
import time

import click
import pytest
from click.testing import CliRunner

from patevolve.client import cli, flamegraph
from patevolve.client.device_cli import flamegraph_option
from patevolve.shared.errors import InputError


def slow_piece(until: float) -> None:
    while time.process_time() < until:
        pass


def quick_piece() -> None:
    pass


def work() -> None:
    quick_piece()
    slow_piece(time.process_time() + 0.2)


def frames_with_weight(path):
    """Return each function's total seconds, by the speedscope format's open and close events."""
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    names = [frame["name"] for frame in found["shared"]["frames"]]
    (profile,) = found["profiles"]
    assert profile["type"] == "evented"
    assert profile["unit"] == "seconds"
    total: dict[str, float] = {}
    for event in profile["events"]:
        name = names[event["frame"]]
        total[name] = total.get(name, 0.0) + (event["at"] if event["type"] == "C" else -event["at"])
    return total


def test_the_slow_function_has_most_of_the_time(tmp_path):
    path = tmp_path / "graph.json"
    with flamegraph.sampled(path):
        work()
    total = frames_with_weight(path)
    assert total["slow_piece"] > 0.5 * total["work"]
    assert total["slow_piece"] > 10 * total.get("quick_piece", 0.0)
    assert path.stat().st_mode & 0o077 == 0  # for the site alone


def test_an_error_still_leaves_the_graph(tmp_path):
    @click.command()
    @flamegraph_option
    def fails() -> None:
        work()
        raise InputError("ended")

    path = tmp_path / "graph.json"
    ended = CliRunner().invoke(fails, ["--flamegraph", str(path)])
    assert isinstance(ended.exception, InputError)
    assert frames_with_weight(path)["slow_piece"] > 0
    assert CliRunner().invoke(fails, []).exception.args == ("ended",)


@pytest.mark.parametrize("command", [cli.demo, cli.local, cli.simulated], ids=lambda command: command.name)
def test_it_is_refused_before_the_command_does_anything(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    needed = [] if command is cli.demo else ["plan.toml", "--data", "data.csv"]  # absent: found only after the refusal

    def refused(path) -> str:
        error = CliRunner().invoke(command, [*needed, "--flamegraph", str(path)]).exception
        assert isinstance(error, InputError)
        return str(error)

    (tmp_path / "taken").touch()
    assert "exists; expected a new file" in refused("taken")
    assert "in a folder that does not exist" in refused("none/graph.json")
    monkeypatch.setitem(sys.modules, "pyinstrument", None)
    assert refused("graph.json").endswith("install it: pip install 'patevolve[profile]'")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
