"""The site's own executor: one long-lived process that answers Flower's messages with the installed patevolve.

Flower's stock executor installs the bundle that the coordinator sent and puts it first on the import path, so that a
coordinator could run anything at a site. This one claims tasks from the SuperNode (``--isolation process``), compares
the SHA-256 of the bundle's bytes with the site's allow-list, and hands the message to the installed ClientApp. The
bundle is never unpacked, installed or imported. Since no process starts per message, an answer takes less time too.

All use of Flower's internals by the site stands in this file; it refuses to start beside another Flower than 1.42.

Run as ``python -m patevolve.client.executor tasks|node ...`` by ``patevolve client start``.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import importlib.metadata
import logging
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patevolve.shared.envelopes import ACTIONS, MAX_REQUEST
from patevolve.shared.envelopes import refusal as refused_request
from patevolve.shared.errors import InputError, MessageError, PolicyError

log = logging.getLogger(__name__)

FLOWER = (1, 42)
REFUSED = "bundle-not-allowed"  # the code that leaves the site, and nothing beside it
FAILED = "app-failed"
MOST_OBJECTS = 64  # a message of ours has four: itself, its records, one record, and that record's bytes
SLACK = 64 << 10  # bytes that Flower's own fields may take beside a request
MOST_ANSWER = 24 << 20  # bytes of one HTTP answer: a bundle has at most 10 MiB, a request at most 16
UNSAFE_NOISE = "unsafe-recorded-noise"  # as client/app.py reads it; useless without opting in by environment
POLL_SECONDS = 0.05  # between two looks for a task at the SuperNode on this machine
NODE_POLL_SECONDS = 0.5  # between two looks for a message at the coordinator; Flower's own is 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the executor serves.

    runtime:  host:port of the SuperNode's Runtime API, on this machine
    secret:   what only this executor and its SuperNode know
    bundles:  SHA-256 of the bundles whose messages are answered; anything else is refused by a code
    config:   what the app reads as its node's configuration; it never leaves the site
    most:     bytes of the longest request, looked up for each: the policy's
    """

    runtime: str
    secret: bytes = field(repr=False)
    bundles: frozenset[str]
    config: Mapping[str, str]
    most: Callable[[], int] = lambda: MAX_REQUEST


def check_flower() -> str:
    """Return the installed Flower's version. Raises InputError unless it is the one whose internals are used here."""
    wanted = ".".join(map(str, FLOWER))
    try:
        found = importlib.metadata.version("flwr")
    except importlib.metadata.PackageNotFoundError as reason:
        raise InputError("Flower is not installed; install it with: pip install 'patevolve[federation]'") from reason
    if tuple(found.split(".")[:2]) != tuple(map(str, FLOWER)):
        raise InputError(
            f"Flower {found} found; expected {wanted}.x, the version this release was tested with. Install it with: "
            f"pip install 'patevolve[federation]'"
        )
    return found


def refusal(content: bytes, declared: str, bundles: frozenset[str]) -> str | None:
    """Return the code of a refusal, or None if these bytes are a permitted bundle.

    The bytes are hashed here: the hash that came with them is the sender's claim, and a wrong claim is refused as well.
    """
    computed = hashlib.sha256(content).hexdigest()
    return None if computed in bundles and computed == declared else REFUSED


App = Callable[[Any, Any], Any]  # (message, context) -> reply, as Flower's ClientApp


def serve(settings: Settings, app: App, stop: threading.Event) -> None:
    """Answer the SuperNode's tasks with ``app`` until told to stop; a SuperNode that is away is waited for."""
    import httpx  # noqa: PLC0415 - comes with Flower
    from flwr.proto.runtime_pb2 import AcquireTaskRequest  # noqa: PLC0415 - Flower is an extra
    from flwr.supercore.constant import TaskType  # noqa: PLC0415
    from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor  # noqa: PLC0415

    guard = SuperExecAuthHttpInterceptor(
        master_secret=settings.secret, protected_methods=frozenset({"/flwr.proto.Runtime/AcquireTask"})
    )
    client = _client(settings.runtime, "SuperExec", guard)
    request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    try:
        while not stop.is_set():
            try:
                offered = client.AcquireTask(request)
            except (httpx.TransportError, httpx.HTTPStatusError) as reason:
                log.warning("the SuperNode at %s gives no task (%s); trying again", settings.runtime, reason)
                stop.wait(1.0)
                continue
            if offered.HasField("task") and offered.token:
                _perform(settings, app, offered.token)
            else:
                stop.wait(POLL_SECONDS)
    finally:
        client.close()


