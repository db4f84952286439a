"""The doctor tells one cause from another, with real sockets and TLS servers on loopback."""

from __future__ import annotations

import contextlib
import datetime as dt
import email.utils
import importlib.metadata
import json
import pathlib
import socket
import ssl
import threading

import pytest

from patevolve.client import doctor, doctor_network
from patevolve.client.doctor import CAUSES, Patient, examine
from patevolve.client.doctor_network import Ill, clock
from patevolve.client.joined import Joined, joined_text
from patevolve.client.policy import draft
from patevolve.shared.plan import agree

pki = pytest.importorskip("patevolve.server.pki")  # the coordinator's side makes the certificates, as in a deployment
ROOT = pathlib.Path(__file__).parents[2]
PLAN = """
format = 1
name = "tiny"
seed = 1
[privacy]
epsilon = 4.0
delta = 1e-5
[sites]
count = 1
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


@contextlib.contextmanager
def listening(handle):
    """Serve each connection on loopback with ``handle`` and give the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        stop = threading.Event()

        def accept():
            while not stop.is_set():
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with contextlib.suppress(OSError, ssl.SSLError), connection:
                    connection.settimeout(5)
                    handle(connection)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            stop.set()
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            server.close()
            thread.join(timeout=6)


def tls(folder, *, date=None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / pki.SERVER_CERTIFICATE, folder / pki.SERVER_KEY)

    def handle(connection):
        with context.wrap_socket(connection, server_side=True) as secured:
            secured.recv(4096)
            head = f"Date: {date}\r\n" if date else ""
            secured.sendall(f"HTTP/1.1 404 Not Found\r\n{head}Content-Length: 0\r\n\r\n".encode())

    return handle


def plaintext(connection):
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


def proxy_that_refuses(connection):
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")


