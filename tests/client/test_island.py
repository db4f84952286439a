"""A site's island: free ones read nothing private, charged ones send what their noised votes say and nothing else."""

import dataclasses

import numpy as np
import pytest
from click.testing import CliRunner

from patevolve.client import island
from patevolve.client.cli import client
from patevolve.client.guard import Guard
from patevolve.client.policy import draft, read_policy
from patevolve.client.private_index import Voters
from patevolve.shared.cli import Application
from patevolve.shared.errors import BudgetError, MessageError
from patevolve.shared.evolution.population import shares
from patevolve.shared.messages import Question, decode_migrants, digest, encode_question
from patevolve.shared.noise.discrete_gaussian import DiscreteGaussianMechanism
from patevolve.shared.plan import agree
from patevolve.shared.privacy.signing import head_from_json, verify_head
from patevolve.shared.randomness import RecordedNoise
from patevolve.shared.tally import NoisyTally
from patevolve.shared.votes import ballots
from patevolve.shared.votes.lattice import LATTICE

SECTION = """
[islands]
migrants = 4
candidates = 40
generations = 2
times = 1
"""
PAID = SECTION + "share = 0.1\nnearest = 3\n"


def with_islands(agreed, section):
    text = agreed.text.replace("share = 0.2\ncandidates = 10", "share = 0.1\ncandidates = 10")
    text = text.replace("generations = 2\n", "generations = 3\npopulation = 40\n")
    return agree(text.replace("[release]", section + "[release]"))


@pytest.fixture
def free(agreed):
    return with_islands(agreed, SECTION)


@pytest.fixture
def paid(agreed):
    return with_islands(agreed, PAID)