def _client(address: str, component: str, guard: Any) -> Any:
    """Return a client of the Runtime API that tries a broken connection again, and nothing else.

    Flower's own invoker interrupts its process when a task's token is no longer valid; this process outlives its tasks.
    """
    import httpx  # noqa: PLC0415 - comes with Flower
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor  # noqa: PLC0415
    from flwr.supercore.retry import RetryInvoker, exponential  # noqa: PLC0415
    from flwr.supercore.runtime import RuntimeHttpClient  # noqa: PLC0415

    client = RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,  # loopback within this machine; the SuperNode binds 127.0.0.1
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name=component), guard],
        retry_invoker=RetryInvoker(lambda: exponential(max_delay=1), httpx.TransportError, max_tries=3, max_time=None),
    )
    bound_answers(client)
    return client


def bound_answers(client: Any) -> None:
    """Let a client of Flower's ask for plain answers, and close one that is packed or announces too many bytes.

    It is looked at before the body is read: neither a long answer nor a small one that unpacks to a long one gets in.
    """

    def look(response: Any) -> None:
        size = response.headers.get("content-length")
        if "content-encoding" in response.headers or size is None or not 0 <= int(size) <= MOST_ANSWER:
            raise MessageError(
                f"an answer of {size or 'unsaid'} bytes found; expected at most {MOST_ANSWER}, not packed."
            )

    http = client._client  # noqa: SLF001 - Flower has no other way to it; check_flower pins the version
    http.headers["accept-encoding"] = "identity"
    http.event_hooks = {"request": [], "response": [look]}


def _perform(settings: Settings, app: App, token: str) -> None:
    """Answer one task: every way out pushes a reply, for the SuperNode waits for one before it asks for more."""
    from flwr.common.constant import SubStatus  # noqa: PLC0415
    from flwr.supercore.heartbeat import HeartbeatSender  # noqa: PLC0415
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor  # noqa: PLC0415
    from flwr.supernode.runtime.run_clientapp import push_message, push_task_output  # noqa: PLC0415

    began = time.monotonic()
    client = _client(settings.runtime, "flwr-clientapp", RuntimeTokenHttpInterceptor(token))
    beat = HeartbeatSender(_heartbeat(client))
    status, details, task = SubStatus.FAILED, FAILED, None
    try:
        beat.start()
        task = _claimed(client)
        reply, details = _reply(settings, app, client, task)
        push_message(client, reply, task.context)
        status = SubStatus.FAILED if details else SubStatus.COMPLETED
        log.info("answered %s in %.2f s", task.bare.metadata.message_type, time.monotonic() - began)
    except Exception:
        log.exception("a message could not be answered")
        if task is not None:  # whoever asked is told so, or it would wait until its deadline
            with contextlib.suppress(Exception):
                push_message(client, _failed(task.bare), task.context)
    finally:
        push_task_output(client, None if task is None else task.context, status, details)
        if beat.is_running:
            beat.stop()
        client.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """A claimed task; ``bare``: its message without content, ``tree``: the objects that make up the content."""

    context: Any
    bundle: Any
    bare: Any
    tree: Any


def _claimed(client: Any) -> _Task:
    """Return a claimed task before its message's content is fetched, as Flower's pull_task_input begins."""
    from flwr.common.serde import context_from_proto, fab_from_proto, message_from_proto  # noqa: PLC0415
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullTaskInputRequest  # noqa: PLC0415
    from flwr.supercore.task_identity import TaskIdentity  # noqa: PLC0415

    found = client.PullTaskInput(PullTaskInputRequest())
    context = context_from_proto(found.context)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = found.task_id, context.run_id, context.node_id
    pulled = client.PullMessages(PullAppMessagesRequest())
    (tree,), (bare,) = pulled.message_object_trees, map(message_from_proto, pulled.messages_list)
    bare.metadata.__dict__["_message_id"] = tree.object_id  # the object that travels does not hold its own id
    return _Task(context=context, bundle=fab_from_proto(found.fab), bare=bare, tree=tree)


