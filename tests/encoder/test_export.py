"""Exports: one file, the asked opset, an open batch, three precisions that agree, and nothing of the machine in it."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from patevolve.shared import assets  # noqa: E402
from patevolve.shared.encoder import export  # noqa: E402
from patevolve.shared.encoder.backbone import backbone, train_backbone  # noqa: E402
from patevolve.shared.encoder.export import COSINE, OPSET, check_opset, cosine, in_precision, run, to_onnx  # noqa: E402
from patevolve.shared.errors import InputError  # noqa: E402


@pytest.fixture(scope="module")
def network():
    return backbone(1).eval()


@pytest.fixture(scope="module")
def public():
    return np.random.default_rng(0).random((48, 1, 12, 12), np.float32)


@pytest.fixture(scope="module")
def plain(network, public):
    return to_onnx(network, public)


@pytest.fixture(scope="module")
def other(public):
    return to_onnx(backbone(2), public)


def test_features_are_those_of_pytorch_for_any_batch(network, public, plain):
    with torch.no_grad():
        expected = network(torch.from_numpy(public)).numpy()
    for count in (1, 3, 48):
        found = run(plain, public[:count])
        assert found.shape == (count, expected.shape[1])
        assert np.abs(found - expected[:count]).max() < 1e-4


def test_the_opset_asked_for_is_the_opset_written_in_one_file(plain, tmp_path):
    import onnx

    path = tmp_path / "network.onnx"
    export.write_model(path, plain, {"ε": "0 (public pictures alone)"})
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["network.md", "network.onnx"]
    (version,) = [entry.version for entry in onnx.load(path).opset_import if entry.domain == ""]
    assert version == check_opset(plain) == OPSET


def test_another_opset_is_refused(plain):
    import onnx

    model = onnx.load_from_string(plain)
    for entry in model.opset_import:
        entry.version = OPSET - 1
    with pytest.raises(InputError, match="opset"):
        check_opset(model.SerializeToString())


def test_the_file_says_nothing_of_the_machine(plain):
    assert b".py" not in plain
    assert b"site-packages" not in plain


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_lower_precisions_agree_and_are_smaller(plain, public, precision):
    made = in_precision(plain, precision, public)
    fresh = np.random.default_rng(1).random((64, 1, 12, 12), np.float32)
    assert cosine(run(plain, fresh), run(made, fresh)) >= COSINE[precision]
    assert len(made) < 0.7 * len(plain)
    assert check_opset(made) == OPSET


def test_fp32_is_the_file_itself(plain, public):
    assert in_precision(plain, "fp32", public) is plain


def test_a_precision_that_does_not_agree_is_refused(plain, public, other, monkeypatch):
    monkeypatch.setattr(export, "_halved", lambda _: other)
    with pytest.raises(InputError, match="mean cosine"):
        in_precision(plain, "fp16", public)


def test_a_file_that_disagrees_with_the_network_is_refused(network, public, other, monkeypatch):
    monkeypatch.setattr(export, "_exported", lambda *_: other)
    with pytest.raises(InputError, match="differ"):
        to_onnx(network, public)


def test_parameters_that_are_not_finite_are_never_exported(public):
    broken = backbone(1)
    with torch.no_grad():
        broken.blocks[0][0].weight[0, 0, 0, 0] = np.nan
    with pytest.raises(InputError, match="not finite"):
        to_onnx(broken, public)


def test_a_card_names_the_file_by_its_hash(plain, tmp_path):
    digest = export.write_model(tmp_path / "head.onnx", plain, {"plan": "abc", "epsilon": 1.5})
    card = (tmp_path / "head.md").read_text(encoding="utf-8")
    assert digest in card
    assert "| plan | abc |" in card
    assert "| epsilon | 1.5 |" in card


def test_training_a_backbone_repeats_itself_and_learns():
    rng = np.random.default_rng(0)
    classes = np.arange(120) % 4
    images = np.zeros((120, 12, 12), np.uint8)
    for cls in range(4):
        images[classes == cls, 3 * cls : 3 * cls + 3] = 200
    images += rng.integers(0, 50, images.shape, np.uint8)
    losses, again = [], []
    first = train_backbone(images, classes, seed=5, steps=12, batch=32, tick=losses.append)
    second = train_backbone(images, classes, seed=5, steps=12, batch=32, tick=again.append)
    assert losses == again
    assert np.mean(losses[-3:]) < np.mean(losses[:3])
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name])


def test_the_backbone_that_came_along_is_a_good_asset():
    (shipped,) = [path for path in assets.listed() if path.parent == assets.SHIPPED and path.suffix == ".onnx"]
    assert assets.find(shipped.stem) == shipped
    model = shipped.read_bytes()
    assert len(model) < 2 << 20
    check_opset(model)
    assert run(model, np.zeros((3, 1, 28, 28), np.float32)).shape == (3, 264)
    assert shipped.stem in (assets.SHIPPED / "README.md").read_text(encoding="utf-8")
