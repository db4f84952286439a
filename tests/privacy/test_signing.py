"""Site identities and signed heads."""

from __future__ import annotations

import hashlib
import json
import os

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from patevolve.shared.errors import LedgerError, ParameterError
from patevolve.shared.privacy.chain import Head
from patevolve.shared.privacy.signing import (
    Identity,
    SignedHead,
    create_identity,
    head_from_json,
    head_to_json,
    load_identity,
    sign_head,
    verify_head,
)

HEAD = Head(seq=7, digest="ab" * 32, site="north")
FIXED = Identity(key=Ed25519PrivateKey.from_private_bytes(bytes(range(32))))


def test_an_identity_is_written_for_its_owner_alone_and_read_back(tmp_path):
    path = tmp_path / "identity.pem"
    made = create_identity(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_identity(path).public_key == made.public_key
    assert [entry.name for entry in tmp_path.iterdir()] == ["identity.pem"]
    assert create_identity(tmp_path / "other.pem").public_key != made.public_key


def test_an_identity_is_never_overwritten(tmp_path):
    path = tmp_path / "identity.pem"
    create_identity(path)
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="never overwritten"):
        create_identity(path)
    assert path.read_bytes() == before


def test_an_identity_that_others_can_read_is_refused(tmp_path):
    path = tmp_path / "identity.pem"
    create_identity(path)
    path.chmod(0o640)
    with pytest.raises(LedgerError, match="chmod 600"):
        load_identity(path)


def pem(key, encryption=None):
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption or serialization.NoEncryption()
    )


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"-----BEGIN PRIVATE KEY-----\n",
        os.urandom(64),
        pem(X25519PrivateKey.generate()),
        pem(Ed25519PrivateKey.generate(), serialization.BestAvailableEncryption(b"secret")),
    ],
    ids=["missing", "empty", "cut off", "random", "another kind", "encrypted"],
)
def test_what_is_no_identity_is_refused(tmp_path, content):
    path = tmp_path / "identity.pem"
    if content is not None:
        path.write_bytes(content)
        path.chmod(0o600)
    with pytest.raises(LedgerError):
        load_identity(path)


def test_a_representation_shows_no_private_key():
    secret = FIXED.key.private_bytes_raw().hex()
    assert secret not in repr(FIXED)
    assert FIXED.public_key in repr(FIXED)


def test_a_signed_head_verifies_with_its_key_alone():
    signed = sign_head(HEAD, FIXED)
    assert verify_head(signed, FIXED.public_key) == HEAD
    other = Identity(key=Ed25519PrivateKey.generate()).public_key
    with pytest.raises(LedgerError):
        verify_head(signed, other)


def test_the_signed_bytes_are_those_of_the_contract():
    data = b'patevolve signed head 1\n{"digest":"' + b"ab" * 32 + b'","seq":7,"site":"north"}'
    signed = sign_head(HEAD, FIXED)
    FIXED.key.public_key().verify(bytes.fromhex(signed.signature), data)
    # Ed25519 is deterministic: the frozen value fails if one signed byte ever changes.
    assert (
        hashlib.sha256(bytes.fromhex(signed.signature)).hexdigest()
        == "8b1983b6837bb35534448a338a029193a2b3d94a94a7ee67fd72e5648d953ca6"
    )


@pytest.mark.parametrize(
    "changed",
    [
        Head(seq=8, digest=HEAD.digest, site="north"),
        Head(seq=7, digest="cd" * 32, site="north"),
        Head(seq=7, digest=HEAD.digest, site="south"),
    ],
)
def test_a_signature_fits_no_other_head(changed):
    with pytest.raises(LedgerError):
        verify_head(SignedHead(head=changed, signature=sign_head(HEAD, FIXED).signature), FIXED.public_key)


@pytest.mark.parametrize("signature", ["", "00" * 64, "xy", None, 5, b"00"])
def test_what_is_no_signature_raises_ledger_error_alone(signature):
    with pytest.raises(LedgerError):
        verify_head(SignedHead(head=HEAD, signature=signature), FIXED.public_key)


SPELLINGS = [str.upper, lambda text: text[:64] + " " + text[64:], lambda text: text + "\n", lambda text: text + "\0"]


@pytest.mark.parametrize("spelt", SPELLINGS)
def test_a_signature_or_key_in_another_spelling_is_none(spelt):
    signature = sign_head(HEAD, FIXED).signature
    assert FIXED.public_key != FIXED.public_key.upper()
    with pytest.raises(LedgerError):
        verify_head(SignedHead(head=HEAD, signature=spelt(signature)), FIXED.public_key)
    with pytest.raises(LedgerError):
        verify_head(SignedHead(head=HEAD, signature=signature), spelt(FIXED.public_key))


@pytest.mark.parametrize("spelt", [lambda text: text + " ", lambda text: text.replace(":", ": "), json.loads])
def test_a_head_has_one_text(spelt):
    text = head_to_json(sign_head(HEAD, FIXED))
    other = spelt(text)
    if isinstance(other, dict):
        other = json.dumps(dict(reversed(other.items())), separators=(",", ":"))
    assert json.loads(other) == json.loads(text)
    with pytest.raises(LedgerError, match="spelling"):
        head_from_json(other)


@pytest.mark.parametrize("key", ["", "00" * 31, "G" * 64, None, "00" * 32, "ff" * 32])
def test_what_is_no_public_key_raises_ledger_error_alone(key):
    with pytest.raises(LedgerError):
        verify_head(sign_head(HEAD, FIXED), key)


@pytest.mark.parametrize(
    "head",
    [
        Head(seq=-1, digest="ab" * 32, site="north"),
        Head(seq=2**60, digest="ab" * 32, site="north"),
        Head(seq=True, digest="ab" * 32, site="north"),
        Head(seq=1, digest="AB" * 32, site="north"),
        Head(seq=1, digest="ab" * 32, site="no\nrth"),
    ],
)
def test_a_head_out_of_form_is_not_signed(head):
    with pytest.raises(ParameterError):
        sign_head(head, FIXED)


def test_the_json_form_comes_back_and_is_one_text():
    signed = sign_head(HEAD, FIXED)
    text = head_to_json(signed)
    assert head_from_json(text) == signed
    assert json.loads(text)["format"] == "patevolve-head/1"


@pytest.mark.parametrize("field", ["format", "site", "seq", "digest", "signature"])
@pytest.mark.parametrize("value", [None, "x", 1.5, [], {}, "missing"])
def test_json_of_another_form_raises_ledger_error_alone(field, value):
    content = json.loads(head_to_json(sign_head(HEAD, FIXED)))
    content[field] = value
    if value == "missing":
        del content[field]
    with pytest.raises(LedgerError):
        verify_head(head_from_json(json.dumps(content)), FIXED.public_key)


@given(st.one_of(st.text(max_size=20), st.sampled_from(["[]", "1", "null", "{}", "[" * 5000, '{"format":1}'])))
def test_any_text_raises_ledger_error_alone(text):
    with pytest.raises(LedgerError):
        head_from_json(text)
