"""The VQ-VAE: trained in seconds on public discs, one file by its hash, the same pixels with numpy alone."""

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from patevolve.shared import assets
from patevolve.shared.cli import application
from patevolve.shared.errors import DataError, InputError, PlanError
from patevolve.shared.generators import vqvae, vqvae_train
from patevolve.shared.generators.tensors import pack, unpack
from patevolve.shared.generators.vqvae_train import Settings
from patevolve.shared.randomness import stream

SIDE = 16
TINY = Settings(codes=16, depth=3, channels=8, epochs=12, batch=16, rate=1e-2)
NONE = np.zeros(0, np.int64)


def discs(count=96):
    """Return public images of two kinds, and their names: bright discs to the left, and to the right."""
    rng = np.random.default_rng(5)
    rows, columns = np.indices((SIDE, SIDE))
    right = np.arange(count) % 2
    y, x = rng.uniform(6, 10, count), rng.uniform(3, 5, count) + 7 * right
    far = np.hypot(rows - y[:, None, None], columns - x[:, None, None])
    images = np.rint(255 * np.clip(4.5 - far, 0, 1)).astype(np.uint8)
    return images, np.array(["left", "right"])[right]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """So small a network is faster on one thread, on a busy machine by far."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def trained():
    losses = []
    return vqvae_train.train(*discs(), TINY, losses.append, onnx=True), losses


@pytest.fixture
def model(trained):
    return vqvae.read(trained[0].file, "a" * 64, ("left", "right"))


def test_training_learns_to_draw_what_it_saw(trained, model):
    made, losses = trained
    images, _ = discs()
    assert losses[-1] < losses[0] / 4
    assert made.used > 2
    plain = float(np.sqrt(np.mean((images - images.mean(axis=0)) ** 2)))
    assert made.error < plain / 2  # far better than one picture for all


def test_the_same_seed_trains_the_same_file_and_leaves_the_callers_randomness_alone():
    import torch

    few = Settings(codes=4, depth=2, channels=4, epochs=1, batch=16)
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    once = vqvae_train.train(*discs(32), few).file
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(4)
    assert vqvae_train.train(*discs(32), few).file == once


def test_draws_are_of_their_class(model):
    """Class names stand in the file: its discs lie on their side."""
    for cls in (0, 1):
        images = model.render(model.draw(stream(1), cls, 40), np.full(40, cls)).astype(float)
        left, right = images[:, :, :8].sum(), images[:, :, 8:].sum()
        assert (left > 2 * right) if cls == 0 else (right > 2 * left)


def test_a_class_that_nobody_named_is_drawn_from_all(trained):
    other = vqvae.read(trained[0].file, "a" * 64, ("left", "unheard of"))
    images = other.render(other.draw(stream(1), 1, 60), np.ones(60, np.int64)).astype(float)
    assert images[:, :, :8].sum() > 0.2 * images.sum() < images[:, :, 8:].sum() / 0.2


def test_pixels_do_not_hang_on_the_order_of_summation(model):
    """Whole numbers in doubles: a decoder with its inputs summed in another order gives the same bytes."""
    order = np.random.default_rng(0).permutation(TINY.channels)
    layers = list(model.layers)
    first, second = layers[0], layers[1]
    moved = second.weights.reshape(9, TINY.channels, -1)[:, order].reshape(second.weights.shape)
    layers[0] = vqvae.Layer(
        weights=first.weights[:, order], bias=first.bias[order], shift=first.shift, doubles=first.doubles
    )
    layers[1] = vqvae.Layer(weights=moved, bias=second.bias, shift=second.shift, doubles=second.doubles)
    other = vqvae.VqVae(
        classes=model.classes, sha256=model.sha256, codes=model.codes, layers=tuple(layers), bank=model.bank,
        labels=model.labels, grid=model.grid,
    )  # fmt: skip
    genomes = model.draw(stream(2), 0, 30)
    assert other.render(genomes, NONE).tobytes() == model.render(genomes, NONE).tobytes()
    assert all(np.array_equal(layer.weights, np.rint(layer.weights)) for layer in layers)


def test_onnx_and_the_rounded_decoder_agree(trained, model):
    """The exported network in floating point, from the same codes: within two grey levels, on average within one."""
    import onnxruntime

    genomes = model.draw(stream(3), 1, 20)
    places = 256.0 * genomes.reshape(-1, model.grid[2])
    nearest = np.argmin(((places[:, None] - model.codes) ** 2).sum(axis=2), axis=1)
    codes = (model.codes[nearest] / 256.0).reshape(20, *model.grid).transpose(0, 3, 1, 2).astype(np.float32)
    session = onnxruntime.InferenceSession(trained[0].onnx, providers=["CPUExecutionProvider"])
    (images,) = session.run(None, {"codes": codes})
    apart = np.abs(255.0 * images[:, 0].clip(0, 1) - model.render(genomes, NONE))
    assert apart.max() <= 3.0
    assert apart.mean() <= 1.0


def test_the_adversary_changes_the_decoder():
    plain, sharp = (
        vqvae_train.train(*discs(32), Settings(codes=4, depth=2, channels=4, epochs=2, batch=16, adversarial=weight))
        for weight in (0.0, 0.1)
    )
    assert plain.file != sharp.file
    assert vqvae.read(sharp.file, "", ()).shape == (SIDE, SIDE)


def test_rendering_needs_numpy_alone(trained, model, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(trained[0].file)
    code = (
        "import sys, hashlib, pathlib\n"
        "for name in ('torch', 'onnxruntime', 'safetensors', 'PIL', 'scipy'): sys.modules[name] = None\n"
        "import numpy as np\n"
        "from patevolve.shared.generators import vqvae\n"
        "from patevolve.shared.randomness import stream\n"
        f"data = pathlib.Path({str(tmp_path / 'model.safetensors')!r}).read_bytes()\n"
        "model = vqvae.read(data, 'a' * 64, ('left', 'right'))\n"
        "images = model.render(model.draw(stream(4), 0, 9), np.zeros(9, np.int64))\n"
        "print(hashlib.sha256(images.tobytes()).hexdigest())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    images = model.render(model.draw(stream(4), 0, 9), np.zeros(9, np.int64))
    assert done.stdout.strip() == hashlib.sha256(images.tobytes()).hexdigest()


def test_genomes_travel_in_two_bytes_a_number_or_four_where_one_is_large(model):
    from patevolve.shared import wire

    mutants = model.mutate(stream(5), model.draw(stream(5), 0, 20), 0, 0.3)
    assert wire.compact(mutants).dtype == np.float16
    far = model.mutate(stream(5), np.full((1, mutants.shape[1]), 50.0), 0, 0.3)
    assert wire.compact(far).dtype == np.float32


def test_mutation_keeps_the_spread_of_draws(model):
    """Twenty steps of strength 0.3: variance of latents within a factor of that of fresh draws."""
    drawn = model.draw(stream(6), 0, 400)
    moved = drawn
    for step in range(20):
        moved = model.mutate(stream(6, step), moved, 0, 0.3)
    assert 0.6 < moved.var(axis=0).mean() / drawn.var(axis=0).mean() < 1.7


def test_images_that_cannot_be_halved_are_refused():
    assert vqvae_train.stages_of(28, 28) == 2
    assert vqvae_train.stages_of(8, 16) == 1
    with pytest.raises(InputError, match="multiples of 4"):
        vqvae_train.stages_of(30, 28)


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match=r"patevolve\[train\]"):
        vqvae_train.train(*discs(32), TINY)


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv(assets.FOLDERS, str(tmp_path / "assets"))
    return tmp_path


def test_a_plan_s_file_is_loaded_and_another_size_refused(folders, trained):
    (folders / "model.safetensors").write_bytes(trained[0].file)
    sha256 = assets.add(folders / "model.safetensors").stem
    found = vqvae.load(sha256, ("left", "right"), (SIDE, SIDE))
    assert found.digest != vqvae.load(sha256, ("right", "left"), (SIDE, SIDE)).digest
    with pytest.raises(PlanError, match=r"images of \(16, 16\) found; expected \(28, 28\)"):
        vqvae.load(sha256, ("left", "right"), (28, 28))


def changed(trained, **changes):
    arrays, texts = unpack(trained[0].file)
    return pack({name: changes.get(name.replace(" ", "_"), array) for name, array in arrays.items()}, texts)


def test_files_whose_sums_might_be_rounded_or_parts_do_not_fit_are_refused(trained):
    arrays, _ = unpack(trained[0].file)
    huge = np.full_like(arrays["bias 0"], 2**60)
    wrong = [
        b"", b"no file", trained[0].file[:-9], pack({}, {}), pack({}, {"format": "another"}),
        changed(trained, bias_0=huge), changed(trained, weights_1=arrays["weights 0"]),
        changed(trained, bank=arrays["bank"][:, 1:]), changed(trained, codes=arrays["codes"][:, 1:]),
        changed(trained, grid=np.array([4, 4], np.int32)), changed(trained, shifts=arrays["shifts"] - 100),
        changed(trained, bank_labels=arrays["bank labels"] + 7),
    ]  # fmt: skip
    for data in wrong:
        with pytest.raises(DataError):
            vqvae.read(data, "", ())


def test_the_format_is_that_of_the_safetensors_library(trained):
    from safetensors import numpy as library

    arrays, texts = unpack(trained[0].file)
    theirs = library.load(trained[0].file)
    assert set(theirs) == set(arrays)
    assert all(np.array_equal(theirs[name], arrays[name]) for name in arrays)
    back, _ = unpack(library.save(dict(theirs)))
    assert all(np.array_equal(back[name], arrays[name]) for name in arrays)
    assert texts["format"] == vqvae.FORMAT


def test_the_command_trains_and_keeps_a_generator(folders):
    images, _ = discs(32)
    np.savez(folders / "public.npz", images=images)
    out = folders / "made.safetensors"
    words = ["assets", "train-vqvae", str(folders / "public.npz"), "--out", str(out), "--epochs", "1", "--codes", "4"]
    ended = CliRunner().invoke(application, [*words, "--onnx", str(folders / "made.onnx"), "--format", "json"])
    assert ended.exit_code == 0, ended.output
    kept = json.loads(ended.stdout)
    assert vqvae.load(kept["sha256"], ("a", "b"), (SIDE, SIDE)).shape == (SIDE, SIDE)
    assert (folders / "made.onnx").stat().st_size > 0
    assert kept["error"] > 0
