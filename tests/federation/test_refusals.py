"""A site that says no, a coordinator that asks too much, and replies that are late, doubled, damaged or foreign."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
import threading
import time

import numpy as np
import pytest

from patevolve.client.approved import PLANS, install_plan
from patevolve.client.home import open_home
from patevolve.client.policy import draft
from patevolve.server.run import coordinate, reported
from patevolve.shared import envelopes, wire
from patevolve.shared.envelopes import (
    Request,
    Response,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    refusal,
)
from patevolve.shared.errors import InputError, LedgerError, MessageError
from patevolve.shared.messages import Question, encode_question

SECURE = {"privacy.trust": "secure-sum"}


def carried_out(town, agreed, office, **timing):
    settings = town.settings()
    quick = dataclasses.replace(settings.timing, **timing)
    settings = dataclasses.replace(settings, timing=quick, hello=quick)
    code = reported(agreed, settings.path, lambda: coordinate(agreed, office, settings))
    status = json.loads((settings.path / "status.json").read_text(encoding="utf-8"))
    assert status["exit_code"] == code
    assert status["state"] == ("finished" if code == 0 else "failed")
    return code, status


@pytest.mark.parametrize("trust", ["each-site", "secure-sum"])
def test_the_run_goes_on_without_a_site_that_vetoes_and_its_log_says_why(trust, town, caplog):
    agreed = town.agreed({"privacy.trust": trust, "privacy.dropouts": 1})
    other = town.agreed({"seed": 9})
    town.home(other, "Bea")  # its policy permits another plan
    with caplog.at_level(logging.INFO):
        code, _ = carried_out(town, agreed, town.office(agreed), grace=0.2)
    assert code == 0
    assert not town.charges("Bea")
    words = [record.getMessage() for record in caplog.records if record.name == "patevolve.client.station"]
    assert any("Bea" in text and "is not among the 1 that the policy permits" in text for text in words)
    seen = [record.getMessage() for record in caplog.records if record.name.startswith("patevolve.server")]
    assert any("Bea refused the run: policy" in text for text in seen)
    assert not any("permits" in text for text in seen)


def forbid_plan(town, agreed):
    town.home(town.agreed({"seed": 9}), "Bea")


def spend_elsewhere(town, agreed):
    town.home(agreed, "Bea", reserve=0.4)


def lose_data(town, agreed):
    town.home(agreed, "Bea")


@pytest.mark.parametrize(
    ("prepare", "code", "name"), [(forbid_plan, 3, "policy"), (spend_elsewhere, 5, "budget"), (lose_data, 3, "policy")]
)
def test_the_exit_code_tells_why_a_site_that_is_needed_stays_away(prepare, code, name, town):
    agreed = town.agreed()
    prepare(town, agreed)
    office = town.office(agreed)
    if prepare is lose_data:
        (town.place / "Bea.csv").unlink()
    found, status = carried_out(town, agreed, office)
    assert (found, status["code"]) == (code, name)
    assert "Bea" in status["message"]
    assert not any(town.charges(site) for site in town.sites)


def test_another_version_is_refused_with_the_code_of_messages(town, monkeypatch):
    agreed = town.agreed()
    office = town.office(agreed)

    def old(action, data):
        monkeypatch.setattr(envelopes, "version", lambda: "0.0.9")
        try:
            return refusal(action, "Bea", "message")
        finally:
            monkeypatch.undo()

    office.stations[101] = old
    assert carried_out(town, agreed, office)[0] == 7


def test_a_coordinator_writes_no_line_of_its_own_into_a_site_s_log(town, caplog):
    """Words that a refusal quotes stay on the refusal's own line, and are cut."""
    agreed = town.agreed()
    fields = {
        "protocol": 1,
        "patevolve": "1\n2026-01-01 INFO Ada answered\x1b[2J" + "x" * 9999,
        "sites": [],
        "run": "r",
    }
    data = wire.encode(wire.Packet(kind="hello request", fields={**fields, "plan": agreed.sha256}))
    assert decode_response(town.station(agreed, "Ada").handle("hello", data), "hello").codes == ("message",)
    (record,) = [record for record in caplog.records if "refused hello" in record.getMessage()]
    assert "Ada answered" in record.getMessage()
    assert record.getMessage().isprintable()
    assert len(record.getMessage()) < 2100


