"""The coordinator's commands: what init makes, and how run tells the ends of a run apart."""

from __future__ import annotations

import json
import socket
import stat

import pytest
from click.testing import CliRunner

from patevolve.client.joined import read_joined
from patevolve.server import cli, handover, processes
from patevolve.server.handover import RUN, SITES, pinned_keys, read_deployment
from patevolve.shared.cli import application
from patevolve.shared.errors import InputError
from patevolve.shared.plan import read_plan
from patevolve.shared.processes import ProcessError

pytest.importorskip("flwr")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
PLAN = """
format = 1
name = "tiny"
seed = 1
[privacy]
epsilon = 4.0
delta = 1e-5
[sites]
count = 2
expected_units = 30
[data]
kind = "table"
classes = ["a", "b"]
label = "y"
unit = "id"
[[data.columns]]
name = "size"
kind = "numeric"
edges = [0, 1, 2, 3]
[generator]
kind = "tabular"
[questions.prototypes]
share = 1.0
[release]
samples = 10
"""


def call(*arguments):
    """Run the command line; the exit code is that of the process."""
    for command in cli.commands():
        application.add_command(command)
    return CliRunner().invoke(application, [str(argument) for argument in arguments])


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    return path


@pytest.fixture
def made(tmp_path, plan):
    folder = tmp_path / "c"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        bind = f"127.0.0.1:{free.getsockname()[1]}"
    options = ["--plan", plan, "--host", "c.example.org", "--host", "127.0.0.1", "--bind", bind]
    ended = call("server", "init", folder, *options, "--site", "A", "--site", "Häuser 2", "--format", "json")
    assert ended.exit_code == 0, ended.output
    return folder, json.loads(ended.stdout)


def test_init_makes_a_folder_for_each_site_and_the_site_can_read_it(made, plan):
    folder, said = made
    agreed = read_plan(plan)
    assert said["plan"] == agreed.sha256
    keys = set()
    for site, path in said["sites"].items():
        joined = read_joined(folder.parent / path)
        assert (joined.site, joined.plan, joined.address) == (site, agreed.sha256, "c.example.org:443")
        assert joined.bundles == (said["bundle"],)
        assert read_plan(folder.parent / path / "plan.toml").sha256 == agreed.sha256
        assert stat.S_IMODE((folder.parent / path / "node.key").stat().st_mode) == 0o600
        keys.add((folder.parent / path / "node.key").read_bytes())
        assert agreed.sha256 in (folder.parent / path / "README.txt").read_text(encoding="utf-8")
    assert len(keys) == 2
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_no_hand_over_folder_holds_a_key_of_the_coordinator(made):
    folder, _ = made
    secret = [(folder / "pki" / name).read_bytes() for name in ("ca.key", "server.key")]
    secret.append((folder / "coordinator.key").read_bytes())
    for path in (folder / SITES).rglob("*"):
        if path.is_file():
            assert path.read_bytes() not in secret
            assert path.name in {"join.toml", "plan.toml", "ca.crt", "node.key", "node.pub", "README.txt"}


def test_the_bundle_is_the_same_wherever_it_is_built_and_holds_no_code(made, tmp_path):
    from flwr.cli.build import build_fab_from_disk

    _, said = made
    again = tmp_path / "elsewhere" / "app"
    assert handover.write_app(again) == said["bundle"]
    assert b".py" not in build_fab_from_disk(again).replace(b"pyproject", b"")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--site", "A"], "1 sites found"),
        (["--site", "A", "--site", "A"], "expected|distinct"),
        (["--site", "A", "--site", " "], "plain names"),
        (["--site", "A", "--site", "B", "--bind", "nowhere"], "--bind"),
        (["--site", "A", "--site", "B", "--host", "a b"], "DNS name"),
    ],
)
def test_init_refuses_what_cannot_be_and_writes_nothing(options, words, plan, tmp_path):
    ended = call("server", "init", tmp_path / "d", "--plan", plan, "--host", "h", *options)
    assert ended.exit_code == 2
    assert any(word in ended.output for word in words.split("|"))
    assert not (tmp_path / "d" / "server.toml").exists()
    assert not (tmp_path / "d" / SITES).exists()


def test_init_never_overwrites(made, plan):
    folder, _ = made
    before = (folder / "coordinator.key").read_bytes()
    ended = call("server", "init", folder, "--plan", plan, "--host", "h", "--site", "A", "--site", "B")
    assert ended.exit_code == 2
    assert (folder / "coordinator.key").read_bytes() == before


def test_a_changed_plan_is_not_run(made):
    folder, _ = made
    (folder / "plan.toml").write_text(PLAN.replace("4.0", "40.0"))
    with pytest.raises(InputError, match="handed"):
        read_deployment(folder)


def test_without_a_superlink_run_and_status_say_so(made):
    folder, _ = made
    assert call("server", "run", folder).exit_code == 11
    ended = call("server", "status", folder, "--format", "json")
    assert ended.exit_code == 0
    assert json.loads(ended.stdout)["superlink"] is False


