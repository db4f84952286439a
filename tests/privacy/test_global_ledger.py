"""The coordinator's ledger: questions, heads, and the global figure."""

from __future__ import annotations

import json

import numpy as np
import pytest

from patevolve.shared.errors import LedgerError, MessageError, ParameterError, UnsupportedEventError
from patevolve.shared.privacy import accountant
from patevolve.shared.privacy.events import DiscreteGaussian, Exponential, SubsampledGaussian
from patevolve.shared.privacy.global_ledger import GlobalLedger, verify_global
from patevolve.shared.privacy.ledger import AnswerKey, Cap, Ledger, verify
from patevolve.shared.privacy.signing import create_identity, sign_head

DELTA = 1e-6
NOISE = DiscreteGaussian(sigma=40.0, l2=8.0)
DP_SGD = SubsampledGaussian(noise_multiplier=1.0, sample_rate=0.05, steps=30)


@pytest.fixture
def hub(tmp_path):
    with GlobalLedger.create(tmp_path / "global.sqlite", coordinator="hub") as ledger:
        yield ledger


@pytest.fixture
def sites(hub, tmp_path):
    """Two registered sites: name -> (their ledger, their identity)."""
    made = {}
    for site in ("north", "south"):
        identity = create_identity(tmp_path / f"{site}.pem")
        hub.register_site(site, identity.public_key)
        made[site] = (Ledger.create(tmp_path / f"{site}.sqlite", site=site), identity)
    yield made
    for ledger, _ in made.values():
        ledger.close()


def ask(hub, question="q1", *, event=NOISE, sites=("north", "south"), content="c", **more):
    return hub.record_question(
        plan_sha256="a" * 64, run="r1", question=question, question_sha256=content * 64, part="neighbours",
        event=event, sites=sites, **more,
    )  # fmt: skip


def spend(ledger, question):
    names = {"plan_sha256": "a" * 64, "run": "r1", "question": question, "question_sha256": "c" * 64}
    cap = Cap(epsilon=8.0, delta=DELTA)
    return ledger.charge(AnswerKey(**names, cohort_sha256="e" * 64), part="neighbours", event=NOISE, cap=cap)


def epsilon_of(curve):
    return accountant.epsilon(curve, DELTA).epsilon


def test_no_questions_cost_exactly_nothing(hub):
    assert hub.epsilon(DELTA).epsilon == 0.0


def test_shared_tallies_add_up_and_local_mechanisms_count_for_the_worst_site(hub):
    ask(hub, "q1")
    ask(hub, "q2")
    ask(hub, "sgd", event=DP_SGD, scope="local")  # both sites train
    ask(hub, "island", event=Exponential(epsilon=0.3), scope="local", sites=["south"])
    shared = accountant.compose([NOISE, NOISE])
    north, south = accountant.compose([DP_SGD]), accountant.compose([DP_SGD, Exponential(epsilon=0.3)])
    assert hub.epsilon(DELTA).epsilon == pytest.approx(epsilon_of(shared + np.maximum(north, south)), rel=1e-12)
    # The broken twin, adding every site's local cost, is far from it.
    assert hub.epsilon(DELTA).epsilon < epsilon_of(shared + north + south) - 0.1


def test_a_resumed_run_repeats_itself_without_a_new_row(hub):
    first = ask(hub)
    assert ask(hub, sites=("south", "north")) == first
    assert len(hub.questions()) == 1


def test_a_second_cohort_is_a_new_cost(hub):
    ask(hub)
    before = hub.epsilon(DELTA).epsilon
    ask(hub, sites=["north"])
    assert hub.epsilon(DELTA).epsilon > before


def test_one_name_with_other_content_is_refused(hub):
    ask(hub)
    for change in ({"content": "d"}, {"event": DP_SGD}, {"scope": "local"}):
        with pytest.raises(MessageError):
            ask(hub, **change)
    assert len(hub.questions()) == 1


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"sites": []}, ParameterError),
        ({"sites": ["no\nrth"]}, ParameterError),
        ({"scope": "both"}, ParameterError),
        ({"content": "G"}, ParameterError),
        ({"question": ""}, ParameterError),
        ({"event": "free"}, UnsupportedEventError),
    ],
)
def test_questions_out_of_form_are_refused(hub, change, error):
    with pytest.raises(error):
        ask(hub, **change)
    assert hub.head().seq == 0


def test_questions_are_public_json(hub):
    ask(hub)
    (found,) = json.loads(json.dumps(hub.questions(), allow_nan=False))
    assert (found["question"], found["sites"], found["row"]) == ("q1", ["north", "south"], 1)