def _reply(settings: Settings, app: App, client: Any, task: _Task) -> tuple[Any, str]:
    """Return the reply to a task, and the code of its refusal or empty text."""
    task.context.node_config = dict(settings.config)
    code = refusal(task.bundle.content, task.bundle.hash_str, settings.bundles)
    if code is not None:
        log.error(
            "a message under bundle %s was refused: it is not among the %d that this site permits (join.toml). "
            "Ask the coordinator for the bundle's hash, check it, and add it to permit it.",
            hashlib.sha256(task.bundle.content).hexdigest(),
            len(settings.bundles),
        )
        return _refused(task.bare, code), code
    try:
        message = _content(client, task, settings.most() + SLACK)
    except MessageError as reason:
        log.error("%s was refused: %s", task.bare.metadata.message_type, reason)  # noqa: TRY400 - said in words
        return _unread(task.bare), MessageError.code
    return _called(app, message, task.context), ""


def _content(client: Any, task: _Task, most: int) -> Any:
    """Return the task's whole message, fetched with a shorter patience than Flower's.

    A task can be claimed before its message has arrived whole; Flower then waits a second, which is most of an answer.
    Raises MessageError for one of more than ``most`` bytes, before it is put together.
    """
    from flwr.app import Message  # noqa: PLC0415
    from flwr.proto.node_pb2 import Node  # noqa: PLC0415
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree  # noqa: PLC0415
    from flwr.supercore.inflatable.inflatable_protobuf_utils import (  # noqa: PLC0415
        make_confirm_message_received_fn_protobuf,
        make_pull_object_fn_protobuf,
    )
    from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree  # noqa: PLC0415

    if sum(1 for _ in iterate_object_tree(task.tree)) > MOST_OBJECTS:
        raise MessageError(f"a message of more than {MOST_OBJECTS} parts found; expected a request of patevolve.")
    node = Node(node_id=task.context.node_id)
    message = pull_and_inflate_object_from_tree(
        task.tree,
        bounded(make_pull_object_fn_protobuf(client.PullObject, node, task.context.run_id), most),
        make_confirm_message_received_fn_protobuf(client.ConfirmMessageReceived, node, task.context.run_id),
        return_type=Message,
        initial_backoff=POLL_SECONDS,
        backoff_cap=1.0,
    )
    message.metadata.__dict__["_message_id"] = task.tree.object_id
    return message


def bounded(pull: Callable[[str], bytes], most: int) -> Callable[[str], bytes]:
    """Return a function that pulls one object after the other, and raises MessageError beyond ``most`` bytes."""
    sizes: list[int] = []  # appended to by several threads

    def pulled(object_id: str) -> bytes:
        content = pull(object_id)
        sizes.append(len(content))
        if sum(sizes) > most:
            raise MessageError(f"a message of more than {most} bytes found; the site reads no more.")
        return content

    return pulled


def permitted_bytes(home: Path) -> int:
    """Return the policy's bound on a request; without a policy the app refuses, whatever the length."""
    from patevolve.client.policy import FILE, read_policy  # noqa: PLC0415 - the executor's other half needs no NumPy

    try:
        return read_policy(home / FILE).maximum_message
    except PolicyError:
        return MAX_REQUEST


def _called(app: App, message: Any, context: Any) -> Any:
    """Return the app's reply, or a fixed code if it raised: Flower would forward the exception's text."""
    try:
        return app(message, context)
    except Exception:
        log.exception("the app failed on %s", message.metadata.message_type)
        return _failed(message)


def _failed(message: Any) -> Any:
    from flwr.app import Message  # noqa: PLC0415
    from flwr.app.error import Error  # noqa: PLC0415
    from flwr.common.constant import ErrorCode  # noqa: PLC0415

    return Message(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=FAILED), reply_to=message)


def _unread(message: Any) -> Any:
    """Return the reply to a request that is too long, as the app would refuse it."""
    from flwr.app import ConfigRecord, Message, RecordDict  # noqa: PLC0415

    from patevolve.client.app import FIELD, RECORD  # noqa: PLC0415 - imports Flower

    asked = message.metadata.message_type.rpartition(".")[2]
    action = next((one for one in ACTIONS if one == asked), ACTIONS[0])
    data = refused_request(action, "", MessageError.code)
    return Message(RecordDict({RECORD: ConfigRecord({FIELD: data})}), reply_to=message)


def _refused(message: Any, code: str) -> Any:
    from flwr.app import Message  # noqa: PLC0415
    from flwr.app.error import Error  # noqa: PLC0415
    from flwr.common.constant import ErrorCode  # noqa: PLC0415

    return Message(Error(code=ErrorCode.INVALID_FAB, reason=code), reply_to=message)


