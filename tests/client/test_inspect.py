"""The inspection: what stands in the data, counted against plain oracles, for the site's eyes alone."""

import copy
import dataclasses
import json
import pickle
import stat
from collections import Counter

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from patevolve.client.inspect import inspect_data
from patevolve.client.inspect_cli import inspect
from patevolve.client.inspect_view import as_html, as_text
from patevolve.shared import wire
from patevolve.shared.cli import application
from patevolve.shared.data.survey import NEAR, Surveyor, fingerprint
from patevolve.shared.errors import DataError
from patevolve.shared.messages import Question, encode_question
from patevolve.shared.plan import agree
from patevolve.shared.privacy.planner import label_noise, spend

TABLE = """
format = 1
name = "p"
seed = 1
[privacy]
epsilon = 3.0
delta = 1e-5
records_per_unit = 2
[sites]
count = 2
expected_units = 60
[data]
kind = "table"
classes = ["a", "b", "c"]
label = "y"
unit = "id"
site = "hospital"
hold_out = 0.2
[[data.columns]]
name = "u"
kind = "numeric"
edges = [0, 1, 2, 3]
[[data.columns]]
name = "v"
kind = "categorical"
values = ["x", "y"]
missing = true
[generator]
kind = "tabular"
[questions.counts]
share = 0.2
[questions.neighbours]
share = 0.3
candidates = 12
nearest = 3
[questions.labels]
share = 0.5
candidates = 10
teachers = 8
[evolution]
generations = 2
[release]
samples = 10
"""
IMAGE = """
format = 1
name = "images"
seed = 1
[privacy]
epsilon = 3.0
delta = 1e-5
unit = "record"
[sites]
count = 1
expected_units = 60
[data]
kind = "image"
classes = ["cat", "dog"]
label = "label"
height = 16
width = 16
fit = "pad"
[generator]
kind = "simulator"
[questions.counts]
share = 0.5
[release]
samples = 10
"""
PATIENTS = IMAGE.replace('unit = "record"', 'unit = "patient"').replace(
    'label = "label"', 'label = "label"\nunit = "patient"'
)


