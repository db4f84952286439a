"""Every byte of every message counts: changed, replayed, doubled or forged messages are refused and change nothing."""

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from patevolve.shared import wire
from patevolve.shared.errors import MessageError
from patevolve.shared.secagg import keys, packets
from patevolve.shared.secagg.site import SiteSum

KINDS = ("advert", "keys", "ask", "masked", "unmask", "unmasked")
BEFORE = {"masked": keys.MARK, "unmasked": keys.MARK, "unmask": 0}  # bytes that stand before the packet


def opened(kind, message):
    return wire.decode(message[BEFORE.get(kind, keys.SIGNATURE) :])


def write(run, kind, fields, arrays, *, site="site000"):
    """Return the message as its own sender would write it."""
    if kind == "unmask":
        return packets.write_bare(kind, fields, arrays)
    if kind in ("masked", "unmasked"):
        return packets.write_marked(kind, run.sites[site]._cohort.replies, fields, arrays)
    signer = run.coordinator_identity if kind in ("keys", "ask") else run.identities[site]
    return packets.write(kind, signer, fields, arrays)


@pytest.fixture
def stage(new_run):
    """Return (message, its receiver) for each kind; the receiver has seen everything before it."""

    def make(kind, run=None):
        run = run or new_run(3, dropouts=1)
        site = run.sites["site000"]
        if kind == "advert":
            return site.advert(), run.coordinator.receive_advert
        for one in run.sites.values():
            run.coordinator.receive_advert(one.advert())
        listed = run.coordinator.close_setup()
        if kind == "keys":
            return listed, site.accept_keys
        for one in run.sites.values():
            one.accept_keys(listed)
        ask = run.coordinator.ask("q", 2)
        if kind == "ask":
            return ask, lambda data: site.mask(data, [1, 2])
        masked = site.mask(ask, [1, 2])
        if kind == "masked":
            return masked, run.coordinator.receive_masked
        for one in run.sites.values():
            run.coordinator.receive_masked(one.mask(ask, [1, 2]))
        request = run.coordinator.close_masked("q")["site000"]
        if kind == "unmask":
            return request, site.unmask
        return site.unmask(request), run.coordinator.receive_unmasked

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_every_changed_byte_is_refused(stage, kind):
    message, receive = stage(kind)
    for position in range(len(message)):
        changed = bytearray(message)
        changed[position] ^= 1 << position % 8
        with pytest.raises(MessageError):
            receive(bytes(changed))
    assert receive(message)  # and the true one is still taken


@pytest.mark.parametrize("kind", KINDS)
def test_cut_or_longer_messages_are_refused(stage, kind):
    message, receive = stage(kind)
    for changed in (b"", message[:1], message[:64], message[:-1], message + b"\0", message * 2, message[64:]):
        with pytest.raises(MessageError):
            receive(changed)


@pytest.mark.parametrize("kind", KINDS)
def test_messages_of_every_other_kind_are_refused(stage, kind):
    _, receive = stage(kind)
    for other in KINDS:
        if other != kind:
            with pytest.raises(MessageError):
                receive(stage(other)[0])


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_signed_nonsense_is_refused(new_run, stage, kind, data):
    # The sender itself is hostile: fields and arrays of wrong types and shapes, rightly signed.
    run = new_run(3, dropouts=1)
    message, receive = stage(kind, run)
    packet = opened(kind, message)
    fields, arrays = dict(packet.fields), dict(packet.arrays)
    if data.draw(st.booleans()):
        name = data.draw(st.sampled_from(sorted(fields)))
        fields[name] = data.draw(JUNK)
        assume(kind != "ask" or type(fields[name]) is not type(packet.fields[name]))  # else it is another question
    elif arrays:
        name = data.draw(st.sampled_from(sorted(arrays)))
        shape = data.draw(st.lists(st.integers(0, 5), max_size=3))
        arrays[name] = np.full(shape, 7, data.draw(st.sampled_from(wire.DTYPES)))
        # A site's values are its own business: what is refused is another type or shape.
        assume((arrays[name].shape, arrays[name].dtype) != (packet.arrays[name].shape, packet.arrays[name].dtype))
    assume(packets.write_bare(kind, fields, arrays) != packets.write_bare(kind, packet.fields, packet.arrays))
    with pytest.raises(MessageError):
        receive(write(run, kind, fields, arrays))


