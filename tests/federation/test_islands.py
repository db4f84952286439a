"""Islands over a network: one result in every mode, charges at each site alone, and sites that send nothing home."""

from __future__ import annotations

import math

import numpy as np
import pytest

from patevolve.client import reporting
from patevolve.client.audit_pipeline import answer_path, asked_of
from patevolve.client.home import open_home
from patevolve.client.simulate import Site, load_records
from patevolve.server import report as coordinators
from patevolve.server.needs import needs_of
from patevolve.shared import wire
from patevolve.shared.described import Context
from patevolve.shared.envelopes import Request, decode_request, decode_response, encode_request
from patevolve.shared.errors import DataError, MessageError
from patevolve.shared.messages import Question, decode_migrants, decode_question, encode_question
from patevolve.shared.privacy import accountant
from patevolve.shared.privacy.events import from_record
from patevolve.shared.privacy.global_ledger import GlobalLedger
from patevolve.shared.privacy.ledger import Ledger
from patevolve.shared.report import summary
from patevolve.shared.tools import tools_of

FREE = {"islands.migrants": 1, "islands.candidates": 8, "islands.generations": 2, "evolution.generations": 3}
CHARGED = {**FREE, "islands.times": 2, "islands.share": 0.1, "islands.nearest": 2, "questions.neighbours.share": 0.2}
PLANS = {"free": FREE, "charged": CHARGED}
PUBLIC = ("release", "student", "generations", "migrants")
CONTEXT = Context(mode="simulated", seeds=[1], utility=(), generations=[], reproduce=[], wall_seconds=0.0)


def public(town, out):
    return {part: town.tree(out, part) for part in PUBLIC}


@pytest.mark.parametrize("trust", ["each-site", "secure-sum"])
@pytest.mark.parametrize("plan", PLANS)
def test_coordinated_and_simulated_give_the_same_bytes(plan, trust, town, recorded):
    agreed = town.agreed({**PLANS[plan], "privacy.trust": trust})
    town.simulate(agreed, "simulated", noise=recorded)
    town.coordinate(agreed, town.office(agreed, noise=recorded), "deployed")
    assert len(public(town, "simulated")["migrants"]) == agreed.plan.islands.times
    assert public(town, "deployed") == public(town, "simulated")
    for site in town.sites:
        assert town.charges(site) == town.charges(site, "simulated-homes")
        assert town.charges(site)["islands/1"] == (plan == "charged")


@pytest.mark.parametrize("plan", PLANS)
def test_local_and_simulated_with_one_site_give_the_same_bytes(plan, town, recorded):
    town.sites = ("Ada",)
    agreed = town.agreed({**PLANS[plan], "sites.count": 1})
    town.simulate(agreed, "simulated", noise=recorded)
    town.coordinate(agreed, town.office(agreed, noise=recorded), "deployed")
    assert public(town, "deployed") == public(town, "simulated")


def test_a_plan_without_islands_gives_other_bytes(town, recorded):
    """The control of the tests above: migrants do change the release."""
    town.simulate(town.agreed(FREE), "with", noise=recorded)
    town.simulate(town.agreed({"evolution.generations": 3}), "without", noise=recorded)
    assert not town.tree("without", "migrants")
    assert town.tree("with", "generations")["002.pv"] != town.tree("without", "generations")["002.pv"]


@pytest.mark.parametrize("trust", ["each-site", "secure-sum"])
def test_both_ledgers_know_the_islands_as_local(trust, town):
    agreed = town.agreed({**CHARGED, "privacy.trust": trust})
    town.coordinate(agreed, town.office(agreed))
    with GlobalLedger.open(town.place / "run" / "global.sqlite") as joined:
        rows = {row["question"]: row for row in joined.questions()}
        whole = joined.epsilon(1e-5).epsilon
        assert all(joined.trusted_heads(site) for site in town.sites)
    assert [rows[name]["scope"] for name in ("islands/1", "islands/2", "prototypes")] == ["local", "local", "shared"]
    events = [from_record(row["event"]) for row in rows.values()]
    # Every island costs the same here, so the worst site is any site: the whole is what one site's units meet.
    assert math.isclose(whole, accountant.epsilon(accountant.compose(events), 1e-5).epsilon, rel_tol=1e-12)
    assert whole <= agreed.plan.privacy.epsilon
    for site in town.sites:
        with Ledger.open(town.place / "homes" / site / "ledger.sqlite") as ledger:
            scopes = {charge.question: charge.scope for charge in ledger.charges()}
            assert ledger.spent(1e-5).epsilon <= agreed.plan.privacy.epsilon
        assert (scopes["islands/1"], scopes["counts"]) == ("local", "shared")


