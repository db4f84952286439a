"""What a site says in its greeting that it can do, and a coordinator that heeds it before anything is asked."""

from __future__ import annotations

import dataclasses
import json
import shutil
from typing import Any

import numpy as np
import pytest

from patevolve.client import station as stations
from patevolve.client.home import open_home
from patevolve.server import run as runs
from patevolve.server.needs import Needs, lacking, needs_of
from patevolve.server.run import coordinate, held_heads, reported
from patevolve.shared import wire
from patevolve.shared.envelopes import (
    MAX_REQUEST,
    Capabilities,
    Request,
    Welcome,
    decode_request,
    decode_response,
    decode_welcome,
    encode_head,
    encode_request,
    encode_welcome,
)
from patevolve.shared.errors import MessageError
from patevolve.shared.messages import KINDS, Question, encode_question
from patevolve.shared.privacy.signing import create_identity, head_to_json, sign_head
from patevolve.shared.tools import tools_of

HELLO = Request(action="hello", plan="a" * 64, run="r")


def carried_out(town: Any, agreed: Any, office: Any) -> tuple[int, str]:
    settings = town.settings()
    quick = dataclasses.replace(settings.timing, grace=0.2, deadline=5.0)
    settings = dataclasses.replace(settings, timing=quick, hello=quick)
    code = reported(agreed, settings.path, lambda: coordinate(agreed, office, settings))
    return code, json.loads((settings.path / "status.json").read_text(encoding="utf-8"))["code"]


def edit_policy(town: Any, site: str, line: str) -> None:
    path = town.place / "homes" / site / "policy.toml"
    key = line.split(" =", maxsplit=1)[0]
    kept = [old for old in path.read_text(encoding="utf-8").splitlines() if not old.startswith(f"{key} =")]
    path.write_text("\n".join([line, *kept]) + "\n", encoding="utf-8")


def test_a_request_longer_than_the_policy_says_is_refused_before_it_is_read(town, monkeypatch):
    agreed = town.agreed()
    station = town.station(agreed, "Ada")
    edit_policy(town, "Ada", "maximum_message = 4096")
    monkeypatch.setattr(stations, "decode_request", lambda *_: pytest.fail("it was read"))
    assert decode_response(station.handle("ask", bytes(4097)), "ask").codes == ("message",)
    with pytest.raises(pytest.fail.Exception, match="it was read"):
        station.handle("ask", bytes(4096))


@pytest.mark.parametrize(("line", "code"), [("permitted = []", 3), ("maximum_message = 4096", 7)])
def test_a_site_that_lacks_what_the_plan_needs_is_left_out_before_anything_is_asked(line, code, town):
    agreed = town.agreed({"questions.neighbours.candidates": 2000, "evolution.population": 2000})
    office = town.office(agreed)
    edit_policy(town, "Bea", line)
    assert carried_out(town, agreed, office) == (code, "policy" if code == 3 else "message")
    assert {action for _, action, _ in office.requests} == {"hello"}
    assert not any(town.charges(site) for site in town.sites)


@pytest.mark.parametrize("lack", ["kinds", "trust", "message"])
def test_the_run_goes_on_without_a_site_that_lacks_something_if_its_plan_allows(lack, town, monkeypatch, caplog):
    agreed = town.agreed({"privacy.dropouts": 1})
    honest = stations.welcome

    def less(home: Any, *, unsafe: bool) -> Any:
        said = honest(home, unsafe=unsafe)
        value = 1 if lack == "message" else ()
        can = dataclasses.replace(said.capabilities, **{lack: value})
        return dataclasses.replace(said, capabilities=can) if said.site == "Bea" else said

    monkeypatch.setattr(stations, "welcome", less)
    assert carried_out(town, agreed, town.office(agreed)) == (0, "")
    assert not town.charges("Bea")
    assert town.charges("Ada")
    assert "Bea is left out" in caplog.text


def test_a_request_longer_than_foreseen_is_not_sent_and_its_site_counts_as_refusing(town, monkeypatch):
    agreed = town.agreed({"questions.neighbours.candidates": 2000, "evolution.population": 2000})
    monkeypatch.setattr(runs, "needs_of", lambda *_: Needs(kinds=(), trust="each-site", message=0))
    office = town.office(agreed)
    edit_policy(town, "Bea", "maximum_message = 4096")
    assert carried_out(town, agreed, office) == (7, "message")
    assert not [data for node, _, data in office.requests if node == 101 and len(data) > 4096]


def test_what_a_plan_needs_holds_its_longest_request(town):
    for changes in ({}, {"questions.neighbours.candidates": 3000, "evolution.population": 3000}):
        agreed = town.agreed(changes)
        tools = tools_of(agreed.plan)
        needs = needs_of(agreed, tools)
        most = agreed.plan.questions.neighbours.candidates
        genomes = np.random.default_rng(1).normal(size=(most, tools.generator.genome_size)).astype(np.float32)
        arrays = {"genomes": genomes, "classes": np.zeros(most, np.int64)}
        question = Question(kind="neighbours", name="neighbours/1", plan=agreed.sha256, run="r" * 40, arrays=arrays)
        parts = (encode_question(question),)
        data = encode_request(Request(action="ask", plan=agreed.sha256, run="r" * 40, sites=town.sites, parts=parts))
        assert len(data) <= needs.message <= len(data) + 4096
    assert needs.kinds == ("counts", "prototypes", "neighbours")