def table(tmp_path, rows, name="t.csv"):
    path = tmp_path / name
    path.write_text("id,hospital,u,v,y\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    return path


def opened(path, text=TABLE):
    return inspect_data(path, agree(text).plan).open_at_site()


ROWS = [(f"P{i // 3}", "AB"[i % 7 == 0], i % 3, "xy"[i % 2], "aab"[i % 3]) for i in range(90)]


def test_counts_are_those_of_a_plain_loop(tmp_path):
    report = opened(table(tmp_path, ROWS))
    for site in "AB":
        own = [row for row in ROWS if row[1] == site]
        count = report.survey.sites[site]
        per_unit = Counter(row[0] for row in own)
        assert count.records == len(own)
        assert count.units == len(per_unit)
        assert count.records_left_out == sum(max(0, n - 2) for n in per_unit.values())
        assert count.units_over_bound == sum(n > 2 for n in per_unit.values())
        assert count.largest_unit == max(per_unit.values())
        for name, (records, units) in zip("abc", count.by_class, strict=True):
            assert records == sum(row[4] == name for row in own)
            assert units == len({row[0] for row in own if row[4] == name})
    contents = [row[2:4] for row in ROWS]
    assert report.survey.repeats.equal == len(contents) - len(set(contents))
    several = {unit for unit in {row[0] for row in ROWS} if len({row[1] for row in ROWS if row[0] == unit}) > 1}
    assert report.survey.units_in_sites == len(several)


def test_a_class_too_small_for_the_teachers_is_named(tmp_path):
    rows = [(f"P{i}", "A", 1, "x", "a") for i in range(200)] + [(f"Q{i}", "A", 1, "x", "b") for i in range(4)]
    rows += [(f"R{i}", "B", 1, "x", "c") for i in range(30)]
    report = opened(table(tmp_path, rows))
    verdicts = {(size.site, size.name): size.verdict for size in report.classes}
    assert verdicts["A", "a"] == "enough"
    assert verdicts["A", "b"] == "too small"
    assert verdicts["A", "c"] == "absent"
    assert verdicts["B", "c"] == "few"
    assert any("class 'b' at A has 4 unit(s) for the 8 teachers" in problem for problem in report.problems)


def test_teachers_without_a_class_are_as_many_as_a_simulation_finds(tmp_path):
    rows = [(f"P{i}", "A", 1, "x", "a") for i in range(20)] + [("Q", "B", 1, "x", "b")]
    size = next(size for size in opened(table(tmp_path, rows)).classes if (size.site, size.name) == ("A", "a"))
    rng = np.random.default_rng(0)
    empty = [8 - len(np.unique(rng.integers(0, 8, 16))) for _ in range(20_000)]  # 20 units less the held-out fifth
    assert abs(size.empty_teachers - np.mean(empty)) < 5 * np.std(empty) / 20_000**0.5


def test_the_probability_of_a_flip_is_what_a_simulation_finds(tmp_path):
    plan = agree(TABLE).plan
    rows = [(f"P{i}", "A", 1, "x", "aab"[i % 3]) for i in range(90)] + [("Q", "B", 1, "x", "b")]
    flips = {flip.what: flip for flip in opened(table(tmp_path, rows)).flips if flip.what.startswith("A: ")}
    part = next(part for part in spend(plan) if part.kind == "labels")
    noise = np.random.default_rng(1).normal(0, label_noise(plan, part), (200_000, 3))
    found = flips["A: a label on which all teachers of this site agree"].probability
    measured = np.mean(np.argmax(noise + np.array([8, 0, 0]), axis=1) != 0)
    assert abs(found - measured) < 5 * (measured * (1 - measured) / 200_000) ** 0.5
    assert 0 < flips["A: which of this site's two largest classes is larger"].probability < 0.5


def test_noise_that_drowns_the_votes_is_said_loudly(tmp_path):
    loud = opened(table(tmp_path, ROWS), TABLE.replace("epsilon = 3.0", "epsilon = 0.01"))
    assert any(warning.startswith("MOST OF THIS IS NOISE") for warning in loud.warnings)
    quiet = opened(table(tmp_path, ROWS), TABLE.replace("epsilon = 3.0", "epsilon = 100000.0"))
    assert not any("NOISE" in warning for warning in quiet.warnings)


def test_faulty_rows_are_all_listed_and_the_others_counted(tmp_path):
    bad = [
        ("P", "A", "ten", "x", "a"),
        ("P", "A", 1, "z", "a"),
        ("", "A", 1, "x", "a"),
        ("P", "", 1, "x", "a"),
        ("P", "A", 1, "x", "q"),
    ]
    report = opened(table(tmp_path, [*ROWS[:10], *bad, *ROWS[10:]]))
    assert [name for name, _ in report.refused] == [f"data row {i}" for i in range(11, 16)]
    assert report.refused_count == 5
    assert sum(count.records for count in report.survey.sites.values()) == 90
    assert report.problems


def test_ids_that_look_alike_are_counted(tmp_path):
    rows = [(unit, "A", 1, "x", "a") for unit in ["P-7", "p7", "007", "7", "12", "P 7", "é"]]
    assert opened(table(tmp_path, rows)).survey.units_alike == 3


# ---- images ----------------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)


def coarse():
    return np.kron(RNG.integers(0, 256, (8, 8)), np.ones((2, 2))).astype(np.uint8)


def put(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)


def test_duplicates_near_duplicates_and_conversions_are_counted(tmp_path):
    first = coarse()
    put(tmp_path / "cat" / "P1" / "a.png", first)
    put(tmp_path / "cat" / "P2" / "same.png", first)
    put(tmp_path / "dog" / "P3" / "other class.png", first)
    put(tmp_path / "cat" / "P4" / "near.png", np.clip(first.astype(int) + 1, 0, 255).astype(np.uint8))
    for i in range(20):
        put(tmp_path / "dog" / "P5" / f"{i}.png", coarse())
    put(tmp_path / "dog" / "P5" / "colour.png", np.dstack([coarse(), coarse(), coarse()]))
    put(tmp_path / "dog" / "P5" / "size.png", np.kron(coarse(), np.ones((2, 2), np.uint8)))
    put(tmp_path / "dog" / "P5" / "blank.png", np.zeros((16, 16), np.uint8))
    (tmp_path / "dog" / "P5" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (tmp_path / ".DS_Store").write_bytes(b"\0")
    report = opened(tmp_path, PATIENTS)
    repeats = report.survey.repeats
    assert (repeats.equal, repeats.across, repeats.contradicts) == (2, 3, 3)
    assert (repeats.near, repeats.near_across) == (2, 2)
    steps = report.survey.steps
    assert (steps["colour to grey"], steps["resized (pad)"], steps["doubt: one grey level only"]) == (1, 1, 1)
    assert (report.refused_count, report.ignored_count) == (1, 1)
    assert report.refused[0][0] == "broken.png"
    text = as_text(report)
    assert all(word in text for word in ("colour to grey", "broken.png", ".DS_Store", "Cannot take part"))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 3)), min_size=1, max_size=12), st.data())
def test_near_duplicates_are_those_of_all_pairs(drawn, data):
    prints = [value for value, _ in drawn]
    for value, _ in drawn[:6]:  # neighbours of some, at distances around the limit
        flips = data.draw(st.lists(st.integers(0, 63), min_size=1, max_size=NEAR + 2, unique=True))
        prints.append(value ^ sum(1 << bit for bit in flips))
    units = [unit for _, unit in drawn] + [3] * (len(prints) - len(drawn))
    surveyor = Surveyor(1, units=True)
    for i, (value, unit) in enumerate(zip(prints, units, strict=True)):
        surveyor._add(content=[i], labels=[0], units=[str(unit)], sites=[""], splits=[""], prints=[value])
    found = surveyor.survey(per_unit=9, prints=True).repeats
    close = [
        [j for j in range(len(prints)) if j != i and (prints[i] ^ prints[j]).bit_count() <= NEAR]
        for i in range(len(prints))
    ]
    assert found.near == sum(bool(others) for others in close)
    # Images of one fingerprint count as one kind, so that a likeness of the kind is one of each.
    assert found.near_across >= sum(any(units[j] != units[i] for j in others) for i, others in enumerate(close))
    assert found.near_across <= found.near


