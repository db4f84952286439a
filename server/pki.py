"""The keys of a deployment: a private certificate authority, the server's certificate, and each site's node key.

The authority signs one server certificate and nothing else; sites trust it and no public authority. A node key is an
ECDSA P-384 key in OpenSSH form, which is what a SuperNode signs its requests with.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from patevolve.shared.errors import InputError
from patevolve.shared.files import write_new

CA_CERTIFICATE, CA_KEY = "ca.crt", "ca.key"
SERVER_CERTIFICATE, SERVER_KEY = "server.crt", "server.key"
AUTHORITY_DAYS, SERVER_DAYS = 3650, 825  # 825 days is the longest that common TLS clients accept for a server
_SLACK = dt.timedelta(hours=1)  # certificates begin earlier, so that a site whose clock is behind accepts them


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Authority:
    """A certificate authority with its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class NodeKey:
    """A site's node key pair, in OpenSSH form."""

    private: bytes
    public: bytes


def create_authority(name: str) -> Authority:
    """Return a new authority that may sign server certificates and no further authority."""
    key = ec.generate_private_key(ec.SECP384R1())
    subject = _name(f"authority of {name}")
    builder = (
        _builder(subject, subject, key.public_key(), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return Authority(certificate=builder.sign(key, hashes.SHA384()), key=key)


def issue_server(authority: Authority, hosts: Sequence[str]) -> tuple[bytes, bytes]:
    """Return (certificate, private key) in PEM for a server reached under these names or addresses.

    Raises InputError without a host or for one that is neither a DNS name nor an IP address.
    """
    if not hosts:
        raise InputError("no host found for the server certificate; expected the names under which sites reach it.")
    names = [_alternative(host) for host in hosts]
    key = ec.generate_private_key(ec.SECP384R1())
    issuer = authority.certificate.subject
    builder = (
        _builder(_name(hosts[0]), issuer, key.public_key(), SERVER_DAYS)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
    )
    certificate = builder.sign(authority.key, hashes.SHA384())
    return certificate.public_bytes(serialization.Encoding.PEM), _pem(key)


def create_node_key() -> NodeKey:
    """Return a new node key."""
    key = ec.generate_private_key(ec.SECP384R1())
    return NodeKey(
        private=key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        ),
        public=key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        + b"\n",
    )


def write_pki(folder: Path, name: str, hosts: Sequence[str]) -> None:
    """Write a new authority and server certificate into a folder. Raises FileExistsError, never overwriting a key."""
    authority = create_authority(name)
    certificate, key = issue_server(authority, hosts)
    write_new(folder / CA_KEY, _pem(authority.key), mode=0o600)
    write_new(folder / CA_CERTIFICATE, authority.certificate.public_bytes(serialization.Encoding.PEM))
    write_new(folder / SERVER_KEY, key, mode=0o600)
    write_new(folder / SERVER_CERTIFICATE, certificate)


def load_authority(folder: Path) -> Authority:
    """Return the authority in a folder. Raises InputError if it is missing or damaged."""
    try:
        certificate = x509.load_pem_x509_certificate((folder / CA_CERTIFICATE).read_bytes())
        key = serialization.load_pem_private_key((folder / CA_KEY).read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as reason:
        raise InputError(
            f"{folder} holds no usable authority ({reason}); restore {CA_KEY} and {CA_CERTIFICATE}."
        ) from reason
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(f"{folder / CA_KEY} is {type(key).__name__}; expected an elliptic-curve key. Restore it.")
    return Authority(certificate=certificate, key=key)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _name(common: str) -> x509.Name:
    short = common.encode()[:64].decode(errors="ignore")  # X.520's upper bound, in bytes
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, short)])


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = _now()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SLACK)
        .not_valid_after(now + dt.timedelta(days=days))
    )


def _usage(*, certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not certificates,
        key_cert_sign=certificates,
        crl_sign=certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    labels = host.removesuffix(".").split(".")
    fits = all(0 < len(part) <= 63 and part.replace("-", "").isalnum() and part.isascii() for part in labels)
    if not fits or len(host) > 253:
        raise InputError(f"host {host!r} found; expected a DNS name such as coordinator.example.org or an IP address.")
    return x509.DNSName(host)
