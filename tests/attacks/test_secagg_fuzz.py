"""A hundred thousand mutated messages of the secure sum: none is taken, nothing but MessageError comes, little memory.

Unlike bare packets (``tests/test_wire.py``), whose changed arrays are other packets, these are signed, carry a code, or
open a commitment: whatever was changed on its way is refused.
"""

import itertools
import tracemalloc

import numpy as np
import pytest

from patevolve.shared.errors import MessageError

KINDS = ("advert", "keys", "ask", "masked", "unmask", "unmasked")
EACH = 17_000  # six kinds: 102,000 messages
VALUES = list(range(20))


def mutations(data, rng):
    """Yield changed copies without end: flipped, drawn, inserted, deleted, doubled and cut bytes, one to three each."""
    while True:
        changed = bytearray(data)
        for _ in range(int(rng.integers(1, 4))):
            at, size = int(rng.integers(max(len(changed), 1))), int(rng.integers(1, 9))
            match int(rng.integers(6)):
                case 0 if changed:
                    changed[at] ^= 1 << int(rng.integers(8))
                case 1 if changed:
                    changed[at] = int(rng.integers(256))
                case 2:
                    changed[at:at] = rng.bytes(size)
                case 3:
                    del changed[at : at + size]
                case 4:
                    changed[at:at] = changed[at : at + size]
                case 5:
                    del changed[at:]
        if changed != data:
            yield bytes(changed)


@pytest.fixture(scope="module")
def stages(new_run):
    """Return kind -> (message, its receiver, which has seen everything before it)."""
    run = new_run(4, dropouts=1)
    site, coordinator, found = run.sites["site000"], run.coordinator, {}
    for one in run.sites.values():
        coordinator.receive_advert(one.advert())
    found["advert"] = (site.advert(), new_run(4, dropouts=1).coordinator.receive_advert)
    listed = coordinator.close_setup()
    found["keys"] = (listed, type(site)(run.spec, site="site000", identity=site._identity, key=site._key).accept_keys)
    for one in run.sites.values():
        one.accept_keys(listed)
    asked = coordinator.ask("q", len(VALUES))
    found["ask"] = (asked, lambda data: site.mask(data, VALUES))
    masked = {name: one.mask(asked, VALUES) for name, one in run.sites.items()}
    found["masked"] = (masked["site000"], coordinator.receive_masked)
    for data in masked.values():
        coordinator.receive_masked(data)
    request = coordinator.close_masked("q")["site001"]
    found["unmask"] = (request, run.sites["site001"].unmask)
    found["unmasked"] = (run.sites["site001"].unmask(request), coordinator.receive_unmasked)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_no_mutated_message_is_taken(stages, kind):
    message, receive = stages[kind]
    rng = np.random.default_rng(KINDS.index(kind))
    for changed in itertools.islice(mutations(message, rng), EACH):
        with pytest.raises(MessageError):
            receive(changed)
    receive(message)  # and the true one still is


@pytest.mark.parametrize("kind", KINDS)
def test_a_mutated_message_takes_no_more_memory_than_a_few_of_its_size(stages, kind):
    message, receive = stages[kind]
    receive(message)
    changed = list(itertools.islice(mutations(message, np.random.default_rng(7)), 300))
    tracemalloc.start()
    for data in changed:
        with pytest.raises(MessageError):
            receive(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000 + 20 * len(message)
