"""The two Flower apps and the post over Flower's grid, with Flower's own messages and no Flower process."""

from __future__ import annotations

import ast
import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.app import Context as FlowerContext
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from patevolve.client import app as site_app
from patevolve.server import report as server_report
from patevolve.server.app import settings_of
from patevolve.server.flower_institutions import GridPost
from patevolve.server.post import Letter
from patevolve.server.run import coordinate
from patevolve.shared.described import Context
from patevolve.shared.envelopes import Request, decode_response, encode_request
from patevolve.shared.errors import ParameterError
from patevolve.shared.randomness import RECORDED_NOISE_VARIABLE


@pytest.fixture(autouse=True)
def identity():
    """Outside Flower nobody has told the process which task it is."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    yield
    site_app.open_station.cache_clear()
    journal = logging.getLogger("patevolve")
    for handler in [one for one in journal.handlers if isinstance(one, logging.FileHandler)]:
        handler.close()
        journal.removeHandler(handler)


class LocalGrid(Grid):
    """Flower's grid without Flower: nodes are node configurations; each message runs the installed ClientApp."""

    def __init__(self, nodes):
        self.configs, self.replies, self.count = nodes, {}, 0
        self.pool, self.lock = ThreadPoolExecutor(4), threading.Lock()

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *args, **named):
        raise NotImplementedError

    def send_and_receive(self, *args, **named):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.configs)

    def push_messages(self, messages):
        ids = []
        for message in messages:
            self.count += 1
            ids.append(f"m{self.count}")
            message.metadata.__dict__["_message_id"] = ids[-1]
            self.pool.submit(self.carry, ids[-1], message)
        return ids

    def carry(self, one, message):
        config = self.configs[message.metadata.dst_node_id]
        context = FlowerContext(run_id=1, node_id=1, node_config=config, state=RecordDict(), run_config={})
        try:
            reply = site_app.app(message, context)
        except Exception as reason:  # noqa: BLE001 - as Flower does it, text and all
            reply = Message(Error(code=2, reason=str(reason)), reply_to=message)
        with self.lock:
            self.replies[one] = reply

    def pull_messages(self, message_ids):
        with self.lock:
            return [self.replies.pop(one) for one in list(message_ids) if one in self.replies]


@pytest.fixture
def grid(town, recorded):
    made = []

    def make(agreed):
        nodes = {}
        for position, site in enumerate(town.sites):
            home = town.home(agreed, site)
            nodes[200 + position] = {"home": str(home), "data": str(town.data(site)), "unsafe-recorded-noise": "1"}
        if agreed.plan.privacy.trust == "secure-sum":
            town.roster(agreed)
        made.append(LocalGrid(nodes))
        return made[-1]

    yield make
    for one in made:
        one.pool.shutdown()


@pytest.mark.parametrize("trust", ["each-site", "secure-sum"])
def test_a_run_over_flowers_messages_gives_the_simulated_bytes(trust, town, recorded, grid, monkeypatch):
    agreed = town.agreed({"privacy.trust": trust})
    town.simulate(agreed, "simulated", noise=recorded)
    post = GridPost(grid=grid(agreed))
    finished = coordinate(agreed, post, town.settings("deployed"))
    assert town.tree("deployed", "release") == town.tree("simulated", "release")
    monkeypatch.setattr(server_report, "rendered", lambda report: f"<html>{report['name']}</html>")  # charts take time
    monkeypatch.setattr(server_report, "beside", lambda _: None)
    words = {"mode": "deployed", "seeds": [1], "utility": (), "generations": [], "reproduce": [], "wall_seconds": 1.0}
    report = server_report.write_report(agreed, finished, Context(**words))
    assert [text.split()[0] for text in report["unsafe"]] == list(town.sites)
    assert {site["site"] for site in report["sites"]} == set(town.sites)
    assert all(site["units"] is None and site["cap"] is None and site["charges"] == 3 for site in report["sites"])
    actions = {row["request"] for row in report["traffic"]}
    assert actions == {"hello", "ask"} | ({"setup", "unmask"} if trust == "secure-sum" else set())
    assert all(row["bytes_up"] > 0 and row["bytes_down"] > 0 for row in report["traffic"])


def sent(grid, action, data, node=200):
    record = RecordDict({"patevolve": ConfigRecord({"data": data})})
    message = Message(content=record, dst_node_id=node, message_type=f"query.{action}", ttl=60.0)
    context = FlowerContext(run_id=1, node_id=1, node_config=grid.configs[node], state=RecordDict(), run_config={})
    return site_app.app(message, context).content["patevolve"]["data"]


def test_errors_leave_as_codes_and_their_words_stay_in_the_sites_log(town, grid):
    agreed = town.agreed()
    found = grid(agreed)
    Path(found.configs[200]["data"]).unlink()
    reply = sent(found, "hello", encode_request(Request(action="hello", plan=agreed.sha256, run="r")))
    assert decode_response(reply, "hello").codes == ("policy",)  # what is wrong with the data is the site's alone
    assert b"Ada.csv" not in reply
    assert "Ada.csv" in (town.place / "homes" / "Ada" / "site.log").read_text(encoding="utf-8")


def test_a_site_without_configuration_says_nothing_but_a_code(town, grid):
    found = grid(town.agreed())
    found.configs[200] = {}
    assert decode_response(sent(found, "hello", b""), "hello").codes == ("error",)


def test_recorded_noise_is_refused_before_any_charge_unless_the_environment_agrees(town, monkeypatch):
    monkeypatch.delenv(RECORDED_NOISE_VARIABLE, raising=False)
    agreed = town.agreed()
    site = town.sites[0]
    with pytest.raises(ParameterError, match="outside a test"):
        site_app.open_station(str(town.home(agreed, site)), str(town.data(site)), "yes")
    assert not town.charges(site)


@pytest.mark.parametrize("data", [b"", b"PVM1", "text", 5])
@pytest.mark.parametrize("action", ["hello", "setup", "ask", "unmask", "evolve"])
def test_a_message_of_another_kind_is_refused_by_code(action, data, town, grid):
    assert decode_response(sent(grid(town.agreed()), action, data), action).codes == ("message",)


def test_flowers_own_errors_are_no_reply(town, grid):
    found = grid(town.agreed())
    post = GridPost(grid=found)
    (one,) = post.push([Letter(node=200, action="nonsense", data=b"x")], 60.0)  # Flower raises before any app of ours
    found.pool.shutdown(wait=True)
    assert post.pull([one]) == {one: None}


@pytest.mark.parametrize("side", ["client", "server"])
def test_the_app_is_plain_as_flowers_check_of_the_syntax_tree_wants_it(side):
    path = Path(__file__).parents[2] / side / "app.py"
    plain = [
        node.value.func.id
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "app" and isinstance(node.value, ast.Call)
    ]
    assert plain == [f"{side.capitalize()}App"]


def test_the_run_configuration_finds_roster_and_key_beside_the_plan(tmp_path):
    config = {"plan": str(tmp_path / "plan.toml"), "out": str(tmp_path / "run"), "hello-deadline": 1.0}
    config |= {"deadline": 2.0, "patience": 3.0, "run": "", "roster": ""}
    bare = settings_of(config)
    assert (bare.known, bare.key, bare.run, bare.timing.deadline) == ({}, None, None, 2.0)
    (tmp_path / "roster.json").write_text(json.dumps({"sites": {"Ada": "a" * 64}}), encoding="utf-8")
    (tmp_path / "coordinator.key").write_text("", encoding="utf-8")
    found = settings_of(config)
    assert (found.known, found.key) == ({"Ada": "a" * 64}, tmp_path / "coordinator.key")