@pytest.mark.parametrize(("section", "permitted"), [(SECTION, False), (PAID, True)], ids=["free", "charged"])
def test_whoever_approves_reads_what_islands_ask_and_cost(section, permitted, agreed, tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text(with_islands(agreed, section).text, encoding="utf-8")
    command = ["client", "approve", str(plan), "--home", str(tmp_path / "home"), "--site", "s", "--yes"]
    done = CliRunner().invoke(Application(commands=[client]), command)
    assert done.exit_code == 0, done.output
    words = " ".join(done.output.split())
    assert (
        "each site evolves 40 synthetic candidates for 2 generation(s) on its own device and sends 8 of them" in words
    )
    cost = "charged in the site's own ledger" if permitted else "no record of the site is read, so they cost nothing"
    assert cost in words
    assert ("islands: synthetic candidates bred here" in words) == permitted
    assert ("islands" in read_policy(tmp_path / "home" / "policy.toml").permitted) == permitted


def arrays(desk, **changes):
    """Return what the coordinator sends: candidates and a model, both public."""
    rng = np.random.default_rng(3)
    genomes = rng.integers(0, 3, (40, 2)).astype(float)
    classes = np.repeat(np.arange(2), shares(40, 2))
    model = np.full((2, desk.institution.encoder.dimension), 0.3)
    return {"genomes": genomes, "classes": classes, "model": model} | changes


def sent(desk, sending=None, **changes):
    start = {"kind": "islands", "name": "islands/1", "plan": desk.agreed.sha256, "run": "r1"}
    return encode_question(Question(**(start | {"arrays": sending or arrays(desk)} | changes)))


def evolve(desk, data):
    answer = island.evolve(desk.institution, data)
    desk.log.append("returned")
    return answer


def worlds(open_desk, agreed, records, **named):
    """Return two sites of one name, one with the records and one with others: every level and class exchanged."""
    other = dataclasses.replace(records, values=2 - records.values, classes=1 - records.classes)
    return open_desk(agreed, folder="one", found=records, **named), open_desk(
        agreed, folder="other", found=other, **named
    )


def test_a_free_island_is_the_same_whatever_the_site_holds(open_desk, free, records):
    one, other = worlds(open_desk, free, records)
    first, second = evolve(one, sent(one)), evolve(other, sent(other))
    assert first == second
    assert one.log == other.log == ["returned"]  # no charge, no noise
    found = decode_migrants(first)
    assert (found.genomes.shape, found.head, found.site) == ((8, 2), "", "s")
    assert evolve(one, sent(one)) == first
    assert one.charges() == 0


def test_a_charge_is_committed_before_the_noise_and_stored_before_the_migrants_leave(open_desk, paid):
    desk = open_desk(paid)
    data = evolve(desk, sent(desk))
    order = [entry for entry, before in zip(desk.log, ["", *desk.log], strict=False) if entry != before]
    assert order == ["charge", "read", "store_answer", "returned"]
    (charge,) = desk.ledger.charges()
    ask = next(ask for ask in desk.asks if ask.kind == "islands")
    assert (charge.question, charge.part, charge.scope) == ("islands/1", "islands", "local")
    assert charge.event == ask.event
    assert charge.key.question_sha256 == digest(sent(desk))
    head = head_from_json(decode_migrants(data).head)
    assert verify_head(head, desk.home.identity.public_key).seq == charge.seq


def test_asked_again_the_same_bytes_return_at_no_cost(open_desk, paid):
    desk = open_desk(paid)
    data = evolve(desk, sent(desk))
    desk.log.clear()
    assert evolve(desk, sent(desk)) == data
    assert desk.log == ["returned"]
    desk.ledger.close()
    again = open_desk(paid, cohort="d" * 64)  # restarted, and in another cohort: it stands in no sum
    assert evolve(again, sent(again)) == data
    assert again.charges() == 1


def test_the_same_name_with_other_candidates_is_refused(open_desk, paid):
    desk = open_desk(paid)
    evolve(desk, sent(desk))
    with pytest.raises(MessageError, match="asked before with other content"):
        evolve(desk, sent(desk, arrays(desk, genomes=np.zeros((40, 2)))))
    assert desk.charges() == 1


def test_a_budget_that_does_not_cover_it_stops_before_anything_is_drawn(open_desk, paid):
    small = draft("s", paid).replace("epsilon = 3.0", "epsilon = 0.05")
    desk = open_desk(paid, policy=small)
    with pytest.raises(BudgetError):
        evolve(desk, sent(desk))
    assert desk.log == []


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drowned:
    """A mechanism whose noise drowns everything: one tally, whatever the exact one is."""

    tally: NoisyTally
    mechanism: DiscreteGaussianMechanism

    def event(self):
        return self.mechanism.event()

    def release(self, exact, source):
        del exact, source
        return self.tally


def drown(desk, values):
    """Let the desk's islands give this tally, charged as before."""
    drowned = [
        dataclasses.replace(
            ask,
            mechanism=Drowned(tally=NoisyTally(values=values, std=ask.mechanism.std), mechanism=ask.mechanism),
        )
        if ask.kind == "islands"
        else ask
        for ask in desk.asks
    ]
    desk.institution = dataclasses.replace(desk.institution, asks=tuple(drowned))


def drowned_pair(open_desk, paid, records):
    one, other = worlds(open_desk, paid, records)
    values = np.random.default_rng(1).integers(-9 * LATTICE, 9 * LATTICE, 40)
    for desk in (one, other):
        drown(desk, values)
    found = [decode_migrants(evolve(desk, sent(desk))).genomes for desk in (one, other)]
    return found[0].tobytes() == found[1].tobytes()


def test_migrants_say_nothing_of_the_records_that_the_noised_tally_does_not_say(open_desk, paid, records):
    assert drowned_pair(open_desk, paid, records)


def looking(original):
    """The fault to be planted: whatever was noised, migrants are picked by the exact records."""

    def chosen(self, pool, votes=None):
        del votes
        members = self.site.index.members
        exact = ballots.neighbours(
            members.electorate,
            members.features,
            members.records.classes,
            (self.site.rendered(pool.genomes, pool.classes), pool.classes),
            nearest=3,
            bounds=ballots.neighbours_bounds(len(pool), 3, 2),
        )
        return original(self, pool, exact.values / LATTICE)

    return chosen


def test_an_island_that_picks_by_exact_votes_is_caught(open_desk, paid, records, monkeypatch):
    """The planted twin of the test above."""
    monkeypatch.setattr(island._Island, "chosen", looking(island._Island.chosen))
    assert not drowned_pair(open_desk, paid, records)


def test_a_free_island_that_looks_at_records_is_caught(open_desk, free, records, monkeypatch):
    monkeypatch.setattr(island._Island, "chosen", looking(island._Island.chosen))
    one, other = worlds(open_desk, free, records)
    assert evolve(one, sent(one)) != evolve(other, sent(other))


def test_noise_decides_which_candidates_go(open_desk, paid, recorded_noise):
    """The same site with other noise sends others: votes are not simply left out."""
    found = []
    for name in ("a", "b"):
        desk = open_desk(paid, folder=name, noise=lambda *_, name=name: RecordedNoise(name))
        found.append(decode_migrants(evolve(desk, sent(desk))).genomes.tobytes())
    assert found[0] != found[1]


def test_with_little_noise_the_votes_decide(open_desk, paid, records):
    """Units that all hold the level 2 send migrants of the level 2."""
    same = dataclasses.replace(records, values=np.full_like(records.values, 2))
    generous = draft("s", paid).replace("epsilon = 3.0", "epsilon = 5000.0")
    desk = open_desk(paid, found=same, policy=generous)
    quiet = DiscreteGaussianMechanism(sigma=LATTICE / 16, l2=float(LATTICE))
    asks = tuple(dataclasses.replace(ask, mechanism=quiet) if ask.kind == "islands" else ask for ask in desk.asks)
    desk.institution = dataclasses.replace(desk.institution, asks=asks)
    genomes = decode_migrants(evolve(desk, sent(desk))).genomes
    assert (genomes[:, 0] == 2).mean() >= 0.75


class HeardError(Exception):
    """Carries the exact tally out of a test's guard."""


def exact_votes(open_desk, paid, records, folder, monkeypatch):
    """Return the exact tally that the island would have noised; nobody is held out, so that every unit votes."""
    desk = open_desk(paid, folder=folder)
    kept = Voters(
        records=records,
        features=desk.institution.encoder.encode(records.values),
        electorate=ballots.Electorate(records.units),
    )
    index = dataclasses.replace(desk.institution.index, members=kept)

    def emigrate(self, ask, key, exact, choose):
        del self, ask, key, choose
        raise HeardError(exact.values)

    with monkeypatch.context() as patched:
        patched.setattr(Guard, "emigrate", emigrate)
        with pytest.raises(HeardError) as heard:
            island.evolve(dataclasses.replace(desk.institution, index=index), sent(desk))
    return heard.value.args[0]


@pytest.mark.parametrize(
    "unit",
    [([[2, 2], [2, 2]], [0, 0]), ([[0, 2], [2, 0]], [0, 0]), ([[1, 1], [1, 1]], [0, 1]), ([[2, 1]], [1])],
)
def test_one_unit_more_moves_the_votes_by_no_more_than_is_charged(unit, open_desk, paid, records, monkeypatch):
    """Neighbours on the sub-population that the island itself evolves: the whole bound is used, and never exceeded."""
    values, classes = unit
    more = dataclasses.replace(
        records,
        values=np.concatenate([records.values, np.array(values)]),
        classes=np.concatenate([records.classes, np.array(classes)]),
        units=np.concatenate([records.units, np.full(len(values), "new")]),
    )
    before, after = (
        exact_votes(open_desk, paid, found, folder, monkeypatch)
        for found, folder in ((records, "without"), (more, "with"))
    )
    change, bounds = after - before, ballots.neighbours_bounds(40, 3, 2)
    assert np.abs(change).sum() <= bounds.lattice_l1
    assert 0.7 * bounds.lattice_l2 <= np.linalg.norm(change) <= bounds.lattice_l2
    single = ballots.neighbours_bounds(40, 3, 1)
    assert not np.linalg.norm(1.5 * change) <= single.lattice_l2  # the measure sees a ballot that is too long


@pytest.mark.parametrize(
    "changes",
    [
        {"genomes": np.zeros((39, 2))},
        {"genomes": np.zeros((40, 3))},
        {"genomes": np.full((40, 2), np.nan)},
        {"classes": np.zeros(40, np.int64)},
        {"classes": np.arange(40) % 2},
        {"classes": np.repeat([0, 2], 20)},
        {"model": np.zeros((2, 3))},
        {"model": np.full((2, 6), np.inf)},
        {"model": np.full((2, 6), np.nan)},
    ],
)
@pytest.mark.parametrize("section", [SECTION, PAID], ids=["free", "charged"])
def test_what_is_not_the_plans_is_refused_and_costs_nothing(section, changes, open_desk, agreed):
    desk = open_desk(with_islands(agreed, section))
    with pytest.raises(MessageError):
        evolve(desk, sent(desk, arrays(desk, **changes)))
    assert desk.log == []


@pytest.mark.parametrize("missing", ["genomes", "classes", "model"])
def test_what_is_missing_is_refused(missing, open_desk, paid):
    desk = open_desk(paid)
    with pytest.raises(MessageError):
        evolve(desk, sent(desk, {name: value for name, value in arrays(desk).items() if name != missing}))
    assert desk.log == []


@pytest.mark.parametrize(
    "changes", [{"name": "islands/2"}, {"name": "neighbours/1"}, {"kind": "neighbours"}, {"plan": "f" * 64}]
)
def test_another_question_is_no_island(changes, open_desk, paid):
    desk = open_desk(paid)
    with pytest.raises(MessageError):
        evolve(desk, sent(desk, **changes))
    assert desk.log == []


def test_an_island_is_not_asked_as_a_question(open_desk, paid):
    """A bare tally of an island would be worth more than its migrants, and nobody has use for it."""
    desk = open_desk(paid)
    with pytest.raises(MessageError, match="request of their own"):
        desk.handle(sent(desk))
    evolve(desk, sent(desk))
    with pytest.raises(MessageError, match="request of their own"):
        desk.handle(sent(desk))
    assert desk.charges() == 1