def test_no_plan_needs_more_than_any_site_can_permit(town):
    changes = {"questions.neighbours.candidates": 100_000, "evolution.population": 100_000}
    many = town.agreed(changes)
    tools = tools_of(many.plan)
    wide = dataclasses.replace(tools, generator=type("Wide", (), {"genome_size": 128})())
    assert needs_of(many, wide).message == MAX_REQUEST
    can = Capabilities(kinds=KINDS, trust=("each-site",), message=MAX_REQUEST)
    assert lacking(needs_of(many, wide), can) == ("", "")


@pytest.fixture
def greeting(tmp_path):
    identity = create_identity(tmp_path / "identity.key")
    can = Capabilities(kinds=KINDS, trust=("each-site",), message=5000)
    said = Welcome(site="Ada", public_key=identity.public_key, capabilities=can)
    return said, encode_welcome(HELLO, said, identity)


def test_capabilities_are_signed_with_the_greeting(greeting):
    said, data = greeting
    assert decode_welcome(data, HELLO) == said
    packet = wire.decode(data)
    for changed in ({"message": 9999}, {"kinds": ["counts"]}, {"trust": []}, {"message": 5000.0}, {"kinds": [1]}):
        forged = wire.encode(dataclasses.replace(packet, fields={**packet.fields, **changed}))
        with pytest.raises(MessageError):
            decode_welcome(forged, HELLO)
    with pytest.raises(MessageError):
        decode_welcome(data, dataclasses.replace(HELLO, run="another"))


def test_a_changed_greeting_is_no_greeting(greeting):
    """Any byte, changed in any way: a MessageError and nothing else."""
    _, data = greeting
    rng = np.random.default_rng(5)
    for _ in range(3000):
        changed = bytearray(data)
        changed[int(rng.integers(len(data)))] ^= int(rng.integers(1, 256))
        with pytest.raises(MessageError):
            decode_welcome(bytes(changed), HELLO)


def put_back(town: Any, site: str, kept: Any) -> None:
    home = town.place / "homes" / site
    shutil.rmtree(home)
    shutil.copytree(kept, home)


@pytest.mark.parametrize("trust", ["each-site", "secure-sum"])
@pytest.mark.parametrize("dropouts", [0, 1])
def test_a_whole_folder_put_back_is_seen_by_the_head_that_the_coordinator_holds(trust, dropouts, town):
    """Nothing in the folder itself tells: ledger, kept head and the state of the sums are all of one age."""
    agreed = town.agreed({"privacy.trust": trust, "privacy.dropouts": dropouts})
    office = town.office(agreed)
    open_home(town.home(agreed, "Bea"))
    shutil.copytree(town.place / "homes" / "Bea", town.place / "backup")
    town.coordinate(agreed, office)
    put_back(town, "Bea", town.place / "backup")
    shutil.rmtree(town.place / "run" / "release")
    code = carried_out(town, agreed, town.office(agreed))
    assert code == ((0, "") if dropouts else (6, "rollback"))
    assert not town.charges("Bea")


def test_each_site_is_shown_its_own_head_alone_and_goes_on(town):
    agreed = town.agreed()
    town.coordinate(agreed, town.office(agreed))
    heads = held_heads(town.place / "run")
    assert set(heads) == set(town.sites)
    office = town.office(agreed)
    assert carried_out(town, agreed, office) == (0, "")
    for position, site in enumerate(town.sites):
        asked = [decode_request(data, "hello").parts for node, _, data in office.requests if node == 100 + position]
        assert set(asked) == {(), (encode_head(heads[site]),)}


def test_a_head_that_the_site_did_not_sign_is_no_reason_to_stop_another_run(town, tmp_path):
    agreed = town.agreed()
    town.coordinate(agreed, town.office(agreed))
    home = open_home(town.home(agreed, "Ada"))
    with home.open_ledger() as ledger:
        head = ledger.head()
    station = town.station(agreed, "Ada")

    def greeted(*parts: bytes) -> tuple[str, ...]:
        request = Request(action="hello", plan=agreed.sha256, run="run-1", parts=parts)
        return decode_response(station.handle("hello", encode_request(request)), "hello").codes

    own = encode_head(head_to_json(sign_head(head, home.identity)))
    forged = encode_head(head_to_json(sign_head(head, create_identity(tmp_path / "other.key"))))
    ahead = dataclasses.replace(head, seq=head.seq + 1)
    other = encode_head(head_to_json(sign_head(dataclasses.replace(head, site="Bea"), home.identity)))
    assert greeted(own) == ("",)
    assert greeted(encode_head(head_to_json(sign_head(ahead, home.identity)))) == ("rollback",)
    for parts in ((forged,), (other,), (own, own), (b"x",), (encode_head("{}"),)):
        assert greeted(*parts) == ("message",)
