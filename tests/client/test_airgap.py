"""Taking part by file: signed both ways, the same guard and ledger, and a run from file to file to its release."""

from __future__ import annotations

import dataclasses

import pytest

from patevolve.client import airgap
from patevolve.client.airgap import answer_file, codes_of
from patevolve.client.home import open_home
from patevolve.client.joined import Joined
from patevolve.client.policy import draft
from patevolve.client.station import Station
from patevolve.shared import sealed, wire
from patevolve.shared.envelopes import OK, Request, encode_request
from patevolve.shared.errors import InputError, MessageError
from patevolve.shared.messages import Question, encode_question
from patevolve.shared.plan import agree
from patevolve.shared.privacy.signing import create_identity
from patevolve.shared.sealed import SealedAnswer, SealedQuestion, open_answer, open_question, seal_answer, seal_question

server = pytest.importorskip("patevolve.server.airgap")
PLAN = """
format = 1
name = "tiny"
seed = 1
[privacy]
epsilon = 4.0
delta = 1e-5
[sites]
count = 2
expected_units = 30
[data]
kind = "table"
classes = ["a", "b"]
label = "y"
unit = "id"
[[data.columns]]
name = "size"
kind = "numeric"
edges = [0, 1, 2, 3]
[generator]
kind = "tabular"
[questions.counts]
share = 0.3
[questions.prototypes]
share = 0.7
[evolution]
population = 60
generations = 1
[release]
samples = 40
"""
SITES = ("north", "south")


@dataclasses.dataclass(kw_only=True)
class World:
    """A coordinator and two sites that share no network."""

    path: object
    agreed: object
    coordinator: object

    def home(self, site):
        return self.path / "homes" / site

    def joined(self, site):
        return Joined(
            format=1,
            site=site,
            address="c.example.org:443",
            plan=self.agreed.sha256,
            coordinator=self.coordinator.public_key,
            bundles=(),
            version="0",
            data=str(self.path / f"{site}.csv"),
        )

    def ask(self):
        return server.ask(self.agreed, self.path / "mail", self.path / "run", SITES, self.path / "coordinator.key")

    def answer(self, question, site, name="answer.pv"):
        return answer_file(self.home(site), self.joined(site), question, self.path / name)

    def charges(self, site):
        with open_home(self.home(site)).open_ledger() as ledger:
            return sum(1 for _ in ledger.charges())

    def wanted(self):
        with pytest.raises(server.WaitingError) as waiting:
            self.ask()
        found = [path for path in sorted((self.path / "mail" / "out").iterdir()) if str(path) in str(waiting.value)]
        assert len(found) == str(waiting.value).count(".pv")
        return found

    def carry(self, question):
        site = SITES[int(question.name[5:8]) - 1]
        self.answer(question, site, question.name + ".answer")
        return server.collect(self.path / "mail", SITES, self.path / (question.name + ".answer"))


@pytest.fixture
def world(tmp_path):
    agreed = agree(PLAN)
    for number, site in enumerate(SITES):
        home = tmp_path / "homes" / site
        (home / "plans").mkdir(parents=True)
        (home / "policy.toml").write_text(draft(site, agreed, reserve=2.0), encoding="utf-8")
        (home / "plans" / f"{agreed.sha256}.toml").write_text(agreed.text, encoding="utf-8")
        rows = "".join(f"{'ab'[i % 2]},{number}-{i},{(i + number) % 3}\n" for i in range(40))
        (tmp_path / f"{site}.csv").write_text("y,id,size\n" + rows)
    return World(path=tmp_path, agreed=agreed, coordinator=create_identity(tmp_path / "coordinator.key"))


def request(world, action, **fields):
    return encode_request(Request(action=action, plan=world.agreed.sha256, run="r", **fields))


def written(world, site, action, body, *, signer=None):
    path = world.path / "question.pv"
    path.write_bytes(seal_question(SealedQuestion(site=site, action=action, body=body), signer or world.coordinator))
    return path


def counting(world, name="counts"):
    question = encode_question(Question(kind="counts", name=name, plan=world.agreed.sha256, run="r"))
    return request(world, "ask", sites=SITES, parts=(question,))


