"""Certificates and node keys as the other ends use them: TLS handshakes on loopback and Flower's own key reader."""

from __future__ import annotations

import socket
import ssl
import stat
import subprocess
import threading

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from patevolve.server import pki
from patevolve.shared.errors import InputError


def handshake(folder, authority, host):
    """Shake hands with a server of ``folder`` trusting ``authority`` and return the client's error, or None."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / pki.SERVER_CERTIFICATE, folder / pki.SERVER_KEY)
    one, other = socket.socketpair()

    def serve():
        try:
            with context.wrap_socket(one, server_side=True):
                pass
        except (ssl.SSLError, OSError):
            one.close()

    thread = threading.Thread(target=serve)
    thread.start()
    client = ssl.create_default_context(cafile=str(authority / pki.CA_CERTIFICATE))
    client.verify_flags |= ssl.VERIFY_X509_STRICT  # what Python 3.13 asks for by default
    try:
        with client.wrap_socket(other, server_hostname=host):
            return None
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    finally:
        other.close()
        thread.join(timeout=5)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pki")
    pki.write_pki(folder, "trial", ["c.example.org", "127.0.0.1", "::1"])
    return folder


@pytest.mark.parametrize("host", ["c.example.org", "127.0.0.1", "::1"])
def test_every_host_is_in_the_certificate(made, host):
    assert handshake(made, made, host) is None


@pytest.mark.parametrize("host", ["d.example.org", "127.0.0.2", "sub.c.example.org"])
def test_no_other_host_is(made, host):
    assert "mismatch" in handshake(made, made, host)


def test_a_server_of_another_authority_is_refused_even_if_it_has_the_same_name(made, tmp_path):
    pki.write_pki(tmp_path, "trial", ["c.example.org"])
    assert handshake(tmp_path, made, "c.example.org") is not None


def test_a_server_certificate_can_sign_no_other(made):
    server = x509.load_pem_x509_certificate((made / pki.SERVER_CERTIFICATE).read_bytes())
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not server.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    authority = x509.load_pem_x509_certificate((made / pki.CA_CERTIFICATE).read_bytes())
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0


def test_private_keys_are_their_owner_s_alone_and_never_overwritten(made):
    for name in (pki.CA_KEY, pki.SERVER_KEY):
        assert stat.S_IMODE((made / name).stat().st_mode) == 0o600
    before = (made / pki.CA_KEY).read_bytes()
    with pytest.raises(FileExistsError):
        pki.write_pki(made, "trial", ["c.example.org"])
    assert (made / pki.CA_KEY).read_bytes() == before


def test_a_node_key_is_read_as_flower_reads_it():
    key = pki.create_node_key()
    private = load_ssh_private_key(key.private, None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.curve.name == "secp384r1"
    assert load_ssh_public_key(key.public).public_numbers() == private.public_key().public_numbers()
    assert pki.create_node_key().private != key.private
    assert "PRIVATE" not in repr(key)


def test_a_node_key_is_read_by_ssh_keygen(tmp_path):
    key = pki.create_node_key()
    path = tmp_path / "node.key"
    path.write_bytes(key.private)
    path.chmod(0o600)
    try:
        said = subprocess.run(["ssh-keygen", "-y", "-f", str(path)], capture_output=True, check=True)
    except FileNotFoundError:
        pytest.skip("ssh-keygen is not installed")
    assert said.stdout.split()[:2] == key.public.split()[:2]


@pytest.mark.parametrize(
    "host", ["", "a b", "*.example.org", "-" * 70 + ".org", "ex ample", "host/path", "a..b", "ü.org"]
)
def test_what_is_no_host_is_refused(host):
    with pytest.raises(InputError):
        pki.issue_server(pki.create_authority("trial"), [host])


@pytest.mark.parametrize("name", ["", "ü" * 200, "a" * 200, "語" * 30])
def test_any_name_of_a_plan_makes_an_authority(name, tmp_path):
    pki.write_pki(tmp_path, name, ["c.example.org"])
    assert handshake(tmp_path, tmp_path, "c.example.org") is None


def test_no_host_at_all_is_refused():
    with pytest.raises(InputError):
        pki.issue_server(pki.create_authority("trial"), [])


def test_the_authority_can_issue_again_and_is_missed_when_lost(made, tmp_path):
    certificate, key = pki.issue_server(pki.load_authority(made), ["new.example.org"])
    (tmp_path / pki.SERVER_CERTIFICATE).write_bytes(certificate)
    (tmp_path / pki.SERVER_KEY).write_bytes(key)
    assert handshake(tmp_path, made, "new.example.org") is None
    with pytest.raises(InputError):
        pki.load_authority(tmp_path / "nowhere")