def test_heads_are_joined_and_hold_each_site_to_its_own_ledger(hub, sites):
    for generation in range(3):
        heads, proofs = [], {}
        for site, (ledger, identity) in sites.items():
            spend(ledger, f"q{generation}")
            heads.append(sign_head(ledger.head(), identity))
            if generation:
                proofs[site] = ledger.extension(hub.trusted_heads(site)[-1].seq)
        hub.record_heads("r1", generation, heads, extensions=proofs)
    for site, (ledger, _) in sites.items():
        trusted = hub.trusted_heads(site)
        assert [head.seq for head in trusted] == [2, 3, 4]
        assert verify(ledger.path, trusted_heads=trusted).trusted_heads == 3
    found = verify_global(hub.path)
    assert (found.sites, found.heads, found.head) == (2, 6, hub.head())


def test_the_same_head_again_is_no_fault(hub, sites):
    ledger, identity = sites["north"]
    for _ in range(2):
        hub.record_heads("r1", 0, [sign_head(ledger.head(), identity)])
    assert len(hub.trusted_heads("north")) == 1


def test_one_bad_head_keeps_out_all_of_its_generation(hub, sites):
    (north, north_key), (south, _) = sites["north"], sites["south"]
    with pytest.raises(LedgerError, match="signature"):
        hub.record_heads("r1", 0, [sign_head(north.head(), north_key), sign_head(south.head(), north_key)])
    assert hub.trusted_heads("north") == []
    assert verify_global(hub.path).heads == 0


def test_a_head_of_an_unknown_site_is_refused(hub, sites, tmp_path):
    _, identity = sites["north"]
    with (
        Ledger.create(tmp_path / "east.sqlite", site="east") as east,
        pytest.raises(LedgerError, match="not registered"),
    ):
        hub.record_heads("r1", 0, [sign_head(east.head(), identity)])


def test_a_site_keeps_its_key(hub, sites, tmp_path):
    hub.register_site("north", sites["north"][1].public_key)
    with pytest.raises(LedgerError, match="another key"):
        hub.register_site("north", create_identity(tmp_path / "new.pem").public_key)
    for site, key in (("", "00" * 32), ("x", "zz"), ("x", None)):
        with pytest.raises(ParameterError):
            hub.register_site(site, key)


def test_a_cohort_is_registered_as_its_sites_one_by_one(tmp_path, monkeypatch):
    monkeypatch.setattr("os.urandom", bytes)  # the same id, so that the chains can be equal
    keys = {f"site {number}": create_identity(tmp_path / f"{number}.pem").public_key for number in range(9)}
    with (
        GlobalLedger.create(tmp_path / "one.sqlite", coordinator="hub") as one,
        GlobalLedger.create(tmp_path / "all.sqlite", coordinator="hub") as whole,
    ):
        for site, key in keys.items():
            one.register_site(site, key)
        whole.register_sites(dict(list(keys.items())[:4]))
        whole.register_sites(keys)  # four are known by now
        assert whole.head() == one.head()  # the digest of the last row stands for every byte before it
        assert whole.rows() == one.rows()
        whole.register_sites(keys)
        assert whole.head() == one.head()
    assert verify_global(tmp_path / "all.sqlite").head == verify_global(tmp_path / "one.sqlite").head


def test_one_foreign_key_leaves_the_whole_cohort_out(hub, sites, tmp_path):
    before, other = hub.rows(), create_identity(tmp_path / "new.pem").public_key
    with pytest.raises(LedgerError, match="another key"):
        hub.register_sites({"east": "00" * 32, "north": other})
    with pytest.raises(ParameterError):
        hub.register_sites({"east": "00" * 32, "west": "zz"})
    assert hub.rows() == before
    hub.register_sites({"east": "00" * 32})  # it was not taken for known
    assert len(hub.rows()) == len(before) + 1


def test_it_continues_after_a_restart(hub, sites, tmp_path):
    ask(hub)
    before = hub.epsilon(DELTA)
    hub.close()
    with GlobalLedger.open(tmp_path / "global.sqlite") as again:
        assert again.coordinator == "hub"
        assert again.epsilon(DELTA) == before
        ask(again, "q2")
        assert again.epsilon(DELTA).epsilon > before.epsilon


def test_a_sites_ledger_is_no_global_ledger_and_the_other_way_round(hub, sites):
    with pytest.raises(LedgerError, match="not a file of kind"):
        verify_global(sites["north"][0].path)
    with pytest.raises(LedgerError, match="not a file of kind"):
        verify(hub.path)
