"""The sum is right however sites are lost, restarted and reordered; the state machines refuse what is out of order."""

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from patevolve.shared.errors import MessageError, ParameterError, QuorumError
from patevolve.shared.secagg.coordinator import CoordinatorSum
from patevolve.shared.secagg.site import SiteSum, store_name
from patevolve.shared.secagg.spec import SumSpec

NEVER, BEFORE_KEY, BEFORE_MASKED, BEFORE_SHARES = range(4)


def votes(run, seed=0, length=3):
    draws, most = np.random.default_rng(seed), 2**31 // len(run.sites)
    return {name: draws.integers(-most, most, length) for name in run.sites}


def check(opened, values, sites):
    assert opened.sites == tuple(sorted(sites))
    assert np.array_equal(opened.values, sum((values[name] for name in sites), np.zeros(opened.values.size, np.int64)))


@pytest.mark.parametrize(("dropouts", "trust"), [(1, "active"), (2, "curious")])
def test_every_pattern_of_loss_of_four_sites(new_run, dropouts, trust):
    # 4 sites, each lost never or at one of three steps: 256 patterns.
    refused = right = 0
    for pattern in itertools.product(range(4), repeat=4):
        run = new_run(4, dropouts=dropouts, trust=trust)
        fate = dict(zip(run.sites, pattern, strict=True))
        gone = {step: {name for name, when in fate.items() if NEVER < when <= step} for step in range(4)}
        values = votes(run)
        try:
            run.setup(lost=gone[BEFORE_KEY])
            run.mask("q", values, lost=gone[BEFORE_MASKED])
            opened = run.unmask("q", lost=gone[BEFORE_SHARES])
        except QuorumError:
            refused += 1
            assert len(gone[BEFORE_SHARES]) > dropouts
            continue
        right += 1
        assert len(gone[BEFORE_SHARES]) <= dropouts
        check(opened, values, [name for name in run.sites if name not in gone[BEFORE_MASKED]])
    assert (right, refused) == {1: (13, 243), 2: (67, 189)}[dropouts]


@pytest.mark.parametrize("steps", list(itertools.permutations(range(4), 2)))
def test_sites_that_come_back_take_part_in_the_next_question(new_run, steps):
    # Each of two questions loses one site before its masked vector and another site after it.
    run = new_run(4, dropouts=2, trust="curious")
    run.setup()
    names = list(run.sites)
    for question, (early, late) in {"q1": steps, "q2": steps[::-1]}.items():
        values = votes(run, seed=early)
        run.mask(question, values, lost=[names[early]])
        opened = run.unmask(question, lost=[names[early], names[late]])
        check(opened, values, [name for name in names if name != names[early]])


def test_a_site_that_missed_the_first_exchange_helps_in_the_second(new_run):
    run = new_run(4, dropouts=1)
    run.setup()
    values, names = votes(run), list(run.sites)
    run.mask("q", values, lost=names[:1])
    check(run.unmask("q", lost=names[1:2]), values, names[1:])
    with pytest.raises(MessageError, match="closed"):
        run.sites[names[0]].mask(run.coordinator.ask("q", 3), values[names[0]])


