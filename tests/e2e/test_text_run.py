"""A whole run of texts, by the commands: pool, inspection, two sites, release, exports, student, report."""

import csv
import html
import json

import numpy as np
import pytest
from click.testing import CliRunner

from patevolve.client.cli import client, local, simulated
from patevolve.client.study import Judges, judge
from patevolve.shared import assets
from patevolve.shared.cli import application
from patevolve.shared.data.load import Layout, load_table
from patevolve.shared.plan import read_plan
from patevolve.shared.texts import normal
from patevolve.shared.tools import tools_of

PLAN = """
format = 1
name = "hearts and lungs"
seed = 1
[privacy]
epsilon = 20.0
delta = 1e-4
unit = "record"
trust = "secure-sum"
[sites]
count = 2
expected_units = 80
[data]
kind = "text"
classes = ["heart", "lung"]
label = "organ"
text = "note"
length = 96
site = "site"
[generator]
kind = "pool"
asset = "{asset}"
[encoder]
dimension = 16
[questions.counts]
share = 0.1
[questions.prototypes]
share = 0.4
[questions.neighbours]
share = 0.5
times = 1
candidates = 40
nearest = 3
[evolution]
population = 40
generations = 2
[release]
samples = 40
"""
NETWORK = f'[encoder]\nkind = "onnx"\nasset = "{"b" * 64}"\ntokenizer = "{"c" * 64}"\ntokens = 64'
WORDS = {
    "heart": ["ventricle", "murmur", "infarct", "aortic valve", "tachycardia", "ischaemia", "left atrium", "pacemaker"],
    "lung": ["pneumonia", "cough", "lower lobe", "asthma", "pleural fluid", "oxygen", "bronchus", "emphysema"],
}
HOSTILE = [
    '<script>alert("ventricle murmur infarct")</script> ventricle murmur',
    "=HYPERLINK(murmur) ventricle infarct pacemaker",
    '\u202eventricle\nmurmur\tpacemaker ischaemia, "quoted"',
    "שלום pneumonia cough bronchus",
    "<img src=x onerror=alert(1)> asthma cough oxygen " + "pneumonia " * 9000,
]


def notes(count, seed):
    """Return (note, organ) with four words of the organ and two of the other in each."""
    rng, found = np.random.default_rng(seed), []
    for number in range(count):
        organ, other = ("heart", "lung") if number % 2 else ("lung", "heart")
        words = [*rng.choice(WORDS[organ], 4, replace=False), *rng.choice(WORDS[other], 1)]
        found.append((f"seen today {' '.join(rng.permutation(words))} no {number % 9}", organ))
    return found


def done(command, *words):
    ended = CliRunner().invoke(command, [str(word) for word in words])
    assert ended.exit_code == 0, ended.output
    return ended.stdout


def table(path, rows, head=("note", "organ", "site")):
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([head, *rows])
    return path


@pytest.fixture(params=["memory", "index"], scope="module")
def run(request, tmp_path_factory):
    """Return a folder with a plan, two sites' data, a pool, an inspection and a finished run."""
    place = tmp_path_factory.mktemp("texts")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(assets.FOLDERS, str(place / "assets"))
        public = [note for note, _ in notes(150, 9)] + HOSTILE
        (place / "public.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in public))
        made = ("assets", "texts", place / "public.jsonl", "--out", place / "pool.npz", "--length", 96)
        pool = json.loads(done(application, *made, "--format", "json"))
        assert (pool["texts"], pool["cut"], pool["empty"]) == (len({normal(text, 96) for text in public}), 1, 0)
        (place / "plan.toml").write_text(PLAN.format(asset=pool["sha256"]))
        rows = [(text, organ, "north" if n % 4 < 2 else "south") for n, (text, organ) in enumerate(notes(160, 1))]
        table(place / "all.csv", [*rows, *((text[:2000], "heart", "north") for text in HOSTILE)])
        for site in ("north", "south"):
            done(client, "approve", place / "plan.toml", "--home", place / "sites" / site, "--site", site, "--yes")
        done(client, "inspect", place / "all.csv", "--plan", place / "plan.toml", "--out", place / "inspection")
        out = ["--homes", place / "sites", "--out", place / "run"]
        out += ["--index", place / "index"] if request.param == "index" else []
        done(simulated, place / "plan.toml", "--data", place / "all.csv", *out)
        yield place


def released(place):
    with (place / "run/release/data.csv").open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)
    assert head == ["note", "organ"]
    return rows


