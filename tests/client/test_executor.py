"""The site's executor against Flower's own Runtime API: permitted bundles are answered, others refused by a code."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import io
import os
import socket
import sys
import threading
import time
import zipfile

import pytest

from patevolve.client import executor
from patevolve.client.executor import REFUSED, Settings, check_flower, refusal, serve
from patevolve.shared.envelopes import MAX_REQUEST, decode_response
from patevolve.shared.errors import InputError, MessageError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
SECRET = b"s" * 32
PROJECT = """
[project]
name = "patevolve-run"
version = "1.0.0"
[tool.flwr.app]
publisher = "patevolve"
[tool.flwr.app.components]
serverapp = "patevolve.server.app:app"
clientapp = "patevolve.client.app:app"
[tool.flwr.app.config]
plan = ""
"""


def bundle(extra=()):
    """Return a bundle's bytes; ``extra`` are further files in it, such as a changed patevolve."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in (("pyproject.toml", PROJECT), *extra):
            archive.writestr(zipfile.ZipInfo(name, (2024, 1, 1, 0, 0, 0)), text)
    return buffer.getvalue()


EVIL = "import pathlib; pathlib.Path({marker!r}).write_text('ran')\n"


@pytest.fixture
def node(tmp_path, monkeypatch):  # noqa: PLR0915 - one SuperNode without its network, set up step by step
    """Return a function that hands a SuperNode one message under a bundle and returns the executor's reply."""
    pytest.importorskip("flwr")
    import uvicorn
    from flwr.app import ConfigRecord, Message, RecordDict
    from flwr.supercore.fab import Fab
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.supercore.run import Run
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.supernode import start_client_internal as internal
    from flwr.supernode.main import create_app
    from flwr.supernode.nodestate import NodeStateFactory

    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    factory = NodeStateFactory(ObjectStoreFactory())
    state = factory.state()
    state.set_node_id(7)
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    config = uvicorn.Config(create_app(factory, SECRET), host="127.0.0.1", port=port, log_level="warning", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

    def ask(content, app, *, bundles, secret=SECRET, run=11, wait=20.0, question=b"question", **limits):
        sha256 = hashlib.sha256(content).hexdigest()
        message = Message(RecordDict({"q": ConfigRecord({"data": question})}), 7, "query.ask")
        message.metadata.__dict__.update(_run_id=run, _src_node_id=1)
        message.metadata.__dict__["_message_id"] = message.object_id
        tree = get_object_tree(message)
        objects = {name: value.deflate() for name, value in get_all_nested_objects(message).items()}
        record = Run.create_empty(run)
        record.fab_id, record.fab_version, record.fab_hash = "patevolve/patevolve-run", "1.0.0", sha256
        record.series_id = run
        found = internal._pull_and_store_message(
            state=state,
            object_store=factory.objectstore_factory.store(),
            node_config={},
            receive=lambda: (message, tree),
            get_run=lambda _: record,
            get_fab=lambda *_: Fab(sha256, content, {}),
            pull_object=lambda _, name: objects[name],
            confirm_message_received=lambda *_: None,
            trusted_entities=None,
        )
        assert found == run
        stop = threading.Event()
        settings = Settings(
            runtime=f"127.0.0.1:{port}",
            secret=secret,
            bundles=frozenset(bundles),
            config={"home": "h", "data": "d"},
            **limits,
        )
        worker = threading.Thread(target=serve, args=(settings, app, stop), daemon=True)
        worker.start()
        end, replies = time.monotonic() + wait, []
        while not replies and time.monotonic() < end:
            replies = state.get_messages_legacy(run_ids=[run], is_reply=True)
            time.sleep(0.02)
        time.sleep(0.1)  # the task's status is pushed after its reply
        stop.set()
        worker.join(timeout=10)
        return replies[0] if replies else None

    yield ask
    server.should_exit = True
    thread.join(timeout=10)


def answering(seen):
    from flwr.app import ConfigRecord, Message, RecordDict

    def app(message, context):
        seen.append(
            (os.getpid(), threading.get_ident(), bytes(message.content["q"]["data"]), dict(context.node_config))
        )
        return Message(RecordDict({"a": ConfigRecord({"data": b"answer"})}), reply_to=message)

    return app


def test_a_permitted_bundle_is_answered_by_the_installed_app_in_this_very_process(node):
    seen, content = [], bundle()
    sha256 = hashlib.sha256(content).hexdigest()
    for run in (21, 22, 23):
        reply = node(content, answering(seen), bundles=[sha256], run=run)
        assert not reply.has_error()
    assert {entry[0] for entry in seen} == {os.getpid()}  # no process was started
    assert [entry[2:] for entry in seen] == [(b"question", {"home": "h", "data": "d"})] * 3


def test_a_bundle_with_a_changed_patevolve_is_refused_by_a_code_and_never_touched(node, tmp_path):
    from flwr.common.constant import ErrorCode

    marker, seen, good = tmp_path / "marker", [], bundle()
    evil = bundle(
        [
            (f"patevolve/{name}.py", EVIL.format(marker=str(marker)))
            for name in ("__init__", "client/__init__", "client/app")
        ]
    )
    before = list(sys.path)
    reply = node(evil, answering(seen), bundles=[hashlib.sha256(good).hexdigest()])
    assert (reply.error.code, reply.error.reason) == (ErrorCode.INVALID_FAB, REFUSED)
    assert not seen
    assert not marker.exists()
    assert sys.path == before
    assert not list(tmp_path.rglob("*.py"))  # nothing was unpacked below FLWR_HOME


def test_an_exception_leaves_as_a_code_without_its_text(node):
    content = bundle()

    def failing(message, context):
        raise ValueError("/home/hospital/patients.csv: patient 4711")

    reply = node(content, failing, bundles=[hashlib.sha256(content).hexdigest()])
    assert reply.error.reason == executor.FAILED
    assert "4711" not in str(reply.error)


def test_a_message_longer_than_the_policy_says_is_refused_before_the_app_sees_it(node, monkeypatch):
    seen, content, told = [], bundle(), []
    unread = executor._unread
    monkeypatch.setattr(executor, "_unread", lambda message: told.append(unread(message)) or told[-1])
    sha256 = hashlib.sha256(content).hexdigest()
    long = bytes(executor.SLACK + 5000)
    assert not node(content, answering(seen), bundles=[sha256], question=long, most=lambda: 4096).has_error()
    assert not seen
    assert decode_response(told[0].content["patevolve"]["data"], "ask").codes == ("message",)
    assert not node(content, answering(seen), bundles=[sha256], question=long, run=12).has_error()
    assert len(seen) == 1


def test_a_fault_before_the_push_is_told_by_a_code(node, monkeypatch):
    seen, content = [], bundle()

    def broken(*_):
        raise RuntimeError("/home/hospital: no space left")

    monkeypatch.setattr(executor, "_content", broken)
    reply = node(content, answering(seen), bundles=[hashlib.sha256(content).hexdigest()])
    assert reply.error.reason == executor.FAILED
    assert not seen


def test_the_bytes_of_a_message_are_counted_over_all_its_objects():
    objects = {"a": bytes(60), "b": bytes(40), "c": bytes(1)}
    pull = executor.bounded(objects.__getitem__, 100)
    assert [len(pull("a")), len(pull("b"))] == [60, 40]
    with pytest.raises(MessageError, match="more than 100 bytes"):
        pull("c")


def test_the_node_fetches_no_more_than_any_policy_permits():
    fetched = []
    objects = {str(number): bytes(1 << 20) for number in range(40)}

    def pull(names, one, **_):
        fetched.extend(len(one(name)) for name in names)

    with pytest.raises(MessageError, match="more than"):
        executor._pull_few(pull, list(objects), objects.__getitem__)
    assert sum(fetched) <= MAX_REQUEST + executor.SLACK
    with pytest.raises(MessageError, match="65 parts"):
        executor._pull_few(pull, ["0"] * 65, objects.__getitem__)


@pytest.fixture
def answers():
    """A server whose answers have the headers that the path names, and no body worth reading."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.server.seen.append(self.headers.get("accept-encoding"))
            self.send_response(200)
            for header in filter(None, self.path[1:].split(";")):
                self.send_header(*header.split("="))
            self.end_headers()

        def log_message(self, *_):
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.seen = []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(timeout=10)


@pytest.mark.parametrize(
    ("headers", "fits"),
    [
        ("content-length=0", True),
        (f"content-length={executor.MOST_ANSWER + 1}", False),
        ("content-length=0;content-encoding=gzip", False),
        ("", False),
    ],
)
def test_an_answer_that_is_long_or_packed_is_closed_before_it_is_read(answers, headers, fits):
    pytest.importorskip("flwr")
    from flwr.supercore.protobuf.client import ProtobufClient

    client = ProtobufClient(f"http://127.0.0.1:{answers.server_address[1]}", verify=False)
    executor.bound_answers(client)
    with contextlib.closing(client), contextlib.nullcontext() if fits else pytest.raises(MessageError):
        client._client.post(f"{client._base_url}/{headers}")
    assert answers.seen == ["identity"]


def test_the_policy_is_looked_up_for_each_message(tmp_path):
    assert executor.permitted_bytes(tmp_path) == MAX_REQUEST
    text = 'site = "s"\nplans = []\nmaximum_message = 5000\n[budget]\nepsilon = 1.0\ndelta = 1e-5\n'
    (tmp_path / "policy.toml").write_text(text, encoding="utf-8")
    assert executor.permitted_bytes(tmp_path) == 5000


def test_an_executor_without_the_secret_gets_no_task(node):
    seen, content = [], bundle()
    sha256 = hashlib.sha256(content).hexdigest()
    with contextlib.suppress(Exception):
        assert node(content, answering(seen), bundles=[sha256], secret=b"other" * 8, wait=2.0) is None
    assert not seen


@pytest.mark.parametrize("content", [b"", b"x"])
def test_refusal_hashes_the_bytes_itself(content):
    sha256 = hashlib.sha256(content).hexdigest()
    assert refusal(content, sha256, frozenset({sha256})) is None
    assert refusal(content + b"!", sha256, frozenset({sha256})) == REFUSED
    assert refusal(content, "0" * 64, frozenset({sha256})) == REFUSED
    assert refusal(content, sha256, frozenset()) == REFUSED


@pytest.mark.parametrize("found", ["1.41.0", "1.43.0", "2.42.0", "1.420.0", "1"])
def test_another_flower_is_refused(found, monkeypatch):
    monkeypatch.setattr(executor.importlib.metadata, "version", lambda _: found)
    with pytest.raises(InputError, match=r"1\.42"):
        check_flower()