def test_resume_without_a_run_and_run_over_a_run_are_refused(made):
    folder, _ = made
    assert call("server", "resume", folder).exit_code == 2
    (folder / RUN).mkdir()
    (folder / RUN / "status.json").write_text('{"state": "failed", "exit_code": 8}')
    assert call("server", "run", folder).exit_code == 2


@pytest.fixture
def flower(monkeypatch):
    """Stand in for Flower: a submitted run writes ``says`` into status.json and is then in ``state``."""

    class Stand:
        says: object = None
        state = "running"
        submitted: tuple = ()

    stand = Stand()

    def submit(path, settings=None):
        stand.submitted = (*stand.submitted, settings)
        (path / RUN).mkdir(exist_ok=True)
        if stand.says is not None:
            (path / RUN / "status.json").write_text(json.dumps(stand.says))
        return "17"

    monkeypatch.setattr(processes, "reachable", lambda _: True)
    monkeypatch.setattr(processes, "submit", submit)
    monkeypatch.setattr(processes, "run_state", lambda *_: stand.state)
    monkeypatch.setattr(processes, "stop_run", lambda *_: None)
    monkeypatch.setattr(cli, "POLL_SECONDS", 0.001)
    return stand


@pytest.mark.parametrize("code", [0, 3, 5, 7, 8, 9])
def test_run_ends_with_the_app_s_own_exit_code(made, flower, code):
    folder, _ = made
    flower.says = {"state": "failed" if code else "finished", "exit_code": code, "code": "x", "message": "why"}
    ended = call("server", "run", folder, "--format", "json")
    assert ended.exit_code == code
    assert json.loads(ended.stdout)["flower_run"] == "17"


def test_what_flower_calls_completed_without_a_word_from_the_app_is_a_failure(made, flower):
    folder, _ = made
    flower.state = "finished:completed"
    assert call("server", "run", folder).exit_code == 12


def test_an_old_status_is_never_taken_for_a_new_run_s(made, flower):
    folder, _ = made
    (folder / RUN).mkdir()
    (folder / RUN / "status.json").write_text('{"state": "finished", "exit_code": 0}')
    flower.state = "finished:failed"
    assert call("server", "resume", folder).exit_code == 12


def test_a_run_that_does_not_end_is_waited_for_no_longer_than_asked(made, flower):
    folder, _ = made
    assert call("server", "run", folder, "--timeout", "1").exit_code == 12


def test_a_roster_is_whole_or_not_there(made, flower):
    folder, _ = made
    flower.says = {"state": "finished", "exit_code": 0}
    assert call("server", "run", folder).exit_code == 0
    assert call("server", "pin", folder, "--site", "A", "--key", "a" * 64).exit_code == 0
    refused = call("server", "resume", folder)
    assert refused.exit_code == 2
    assert "Häuser 2" in refused.output
    assert call("server", "pin", folder, "--site", "Häuser 2", "--key", "b" * 64).exit_code == 0
    assert call("server", "resume", folder).exit_code == 0
    assert len(flower.submitted) == 2


def test_a_secure_sum_needs_the_roster(plan, tmp_path, flower):
    plan.write_text(PLAN.replace("delta = 1e-5", 'delta = 1e-5\ntrust = "secure-sum"'))
    folder = tmp_path / "masked"
    made = call("server", "init", folder, "--plan", plan, "--host", "h", "--site", "A", "--site", "B")
    assert made.exit_code == 0, made.output
    assert call("server", "run", folder).exit_code == 2
    assert not flower.submitted


@pytest.mark.parametrize(("site", "key"), [("C", "a" * 64), ("A", "a" * 63), ("A", "G" * 64), ("A", "b" * 64)])
def test_what_cannot_be_pinned(made, site, key):
    folder, _ = made
    assert call("server", "pin", folder, "--site", "A", "--key", "a" * 64).exit_code == 0
    assert call("server", "pin", folder, "--site", site, "--key", key).exit_code == 2
    assert pinned_keys(folder) == {"A": "a" * 64}


def test_a_failing_flower_command_is_an_error_with_its_words(made, tmp_path, monkeypatch):
    folder, _ = made
    program = tmp_path / "flwr"
    program.write_text('#!/bin/sh\necho \'{"success": false, "error-message": "no such node"}\'; exit 1\n')
    program.chmod(0o755)
    monkeypatch.setattr(processes, "program", lambda _: str(program))
    with pytest.raises(ProcessError, match="no such node"):
        processes.nodes(folder)


@pytest.mark.parametrize("command", sorted(cli.commands()[0].commands))
def test_every_command_explains_itself_with_an_example(command):
    said = call("server", command, "--help")
    assert said.exit_code == 0
    assert f"Example: patevolve server {command} " in " ".join(said.output.split())
    assert "--format" in said.output
