"""Joining from a hand-over folder, keeping the peers' keys, and what start and status do at a site."""

from __future__ import annotations

import json
import stat
import threading
import time

import pytest
from click.testing import CliRunner

from patevolve.client import joining
from patevolve.client.cli import client, commands
from patevolve.client.joined import read_joined, split_address
from patevolve.shared.errors import InputError, LedgerError
from patevolve.shared.plan import agree

handover = pytest.importorskip("patevolve.server.handover")
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


@pytest.fixture
def folder(tmp_path):
    made = handover.initialise(
        tmp_path / "c", agree(PLAN), hosts=["c.example.org"], sites=["A", "B"], bind=("127.0.0.1", 8443), port=443
    )
    (tmp_path / "data.csv").write_text("y,id,size\na,1,1\nb,2,2\n")
    return tmp_path / "c" / "sites" / made.folders[0]


def call(*arguments):
    commands()
    return CliRunner().invoke(client, [str(argument) for argument in arguments])


@pytest.fixture
def joined(folder, tmp_path):
    home = tmp_path / "site"
    ended = call("join", folder, "--home", home, "--data", tmp_path / "data.csv", "--format", "json")
    assert ended.exit_code == 0, ended.output
    return home


def test_joining_copies_what_is_needed_and_permits_nothing(joined, tmp_path):
    assert read_joined(joined).data == str(tmp_path / "data.csv")
    assert stat.S_IMODE((joined / "node.key").stat().st_mode) == 0o600
    assert {path.name for path in joined.iterdir()} == {"ca.crt", "join.toml", "node.key", "plan.toml", "plans"}
    refused = call("start", "--home", joined)
    assert refused.exit_code != 0
    assert "no site policy" in str(refused.exception)


def test_joining_again_is_harmless_and_keeps_the_policy(joined, folder, tmp_path):
    (joined / "policy.toml").write_text("mine")
    assert call("join", folder, "--home", joined, "--data", tmp_path / "data.csv").exit_code == 0
    assert (joined / "policy.toml").read_text() == "mine"


@pytest.mark.parametrize("change", ["plan", "authority", "key", "data", "join", "other site"])
def test_a_damaged_folder_is_refused_and_nothing_is_written(folder, tmp_path, change):
    data, home = tmp_path / "data.csv", tmp_path / "site"
    if change == "plan":
        (folder / "plan.toml").write_text(PLAN.replace("4.0", "40.0"))
    elif change == "authority":
        (folder / "ca.crt").write_text("no certificate")
    elif change == "key":
        (folder / "node.key").unlink()
    elif change == "data":
        data.unlink()
    elif change == "join":
        (folder / "join.toml").write_text('site = "A"\n')
    else:
        joining.take_over(folder, home, data)
        folder = folder.parent / "02-b"
    before = sorted(path.name for path in home.iterdir()) if home.exists() else []
    with pytest.raises(InputError):
        joining.take_over(folder, home, data)
    assert (sorted(path.name for path in home.iterdir()) if home.exists() else []) == before


def test_peers_are_kept_only_with_this_site_s_own_key_among_them(joined, tmp_path):
    plan = joined / "plan.toml"
    assert call("approve", plan, "--home", joined, "--site", "A", "--yes").exit_code == 0
    own = json.loads(call("key", "--home", joined, "--format", "json").stdout)["public_key"]
    roster = tmp_path / "roster.json"
    for sites in (
        {"A": own},
        {"A": "0" * 64, "B": "1" * 64},
        {"B": own, "C": "1" * 64},
        {"A": own, "B": "1", "C": "2"},
    ):
        roster.write_text(json.dumps({"sites": sites}))
        ended = call("peers", roster, "--home", joined, "--yes")
        assert isinstance(ended.exception, InputError)
        assert not (joined / joining.ROSTER).exists()
    roster.write_text(json.dumps({"sites": {"A": own, "B": "1" * 64}}))
    assert CliRunner().invoke(client, ["peers", str(roster), "--home", str(joined)], input="n\n").exit_code != 0
    assert not (joined / joining.ROSTER).exists()
    assert call("peers", roster, "--home", joined, "--yes").exit_code == 0
    assert json.loads((joined / joining.ROSTER).read_text())["sites"] == {"A": own, "B": "1" * 64}


def test_status_says_what_is_permitted_and_spent(joined):
    said = json.loads(call("status", "--home", joined, "--format", "json").stdout)
    assert (said["served"], said["plan_permitted"]) == (False, False)
    assert call("approve", joined / "plan.toml", "--home", joined, "--site", "A", "--yes").exit_code == 0
    said = json.loads(call("status", "--home", joined, "--format", "json").stdout)
    assert (said["plan_permitted"], said["spent"], said["charges"]) == (True, 0.0, 0)


def test_one_folder_is_served_once(joined):
    with joining.alone(joined):
        assert joining.is_served(joined)
        with pytest.raises(LedgerError), joining.alone(joined):
            pass
    assert not joining.is_served(joined)


def test_whoever_looks_whether_a_folder_is_served_keeps_nobody_from_serving_it(joined):
    stop, looks = threading.Event(), []

    def look():
        while not stop.is_set():
            looks.append(joining.is_served(joined))
            time.sleep(0.001)

    watchers = [threading.Thread(target=look) for _ in range(2)]
    for watcher in watchers:
        watcher.start()
    try:
        for _ in range(20):
            with joining.alone(joined):
                time.sleep(0.002)
    finally:
        stop.set()
        for watcher in watchers:
            watcher.join()
    assert {True, False} == set(looks)


def test_a_look_leaves_no_trace(joined):
    assert not joining.is_served(joined)
    assert not (joined / joining.LOCK).exists()


def test_peers_are_held_against_the_approved_plans_and_not_the_last_one_that_was_handed_over(joined, tmp_path):
    assert call("approve", joined / "plan.toml", "--home", joined, "--site", "A", "--yes").exit_code == 0
    own = json.loads(call("key", "--home", joined, "--format", "json").stdout)["public_key"]
    text = (joined / "plan.toml").read_text(encoding="utf-8")
    (joined / "plan.toml").write_text(text.replace("count = 2", "count = 3"), encoding="utf-8")
    roster = tmp_path / "roster.json"
    roster.write_text(json.dumps({"sites": {"A": own, "B": "1" * 64, "C": "2" * 64}}))
    assert isinstance(call("peers", roster, "--home", joined, "--yes").exception, InputError)
    roster.write_text(json.dumps({"sites": {"A": own, "B": "1" * 64}}))
    assert call("peers", roster, "--home", joined, "--yes").exit_code == 0


def test_the_site_connects_to_one_address_and_listens_on_loopback_alone(joined):
    command = joining.node_command(joined, read_joined(joined), port=5000, tls=True)
    assert command[command.index("--superlink") + 1] == "c.example.org:443"
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[command.index("--isolation") + 1] == "process"
    assert "--insecure" not in command
    assert "--insecure" in joining.node_command(joined, read_joined(joined), port=5000, tls=False)
    environment = joining.environment(joined)
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
    assert environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"


@pytest.mark.parametrize("address", ["", "host", "host:", ":443", "host:0", "host:65536", "host:x"])
def test_what_is_no_address(address):
    with pytest.raises(InputError):
        split_address(address)


def test_addresses():
    assert split_address("c.example.org:443") == ("c.example.org", 443)
    assert split_address("[::1]:8443") == ("::1", 8443)