def test_a_site_that_lost_its_approved_text_refuses(town):
    agreed = town.agreed()
    shutil.rmtree(town.home(agreed, "Bea") / PLANS)
    assert carried_out(town, agreed, town.office(agreed))[0] == 3


def test_an_approved_text_that_was_changed_is_refused(town):
    agreed = town.agreed()
    path = install_plan(town.home(agreed, "Bea"), agreed)
    path.write_text(agreed.text.replace("epsilon = 4.0", "epsilon = 400.0"), encoding="utf-8")
    assert carried_out(town, agreed, town.office(agreed))[0] == 3


def test_a_missing_policy_is_a_veto(town):
    agreed = town.agreed()
    office = town.office(agreed)
    (town.place / "homes" / "Bea" / "policy.toml").unlink()
    assert carried_out(town, agreed, office)[0] == 3


def test_without_a_roster_nothing_is_summed(town):
    agreed = town.agreed(SECURE)
    office = town.office(agreed)
    (town.place / "homes" / "Bea" / "roster.json").unlink()
    assert carried_out(town, agreed, office)[0] == 3


def test_a_coordinator_that_invents_a_peer_gets_no_key(town):
    agreed = town.agreed(SECURE)
    office = town.office(agreed)
    path = town.place / "homes" / "Bea" / "roster.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    found["sites"]["Cid"] = "ab" * 32  # the site knows another Cid than the coordinator
    path.write_text(json.dumps(found), encoding="utf-8")
    code, _ = carried_out(town, agreed, office, deadline=1.0)
    assert code == 7
    assert not town.charges("Bea")


@pytest.mark.parametrize("trust", ["each-site", "secure-sum"])
def test_every_letter_twice_changes_no_byte_and_costs_nothing(trust, town, recorded):
    agreed = town.agreed({"privacy.trust": trust})
    town.simulate(agreed, "simulated", noise=recorded)
    office = town.office(agreed, noise=recorded)
    office.on_request = lambda *_: "double"
    town.coordinate(agreed, office)
    assert town.tree("run", "release") == town.tree("simulated", "release")
    assert all(set(town.charges(site).values()) == {1} for site in town.sites)


@pytest.mark.parametrize("trust", ["each-site", "secure-sum"])
@pytest.mark.parametrize("lost", ["request", "reply"])
def test_lost_letters_are_sent_again_and_answered_from_the_ledger(lost, trust, town):
    agreed, seen = town.agreed({"privacy.trust": trust}), set()

    def first(node, action, data):
        fresh = (node, action, data) not in seen
        seen.add((node, action, data))
        return "drop" if fresh else "pass"

    office = town.office(agreed)
    setattr(office, f"on_{lost}", first)
    assert carried_out(town, agreed, office, patience=0.1)[0] == 0
    assert all(set(town.charges(site).values()) == {1} for site in town.sites)
    for node in office.stations:
        asked = [data for at, action, data in office.replies if (at, action) == (node, "ask")]
        if lost == "reply":
            assert len(asked) >= 2 * len(set(asked))  # each reply was given twice, the same bytes
            assert len(set(asked)) == 2  # the two generations that ask


def test_a_late_reply_counts_and_its_repetition_is_ignored(town):
    agreed = town.agreed()
    office = town.office(agreed)
    slow = office.stations[101]

    def late(action, data):
        time.sleep(0.25 if action == "ask" else 0.0)
        return slow(action, data)

    office.stations[101] = late
    assert carried_out(town, agreed, office, patience=0.1)[0] == 0
    assert set(town.charges("Bea").values()) == {1}


DAMAGES = {
    "cut": lambda data: data[:-3],
    "a byte": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "empty": lambda _: b"",
    "text": lambda _: b"Traceback: /home/ada/secret.csv",
    "another site's": None,
}


