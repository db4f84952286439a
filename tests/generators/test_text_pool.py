"""Pools of public texts: read, kept once in normal form, near by what they say, one file by its hash, or refused."""

import io
import json

import numpy as np
import pytest
from click.testing import CliRunner

from patevolve.shared import assets, pools
from patevolve.shared.cli import application
from patevolve.shared.encoder.ngrams import hashed_words
from patevolve.shared.errors import DataError, InputError, PlanError
from patevolve.shared.generators import pool
from patevolve.shared.texts import packed, unpacked

TEXTS = [
    f"{animal} number {n} in the {place}" for animal in ("cat", "dog") for n in range(20) for place in ("hut", "bin")
]


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv(assets.FOLDERS, str(tmp_path / "assets"))
    return tmp_path


def kept(folders, **arrays):
    np.savez(folders / "made.npz", **arrays)
    return assets.add(folders / "made.npz").stem


def test_a_pool_is_built_added_and_loaded(folders):
    data = pools.build_texts(TEXTS, 64, hashed_words)
    assert data == pools.build_texts(TEXTS, 64, hashed_words)
    (folders / "pool.npz").write_bytes(data)
    sha256 = assets.add(folders / "pool.npz").stem
    loaded = pool.load_texts(sha256, 80)  # a plan may keep more bytes than the pool has
    assert unpacked(loaded.render(loaded.everything(), np.zeros(80, np.int64))) == TEXTS
    assert loaded.images.shape == (80, 80)
    assert loaded.digest != pool.load_texts(_other(folders), 80).digest


def _other(folders):
    (folders / "other.npz").write_bytes(pools.build_texts(TEXTS[1:], 64, hashed_words))
    return assets.add(folders / "other.npz").stem


def test_neighbours_are_texts_of_like_words():
    with np.load(io.BytesIO(pools.build_texts(TEXTS, 64, hashed_words)), allow_pickle=False) as file:
        near = file["neighbours"]
    assert near.shape == (80, pools.NEIGHBOURS)
    alike = [TEXTS[int(first)][:3] == text[:3] for text, first in zip(TEXTS, near[:, 0], strict=True)]
    assert np.mean(alike) > 0.9


LINES = [
    '{"text": "one  text"}',
    '"one text"',
    '{"text": "two", "label": "kept out"}',
    "",
    '{"text": "\\u0000 "}',
    '"' + "x" * 1_000_000 + '"',
]


def test_public_texts_are_kept_once_and_what_was_left_out_is_counted(tmp_path):
    (tmp_path / "t.jsonl").write_text("\n".join(LINES))
    texts, found = pools.read_public_texts(tmp_path / "t.jsonl", 32)
    assert texts == ["one text", "two", "x" * 32]
    assert found == {"empty": 1, "cut": 1, "again": 1}
    (tmp_path / "t.tsv").write_text("body\tother\none\t1\ntwo\t2\n")
    assert pools.read_public_texts(tmp_path / "t.tsv", 32, "body")[0] == ["one", "two"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('"one"\n"one "', "holds 1 different text"),
        ('{"body": "one"}', "line 1: no text found"),
        ("[1]", "line 1: no text found"),
        ("{", "cannot be read as JSON lines"),
        ("[" * 100_000, "cannot be read as JSON lines"),
        ('"one"\n"half \\ud83d"', "text 2: .*surrogate pair"),
        ('"\udcff"', "cannot be read as JSON lines in UTF-8"),
    ],
)
def test_what_is_no_pool_of_texts_is_refused(tmp_path, content, message):
    (tmp_path / "t.jsonl").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=message):
        pools.read_public_texts(tmp_path / "t.jsonl", 32)


GOOD = packed(["one", "two"], 16)
NEAR = np.array([[1], [0]], np.int32)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": GOOD, "neighbours": NEAR}, "no pool of texts"),
        ({"texts": GOOD.astype(np.int64), "neighbours": NEAR}, "expected uint8"),
        ({"texts": GOOD[:, 0], "neighbours": NEAR}, "expected uint8"),
        ({"texts": GOOD, "neighbours": NEAR + 1}, "numbers of the 2 texts"),
        ({"texts": np.full((2, 16), 255, np.uint8), "neighbours": NEAR}, "no UTF-8"),
        ({"texts": packed(["one", "two  words"], 16), "neighbours": NEAR}, "not in their normal form"),
        ({"texts": packed(["one", "a\nb"], 16), "neighbours": NEAR}, "not in their normal form"),
        ({"texts": packed(["one", "\u202eowt"], 16), "neighbours": NEAR}, "not in their normal form"),
        ({"texts": packed(["one", ""], 16), "neighbours": NEAR}, "not in their normal form"),
        ({"texts": packed(["one", "x" * 33], 40), "neighbours": NEAR}, "at most 32.*--length 32"),
    ],
)
def test_a_file_that_is_no_such_pool_is_refused(folders, arrays, message):
    with pytest.raises(PlanError, match=message):
        pool.load_texts(kept(folders, **arrays), 32)


def test_the_command_makes_and_keeps_a_pool(folders):
    (folders / "t.jsonl").write_text("\n".join(json.dumps({"note": text}) for text in TEXTS))
    words = ["assets", "texts", str(folders / "t.jsonl"), "--column", "note", "--length", "64"]
    ended = CliRunner().invoke(application, [*words, "--out", str(folders / "pool.npz"), "--format", "json"])
    assert ended.exit_code == 0, ended.output
    made = json.loads(ended.stdout)
    assert made["texts"] == 80
    assert (folders / "pool.npz").read_bytes() == pools.build_texts(TEXTS, 64, hashed_words)
    assert unpacked(pool.load_texts(made["sha256"], 64).images) == TEXTS


def test_half_a_network_is_refused(tmp_path):
    with pytest.raises(InputError, match="expected both, or neither"):
        pools.description(tmp_path / "network.onnx", None, 64)