def test_what_goes_and_comes_is_what_the_plan_says(town):
    agreed = town.agreed(CHARGED)
    office = town.office(agreed)
    town.coordinate(agreed, office)
    sent = [decode_request(data, action) for _, action, data in office.requests if action == "evolve"]
    assert {len(request.parts) for request in sent} == {1}
    for question in {request.parts[0] for request in sent}:
        found = decode_question(question)
        assert (found.kind, found.arrays["genomes"].shape, sorted(found.arrays)) == (
            "islands",
            (8, 2),
            ["classes", "genomes", "model"],
        )
    replies = {data for _, action, data in office.replies if action == "evolve"}  # sent again, the same bytes
    assert len(replies) == 2 * len(town.sites)
    for reply in replies:
        (part,) = decode_response(reply, "evolve").parts
        assert wire.decode(part).kind == "migrants"
        assert decode_migrants(part).genomes.shape == (2, 2)


@pytest.mark.parametrize("plan", PLANS)
def test_what_a_plan_needs_of_a_site_holds_what_its_islands_start_from(plan, town):
    agreed = town.agreed({**PLANS[plan], "islands.candidates": 3000})
    tools = tools_of(agreed.plan)
    rng = np.random.default_rng(1)
    genomes = rng.normal(size=(3000, tools.generator.genome_size)).astype(np.float32)
    model = rng.normal(size=(2, tools.encoder.embedding_size))
    arrays = {"genomes": genomes, "classes": np.zeros(3000, np.int64), "model": model}
    question = encode_question(Question(kind="islands", name="islands/1", plan=agreed.sha256, run="r", arrays=arrays))
    needs = needs_of(agreed, tools)
    assert len(request(agreed, town, (question,))) <= needs.message
    assert needs.message <= len(request(agreed, town, (question,))) + 4096
    assert ("islands" in needs.kinds) == (plan == "charged")  # free ones send nothing that a policy has to permit


def break_island(office, node):
    """Let a site refuse its island, and nothing else."""
    handle = office.stations[node]

    def refusing(action, data):
        return handle(action, b"" if action == "evolve" else data)

    office.stations[node] = refusing


@pytest.mark.parametrize("plan", PLANS)
def test_a_site_that_sends_nothing_is_left_out_within_the_plans_drop_outs(plan, town):
    agreed = town.agreed({**PLANS[plan], "privacy.dropouts": 1})
    office = town.office(agreed)
    break_island(office, 101)
    town.coordinate(agreed, office)
    kept = wire.decode(town.tree("run", "migrants")["islands-1.pv"])
    assert kept.fields["sites"] == ["Ada", "Cid"]
    assert kept.fields["refusals"] == {"Bea": "message"}
    assert town.charges("Bea")["islands/1"] == 0
    assert (town.place / "run" / "release" / "data.csv").exists()


def test_too_few_islands_end_the_run_and_a_resumed_one_asks_for_no_second_charge(town, recorded):
    agreed = town.agreed(CHARGED)
    town.simulate(agreed, "simulated", noise=recorded)
    office = town.office(agreed, noise=recorded)
    break_island(office, 101)
    with pytest.raises(MessageError, match=r"islands/1: 2 of 3 .* Bea \(message\)"):  # its own reason explains it
        town.coordinate(agreed, office)
    town.coordinate(agreed, town.office(agreed, noise=recorded))
    assert public(town, "run") == public(town, "simulated")
    for site in town.sites:
        assert set(town.charges(site).values()) == {1}


def test_a_resumed_run_takes_the_migrants_that_it_kept(town):
    """Real noise: migrants that were asked for anew under another name would differ."""
    agreed = town.agreed(CHARGED)
    town.coordinate(agreed, town.office(agreed))
    before = public(town, "run")
    for number in ("002", "003"):
        (town.place / "run" / "generations" / f"{number}.pv").unlink()
    office = town.office(agreed)
    town.coordinate(agreed, office)
    assert public(town, "run") == before
    assert not [action for _, action, _ in office.requests if action == "evolve"]


class MadeError(Exception):
    """Carries a report out of the function that would write its page, which takes seconds."""


def made(module, monkeypatch, *arguments):
    def stopped(*given, **named):
        raise MadeError(summary.report(*given, **named))

    monkeypatch.setattr(module, "report", stopped)
    with pytest.raises(MadeError) as found:
        module.write_report(*arguments)
    return found.value.args[0]


def test_an_audit_replays_a_run_with_islands(town):
    """It takes the migrants from the run folder, as it takes the sums; without them it says what is missing."""
    agreed = town.agreed(CHARGED)
    town.simulate(agreed, "simulated")
    asked = asked_of(town.place / "simulated", agreed)
    assert sorted(asked.questions) == ["counts", "neighbours/1", "prototypes"]
    home = open_home(town.home(agreed, "Ada", name="simulated-homes"))
    found = answer_path(asked, home, load_records(town.data("Ada"), agreed.plan)["Ada"])
    assert (found.missing, found.uncharged) == ((), ())
    (town.place / "simulated" / "migrants" / "islands-2.pv").unlink()
    with pytest.raises(DataError, match="islands/2: no migrants"):
        asked_of(town.place / "simulated", agreed)


