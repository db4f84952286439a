"""A site's ledger that went back in time is refused: an older copy forgets what was spent after it was made."""

from __future__ import annotations

import pytest

from patevolve.client.home import open_home
from patevolve.shared.envelopes import Request, decode_response, encode_request
from patevolve.shared.errors import LedgerError


def files(home):
    return {path: path.read_bytes() for path in home.glob("ledger.sqlite*") if path.suffix != ".lock"}


def put_back(home, kept):
    for path in files(home):
        path.unlink()
    for path, data in kept.items():
        path.write_bytes(data)


def greeted(town, agreed, site):
    request = encode_request(Request(action="hello", plan=agreed.sha256, run="run-2"))
    return decode_response(town.station(agreed, site).handle("hello", request), "hello").codes


@pytest.mark.parametrize("trust", ["each-site", "secure-sum"])
def test_an_older_copy_of_the_ledger_is_refused_and_the_right_one_is_taken(trust, town):
    agreed = town.agreed({"privacy.trust": trust})
    office = town.office(agreed)
    home = town.home(agreed, "Ada")
    open_home(home)
    backup = files(home)
    town.coordinate(agreed, office)
    whole = files(home)
    assert greeted(town, agreed, "Ada") == ("",)
    put_back(home, backup)
    assert greeted(town, agreed, "Ada") == ("ledger",)
    assert not town.charges("Ada")  # nothing was spent out of what the copy takes for unspent
    put_back(home, whole)
    assert greeted(town, agreed, "Ada") == ("",)


def test_a_site_killed_before_it_remembered_goes_on(town):
    """The ledger is ahead of what was remembered: the site died between charge and answer, and nothing is wrong."""
    agreed = town.agreed()
    office = town.office(agreed)
    home = open_home(town.home(agreed, "Ada"))
    with home.open_ledger() as ledger:
        home.keep_head(ledger.head())
    remembered = (home.path / "ledger.head").read_bytes()
    town.coordinate(agreed, office)
    assert (home.path / "ledger.head").read_bytes() != remembered
    (home.path / "ledger.head").write_bytes(remembered)
    assert greeted(town, agreed, "Ada") == ("",)


@pytest.mark.parametrize("text", [b"", b"{}", b"\xff"])
def test_what_was_remembered_is_signed_and_whole_or_refused(text, town):
    home = open_home(town.home(town.agreed(), "Ada"))
    (home.path / "ledger.head").write_bytes(text)
    with pytest.raises(LedgerError):
        home.open_ledger()
