"""A coordinator that lies: about drop-outs, peers, questions. It gets shares of one sum, or a refusal."""

import itertools

import numpy as np
import pytest

from patevolve.shared import wire
from patevolve.shared.errors import MessageError, QuorumError
from patevolve.shared.secagg import keys, once, packets
from patevolve.shared.secagg.shares import combine
from patevolve.shared.secagg.site import SiteSum


@pytest.fixture
def run(new_run):
    """Four sites with d = t = 1, all masked vectors of question q at the coordinator."""
    run = new_run(4, dropouts=1, colluders=1)
    run.setup()
    run.mask("q", {name: [number, 10 * number] for number, name in enumerate(run.sites)})
    return run


def request(run, decider, lost, *, question="q", **changed):
    """Return the request that a coordinator makes up for one decider, with any sites said to be lost."""
    coordinator = run.coordinator
    now = coordinator._questions[question]
    survivors = np.array([name not in lost for name in run.spec.names])
    kept = [now.packets[name].arrays for name in run.spec.names if name not in lost]
    place = coordinator._graph.deciders.tolist().index(run.spec.names.index(decider))
    arrays = {
        "ask": np.frombuffer(now.asking, np.uint8),
        "survivors": survivors.astype(np.uint8),
        "signature": once.sign(now.seed, survivors),
        "nonces": np.stack([array["nonce"] for array in kept]),
        "envelopes": np.stack([array["envelopes"][place] for array in kept]),
    }
    fields = {"context": run.spec.context, "site": decider}
    return packets.write_bare("unmask", fields | changed.pop("fields", {}), arrays | changed)


def asked(run, **changed):
    """Return question q's request with other fields, rightly signed: its commitment is the true one."""
    packet = wire.decode(run.coordinator.ask("q", 2)[keys.SIGNATURE :])
    return packets.write("ask", run.coordinator_identity, {**packet.fields, **changed}, packet.arrays)


def envelope(run, sender, receiver):
    """Return the shares that a decider finds in an envelope: what a colluder tells the coordinator."""
    cohort = run.sites[run.spec.names[receiver]]._cohort
    arrays = run.coordinator._questions["q"].packets[run.spec.names[sender]].arrays
    channel, bound = cohort.envelope(sender, receiver, packets.question_digest(run.coordinator.ask("q", 2)))
    plain = keys.unseal(channel, arrays["nonce"].tobytes(), arrays["envelopes"][receiver].tobytes(), bound)
    return np.frombuffer(plain, np.uint8).reshape(-1, 16)


def names(run):
    return list(run.sites)


def test_one_site_gives_shares_for_one_set_only(run):
    a, b, c, d = names(run)
    first = run.sites[a].unmask(request(run, a, {d}))
    assert run.sites[a].unmask(request(run, a, {d})) == first
    for lost in ({b}, {c}, set()):
        with pytest.raises(MessageError, match="second set"):
            run.sites[a].unmask(request(run, a, lost))
    run.restart_site(a)  # and a restart makes it forget nothing
    assert run.sites[a].unmask(request(run, a, {d})) == first
    with pytest.raises(MessageError, match="second set"):
        run.sites[a].unmask(request(run, a, {b}))
    run.sites[a].forget("q")
    for lost in ({d}, {b}):
        with pytest.raises(MessageError, match="second set"):
            run.sites[a].unmask(request(run, a, lost))


def test_a_set_that_the_question_does_not_commit_to_is_refused(run):
    """Whoever is not the coordinator cannot make one up, even with every message at hand."""
    a, b, *_ = names(run)
    told = wire.decode(run.coordinator.close_masked("q")[a]).arrays
    survivors = told["survivors"].copy()
    survivors[3] = 0
    arrays = {**told, "survivors": survivors, "nonces": told["nonces"][:3], "envelopes": told["envelopes"][:3]}
    arrays = {**arrays, "signature": told["signature"]}
    fields = {"context": run.spec.context, "site": a}
    with pytest.raises(MessageError, match="does not commit"):
        run.sites[a].unmask(packets.write_bare("unmask", fields, arrays))
    other = once.sign(bytes(32), survivors.astype(bool))
    with pytest.raises(MessageError, match="does not commit"):
        run.sites[a].unmask(packets.write_bare("unmask", fields, {**arrays, "signature": other}))
    assert run.sites[a].unmask(request(run, a, set()))
    run.coordinator.ask("q2", 2)
    seed = run.coordinator._questions["q2"].seed  # rightly made, but for another question
    stolen = once.sign(seed, np.ones(4, bool))
    with pytest.raises(MessageError, match="does not commit"):
        run.sites[b].unmask(request(run, b, set(), signature=stolen))