def test_the_release_is_texts_of_the_pool_in_normal_form(run):
    rows, lines = released(run), (run / "public.jsonl").read_text().splitlines()
    public = {normal(json.loads(line)["text"], 96) for line in lines}
    assert len(rows) == 40
    assert {text for text, _ in rows} <= public
    assert {organ for _, organ in rows} == {"heart", "lung"}


def test_the_release_teaches_what_the_sites_know(run):
    plan = read_plan(run / "plan.toml").plan
    layout = Layout(classes=plan.data.classes, label="organ")
    (taught,) = load_table(run / "run/release/data.csv", plan.data.fields, layout).values()
    test = table(run / "test.csv", notes(200, 5), ("note", "organ"))
    (held,) = load_table(test, plan.data.fields, layout).values()
    encoder = tools_of(plan).encoder
    judges = Judges(students=("logistic",), metric="accuracy", chance=0.5)
    found = judge(encoder.encode(taught.values), taught.classes, held, encoder, judges)["logistic"]
    assert found > 0.8  # the pool has no labels: without the sites it is 0.5


def test_every_export_is_verified_and_holds_the_texts(run, tmp_path):
    from pyarrow import parquet

    done(application, "verify", run / "run/release")
    for form in ("csv", "parquet", "huggingface"):
        done(application, "export", run / "run", "--format", form, "--out", tmp_path / form)
        done(application, "verify", tmp_path / form)
    read = parquet.read_table(tmp_path / "parquet/data.parquet").to_pylist()
    assert [(row["note"], row["organ"]) for row in read] == [tuple(row) for row in released(run)]
    card = (tmp_path / "huggingface/README.md").read_text()
    assert "- text-classification" in card
    assert "train/data.parquet" in card


@pytest.mark.parametrize("form", ["imagefolder", "webdataset", "dicom"])
def test_what_texts_have_not_is_refused_in_words(run, tmp_path, form):
    ended = CliRunner().invoke(
        application, ["export", str(run / "run"), "--format", form, "--out", str(tmp_path / "o")]
    )
    assert ended.exit_code == 2
    assert "texts have no images. Use csv, parquet or huggingface" in ended.output


def test_the_student_is_exported_with_a_card_of_texts(run, tmp_path):
    words = ("export", run / "run", "--format", "onnx", "--out", tmp_path / "student")
    done(application, *words)
    done(application, "verify", tmp_path / "student")
    card = (tmp_path / "student/README.md").read_text()
    assert "- text-classification" in card
    assert "patevolve.shared.texts.packed(texts in normal form, 96)" in card


def test_the_report_shows_texts_and_runs_none_of_them(run):
    page = (run / "run/report.html").read_text()
    shown = [text for text, _ in released(run) if html.escape(text) in page or text in page]
    assert shown
    assert "<script>alert" not in page
    assert "<img src=x" not in page


def test_no_private_text_is_in_the_run_folder(run):
    private = [text.encode() for text, _ in notes(160, 1)]
    for path in (run / "run").rglob("*"):
        if path.is_file():
            held = path.read_bytes()
            assert not any(text in held for text in private), path


def test_one_institution_runs_alone(run, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(assets.FOLDERS, str(run / "assets"))
        text = (run / "plan.toml").read_text().replace("count = 2", "count = 1").replace('site = "site"\n', "")
        (tmp_path / "plan.toml").write_text(text.replace('"secure-sum"', '"each-site"'))
        own = table(tmp_path / "own.csv", notes(160, 1), ("note", "organ"))
        done(client, "approve", tmp_path / "plan.toml", "--home", tmp_path / "site", "--site", "Ours", "--yes")
        words = ("--data", own, "--home", tmp_path / "site", "--out", tmp_path / "run")
        done(local, tmp_path / "plan.toml", *words)
        done(application, "verify", tmp_path / "run/release")
        assert "data.csv" in {path.name for path in (tmp_path / "run/release").iterdir()}


def test_the_planner_reads_a_plan_of_texts(run):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(assets.FOLDERS, str(run / "assets"))
        text = (run / "plan.toml").read_text().replace("[encoder]", NETWORK)
        (run / "network.toml").write_text(text)
        found = json.loads(done(application, "plan", run / "network.toml", "--format", "json"))
    assert [part["kind"] for part in found["parts"]] == ["counts", "prototypes", "neighbours"]
    assert found["files"]["encoder.tokenizer"] == "c" * 64