def test_the_reports_show_the_islands_cost_beside_the_sums(town, monkeypatch):
    agreed = town.agreed({**CHARGED, "privacy.trust": "secure-sum"})
    finished = town.coordinate(agreed, town.office(agreed))
    check_report(made(coordinators, monkeypatch, agreed, finished, CONTEXT), agreed, finished.asks)
    simulated = town.simulate(agreed, "simulated")
    sites = {
        site: Site(home=open_home(town.home(agreed, site, name="simulated-homes")), records=None) for site in town.sites
    }
    check_report(made(reporting, monkeypatch, agreed, simulated, sites, CONTEXT), agreed, simulated.asks)


def check_report(found, agreed, asks):
    whole = accountant.epsilon(accountant.compose([ask.event for ask in asks]), 1e-5).epsilon
    assert math.isclose(found["epsilon"], whole, rel_tol=1e-12)
    assert "islands" in {part["part"] for part in found["parts"]}
    took = {row["question"]: (row["when"], row["answered"], row["silent"]) for row in found["participation"]}
    assert took["islands/2"] == ("generation 2", 3, [])
    levels = {(row["viewer"], row["level"]): row["epsilon"] for row in found["viewers"]}
    assert math.isclose(levels["coordinator", "patient"], whole, rel_tol=1e-12)
    assert levels["public", "patient"] <= whole
    # Twice as far in each sum, and two islands: more than one site's cost, less than four times it in Rényi terms.
    assert whole < levels["coordinator", "patient at 2 sites"] < levels["coordinator", "whole institution"]
    words = {row["item"]: row["text"] for row in found["statement"]}
    assert "2 round(s) of each site's votes on its own island" in words["What was charged"]
    assert "no sum is trusted there" in words["Trust model"]
    without = accountant.epsilon(
        accountant.compose([ask.event for ask in asks if ask.scope == "shared"]), agreed.plan.privacy.delta
    )
    assert without.epsilon < whole


def request(agreed, town, parts, sites=None):
    return encode_request(Request(action="evolve", plan=agreed.sha256, run="r", sites=sites or town.sites, parts=parts))


@pytest.mark.parametrize("parts", [0, 2, 3])
def test_other_than_one_part_is_refused(parts, town):
    agreed = town.agreed(CHARGED)
    question = encode_question(Question(kind="islands", name="islands/1", plan=agreed.sha256, run="r"))
    reply = town.station(agreed, "Ada").handle("evolve", request(agreed, town, (question,) * parts))
    assert decode_response(reply, "evolve").codes == ("message",)
    assert not town.charges("Ada")


def test_a_cohort_that_is_not_the_plans_is_refused(town):
    agreed = town.agreed(CHARGED)
    question = encode_question(Question(kind="islands", name="islands/1", plan=agreed.sha256, run="r"))
    reply = town.station(agreed, "Ada").handle("evolve", request(agreed, town, (question,), sites=("Ada", "Bea")))
    assert decode_response(reply, "evolve").codes == ("message",)


@pytest.mark.parametrize("trust", ["each-site", "secure-sum"])
def test_an_island_asked_as_a_question_is_refused_by_code_and_costs_nothing(trust, town):
    """Or else a coordinator would get the bare tally, under secure sum in a sum of one site's whole noise."""
    agreed = town.agreed({**CHARGED, "privacy.trust": trust})
    office = town.office(agreed)
    town.coordinate(agreed, office)
    ((_, _, sent), *_) = [row for row in office.requests if row[:2] == (100, "evolve")]
    before = town.charges("Ada")
    asked = encode_request(
        Request(
            action="ask", plan=agreed.sha256, run="run-1", sites=town.sites, parts=decode_request(sent, "evolve").parts
        )
    )
    assert decode_response(office.stations[100]("ask", asked), "ask").codes == ("message",)
    assert town.charges("Ada") == before


def test_a_policy_that_does_not_permit_islands_is_a_veto(town):
    agreed = town.agreed(CHARGED)
    policy = town.home(agreed, "Ada") / "policy.toml"
    policy.write_text(policy.read_text(encoding="utf-8").replace(', "islands"', ""), encoding="utf-8")
    hello = encode_request(Request(action="hello", plan=agreed.sha256, run="r"))
    assert decode_response(town.station(agreed, "Ada").handle("hello", hello), "hello").codes == ("policy",)


def test_nothing_but_migrants_leaves_an_island(town, monkeypatch):
    """The last check before sending: an island that answered with votes would be held back."""
    from patevolve.client import station as stations

    agreed = town.agreed(CHARGED)
    office = town.office(agreed)
    town.coordinate(agreed, office)
    ((_, _, sent), *_) = [row for row in office.requests if row[:2] == (100, "evolve")]
    answer = next(decode_response(data, "ask").parts[0] for _, action, data in office.replies if action == "ask")
    monkeypatch.setattr(stations, "evolve", lambda *_: answer)
    reply = town.station(agreed, "Ada").handle("evolve", sent)
    assert decode_response(reply, "evolve").codes == ("message",)