def test_a_run_goes_from_file_to_file_to_its_release(world):
    rounds = 0
    while True:
        try:
            world.ask()
            break
        except server.WaitingError:
            rounds += 1
            for question in world.wanted():
                world.carry(question)
    assert rounds >= 2
    assert (world.path / "run" / "release").is_dir()
    assert [world.charges(site) for site in SITES] == [2, 2]  # counts and prototypes, once each
    world.ask()  # nothing is wanted any more
    assert [world.charges(site) for site in SITES] == [2, 2]


def test_islands_go_from_file_to_file_too(world):
    """What an island starts from is a file like any question, and its migrants are a file like any answer."""
    section = "[islands]\nmigrants = 5\ncandidates = 20\nshare = 0.2\nnearest = 2\n\n[release]"
    agreed = agree(PLAN.replace("share = 0.3", "share = 0.1").replace("[release]", section))
    for site in SITES:
        (world.home(site) / "policy.toml").write_text(draft(site, agreed, reserve=2.0), encoding="utf-8")
        (world.home(site) / "plans" / f"{agreed.sha256}.toml").write_text(agreed.text, encoding="utf-8")
    world.agreed = agreed
    carried = set()
    while True:
        try:
            world.ask()
            break
        except server.WaitingError:
            for question in world.wanted():
                carried.add(question.name.split("-")[2])
                world.carry(question)
    assert carried == {"hello", "ask", "evolve"}
    assert (world.path / "run" / "migrants" / "islands-1.pv").exists()
    assert [world.charges(site) for site in SITES] == [3, 3]


def test_asking_again_writes_no_new_question_and_charges_nothing(world):
    first = world.wanted()
    assert world.wanted() == first
    world.carry(first[0])
    assert world.wanted() == first[1:]


def test_the_same_question_brings_the_same_bytes_without_a_new_charge(world):
    path = written(world, "north", "ask", counting(world))
    one = world.answer(path, "north", "one.pv")
    assert codes_of(one) == (OK,)
    assert world.charges("north") == 1
    world.answer(path, "north", "two.pv")
    assert (world.path / "one.pv").read_bytes() == (world.path / "two.pv").read_bytes()
    assert world.charges("north") == 1


def test_a_question_not_signed_by_the_coordinator_the_site_joined_is_refused(world):
    stranger = create_identity(world.path / "stranger.key")
    path = written(world, "north", "ask", counting(world), signer=stranger)
    with pytest.raises(MessageError, match="agreed on"):
        world.answer(path, "north")
    assert not (world.path / "answer.pv").exists()
    assert not (world.home("north") / "ledger.sqlite").exists()  # refused before anything of the site was opened


SPELLINGS = [str.upper, lambda text: text[:64] + " " + text[64:], lambda text: text + "\n"]


@pytest.mark.parametrize("field", ["signature", "public_key"])
@pytest.mark.parametrize("spelt", SPELLINGS)
def test_a_signature_or_key_has_one_spelling(world, field, spelt):
    data = written(world, "north", "ask", counting(world)).read_bytes()
    packet = wire.decode(data)
    other = wire.encode(
        wire.Packet(
            kind=packet.kind, fields={**packet.fields, field: spelt(packet.fields[field])}, arrays=packet.arrays
        )
    )
    open_question(data, coordinator=world.coordinator.public_key, site="north")
    with pytest.raises(MessageError):
        open_question(other, coordinator=world.coordinator.public_key, site="north")
    answer = seal_answer(SealedAnswer(site="north", action="ask", question="ab" * 32, body=b""), world.coordinator)
    packet = wire.decode(answer)
    other = wire.encode(
        wire.Packet(
            kind=packet.kind, fields={**packet.fields, field: spelt(packet.fields[field])}, arrays=packet.arrays
        )
    )
    open_answer(answer, key=None)
    with pytest.raises(MessageError):
        open_answer(other, key=None)  # a key in another spelling would be pinned as another key


def test_a_question_for_another_site_is_refused(world):
    path = written(world, "north", "ask", counting(world))
    with pytest.raises(MessageError, match="north"):
        world.answer(path, "south")