def test_a_second_different_message_of_one_site_is_refused(new_run):
    run = new_run(3, dropouts=1)
    site = run.sites["site000"]
    twin = SiteSum(run.spec, site="site000", identity=run.identities["site000"])  # two processes under one name
    assert run.coordinator.receive_advert(site.advert()) == run.coordinator.receive_advert(site.advert())
    with pytest.raises(MessageError, match="second, different"):
        run.coordinator.receive_advert(twin.advert())
    listed = run.setup()
    with pytest.raises(MessageError, match="own"):
        twin.accept_keys(listed)
    copy = SiteSum.restore(site.export_state(), run.spec, identity=run.identities["site000"])
    ask = run.coordinator.ask("q", 1)
    first = site.mask(ask, [1])
    assert run.coordinator.receive_masked(first) == run.coordinator.receive_masked(first)
    with pytest.raises(MessageError, match="second, different"):
        run.coordinator.receive_masked(copy.mask(ask, [1]))
    run.coordinator.receive_masked(run.sites["site001"].mask(ask, [1]))
    request = run.coordinator.close_masked("q")["site000"]
    one, two = site.unmask(request), copy.unmask(request)  # shares are a function of the request
    assert one[keys.MARK :] == two[keys.MARK :]
    assert run.coordinator.receive_unmasked(one) == "site000"
    with pytest.raises(MessageError, match="second, different"):
        run.coordinator.receive_unmasked(two)


def test_a_site_cannot_speak_for_another(new_run):
    run = new_run(3, dropouts=1)
    run.setup()
    masked = run.sites["site000"].mask(run.coordinator.ask("q", 1), [1])
    packet = opened("masked", masked)
    for fields in ({"site": "site001"}, {"site": "site009"}):
        forged = write(run, "masked", dict(packet.fields) | fields, packet.arrays)
        with pytest.raises(MessageError):
            run.coordinator.receive_masked(forged)


def test_a_replayed_answer_to_an_earlier_question_is_refused(new_run):
    run = new_run(3, dropouts=1)
    run.setup()
    earlier = run.sites["site000"].mask(run.coordinator.ask("q1", 1), [1])
    run.coordinator.ask("q2", 1)
    run.coordinator.forget("q1")
    with pytest.raises(MessageError, match="not under way"):
        run.coordinator.receive_masked(earlier)


def test_shares_that_were_not_asked_for_are_refused(new_run):
    run = new_run(3, dropouts=1)
    run.setup()
    run.mask("q", {name: [1] for name in run.sites})
    shares = {name: run.sites[name].unmask(data) for name, data in run.coordinator.close_masked("q").items()}
    packet = opened("unmasked", shares["site000"])
    forged = write(run, "unmasked", dict(packet.fields) | {"request": "0" * 64}, packet.arrays)
    with pytest.raises(MessageError, match="another request"):
        run.coordinator.receive_unmasked(forged)
    run.coordinator.forget("q")
    with pytest.raises(MessageError, match="not under way"):
        run.coordinator.receive_unmasked(shares["site000"])


def test_a_false_share_stops_the_sum(new_run):
    run = new_run(4, dropouts=1)
    run.setup()
    run.mask("q", {name: [1] for name in run.sites})
    for name, data in run.coordinator.close_masked("q").items():
        packet = opened("unmasked", run.sites[name].unmask(data))
        arrays = {key: array.copy() for key, array in packet.arrays.items()}
        if name == "site001":
            arrays["selves"][0, 0] ^= 1
        run.coordinator.receive_unmasked(write(run, "unmasked", packet.fields, arrays, site=name))
    with pytest.raises(MessageError, match="contradict"):
        run.coordinator.result("q")