@pytest.mark.parametrize("trust", ["each-site", "secure-sum"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_reply_is_asked_for_again(damage, trust, town):
    agreed = town.agreed({"privacy.trust": trust})
    office = town.office(agreed)
    honest, other, count = office.stations[101], office.stations[102], []

    def damaged(action, data):
        reply = honest(action, data)
        count.append(action)
        if count.count(action) > 1 or action == "hello":
            return reply
        return other(action, data) if damage == "another site's" else DAMAGES[damage](reply)

    office.stations[101] = damaged
    assert carried_out(town, agreed, office)[0] == 0


def test_a_second_node_with_the_name_of_a_site_is_refused(town, caplog):
    agreed = town.agreed()
    office = town.office(agreed)
    town.home(agreed, "Bea", name="impostor")
    office.stations = {99: town.station(agreed, "Bea", name="impostor").handle, **office.stations}
    greeted = threading.Event()

    def first(node, action, _):
        if node == 99:
            greeted.set()
        return "pass"

    def after(node, action, _):
        if node != 99 and action == "hello":
            greeted.wait(10)
            time.sleep(0.1)
        return "pass"

    office.on_reply, office.on_request = first, after
    settings = town.settings(known={})
    keys = {}
    for site in town.sites:
        keys[site] = open_home(town.home(agreed, site)).identity.public_key
    coordinate(agreed, office, dataclasses.replace(settings, known=keys))
    assert not town.charges("Bea", "impostor")
    assert any("with a key that is not the registered one" in record.getMessage() for record in caplog.records)


def test_two_coordinators_of_one_folder_are_refused(town):
    agreed = town.agreed()
    office = town.office(agreed)
    settings = town.settings()
    held = []

    def second(*_):
        if not held:
            held.append(1)
            with pytest.raises(LedgerError, match="another coordinator"):
                coordinate(agreed, office, settings)
        return "pass"

    office.on_request = second
    coordinate(agreed, office, settings)
    assert held


def test_secure_sum_without_roster_or_key_does_not_start(town):
    agreed = town.agreed(SECURE)
    office = town.office(agreed)
    with pytest.raises(InputError, match="roster"):
        coordinate(agreed, office, dataclasses.replace(town.settings(), key=None))


def ask(agreed, sites, *questions, run="r"):
    parts = tuple(encode_question(Question(kind=kind, name=name, plan=plan, run=run)) for kind, name, plan in questions)
    return encode_request(Request(action="ask", plan=agreed.sha256, run=run, sites=sites, parts=parts))


@pytest.mark.parametrize(
    ("sites", "code"),
    [
        (("Ada", "Bea"), "message"),  # fewer than the plan says
        (("Ada", "Bea", "Cid", "Dan"), "message"),
        (("Bea", "Cid", "Dan"), "message"),  # without this site
    ],
)
def test_a_cohort_that_is_not_the_plans_is_refused(sites, code, town):
    agreed = town.agreed()
    reply = town.station(agreed, "Ada").handle("ask", ask(agreed, sites, ("counts", "counts", agreed.sha256)))
    assert decode_response(reply, "ask").codes == (code,)
    assert not town.charges("Ada")


def test_a_question_of_another_plan_is_refused_and_the_others_are_answered(town):
    agreed = town.agreed()
    data = ask(agreed, town.sites, ("counts", "counts", "f" * 64), ("prototypes", "prototypes", agreed.sha256))
    found = decode_response(town.station(agreed, "Ada").handle("ask", data), "ask")
    assert found.codes == ("message", "")
    assert town.charges("Ada") == {"prototypes": 1}


def test_a_cohort_below_the_sites_own_minimum_is_a_veto(town):
    agreed = town.agreed({"privacy.dropouts": 1})
    home = town.home(agreed, "Ada")
    text = draft("Ada", agreed).replace("minimum_sites = 2", "minimum_sites = 3")
    (home / "policy.toml").write_text(text, encoding="utf-8")
    data = ask(agreed, ("Ada", "Bea"), ("counts", "counts", agreed.sha256))
    found = decode_response(town.station(agreed, "Ada").handle("ask", data), "ask")
    assert found.codes == ("policy",)
    assert not town.charges("Ada")


def test_under_secure_sum_other_names_for_the_cohort_buy_neither_another_sum_nor_a_charge(town):
    agreed = town.agreed({**SECURE, "privacy.dropouts": 1})
    office = town.office(agreed)
    town.coordinate(agreed, office)
    before = town.charges("Ada")
    (data,) = {data for node, action, data in office.requests if (node, action) == (100, "ask")} - {
        data for node, action, data in office.requests if (node, action) == (100, "ask") and b"neighbours" in data
    }
    (sent,) = [data for node, action, data in office.replies if (node, action) == (100, "ask")][:1]
    renamed = encode_request(dataclasses.replace(decode_request(data, "ask"), sites=("Ada", "Bea")))
    assert office.stations[100]("ask", renamed) == sent
    assert town.charges("Ada") == before


@pytest.mark.parametrize("named", [("Ada", "Bea", "Cid"), ("Ada", "Bea", "Eve")])
def test_a_cohort_with_a_site_that_no_roster_lists_is_refused(named, town):
    """The names of a request are the coordinator's word; where the site has a roster, they have to stand there."""
    agreed = town.agreed()
    town.roster(agreed)
    question = encode_question(Question(kind="counts", name="counts", plan=agreed.sha256, run="r"))
    request = Request(action="ask", plan=agreed.sha256, run="r", sites=named, parts=(question,))
    codes = decode_response(town.station(agreed, "Ada").handle("ask", encode_request(request)), "ask").codes
    assert codes == (("policy",) if "Eve" in named else ("",))
    assert bool(town.charges("Ada")) == ("Eve" not in named)


def test_shares_are_given_for_one_set_of_survivors_and_by_the_sum_alone(town):
    agreed = town.agreed({**SECURE, "privacy.dropouts": 1})
    office = town.office(agreed)
    town.coordinate(agreed, office)
    (first, *_) = [data for node, action, data in office.requests if (node, action) == (100, "unmask")]
    changed = bytearray(decode_request(first, "unmask").parts[0])
    changed[-1] ^= 1  # the coordinator's signature no longer fits
    forged = encode_request(dataclasses.replace(decode_request(first, "unmask"), parts=(bytes(changed),)))
    assert decode_response(office.stations[100]("unmask", forged), "unmask").codes == ("message",)


def test_island_evolution_is_refused_by_a_plan_that_has_none(town):
    agreed = town.agreed()
    data = encode_request(Request(action="evolve", plan=agreed.sha256, run="r", sites=town.sites, parts=(b"x",)))
    assert decode_response(town.station(agreed, "Ada").handle("evolve", data), "evolve").codes == ("message",)


def test_ten_thousand_changed_requests_are_refused_or_mean_something_else(town):
    """One changed byte: a refusal, or a request whose content differs; never an exception."""
    agreed = town.agreed()
    data = ask(agreed, town.sites, ("counts", "counts", agreed.sha256))
    before, rng, accepted = decode_request(data, "ask"), np.random.default_rng(3), 0
    for _ in range(10_000):
        changed = bytearray(data)
        changed[int(rng.integers(len(data)))] ^= int(rng.integers(1, 256))
        try:
            found = decode_request(bytes(changed), "ask")
        except MessageError:
            continue
        accepted += 1
        assert any(getattr(found, name) != getattr(before, name) for name in ("plan", "run", "sites", "parts"))
    assert accepted


@pytest.mark.parametrize(
    "response",
    [
        Response(action="ask", site="a", codes=()),
        Response(action="ask", site="a", codes=("secret words",)),
        Response(action="ask", site="a", codes=("", ""), parts=(b"x",)),
        Response(action="ask", site="a", codes=("",), parts=(b"",)),
        Response(action="ask", site="a", codes=("data",), parts=(b"x",)),
    ],
)
def test_codes_outside_the_list_or_beside_a_part_are_refused(response):
    with pytest.raises(MessageError):
        decode_response(encode_response(response), "ask")


def test_a_refusal_can_carry_no_words():
    assert decode_response(refusal("ask", "a", "no such file: /home/ada/x.csv"), "ask").codes == ("error",)
