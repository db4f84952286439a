"""An index on the disk: the same voters as from memory, resumed after a kill, sealed, and never half-written."""

import pickle
import stat

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from patevolve.client import stored_index
from patevolve.client.home import SECRET as SECRET_FILE
from patevolve.client.home import open_home
from patevolve.client.policy import draft, read_policy
from patevolve.client.private_index import build_index
from patevolve.client.simulate import load_records, open_sites, simulate
from patevolve.client.stored_index import embed_data, index_key, read_index, sites_of
from patevolve.shared.data.index import build, open_index, pieces_of
from patevolve.shared.errors import DataError, PolicyError
from patevolve.shared.plan import agree
from patevolve.shared.randomness import RECORDED_NOISE_VARIABLE, RecordedNoise
from patevolve.shared.tools import tools_of

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
classes = ["a", "b"]
label = "y"
unit = "id"
site = "hospital"
hold_out = 0.3
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
share = 0.5
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
classes = ["0", "1"]
label = "label"
height = 16
width = 16
hold_out = 0.3
[generator]
kind = "simulator"
[questions.counts]
share = 0.5
[release]
samples = 10
"""
NO_UNITS = TABLE.replace("records_per_unit = 2", 'unit = "record"').replace('unit = "id"\nsite', "site")
SECRET, KEY = b"s" * 32, b"k" * 32


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.setattr("patevolve.shared.data.parquet.PIECE", 50)
    rng = np.random.default_rng(0)
    n = 400
    path = tmp_path / "t.parquet"
    columns = {
        "id": rng.integers(0, 150, n),
        "hospital": np.where(rng.random(n) < 0.5, "A", "B"),
        "u": rng.integers(0, 3, n),
        "v": pa.array([[None, "x", "y"][i] for i in rng.integers(0, 3, n)]),
        "y": np.where(rng.random(n) < 0.5, "a", "b"),
    }
    parquet.write_table(pa.table(columns), path)
    return path


@pytest.fixture
def images(tmp_path, monkeypatch):
    monkeypatch.setattr(stored_index, "FILES", 8)
    rng = np.random.default_rng(0)
    for i in range(40):
        path = tmp_path / "images" / str(i % 2) / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (16, 16), np.uint8) if i != 7 else np.zeros((16, 16), np.uint8)).save(path)
    return tmp_path / "images"


def described(index):
    return [
        (part.features.tolist(), part.records.classes.tolist(), part.records.units.tolist())
        for part in (index.members, index.held_out)
    ]


def stored(path, text, folder, key=None):
    agreed = agree(text)
    return embed_data(path, agreed, tools_of(agreed.plan).encoder, folder, key=key)


@pytest.mark.parametrize("text", [TABLE, NO_UNITS], ids=["patients", "records"])
@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "sealed"])
def test_the_voters_of_a_table_are_those_from_memory(table, tmp_path, text, key):
    agreed = agree(text)
    index = stored(table, text, tmp_path / "index", key)
    for site, records in load_records(table, agreed.plan).items():
        expected = build_index(records, agreed.plan, tools_of(agreed.plan).encoder, SECRET)
        found = read_index(index, agreed.plan, SECRET, site=site)
        assert found.units == expected.units
        assert described(found) == described(expected)


def test_the_voters_of_images_are_those_from_memory(images, tmp_path):
    agreed = agree(IMAGE)
    records = load_records(images, agreed.plan)[""]
    expected = build_index(records, agreed.plan, tools_of(agreed.plan).encoder, SECRET)
    found = read_index(stored(images, IMAGE, tmp_path / "index"), agreed.plan, SECRET)
    assert described(found) == described(expected)


def test_a_killed_run_goes_on_where_it_was(images, tmp_path, monkeypatch):
    known, read = stored_index.read_items, []

    def counted(items, *more):
        read.extend(items)
        if len(read) > 20:
            raise KeyboardInterrupt
        return known(items, *more)

    monkeypatch.setattr(stored_index, "read_items", counted)
    with pytest.raises(KeyboardInterrupt):
        stored(images, IMAGE, tmp_path / "index", KEY)
    assert not (tmp_path / "index" / "complete").exists()
    monkeypatch.setattr(stored_index, "read_items", lambda items, *more: read.extend(items) or known(items, *more))
    del read[16:]  # the chunk that was under way is read again, the finished ones are not
    index = stored(images, IMAGE, tmp_path / "index", KEY)
    assert len(read) == len(set(read)) == 40
    whole = stored(images, IMAGE, tmp_path / "another", KEY)
    agreed = agree(IMAGE)
    assert described(read_index(index, agreed.plan, SECRET)) == described(read_index(whole, agreed.plan, SECRET))
    assert stored(images, IMAGE, tmp_path / "index", KEY) == index
    assert len(read) == 80  # only the other index's; a complete one reads nothing again


def test_a_changed_source_plan_or_key_setting_is_refused(images, tmp_path):
    stored(images, IMAGE, tmp_path / "index", KEY)
    with pytest.raises(DataError, match="another plan"):
        stored(images, IMAGE.replace("seed = 1", "seed = 2"), tmp_path / "index", KEY)
    with pytest.raises(DataError, match="key setting"):
        stored(images, IMAGE, tmp_path / "index")
    (images / "0" / "0.png").write_bytes((images / "0" / "2.png").read_bytes())
    with pytest.raises(DataError, match="source may have"):
        stored(images, IMAGE, tmp_path / "index", KEY)


def test_another_key_opens_nothing(images, tmp_path):
    stored(images, IMAGE, tmp_path / "index", KEY)
    with pytest.raises(DataError, match="key is another one"):
        stored(images, IMAGE, tmp_path / "index", b"x" * 32)
    with pytest.raises(DataError, match="32"):
        stored(images, IMAGE, tmp_path / "index", b"short")


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "sealed"])
def test_every_changed_byte_and_every_exchange_is_seen(images, tmp_path, key):
    index = stored(images, IMAGE, tmp_path / "index", key)
    chunks = sorted(path for path in index.folder.iterdir() if path.name != "index.json")
    rng = np.random.default_rng(0)
    for path in chunks[:2] + chunks[-1:]:
        whole = path.read_bytes()
        for place in [*range(0, 48, 4), *rng.integers(0, len(whole), 30)]:
            data = bytearray(whole)
            data[place % len(whole)] ^= 1 << int(rng.integers(0, 8))
            path.write_bytes(data)
            with pytest.raises(DataError, match="damaged"):
                list(pieces_of(index))
        path.write_bytes(whole[:-1])
        with pytest.raises(DataError, match="damaged"):
            list(pieces_of(index))
        path.write_bytes(whole)
    first, second = chunks[0].read_bytes(), chunks[1].read_bytes()
    chunks[0].write_bytes(second)
    chunks[1].write_bytes(first)
    with pytest.raises(DataError, match="damaged"):
        list(pieces_of(index))


def test_a_sealed_index_shows_no_name_and_only_the_owner_reads_it(table, tmp_path):
    plain, sealed = (stored(table, TABLE, tmp_path / name, key) for name, key in (("plain", None), ("sealed", KEY)))
    assert any(b"features.npy" in path.read_bytes() for path in plain.folder.iterdir())
    assert not any(b".npy" in path.read_bytes() for path in sealed.folder.iterdir())
    for path in sealed.folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(sealed.folder.stat().st_mode) == 0o700
    assert "kkkk" not in repr(sealed)
    with pytest.raises(TypeError):
        pickle.dumps(next(pieces_of(sealed)))


def test_a_full_disk_keeps_what_was_written_and_says_how_to_go_on(images, tmp_path, monkeypatch):
    from patevolve.shared.data import index as module

    known, calls = module.write_atomic, []

    def full(path, data, **more):
        calls.append(path)
        if len(calls) == 4:
            raise OSError(28, "No space left on device")
        known(path, data, **more)

    monkeypatch.setattr(module, "write_atomic", full)
    with pytest.raises(DataError, match=r"No space left.*run the same command again"):
        stored(images, IMAGE, tmp_path / "index")
    assert len(list((tmp_path / "index").iterdir())) == 3
    monkeypatch.setattr(module, "write_atomic", known)
    assert len(list(pieces_of(stored(images, IMAGE, tmp_path / "index")))) == 5


def test_an_incomplete_index_is_not_read(tmp_path):
    index = open_index(tmp_path / "index", {"a": 1})
    with pytest.raises(DataError, match="not complete"):
        list(pieces_of(index))
    assert build(index, []) == 0
    assert list(pieces_of(index)) == []


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(DataError, match="not empty"):
        open_index(tmp_path, {"a": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_refused_file_stops_the_index(images, tmp_path):
    (images / "0" / "9x.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(DataError, match=r"9x\.png"):
        stored(images, IMAGE, tmp_path / "index")


def test_the_key_is_the_policys(tmp_path):
    agreed = agree(IMAGE)
    policy = draft("s", agreed)
    (tmp_path / "policy.toml").write_text(policy)
    assert index_key(tmp_path, read_policy(tmp_path / "policy.toml")) is None
    (tmp_path / "policy.toml").write_text('index_key = "index.key"\n' + policy)
    with pytest.raises(PolicyError, match="index_key"):
        index_key(tmp_path, read_policy(tmp_path / "policy.toml"))
    (tmp_path / "index.key").write_bytes(b"x")
    with pytest.raises(PolicyError, match="32"):
        index_key(tmp_path, read_policy(tmp_path / "policy.toml"))
    (tmp_path / "index.key").write_bytes(KEY)
    assert index_key(tmp_path, read_policy(tmp_path / "policy.toml")) == KEY


def released(tmp_path, agreed, records, name):
    """Return the rows released by a simulated run of two sites whose secrets and noise are always the same."""
    homes = {site: tmp_path / name / site for site in ("A", "B")}
    for site, home in homes.items():
        home.mkdir(parents=True)
        (home / "policy.toml").write_text(draft(site, agreed), encoding="utf-8")
        open_home(home, site=site)
        (home / SECRET_FILE).write_bytes(SECRET)
    sites = open_sites(homes, records, agreed)
    noise = lambda site, question: RecordedNoise(f"{site}{question}")  # noqa: E731 - one line says it
    simulate(agreed, sites, tmp_path / f"{name}-run", noise=noise, run="r")
    return (tmp_path / f"{name}-run" / "release" / "data.csv").read_bytes()


def test_a_simulated_run_from_the_index_releases_what_one_from_memory_does(table, tmp_path, monkeypatch):
    monkeypatch.setenv(RECORDED_NOISE_VARIABLE, "1")
    agreed = agree(TABLE)
    index = stored(table, TABLE, tmp_path / "index", KEY)
    assert sites_of(index) == ["A", "B"]
    from_index = released(tmp_path, agreed, dict.fromkeys(sites_of(index), index), "index-sites")
    assert from_index == released(tmp_path, agreed, load_records(table, agreed.plan), "memory-sites")


def test_a_text_table_is_indexed_as_its_parquet_twin(table, tmp_path):
    parquet.read_table(table).to_pandas().to_csv(tmp_path / "t.csv", index=False)
    agreed = agree(TABLE)
    index = stored(tmp_path / "t.csv", TABLE, tmp_path / "csv-index")
    assert len(list(pieces_of(index))) == 8
    for site in sites_of(index):
        twin = read_index(stored(table, TABLE, tmp_path / "index"), agreed.plan, SECRET, site=site)
        assert described(read_index(index, agreed.plan, SECRET, site=site)) == described(twin)
