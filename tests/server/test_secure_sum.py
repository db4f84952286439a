"""The coordinator's secure sum on the disk: as many sites as a plan takes, whole or refused."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from patevolve.server.secure_sum import FILE, open_sum
from patevolve.shared import wire
from patevolve.shared.errors import MessageError
from patevolve.shared.privacy.chain import Head
from patevolve.shared.privacy.signing import Identity, head_to_json, sign_head
from patevolve.shared.secagg.site import SiteSum
from patevolve.shared.secagg.spec import MAX_SITES, SumSpec

IDENTITY = Identity(key=Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
SITES = {name: Identity(key=Ed25519PrivateKey.from_private_bytes(name.encode() * 32)) for name in ("a", "b", "c")}
SPEC = SumSpec(
    plan="ab" * 32,
    run="run-1",
    sites={name: one.public_key for name, one in SITES.items()},
    coordinator=IDENTITY.public_key,
    dropouts=1,
)


@pytest.fixture
def opened(tmp_path: Any, two_digits: Any) -> Any:
    return lambda: open_sum(tmp_path, SPEC, agreed=two_digits, identity=IDENTITY, sites=list(SITES))


def test_heads_of_as_many_sites_as_a_sum_takes_are_kept_and_come_back(opened: Any) -> None:
    text = head_to_json(sign_head(Head(seq=10**6, digest="ab" * 32, site="a" * 40), IDENTITY))
    heads = {"0" * 64: {f"hospital-{number:05d}": [text] for number in range(MAX_SITES)}}
    assert len(wire.canonical_json(heads)) > 3 * wire.MAX_HEADER
    found = opened()
    found.heads.update(heads)
    found.save()
    assert opened().heads == heads


def test_masked_vectors_of_many_sites_are_no_message_and_have_no_message_s_limit(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "MAX_BYTES", 50_000)
    found, sites = opened(), {name: SiteSum(SPEC, site=name, identity=one) for name, one in SITES.items()}
    for site in sites.values():
        found.sum.receive_advert(site.advert())
    listed, asking = found.sum.close_setup(), found.sum.ask("q", 10_000)
    for site in sites.values():
        site.accept_keys(listed)
        found.sum.receive_masked(site.mask(asking, range(10_000)))
    found.save()
    assert found.path.stat().st_size > 2 * wire.MAX_BYTES
    again = opened()
    for name, request in again.sum.close_masked("q").items():
        again.sum.receive_unmasked(sites[name].unmask(request))
    assert again.sum.result("q").values.tolist() == [3 * value for value in range(10_000)]


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:0],
        lambda data: data[:7],
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: b"\xff" * 8 + data[8:],
        lambda data: (2).to_bytes(8, "little") + b"[]" + data[10:],
        lambda data: (6).to_bytes(8, "little") + b"{1: 2}" + data[10:],
        lambda data: wire.encode(wire.Packet(kind="sum", fields={"heads": len(data)})),
    ],
)
def test_a_damaged_file_or_an_older_version_s_is_refused(opened: Any, change: Any, tmp_path: Any) -> None:
    opened().save()
    opened()
    (tmp_path / FILE).write_bytes(change((tmp_path / FILE).read_bytes()))
    with pytest.raises(MessageError):
        opened()