def story(run, data):
    """What anyone reads in a request for shares who knows the coordinator's public key: the question, and its set."""
    arrays = wire.decode(data, kind="secagg-unmask").arrays
    body = keys.verify(arrays["ask"].tobytes(), run.spec.coordinator)
    ask, survivors = wire.decode(body, kind="secagg-ask"), arrays["survivors"].astype(bool)
    once.check(arrays["signature"], survivors, ask.arrays["commitment"].tobytes())
    return body, survivors.tolist()


def test_two_stories_of_one_question_are_evidence_that_a_third_party_can_check(run):
    a, b, c, d = names(run)
    told = {a: request(run, a, set()), b: request(run, b, {d})}
    for name, data in told.items():
        assert run.sites[name].unmask(data)
    (question, one), (same, two) = story(run, told[a]), story(run, told[b])
    assert question == same
    assert one != two
    # Against a coordinator that told one, deciders have its one story, whatever they put together.
    honest = wire.decode(request(run, c, set()))
    for place in range(4):
        arrays = {name: array.copy() for name, array in honest.arrays.items()}
        arrays["survivors"][place] = 0
        half = arrays["signature"][place].copy()
        for forged in (half, np.concatenate([half[once.HASH :], half[: once.HASH]])):
            arrays["signature"][place] = forged
            with pytest.raises(MessageError, match="does not commit"):
                story(run, packets.write_bare("unmask", honest.fields, arrays))


def test_a_request_that_the_coordinator_did_not_sign_is_refused_in_both_exchanges(run, harness):
    a, *_ = names(run)
    packet = wire.decode(asked(run)[keys.SIGNATURE :])
    forged = packets.write("ask", harness.identity(), packet.fields, packet.arrays)
    with pytest.raises(MessageError, match="signature"):
        run.sites[a].read_ask(forged)
    with pytest.raises(MessageError, match="signature"):
        run.sites[a].unmask(request(run, a, set(), ask=np.frombuffer(forged, np.uint8)))


def test_both_kinds_of_one_site_cannot_be_had(run):
    # Two sites are told that d survives, two that it is lost: neither kind of d reaches three shares.
    a, b, c, d = names(run)
    told = {a: set(), b: set(), c: {d}, d: {a}}
    replies = {name: run.sites[name].unmask(request(run, name, lost)) for name, lost in told.items()}
    arrays = {name: wire.decode(reply[keys.MARK :]).arrays for name, reply in replies.items()}
    assert [len(arrays[name]["selves"]) for name in told] == [4, 4, 3, 3]
    assert [len(arrays[name]["pairs"]) for name in told] == [0, 0, 3, 3]
    assert envelope(run, 3, 2)[0].tobytes() not in replies[c]  # c's share of d's own self mask


@pytest.mark.parametrize("told", list(itertools.product(["", "site003"], repeat=4)), ids="-".join)
def test_no_story_opens_both_kinds_of_one_site(run, told):
    # All 16 ways to tell four deciders whether site003 was lost; site002 colludes, so that its shares count for both.
    selves, pairs = {}, {}
    for place, (name, lost) in enumerate(zip(run.sites, told, strict=True)):
        given_out = wire.decode(run.sites[name].unmask(request(run, name, {lost}))[keys.MARK :]).arrays
        (pairs if lost else selves)[place] = given_out["pairs"][0] if lost else given_out["selves"][3]
    selves[2], pairs[2] = envelope(run, 3, 2)[0], envelope(run, 0, 2)[3]
    opened = []
    for shares in (selves, pairs):  # the self mask of site003; the pair mask of site000 with it
        places = sorted(shares)
        try:
            opened.append(combine(np.stack([shares[place][None] for place in places]), places, threshold=3))
        except MessageError:
            opened.append(None)
    assert any(secret is None for secret in opened)
    if opened[1] is not None:  # what does open is the true secret, so that the test would see both
        cohort = run.sites["site000"]._cohort
        digest = packets.question_digest(run.coordinator.ask("q", 2))
        assert np.array_equal(opened[1], cohort.pair_seeds([3], digest))


@pytest.mark.parametrize("lost", [2, 3])
def test_too_many_drop_outs_are_refused_by_the_site(run, lost):
    a, *others = names(run)
    with pytest.raises(QuorumError):
        run.sites[a].unmask(request(run, a, set(others[:lost])))
    assert run.sites[a].unmask(request(run, a, set()))  # a refusal is no answer: the true set is still served


