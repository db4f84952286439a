"""The hash chain's bytes, and that no change of a row goes unnoticed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patevolve.shared.errors import LedgerError
from patevolve.shared.privacy import chain

PATH = Path("test")
TEXT = st.text(alphabet="ab0\x00\n{}é", max_size=6)
ROWS = st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=8)


def build(rows):
    links = []
    for kind, body in rows:
        links.append(chain.next_link(links[-1] if links else None, kind, body))
    return links


def check(links):
    tail = None
    for row in [(link.seq, link.kind, link.body, link.digest) for link in links]:
        tail = chain.check_row(row, tail, path=PATH)
    return tail


def test_the_hashed_bytes_are_those_of_the_contract():
    first = chain.next_link(None, "genesis", '{"a":1}')
    data = b"patevolve chain 1\n" + bytes(32) + bytes(8) + b"\x00\x07genesis" + hashlib.sha256(b'{"a":1}').digest()
    assert first.digest == hashlib.sha256(data).hexdigest()
    # A frozen value: a ledger written today must verify for as long as the site exists.
    assert first.digest == "86d9b7b482a7d063f9d029c7eeaaafbc44f0795430d47a9025510bd985bb29ef"


@given(ROWS)
def test_an_untouched_chain_verifies(rows):
    links = build(rows)
    assert check(links) == links[-1]


@given(ROWS, st.data())
def test_any_one_change_of_a_row_is_found(rows, data):
    links = build(rows)
    at = data.draw(st.integers(0, len(links) - 1))
    old = links[at]
    change = data.draw(st.sampled_from(["seq", "kind", "body", "digest"]))
    new = {
        "seq": old.seq + data.draw(st.sampled_from([-1, 1, 7])),
        "kind": old.kind + "x",
        "body": old.body + " ",
        "digest": "0" * 64,
    }[change]
    links[at] = chain.Link(
        **{name: getattr(old, name) for name in ("seq", "kind", "body", "previous", "digest")} | {change: new}
    )
    with pytest.raises(LedgerError):
        check(links)


@given(st.lists(st.tuples(TEXT, TEXT), min_size=3, max_size=8), st.data())
def test_a_row_taken_out_or_two_rows_exchanged_are_found(rows, data):
    links = build(rows)
    at = data.draw(st.integers(0, len(links) - 2))
    with pytest.raises(LedgerError):
        check(links[:at] + links[at + 1 :])
    with pytest.raises(LedgerError):
        check([*links[:at], links[at + 1], links[at], *links[at + 2 :]])


@given(st.tuples(TEXT, TEXT), st.tuples(TEXT, TEXT))
def test_kind_and_body_cannot_be_shifted_into_each_other(one, other):
    if one != other:
        assert chain.next_link(None, *one).digest != chain.next_link(None, *other).digest


@given(ROWS, st.data())
def test_growth_is_proven_from_any_row_without_showing_a_body(rows, data):
    links = build(rows)
    since = data.draw(st.integers(0, len(links) - 1))
    start = chain.Head(seq=since, digest=links[since].digest, site="s")
    proof = chain.extension_of(links[since + 1 :], since)
    assert chain.extend(start, proof).digest == links[-1].digest
    forked = chain.Head(seq=since, digest="1" * 64, site="s")
    if proof.rows:
        assert chain.extend(forked, proof).digest != links[-1].digest
    with pytest.raises(LedgerError):
        chain.extend(chain.Head(seq=since + 1, digest=links[since].digest, site="s"), proof)


@pytest.mark.parametrize(
    "row",
    [
        (0, None, "{}", "0" * 64),
        (0, "genesis", b"{}", "0" * 64),
        (0, "genesis", "{}", None),
        (0.0, "genesis", "{}", "0" * 64),
        (True, "genesis", "{}", "0" * 64),
        (0, "genesis", "\ud800", "0" * 64),
        (0, "k" * 70000, "{}", "0" * 64),
    ],
)
def test_rows_of_wrong_types_raise_ledger_error_alone(row):
    with pytest.raises(LedgerError):
        chain.check_row(row, None, path=PATH)


@pytest.mark.parametrize("digest", ["", "xy", "0" * 63, None])
def test_a_previous_digest_that_is_no_digest_is_refused(digest):
    tail = chain.Link(seq=0, kind="k", body="{}", previous=chain.ZERO, digest=digest)
    with pytest.raises(LedgerError):
        chain.check_row((1, "k", "{}", "0" * 64), tail, path=PATH)


@pytest.mark.parametrize("value", [{"a": float("nan")}, {"a": float("inf")}, {"a": object()}, {"a": {1, 2}}])
def test_what_has_no_canonical_text_is_refused(value):
    with pytest.raises(LedgerError):
        chain.canonical(value)


@pytest.mark.parametrize(
    "text", ["", "[]", "1", '{"b":1,"a":2}', '{"a": 1}', '{"a":1,"a":1}', '{"a":NaN}', '{"a":1.50}', "[" * 9999]
)
def test_only_the_canonical_text_is_read(text):
    with pytest.raises(LedgerError):
        chain.parse(text, where="row 1")


@pytest.mark.parametrize("spelt", [str.upper, lambda text: text[:2] + " " + text[2:], lambda text: text + "\n", bytes])
@pytest.mark.parametrize("which", ["previous", "body_sha256"])
def test_a_digest_has_one_spelling(which, spelt):
    good = {"seq": 1, "kind": "charge", "body_sha256": "ab" * 32, "previous": "cd" * 32}
    chain.link_digest(**good)
    with pytest.raises(LedgerError):
        chain.link_digest(**good | {which: b"ab" * 32 if spelt is bytes else spelt(good[which])})