def _heartbeat(client: Any) -> Callable[[], bool]:
    """Return a heartbeat that reports failure. Flower's own ends the process with its task; this process lives on."""
    import httpx  # noqa: PLC0415
    from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest  # noqa: PLC0415

    def beat() -> bool:
        try:
            client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        except (httpx.HTTPError, RuntimeError):  # RuntimeError: the client was closed meanwhile
            return False
        return True

    return beat


def run_node(arguments: Sequence[str], poll: float = NODE_POLL_SECONDS) -> None:
    """Run Flower's SuperNode in this process, looking for messages every ``poll`` seconds instead of every 3."""
    from flwr.supernode import start_client_internal  # noqa: PLC0415
    from flwr.supernode.cli.flower_supernode import flower_supernode  # noqa: PLC0415

    module: Any = start_client_internal  # an AttributeError below means another Flower: check_flower guards it
    sleep = module.time.sleep
    module.time = types.SimpleNamespace(sleep=lambda seconds: sleep(min(seconds, poll if seconds >= 1 else poll / 5)))
    module.pull_objects = functools.partial(_pull_few, module.pull_objects)
    _bound_every_client()
    sys.argv = ["flower-supernode", *arguments]
    flower_supernode()


def _pull_few(pull: Any, object_ids: list[str], pull_object_fn: Callable[[str], bytes]) -> Any:
    """Fetch a message's objects for the node, no more than any site's policy could permit."""
    if len(object_ids) > MOST_OBJECTS:
        raise MessageError(f"a message of {len(object_ids)} parts found; expected at most {MOST_OBJECTS}.")
    few = bounded(pull_object_fn, MAX_REQUEST + SLACK)
    return pull(object_ids, few, initial_backoff=POLL_SECONDS, backoff_cap=1.0)


def _bound_every_client() -> None:
    from flwr.supercore.protobuf.client import ProtobufClient  # noqa: PLC0415

    begin: Any = ProtobufClient.__init__

    @functools.wraps(begin)
    def begun(self: Any, *args: Any, **named: Any) -> None:
        begin(self, *args, **named)
        bound_answers(self)

    vars_of: Any = ProtobufClient
    vars_of.__init__ = begun


def installed_app() -> App:
    """Return the installed patevolve's ClientApp: what a site runs is what it installed."""
    from patevolve.client.app import app  # noqa: PLC0415 - imports Flower

    return app


def _watch_parent(parent: int, stop: threading.Event) -> None:
    def watch() -> None:
        while not stop.is_set():
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGTERM)
                return
            stop.wait(1.0)

    threading.Thread(target=watch, daemon=True, name="parent watch").start()


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve a SuperNode's tasks, or run the SuperNode itself, until the parent process ends."""
    from patevolve.client.joined import read_joined  # noqa: PLC0415 - after the arguments

    parser = argparse.ArgumentParser(prog="python -m patevolve.client.executor")
    parser.add_argument("--parent", type=int, required=True, help="Process after whose end this one ends.")
    kinds = parser.add_subparsers(dest="kind", required=True)
    tasks = kinds.add_parser("tasks")
    tasks.add_argument("--home", type=Path, required=True)
    tasks.add_argument("--runtime", required=True)
    tasks.add_argument("--secret", type=Path, required=True)
    tasks.add_argument("--unsafe-recorded-noise", action="store_true", help="For tests that compare bytes.")
    node = kinds.add_parser("node")
    node.add_argument("arguments", nargs=argparse.REMAINDER)
    chosen = parser.parse_args(arguments)
    check_flower()
    stop = threading.Event()
    _watch_parent(chosen.parent, stop)
    if chosen.kind == "node":  # Flower writes its own log
        run_node(chosen.arguments[1:] if chosen.arguments[:1] == ["--"] else chosen.arguments)
        return
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    joined = read_joined(chosen.home)
    unsafe = {UNSAFE_NOISE: "yes"} if chosen.unsafe_recorded_noise else {}
    serve(
        Settings(
            runtime=chosen.runtime,
            secret=chosen.secret.read_bytes(),
            bundles=frozenset(joined.bundles),
            config={"home": str(chosen.home), "data": joined.data, **unsafe},
            most=functools.partial(permitted_bytes, chosen.home),
        ),
        installed_app(),
        stop,
    )


if __name__ == "__main__":
    main()
