"""A site's ledger that went back in time is refused: an older copy forgets what was spent after it was made."""

from __future__ import annotations

import shutil

import pytest

from patevolve.client.home import open_home
from patevolve.shared.envelopes import Request, decode_response, encode_request
from patevolve.shared.errors import LedgerError
from patevolve.shared.runfolder import RunFolder


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


@pytest.mark.parametrize("dropouts", [0, 1])
@pytest.mark.parametrize("trust", ["each-site", "secure-sum"])
def test_a_whole_folder_put_back_between_two_questions_stops_the_run_at_its_first_answer(trust, dropouts, town):
    """No greeting comes between them: the coordinator's ledger sees that the site's head went back, or forked."""
    agreed = town.agreed({"privacy.trust": trust, "privacy.dropouts": dropouts})
    office, home, asked = town.office(agreed), town.home(agreed, "Bea"), []
    open_home(home)
    shutil.copytree(home, town.place / "backup")

    def put_whole_back(node, action, _):
        if (node, action) == (101, "ask"):
            asked.append(node)
            if len(asked) == 2:
                shutil.rmtree(home)
                shutil.copytree(town.place / "backup", home)
                if trust == "secure-sum":  # the sum's state is younger than the backup, or nothing would be answered
                    shutil.copytree(town.place / "sums", home / "secagg")
            elif trust == "secure-sum":
                shutil.copytree(home / "secagg", town.place / "sums")
        return "pass"

    office.on_request = put_whole_back
    with pytest.raises(LedgerError, match=r"rolled back|two different rows"):
        town.coordinate(agreed, office)
    assert len(asked) == 2
    assert not (town.place / "run" / "release").exists()


@pytest.mark.parametrize("trust", ["each-site", "secure-sum"])
def test_the_coordinator_records_a_head_for_every_question(trust, town):
    """Of a batch's last head alone, a fork that passes the newest recorded row in one batch would not be seen."""
    agreed = town.agreed({"privacy.trust": trust})
    town.coordinate(agreed, town.office(agreed))
    with RunFolder(path=town.place / "run").open_ledger() as ledger:
        for site in town.sites:
            assert [head.seq for head in ledger.trusted_heads(site)] == [2, 4, 6]  # a charge and an answer each