def test_a_site_that_did_not_answer_is_no_survivor(new_run):
    run = new_run(4, dropouts=1)
    run.setup()
    a, *others = names(run)
    run.mask("q", {name: [1] for name in names(run)}, lost=[a])
    now = run.coordinator._questions["q"]
    now.packets[a] = now.packets[others[0]]  # it pretends that a answered
    with pytest.raises(MessageError, match="before it answered"):
        run.sites[a].unmask(request(run, a, set()))
    with pytest.raises(MessageError, match="not sealed"):
        run.sites[others[0]].unmask(request(run, others[0], set()))


def test_a_decider_that_gave_shares_no_longer_joins(new_run):
    run = new_run(4, dropouts=1)
    run.setup()
    a, *_ = names(run)
    run.mask("q", {name: [1] for name in names(run)}, lost=[a])
    run.sites[a].unmask(request(run, a, {a}))
    with pytest.raises(MessageError, match="closed"):
        run.sites[a].mask(run.coordinator.ask("q", 1), [1])


def test_envelopes_of_others_do_not_open(run):
    a, b, *_ = names(run)
    good = run.coordinator.close_masked("q")
    for wrong in (good[b], request(run, a, set(), fields={"site": b})):
        with pytest.raises(MessageError, match="another site"):
            run.sites[a].unmask(wrong)
    theirs = wire.decode(good[b]).arrays
    with pytest.raises(MessageError, match="not sealed"):
        run.sites[a].unmask(request(run, a, set(), envelopes=theirs["envelopes"]))
    mine = wire.decode(good[a]).arrays
    order = [1, 0, 2, 3]
    with pytest.raises(MessageError, match="not sealed"):
        run.sites[a].unmask(request(run, a, set(), envelopes=mine["envelopes"][order], nonces=mine["nonces"][order]))
    assert run.sites[a].unmask(good[a])


def test_envelopes_of_another_question_do_not_open(run):
    a, *_ = names(run)
    run.mask("q2", {name: [5, 6] for name in names(run)})
    other = wire.decode(run.coordinator.close_masked("q2")[a]).arrays
    with pytest.raises(MessageError, match="not sealed"):
        run.sites[a].unmask(request(run, a, set(), envelopes=other["envelopes"], nonces=other["nonces"]))
    longer = np.frombuffer(asked(run, length=3), np.uint8)
    with pytest.raises(MessageError, match="not asked here"):  # nor under another length of the same question
        run.sites[a].unmask(request(run, a, set(), ask=longer))
    run.sites[a]._records.clear()  # nor where the site does not know the question
    with pytest.raises(MessageError, match="not sealed"):
        run.sites[a].unmask(request(run, a, {a}, ask=longer))


def test_seeds_of_questions_lengths_and_lists_of_keys_are_all_different(run):
    cohort = run.sites["site000"]._cohort
    seeds = set()
    for keys_digest, question, length in itertools.product((cohort.digest, "0" * 64), ("q", "q2"), (2, 3)):
        digest = packets.question_digest(asked(run, keys=keys_digest, question=question, length=length))
        seeds |= {seed.tobytes() for seed in cohort.pair_seeds([1, 2, 3], digest)}
        theirs = run.sites["site003"]._cohort.pair_seeds([0], digest)
        assert np.array_equal(theirs, cohort.pair_seeds([3], digest))
    assert len(seeds) == 2 * 2 * 2 * 3


@pytest.mark.parametrize(("victim", "thief"), [("site000", "site003"), ("site002", "site001")])
def test_a_colluder_with_a_copy_of_a_sites_key_shares_no_root_with_it(new_run, victim, thief):
    """Else the pair masks with the colluder, which are opened when it drops out, would be those with the victim."""
    run = new_run(4, dropouts=1, colluders=1)
    key = np.frombuffer(run.sites[victim]._key.public, np.uint8)
    for name, site in run.sites.items():
        fields = {"context": run.spec.context, "site": name}
        stolen = packets.write("advert", run.identities[name], fields, {"key": key})
        run.coordinator.receive_advert(stolen if name == thief else site.advert())
    listed = run.coordinator.close_setup()
    honest = [site for name, site in run.sites.items() if name != thief]
    for site in honest:
        site.accept_keys(listed)
        assert len(set(site._cohort.roots.values())) == len(site._cohort.roots) == 4
    ask = run.coordinator.ask("q", 2)
    one, two = (run.spec.names.index(name) for name in (victim, thief))
    for site in honest:
        seeds = site._cohort.pair_seeds([one, two], packets.question_digest(ask))
        assert not np.array_equal(seeds[0], seeds[1])
        channels = [site._cohort.sealed[number].encrypt(b"n" * 12, bytes(16), b"") for number in (one, two)]
        assert channels[0] != channels[1]  # with one key, a message's one nonce would serve two plain texts


