"""What leaves a site, byte by byte: no private value, no file name, no class count; and how much of it there is."""

from __future__ import annotations

import csv
import io
import struct
from importlib import resources

import numpy as np
import pytest

from patevolve.client.station import Station
from patevolve.shared import wire
from patevolve.shared.envelopes import Request, decode_response, encode_request
from patevolve.shared.messages import Answer, Question, decode_answer, decode_question, encode_answer, encode_question
from patevolve.shared.plan import agree

UP, DOWN = 64 << 10, 256 << 10  # bytes per site and generation


@pytest.fixture
def heart(town):
    """The heart plan, small where only time is at stake, over the four hospitals' real rows."""
    folder = resources.files("patevolve.client") / "demo_data"
    rows = list(csv.DictReader(io.StringIO((folder / "heart.csv").read_text(encoding="utf-8"))))
    town.text = (folder / "heart.toml").read_text(encoding="utf-8")
    town.sites = tuple(sorted({row["hospital"] for row in rows}))

    def data(site):
        path = town.place / f"secret-file-of-{site.split()[0].lower()}.csv"
        own = [row | {"patient": f"PATIENT-{number:05d}"} for number, row in enumerate(rows) if row["hospital"] == site]
        with path.open("w", encoding="utf-8", newline="") as lines:
            writer = csv.DictWriter(lines, list(own[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(own)
        return path

    object.__setattr__(town, "data", data)
    town.rows = rows
    changes = {"evolution.population": 200, "evolution.generations": 2, "release.samples": 200}
    return town.agreed(changes)


def encodings(number):
    """Return the ways in which a whole number could stand in a message, but for those too short to mean anything."""
    forms = {struct.pack("<q", number), struct.pack(">q", number), struct.pack("<d", number), struct.pack(">d", number)}
    return forms | {f'":{number},'.encode(), f'":{number}}}'.encode(), f'"{number}"'.encode()}


def secrets_of(town):
    found = set()
    for site in town.sites:
        own = [row for row in town.rows if row["hospital"] == site]
        found |= {f"secret-file-of-{site.split()[0].lower()}".encode(), str(town.place).encode(), b"PATIENT-"}
        counts = [sum(row["disease"] == cls for row in own) for cls in ("no", "yes")]
        for number in [*counts, len(own)]:
            found |= encodings(number)
        found |= {",".join(list(row.values())[2:6]).encode() for row in own}
        found.add(struct.pack("<qq", *counts))
    return found


def captured(town, agreed):
    office = town.office(agreed)
    town.coordinate(agreed, office)
    return office


@pytest.mark.parametrize("trust", ["secure-sum", "each-site"])
def test_a_run_sends_no_private_value_file_name_or_class_count(trust, town, heart):
    agreed = town.agreed({"privacy.trust": trust}) if trust == "each-site" else heart
    agreed = agree(
        agreed.text.replace("population = 6000", "population = 200")
        .replace("generations = 60", "generations = 2")
        .replace("samples = 6000", "samples = 200")
    )
    office = captured(town, agreed)
    secrets = secrets_of(town)
    assert {action for _, action, _ in office.replies} >= {"hello", "ask"}
    for _, action, data in office.requests + [
        (node, action, plain(action, data)) for node, action, data in office.replies
    ]:
        for secret in secrets:
            assert secret not in data, (action, secret)


ISLANDS = {
    "evolution.population": 200,
    "evolution.generations": 2,
    "release.samples": 200,
    "islands.migrants": 10,
    "islands.candidates": 100,
    "islands.share": 0.1,
    "islands.nearest": 3,
    "questions.prototypes.share": 0.86,
}


def test_an_island_sends_no_private_value_file_name_or_class_count_and_little_else(town, heart):
    office = captured(town, town.agreed(ISLANDS))
    secrets = secrets_of(town)
    for position in range(len(town.sites)):
        down = {data for node, action, data in office.requests if (node, action) == (100 + position, "evolve")}
        up = {data for node, action, data in office.replies if (node, action) == (100 + position, "evolve")}
        assert len(down) == len(up) == 1
        for data in down | up:
            assert not any(secret in data for secret in secrets)
        assert sum(map(len, down)) <= DOWN
        assert sum(map(len, up)) <= 2048  # 20 rows of 13 codes, hashes and a signed head


def plain(action, data):
    """Return a reply without its noised values, among which any number occurs by chance now and then."""
    for part in decode_response(data, action).parts if action == "ask" else ():
        if part.startswith(wire.MAGIC) and wire.decode(part).kind == "answer":
            data = data.replace(decode_answer(part).values.tobytes(), b"")
    return data


@pytest.mark.parametrize("planted", ["count", "file", "row"])
def test_a_planted_leak_is_seen(planted, town, heart):
    secrets = secrets_of(town)
    own = [row for row in town.rows if row["hospital"] == town.sites[0]]
    counts = [sum(row["disease"] == cls for row in own) for cls in ("no", "yes")]
    answer = {"question": "q", "site": "s", "std": 1.0, "full": True, "head": "{}", "values": np.array(counts)}
    if planted == "file":
        answer |= {"head": f"secret-file-of-{town.sites[0].split()[0].lower()}.csv", "values": np.zeros(2, np.int64)}
    if planted == "row":
        answer |= {"head": ",".join(list(own[0].values())[2:6]), "values": np.zeros(2, np.int64)}
    data = encode_answer(Answer(**answer))
    assert any(secret in data for secret in secrets)


def test_sizes_of_the_heart_job_stay_within_their_bounds(town, heart):
    office = captured(town, heart)
    for position in range(len(town.sites)):
        down = sum(len(data) for node, _, data in office.requests if node == 100 + position)
        up = sum(len(data) for node, _, data in office.replies if node == 100 + position)
        assert 0 < up <= UP  # of the whole run, which asks in one generation
        assert 0 < down <= DOWN


def test_ten_thousand_candidates_of_128_floats_take_less_than_six_mebibytes():
    rng = np.random.default_rng(1)
    genomes = rng.normal(size=(10_000, 128)).astype(np.float32).astype(np.float64)
    arrays = {"genomes": genomes, "classes": rng.integers(0, 10, 10_000)}
    question = encode_question(Question(kind="neighbours", name="neighbours/1", plan="a" * 64, run="r", arrays=arrays))
    data = encode_request(Request(action="ask", plan="a" * 64, run="r", sites=("a",), parts=(question,)))
    assert len(data) <= 6 << 20
    found = decode_question(question)
    assert np.array_equal(found.arrays["genomes"], genomes)
    assert found.arrays["genomes"].dtype == np.float64
    assert found.arrays["classes"].dtype == np.int64


def test_candidates_that_need_float64_travel_whole():
    genomes = np.random.default_rng(1).normal(size=(10, 3))
    arrays = {"genomes": genomes, "classes": np.zeros(10, np.int64)}
    data = encode_question(Question(kind="neighbours", name="neighbours/1", plan="a" * 64, run="r", arrays=arrays))
    assert np.array_equal(decode_question(data).arrays["genomes"], genomes)


def test_a_share_of_the_noise_never_leaves_without_a_mask(town, monkeypatch):
    """Even if the site's own code mistook the trust model: the last check before sending holds it back."""
    from patevolve.client import station as stations

    agreed = town.agreed({"privacy.trust": "secure-sum"})
    town.roster(agreed)
    station: Station = town.station(agreed, "Ada")
    monkeypatch.setattr(
        stations, "_masked", lambda home, _, join, request: stations._answered(home, join("0" * 64), request)
    )
    question = encode_question(Question(kind="counts", name="counts", plan=agreed.sha256, run="r"))
    request = Request(action="ask", plan=agreed.sha256, run="r", sites=town.sites, parts=(question,))
    reply = decode_response(station.handle("ask", encode_request(request)), "ask")
    assert reply.codes == ("policy",)
    assert not reply.parts


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_under_secure_sum_bare_questions_are_refused_and_cost_nothing(parts, town):
    agreed = town.agreed({"privacy.trust": "secure-sum"})
    town.roster(agreed)
    question = encode_question(Question(kind="counts", name="counts", plan=agreed.sha256, run="r"))
    request = Request(action="ask", plan=agreed.sha256, run="r", sites=town.sites, parts=(question,) * parts)
    reply = town.station(agreed, "Ada").handle("ask", encode_request(request))
    assert decode_response(reply, "ask").codes == ("message",)
    assert not town.charges("Ada")
    assert wire.MAGIC in reply