@pytest.mark.parametrize("field", ["site", "action", "public_key", "signature", "body"])
def test_every_signed_part_is_held_by_the_signature(world, field):
    path = written(world, "north", "ask", counting(world))
    packet = wire.decode(path.read_bytes())
    fields, body = dict(packet.fields), packet.arrays["body"].copy()
    other = {"site": "south", "action": "hello", "public_key": "0" * 64, "signature": "0" * 128}
    if field == "body":
        body[-1] ^= 1
    else:
        fields[field] = other[field]
    path.write_bytes(wire.encode(wire.Packet(kind=packet.kind, fields=fields, arrays={"body": body})))
    with pytest.raises(MessageError):
        open_question(path.read_bytes(), coordinator=world.coordinator.public_key, site=fields["site"])


def test_a_refusal_leaves_as_a_signed_code(world):
    (world.home("north") / "policy.toml").write_text(
        draft("north", world.agreed).replace(world.agreed.sha256, "f" * 64), encoding="utf-8"
    )
    found = world.answer(written(world, "north", "ask", counting(world)), "north")
    assert codes_of(found) == ("policy",)
    assert world.charges("north") == 0


def test_what_is_no_question_file_is_refused(world):
    path = world.path / "question.pv"
    for data in (b"", b"PVM1", b"\x00" * 100):
        path.write_bytes(data)
        with pytest.raises(MessageError):
            world.answer(path, "north")
    with pytest.raises(InputError):
        world.answer(world.path / "away.pv", "north")
    with path.open("wb") as file:
        file.truncate(sealed.MAX_FILE + 1)
    with pytest.raises(InputError, match="at most"):
        world.answer(path, "north")


def test_an_answer_is_collected_only_for_what_was_asked_and_under_the_site_s_own_key(world):
    north, south = world.wanted()
    world.carry(north)
    answer = world.path / (north.name + ".answer")
    found, key = open_answer(answer.read_bytes(), key=None)
    stranger = create_identity(world.path / "stranger.key")
    forged = world.path / "forged.pv"
    for changed, signer in (
        (found, stranger),  # another key than the one pinned
        (dataclasses.replace(found, site="east"), stranger),
        (dataclasses.replace(found, question="0" * 64), open_home(world.home("north")).identity),
        (dataclasses.replace(found, site="south"), stranger),  # north's answer under south's name
    ):
        forged.write_bytes(sealed.seal_answer(changed, signer))
        with pytest.raises(MessageError):
            server.collect(world.path / "mail", SITES, forged)
    assert key == open_home(world.home("north")).identity.public_key
    world.carry(south)


def test_an_answer_cannot_name_a_file_outside_the_mail(world):
    """A site's answer names its question, and is filed under that name: a name with a path in it is refused."""
    question = world.wanted()[0]
    world.answer(question, "north", "a.pv")
    found, _ = open_answer((world.path / "a.pv").read_bytes(), key=None)
    own = open_home(world.home("north")).identity
    for name in (f"{found.question[:12]}/../../../escaped", found.question.upper(), found.question + "0", ""):
        (world.path / "b.pv").write_bytes(sealed.seal_answer(dataclasses.replace(found, question=name), own))
        with pytest.raises(MessageError, match="SHA-256"):
            server.collect(world.path / "mail", SITES, world.path / "b.pv")
    assert not (world.path / "escaped.pv").exists()


def test_a_pinned_key_stands_above_the_first_greeting(world):
    question = world.wanted()[0]
    world.answer(question, "north", "a.pv")
    with pytest.raises(MessageError, match="pinned"):
        server.collect(world.path / "mail", SITES, world.path / "a.pv", {"north": "0" * 64})
    own = open_home(world.home("north")).identity.public_key
    assert server.collect(world.path / "mail", SITES, world.path / "a.pv", {"north": own}) == "north"


def test_shares_that_need_masks_are_not_asked_for_by_file(world):
    masked = agree(PLAN.replace("delta = 1e-5", 'delta = 1e-5\ntrust = "secure-sum"'))
    with pytest.raises(InputError, match="each-site"):
        server.ask(masked, world.path / "mail", world.path / "run", SITES, world.path / "coordinator.key")


def test_the_answer_is_the_station_s_own(world):
    """Neither side of the file changes a byte of what would have gone over the network."""
    body = request(world, "hello")
    found = world.answer(written(world, "north", "hello", body), "north")
    direct = Station(home=world.home("north"), data=world.path / "north.csv").handle("hello", body)
    assert found.body == direct
    assert isinstance(found, SealedAnswer)
    assert airgap.codes_of(found) == (OK,)