def test_an_invented_peer_is_refused(new_run, harness):
    run = new_run(4, dropouts=1)
    honest = run.setup()
    packet = wire.decode(honest[keys.SIGNATURE :])
    fake, key = harness.identity(), keys.new_run_key()
    body = packets.advert_body(run.spec.context, "site003", key.public)
    arrays = {name: array.copy() for name, array in packet.arrays.items()}
    arrays["keys"][3] = np.frombuffer(key.public, np.uint8)
    for signer in (fake, run.coordinator_identity, run.identities["site002"]):
        arrays["signatures"][3] = np.frombuffer(keys.sign(body, signer)[: keys.SIGNATURE], np.uint8)
        forged = packets.write("keys", run.coordinator_identity, dict(packet.fields), arrays)
        fresh = SiteSum(run.spec, site="site000", identity=run.identities["site000"], key=run.sites["site000"]._key)
        with pytest.raises(MessageError, match="signature"):
            fresh.accept_keys(forged)
    with pytest.raises(MessageError, match="second list"):
        run.sites["site000"].accept_keys(forged)


def test_a_peer_beyond_the_pinned_roster_is_another_run(new_run, harness):
    run = new_run(3)
    identities = {**run.identities, "site009": harness.identity()}
    invented = new_run(4, identities=identities, chief=run.coordinator_identity)
    listed = invented.setup()
    with pytest.raises(MessageError, match="another plan, run or cohort"):
        run.sites["site000"].accept_keys(listed)
    with pytest.raises(MessageError, match="another plan, run or cohort"):
        run.sites["site000"].read_ask(invented.coordinator.ask("q", 1))


@pytest.mark.parametrize("change", [{"plan": "cd" * 32}, {"run": "r2"}, {"dropouts": 0}, {"trust": "curious"}])
def test_messages_of_another_plan_or_run_are_refused_by_both_sides(new_run, change):
    one = new_run(3, dropouts=1)
    other = new_run(3, **{"dropouts": 1} | change)
    values = {name: [1] for name in one.sites}
    for run in (one, other):
        run.setup()
        run.mask("q", values)
    fresh = new_run(3, dropouts=1)
    with pytest.raises(MessageError, match="another"):
        fresh.coordinator.receive_advert(other.sites["site000"].advert())
    with pytest.raises(MessageError, match="another"):
        fresh.sites["site000"].accept_keys(other.coordinator.close_setup())
    with pytest.raises(MessageError, match="another"):
        one.sites["site000"].mask(other.coordinator.ask("q", 1), [1])
    with pytest.raises(MessageError, match="another"):
        one.coordinator.receive_masked(other.sites["site000"].mask(other.coordinator.ask("q", 1), [1]))
    requests = other.coordinator.close_masked("q")
    with pytest.raises(MessageError, match="another"):
        one.sites["site000"].unmask(requests["site000"])
    one.coordinator.close_masked("q")
    with pytest.raises(MessageError, match="another"):
        one.coordinator.receive_unmasked(other.sites["site000"].unmask(requests["site000"]))


def test_a_question_on_another_list_of_keys_is_refused(new_run):
    run, again = new_run(3, dropouts=1), new_run(3, dropouts=1)  # the same run begun twice: other keys
    run.setup()
    again.setup()
    with pytest.raises(MessageError, match="list of keys"):
        run.sites["site000"].read_ask(again.coordinator.ask("q", 1))


def test_the_same_question_in_another_length_is_refused(run):
    with pytest.raises(MessageError, match="asked otherwise"):
        run.sites["site000"].mask(asked(run, length=3), [1, 2, 3])


def test_too_few_members_are_refused_by_the_site(new_run):
    run = new_run(4, dropouts=2, trust="curious")
    strict = new_run(4, dropouts=1)
    for name in ("site000", "site001"):
        run.coordinator.receive_advert(run.sites[name].advert())
    packet = wire.decode(run.coordinator.close_setup()[keys.SIGNATURE :])
    fields = dict(packet.fields) | {"context": strict.spec.context}
    with pytest.raises(QuorumError):
        strict.sites["site000"].accept_keys(packets.write("keys", strict.coordinator_identity, fields, packet.arrays))