@given(data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_order_of_events_with_restarts_and_repeats(new_run, data):
    count = data.draw(st.integers(2, 6), "sites")
    dropouts = data.draw(st.integers(0, (count - 1) // 2), "drop-outs")
    run = new_run(count, dropouts=dropouts, trust="curious")
    names = list(run.sites)
    draw = lambda label: data.draw(st.permutations(names), label)[: count - data.draw(st.integers(0, dropouts))]  # noqa: E731
    members = draw("members")
    for name in members:
        run.coordinator.receive_advert(run.sites[name].advert())
    listed = run.coordinator.close_setup()
    spare = dropouts - (count - len(members))
    for question in ("q1", "q2"):
        values, length = votes(run, length=2), 2
        ask = run.coordinator.ask(question, length)
        order = data.draw(st.permutations(members), "masked")[: len(members) - data.draw(st.integers(0, spare))]
        for name in order:
            run.sites[name].accept_keys(listed)
            masked = run.sites[name].mask(ask, values[name])
            if data.draw(st.booleans(), "restart the site"):
                run.restart_site(name)
                assert run.sites[name].read_ask(ask).reply == masked
                assert run.sites[name].mask(ask, values[name] + 1) == masked
            for _ in range(data.draw(st.integers(1, 2), "deliveries")):
                assert run.coordinator.receive_masked(masked) == name
            if data.draw(st.booleans(), "restart the coordinator"):
                run.restart_coordinator()
        requests = run.coordinator.close_masked(question)
        run.restart_coordinator()
        assert run.coordinator.close_masked(question) == requests
        late = data.draw(st.permutations(members), "unmasked")[: count - dropouts]
        for name in late:
            run.sites[name].accept_keys(listed)
            shares = run.sites[name].unmask(requests[name])
            if data.draw(st.booleans(), "restart after shares"):
                run.restart_site(name)
            assert run.sites[name].unmask(requests[name]) == shares
            run.coordinator.receive_unmasked(shares)
        run.restart_coordinator()
        check(run.coordinator.result(question), values, order)
        run.coordinator.forget(question)


def test_several_questions_under_way(new_run):
    run = new_run(3)
    run.setup()
    first, second = votes(run, 1), votes(run, 2, length=5)
    run.mask("q1", first)
    run.mask("q2", second)
    run.restart_coordinator()
    check(run.unmask("q2"), second, run.sites)
    check(run.unmask("q1"), first, run.sites)


def test_many_sites_on_the_sparse_graph(new_run):
    run = new_run(100, dropouts=5, colluders=2)
    assert 0 < run.coordinator._graph.sizes.half < 20
    names = list(run.sites)
    run.setup(lost=names[:1])
    values = votes(run)
    run.mask("q", values, lost=names[:3])
    check(run.unmask("q", lost=names[:5]), values, names[3:])


@pytest.mark.parametrize(
    ("one", "other", "total"),
    [
        (-1, -2, -3),
        (-(2**31), 2**31 - 1, -1),
        (-(2**31), 0, -(2**31)),
        (2**31 - 1, 1, -(2**31)),  # beyond the range it wraps, as documented
        (-(2**31), -1, 2**31 - 1),
    ],
)
def test_negative_sums_and_the_ends_of_the_range(new_run, one, other, total):
    run = new_run(2)
    run.setup()
    values = dict(zip(run.sites, ([one], [other]), strict=True))
    run.mask("q", values)
    assert run.unmask("q").values.tolist() == [total]


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 10_000])
def test_sizes(new_run, length):
    run = new_run(3, dropouts=1)
    run.setup()
    values = votes(run, length=length)
    run.mask("q", values)
    check(run.unmask("q"), values, run.sites)
    # 4 bytes a value, and an envelope of 4 x 16 + 16 bytes for each of three deciders.
    ask = run.coordinator.ask("q", length)
    assert len(run.sites["site000"].mask(ask, values["site000"])) < 4 * length + 1500


@pytest.mark.parametrize("values", [[2**31], [-(2**31) - 1], [0.5], [[1]], [1, 2], [], ["1"], [True]])
def test_values_that_are_no_vector_of_the_range_are_refused(new_run, values):
    run = new_run(2)
    run.setup()
    ask = run.coordinator.ask("q", 1)
    with pytest.raises(ParameterError):
        run.sites["site000"].mask(ask, values)
    assert run.sites["site000"].read_ask(ask).reply is None  # and nothing was answered


def test_too_few_at_each_step(new_run):
    run = new_run(4, dropouts=1)
    names = list(run.sites)
    for name in names[:2]:
        run.coordinator.receive_advert(run.sites[name].advert())
    with pytest.raises(QuorumError, match="2 of 4"):
        run.coordinator.close_setup()
    run.setup()
    run.mask("q", votes(run), lost=names[:2])
    with pytest.raises(QuorumError, match="2 of 4"):
        run.coordinator.close_masked("q")
    run.coordinator.receive_masked(run.sites[names[0]].mask(run.coordinator.ask("q", 3), [1, 2, 3]))
    with pytest.raises(QuorumError, match="2 deciders"):
        run.unmask("q", lost=names[:2])


def test_the_coordinator_refuses_calls_out_of_order(new_run):
    run = new_run(3)
    coordinator, site = run.coordinator, run.sites["site000"]
    with pytest.raises(MessageError, match="set-up"):
        coordinator.ask("q", 1)
    run.setup()
    with pytest.raises(MessageError, match="set-up was closed"):
        coordinator.receive_advert(site.advert())
    for call in (coordinator.close_masked, coordinator.result, coordinator.forget):
        with pytest.raises(MessageError, match="not under way"):
            call("q")
    values = votes(run)
    run.mask("q", values)
    with pytest.raises(MessageError, match="first exchange"):
        coordinator.result("q")
    with pytest.raises(MessageError, match="before"):
        coordinator.ask("q", 4)
    check(run.unmask("q"), values, run.sites)
    coordinator.forget("q")
    with pytest.raises(MessageError, match="asked before"):
        coordinator.ask("q", 3)
    run.restart_coordinator()
    with pytest.raises(MessageError, match="asked before"):
        run.coordinator.ask("q", 3)


def test_a_site_refuses_calls_out_of_order(new_run):
    run = new_run(3, dropouts=1)
    for name in list(run.sites)[:2]:
        run.coordinator.receive_advert(run.sites[name].advert())
    listed, ask = run.coordinator.close_setup(), run.coordinator.ask("q", 1)
    site = run.sites["site000"]
    for call in (site.read_ask, lambda data: site.mask(data, [1])):
        with pytest.raises(MessageError, match="before the list of keys"):
            call(ask)
    with pytest.raises(MessageError, match="own"):
        run.sites["site002"].accept_keys(listed)  # it was late: not in the list
    assert site.accept_keys(listed) == ("site000", "site001")
    assert site.accept_keys(listed) == ("site000", "site001")
    site.mask(ask, [1])
    site.forget("q")
    with pytest.raises(MessageError, match="closed"):
        site.mask(ask, [1])
    run.restart_site("site000")
    with pytest.raises(MessageError, match="closed"):
        run.sites["site000"].mask(ask, [1])


def test_a_late_masked_vector_is_lost(new_run):
    run = new_run(3, dropouts=1)
    run.setup()
    values = votes(run)
    run.mask("q", values, lost=["site000"])
    late = run.sites["site000"].mask(run.coordinator.ask("q", 3), values["site000"])
    run.coordinator.close_masked("q")
    with pytest.raises(MessageError, match="it is lost"):
        run.coordinator.receive_masked(late)
    check(run.unmask("q"), values, ["site001", "site002"])


def test_states_of_another_run_or_damaged_are_refused(new_run, harness):
    run = new_run(2)
    run.setup()
    other = new_run(2, run="r2", identities=run.identities, chief=run.coordinator_identity)
    state, journal = run.sites["site000"].export_state(), run.coordinator.export_state()
    with pytest.raises(MessageError):
        SiteSum.restore(state, other.spec, identity=run.identities["site000"])
    with pytest.raises(MessageError):
        CoordinatorSum.restore(journal, other.spec, identity=run.coordinator_identity)
    for cut in (b"", journal[:20], journal[:-1], journal + b"x"):
        with pytest.raises(MessageError):
            CoordinatorSum.restore(cut, run.spec, identity=run.coordinator_identity)
    for cut in (b"", state[:-1], state + b"x"):
        with pytest.raises(MessageError):
            SiteSum.restore(cut, run.spec, identity=run.identities["site000"])
    with pytest.raises(ParameterError, match="not registered"):
        SiteSum.restore(state, run.spec, identity=harness.identity())
    assert store_name(run.spec, "site000") != store_name(other.spec, "site000")


def test_representations_and_errors_show_no_secret(new_run):
    run = new_run(3, dropouts=1)
    run.setup()
    site = run.sites["site000"]
    site.mask(run.coordinator.ask("q", 3), [123456, 234567, 345678])
    shown = repr([site, site._key, site._cohort, run.coordinator, run.spec])
    private = site._key.key.private_bytes_raw()
    secrets = [private, *site._cohort.roots.values()]
    assert not any(secret.hex() in shown or repr(secret)[2:-1] in shown for secret in secrets)
    assert "123456" not in shown


def test_the_stored_state_holds_no_vote(new_run):
    run = new_run(3)
    run.setup()
    vector = np.arange(1000, 1100)
    run.sites["site000"].mask(run.coordinator.ask("q", 100), vector)
    state = run.sites["site000"].export_state()
    assert vector.astype("<i4").tobytes()[:16] not in state
    assert vector.astype("<i8").tobytes()[:16] not in state
    assert run.identities["site000"].key.private_bytes_raw() not in state


KEY = "ab" * 32


@pytest.mark.parametrize(
    "change",
    [
        {"plan": "ab"},
        {"plan": "AB" * 32},
        {"coordinator": "x"},
        {"run": ""},
        {"sites": {"a": KEY}},
        {"sites": {"a": KEY, "b": KEY}},
        {"sites": {"": KEY, "b": "cd" * 32}},
        {"dropouts": -1},
        {"dropouts": True},
        {"dropouts": 1, "colluders": 1},
        {"colluders": 0.5},
        {"trust": "yes"},
    ],
)
def test_specifications_outside_their_domain(change):
    good = {"plan": KEY, "run": "r", "coordinator": KEY, "sites": {"a": KEY, "b": "cd" * 32}}
    SumSpec(**good)
    with pytest.raises(ParameterError):
        SumSpec(**good | change)