def test_fingerprints_stand_small_changes_and_tell_pictures_apart():
    images = [coarse() for _ in range(200)]
    prints = [fingerprint(image) for image in images]
    apart = [(a ^ b).bit_count() for i, a in enumerate(prints) for b in prints[:i]]
    assert min(apart) > NEAR
    moved = [fingerprint(np.clip(image.astype(int) + 2, 0, 255).astype(np.uint8)) for image in images]
    assert np.mean([(a ^ b).bit_count() <= NEAR for a, b in zip(prints, moved, strict=True)]) > 0.9


def test_arrays_are_inspected_too(tmp_path):
    images = np.stack([coarse() for _ in range(12)])
    np.savez(tmp_path / "x.npz", images=images, label=np.array(["cat", "dog"] * 6))
    report = opened(tmp_path / "x.npz", IMAGE)
    assert report.survey.sites[""].by_class == ((6, 6), (6, 6))
    assert not report.problems


@pytest.mark.parametrize("name", ["none.csv", "loop", "x" * 300])
def test_a_path_that_leads_nowhere_is_refused(tmp_path, name):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(DataError, match=name[:9] if len(name) < 99 else "does not exist"):
        inspect_data(tmp_path / name, agree(TABLE).plan)


# ---- nothing of it leaves --------------------------------------------------------------------------------------------


def test_nothing_of_an_inspection_can_be_sent(tmp_path):
    sealed = inspect_data(table(tmp_path, ROWS), agree(TABLE).plan)
    report = sealed.open_at_site()
    for value in (sealed, report):
        for send in (pickle.dumps, copy.deepcopy, json.dumps, wire.canonical_json):
            with pytest.raises(Exception, match=r"serial|cannot|not"):
                send(value)
        assert "90" not in f"{value} {value!r}"
        assert "P1" not in f"{value} {value!r}"
    with pytest.raises(Exception, match=r"."):
        encode_question(Question(kind="counts", name="counts", plan="0" * 64, run="r", arrays={"x": sealed}))
    with pytest.raises(TypeError):
        dataclasses.asdict(sealed)


def test_no_name_of_a_patient_stands_in_the_report(tmp_path):
    rows = [("Jane Doe", "A", 1, "x", "a"), ("Jane Doe", "A", 2, "x", "a"), *ROWS]
    report = opened(table(tmp_path, rows))
    assert "Jane" not in as_text(report) + as_html(report) + json.dumps(report.as_dict())


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    (tmp_path / "plan.toml").write_text(TABLE)

    def go(data, *more):
        return CliRunner().invoke(
            application_with_inspect(), ["inspect", str(data), "--plan", str(tmp_path / "plan.toml"), *more]
        )

    return go


def application_with_inspect():
    import click

    group = type(application)(name="x")
    group.add_command(inspect)
    assert isinstance(group, click.Group)
    return group


def test_the_command_writes_three_files_that_only_the_owner_reads(tmp_path, run):
    done = run(table(tmp_path, ROWS), "--out", str(tmp_path / "out"))
    assert done.exit_code == 0 or "too small" in done.output, done.output
    files = sorted((tmp_path / "out").iterdir())
    assert [path.name for path in files] == ["inspection.html", "inspection.json", "inspection.txt"]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)
    body = json.loads(files[1].read_text("utf-8"))
    assert body["survey"]["sites"]["A"]["records"] == sum(row[1] == "A" for row in ROWS)
    assert body["site_only"].startswith("not releasable")


def test_problems_end_with_the_code_of_bad_data(tmp_path, run):
    done = run(table(tmp_path, [("P", "A", "ten", "x", "a"), *ROWS]), "--format", "json")
    assert done.exit_code == 4
    assert json.loads(done.output)["refused_count"] == 1


def test_a_full_disk_ends_in_one_sentence_and_leaves_nothing_half_written(tmp_path, run, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    done = run(table(tmp_path, ROWS), "--out", str(tmp_path / "out"))
    assert done.exit_code == 4
    assert "No space left on device" in done.output
    assert list((tmp_path / "out").iterdir()) == []


def test_the_page_shows_hostile_names_as_text(tmp_path):
    image = coarse()
    text = IMAGE.replace('"dog"', '"<script>alert(1)</script>"')
    put(tmp_path / "cat" / "a.png", image)
    (tmp_path / "cat" / "<img src=x onerror=alert(1)>.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    page = as_html(opened(tmp_path, text))
    assert "<script" not in page
    assert "<img" not in page
    assert "http" not in page
    assert "&lt;script&gt;" in page