def proxy(target):
    def handle(connection):
        connection.recv(4096)
        with socket.create_connection(("127.0.0.1", target), timeout=5) as onward:
            connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            threads = [
                threading.Thread(target=pump, args=pair, daemon=True)
                for pair in ((connection, onward), (onward, connection))
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(timeout=5)

    def pump(source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    return handle


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pki")
    pki.write_pki(folder, "test", ["127.0.0.1", "localhost"])
    return folder


@pytest.fixture
def site(tmp_path, keys):
    """Return a function that sets a healthy site up, with what the keywords change, and examines it."""
    agreed = agree(PLAN)
    home = tmp_path / "site"
    (home / "plans").mkdir(parents=True)
    data = tmp_path / "data.csv"
    data.write_text("y,id,size\n" + "".join(f"{'ab'[i % 2]},{i},{i % 3}\n" for i in range(30)))
    (home / "policy.toml").write_text(draft("s", agreed), encoding="utf-8")
    (home / "plans" / f"{agreed.sha256}.toml").write_text(agreed.text, encoding="utf-8")
    (home / "ca.crt").write_bytes((keys / "ca.crt").read_bytes())

    def look(port=1, *, host="127.0.0.1", environment=None, now=None, free=10**10, **changes):
        fields = {
            "format": 1,
            "site": "s",
            "address": f"{host}:{port}",
            "plan": agreed.sha256,
            "coordinator": "0" * 64,
            "bundles": (),
            "version": importlib.metadata.version("patevolve"),
            "data": str(data),
        }
        (home / "join.toml").write_text(joined_text(Joined(**(fields | changes))), encoding="utf-8")
        patient = Patient(
            home=home,
            environment=environment or {},
            now=now or (lambda: dt.datetime.now(dt.UTC)),
            free=lambda _: free,
        )
        return [finding.cause for finding in examine(patient) if finding.cause]

    look.home, look.data, look.agreed = home, data, agreed
    return look


@pytest.fixture(autouse=True)
def flower(monkeypatch):
    monkeypatch.setattr(doctor, "check_flower", lambda: "1.42.0")
    monkeypatch.setattr(doctor_network, "TIMEOUT_SECONDS", 3.0)


def now_text(shift=0.0):
    return email.utils.format_datetime(dt.datetime.now(dt.UTC) + dt.timedelta(seconds=shift), usegmt=True)


def test_a_healthy_site_has_no_finding(site, keys):
    with listening(tls(keys, date=now_text())) as port:
        assert site(port) == []
        assert site(port, host="localhost") == []


def test_a_name_that_nobody_knows(site):
    assert site(443, host="coordinator.invalid") == ["name"]


def test_a_port_where_nobody_listens(site):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert site(port) == ["port"]


def test_plaintext_where_tls_is_expected(site):
    with listening(plaintext) as port:
        assert site(port) == ["plaintext"]


def test_a_certificate_for_another_name(site, tmp_path):
    folder = _written(tmp_path / "other-name", ["coordinator.example.org"])
    (site.home / "ca.crt").write_bytes((folder / "ca.crt").read_bytes())
    with listening(tls(folder)) as port:
        assert site(port) == ["tls-name"]


def test_a_certificate_of_another_authority(site, tmp_path):
    with listening(tls(_written(tmp_path / "other", ["127.0.0.1"]))) as port:
        assert site(port) == ["tls-authority"]


def _written(folder, hosts):
    pki.write_pki(folder, "other", hosts)
    return folder


def test_a_proxy_that_refuses(site):
    with listening(proxy_that_refuses) as port:
        assert site(443, host="coordinator.invalid", environment={"HTTPS_PROXY": f"http://u:p@127.0.0.1:{port}"}) == [
            "proxy"
        ]


def test_a_proxy_that_is_away(site):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        away = free.getsockname()[1]
    assert site(443, host="coordinator.invalid", environment={"https_proxy": f"127.0.0.1:{away}"}) == ["proxy"]


def test_a_proxy_that_lets_through_is_used_and_its_bypass_heeded(site, keys):
    with listening(tls(keys, date=now_text())) as port, listening(proxy(port)) as between:
        assert site(port, environment={"HTTPS_PROXY": f"http://127.0.0.1:{between}"}) == []
        away = {"HTTPS_PROXY": "http://127.0.0.1:1", "NO_PROXY": "127.0.0.1,localhost"}
        assert site(port, environment=away) == []


@pytest.mark.parametrize("zone", ["GMT", "+0000", "-0000"])
def test_a_clock_is_compared_whatever_the_coordinator_calls_its_zone(zone):
    now = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    assert clock(f"Fri, 02 Jan 2026 03:04:04 {zone}", now) == "within 1 s of the coordinator's"
    with pytest.raises(Ill, match="3600 s ahead"):
        clock(f"Fri, 02 Jan 2026 02:04:05 {zone}", now)
    assert "not checked" in clock("yesterday", now)


@pytest.mark.parametrize("shift", [-3600.0, 3600.0])
def test_a_clock_that_is_wrong(site, keys, shift):
    with listening(tls(keys, date=now_text(shift))) as port:
        assert site(port) == ["clock"]


def test_a_certificate_that_is_not_valid_yet_is_a_clock_and_an_old_one_is_not(site, tmp_path, monkeypatch):
    for days, cause in ((400, "clock"), (-4000, "tls-expired")):
        folder = tmp_path / cause
        moved = dt.datetime.now(dt.UTC) + dt.timedelta(days=days)
        with monkeypatch.context() as patch:
            patch.setattr(pki, "_now", lambda moved=moved: moved)
            _written(folder, ["127.0.0.1"])
        (site.home / "ca.crt").write_bytes((folder / "ca.crt").read_bytes())
        with listening(tls(folder)) as port:
            assert site(port) == [cause]


def test_the_site_s_own_causes(site, keys, monkeypatch):
    with listening(tls(keys, date=now_text())) as port:
        assert site(port, version="9.9.9") == ["version"]
        assert site(port, plan="f" * 64) == ["policy-forbids"]
        assert site(port, site="t") == ["policy-forbids"]
        assert site(port, free=1 << 20) == ["disk-full"]
        assert site(port, data=str(site.home / "away.csv")) == ["data"]
        site.data.write_text("y,id,size\nc,1,1\n")
        assert site(port) == ["data"]


def test_a_missing_policy_and_one_that_cannot_be_read(site, keys):
    with listening(tls(keys, date=now_text())) as port:
        policy = site.home / "policy.toml"
        policy.write_text("site = ")
        assert site(port) == ["policy-unreadable"]
        policy.unlink()
        assert site(port) == ["policy-missing"]
        assert not (site.home / "ledger.sqlite").exists()  # nothing is made for a site without a policy


def test_a_folder_that_cannot_be_written_and_a_disk_that_is_full(site, keys, monkeypatch):
    import errno

    for number, cause in (
        (errno.EROFS, "disk-unwritable"),
        (errno.EACCES, "disk-unwritable"),
        (errno.ENOSPC, "disk-full"),
    ):

        def refuse(*args, number=number, **kwargs):
            raise OSError(number, "no")

        with monkeypatch.context() as patch, listening(tls(keys, date=now_text())) as port:
            patch.setattr(doctor.tempfile, "NamedTemporaryFile", refuse)
            assert site(port) == [cause]


def test_a_budget_that_is_spent(site, keys):
    text = draft("s", site.agreed).replace("epsilon = 4.0", "epsilon = 1.0")
    assert "epsilon = 1.0" in text
    (site.home / "policy.toml").write_text(text, encoding="utf-8")
    with listening(tls(keys, date=now_text())) as port:
        assert site(port) == ["budget"]


def test_a_ledger_that_is_lost(site, keys):
    with listening(tls(keys, date=now_text())) as port:
        assert site(port) == []
        (site.home / "ledger.sqlite").unlink()
        assert site(port) == ["ledger"]


def test_a_site_that_has_not_joined(tmp_path):
    patient = Patient(home=tmp_path, environment={}, now=lambda: dt.datetime.now(dt.UTC), free=lambda _: 10**10)
    assert [finding.cause for finding in examine(patient) if finding.cause] == ["joined", "policy-missing"]


def test_every_cause_has_its_own_exit_code_above_the_errors_codes():
    codes = [code for code, _, _ in CAUSES.values()]
    assert len(set(codes)) == len(codes)
    assert min(codes) >= 20
    assert max(codes) < 64


def test_the_document_holds_the_same_table():
    text = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    for cause, (code, what, fix) in CAUSES.items():
        assert f"| {code} | `{cause}` | {what} | {fix} |" in text


def test_the_command_ends_with_the_first_cause_s_code(site):
    from click.testing import CliRunner

    from patevolve.client.deploy_cli import doctor as command

    site(1)
    ended = CliRunner().invoke(command, ["--home", str(site.home), "--format", "json"])
    said = json.loads(ended.stdout)
    assert ended.exit_code == said["exit_code"] == CAUSES["port"][0]
    assert [check["cause"] for check in said["checks"] if not check["ok"]] == ["port"]
