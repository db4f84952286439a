"""Text-to-image and image-to-image, by the real pipeline code on a tiny model of random weights made here."""

import hashlib
import io
import json
import sys
import tarfile

import numpy as np
import pytest
from click.testing import CliRunner

from patevolve.shared import assets, wire
from patevolve.shared.cli import application
from patevolve.shared.errors import InputError, PlanError
from patevolve.shared.generators import diffusion
from patevolve.shared.generators.diffusion import EDITS
from patevolve.shared.plan_sections import Generator
from patevolve.shared.randomness import stream


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Save a pipeline of 32 × 32 images whose models have a few thousand random weights."""
    import torch
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    words = tmp_path_factory.mktemp("words")
    letters = [chr(number) for number in range(33, 127)]
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (words / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    (words / "merges.txt").write_text("#version: 0.2\n")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        unet = UNet2DConditionModel(
            sample_size=8, block_out_channels=(8, 16), layers_per_block=1, in_channels=4, out_channels=4,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), cross_attention_dim=16, attention_head_dim=4,
            norm_num_groups=4,
        )  # fmt: skip
        vae = AutoencoderKL(
            block_out_channels=(8, 8, 8), latent_channels=4, norm_num_groups=4, sample_size=32,
            down_block_types=("DownEncoderBlock2D",) * 3, up_block_types=("UpDecoderBlock2D",) * 3,
        )  # fmt: skip
        text = CLIPTextModel(
            CLIPTextConfig(
                vocab_size=len(tokens), hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                num_attention_heads=2, max_position_embeddings=77, bos_token_id=len(tokens) - 2,
                eos_token_id=len(tokens) - 1, pad_token_id=len(tokens) - 1,
            )
        )  # fmt: skip
    tokenizer = CLIPTokenizer(str(words / "vocab.json"), str(words / "merges.txt"), model_max_length=77)
    pipeline = StableDiffusionPipeline(
        vae=vae, text_encoder=text, tokenizer=tokenizer, unet=unet, safety_checker=None, feature_extractor=None,
        scheduler=DDIMScheduler(steps_offset=1, clip_sample=False), requires_safety_checker=False,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("pipeline")
    pipeline.save_pretrained(path, safe_serialization=True)
    return path


@pytest.fixture(scope="module")
def archived(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("archive") / "pipeline.tar"
    diffusion.archive(folder, out)
    return out


@pytest.fixture(scope="module")
def generator(archived, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(assets.FOLDERS, str(home / "assets"))
        patch.setenv("XDG_CACHE_HOME", str(home / "cache"))
        sha256 = assets.add(archived).stem
        return diffusion.load(sha256, ("cat", "dog"), ("a {class}", "one small {class}"), shape=(16, 12), steps=4)


def test_colour_is_what_the_pipeline_made(generator):
    import dataclasses

    colour = dataclasses.replace(generator, shape=(16, 12, 3))
    genomes = generator.draw(stream(20), 0, 3)
    images = colour.render(genomes, both(3))
    assert images.shape == (3, 16, 12, 3)
    assert np.ptp(images.astype(int), axis=3).max() > 0  # channels differ
    grey = generator.render(genomes, both(3)).astype(int)
    # Rounded and clipped before or after the resizing, so single pixels differ a little.
    assert np.abs(images @ np.array([0.299, 0.587, 0.114]) - grey).mean() <= 1
    assert colour.digest != generator.digest


def both(count):
    return np.arange(count) % 2


def test_a_named_stream_decides_every_step(generator):
    drawn = generator.draw(stream(1, "draw"), 0, 6)
    assert drawn.tobytes() == generator.draw(stream(1, "draw"), 0, 6).tobytes()
    mutants = generator.mutate(stream(1, "mutate"), drawn, 0, 0.4)
    assert mutants.tobytes() == generator.mutate(stream(1, "mutate"), drawn, 0, 0.4).tobytes()
    children = generator.cross(stream(1, "cross"), drawn, mutants)
    assert children.tobytes() == generator.cross(stream(1, "cross"), drawn, mutants).tobytes()


def test_a_genome_is_rendered_again_alike_whatever_was_kept(generator):
    genomes = generator.mutate(stream(2), generator.draw(stream(2), 0, 4), 0, 0.5)
    once = generator.render(genomes, both(4))
    assert once.dtype == np.uint8
    assert once.shape == (4, 16, 12)
    generator.made.clear()
    assert generator.render(genomes[::-1], both(4)[::-1])[::-1].tobytes() == once.tobytes()


def test_prompt_class_seed_and_edit_each_change_the_image(generator):
    genome = generator.draw(stream(3), 0, 1)
    genome[0, 0] = 0
    plain = generator.render(genome, np.zeros(1, np.int64))
    assert not np.array_equal(plain, generator.render(genome, np.ones(1, np.int64)))
    for place, value in ((0, 1.0), (1, 5.0)):
        other = genome.copy()
        other[0, place] = value
        assert not np.array_equal(plain, generator.render(other, np.zeros(1, np.int64)))
    edited = generator.mutate(stream(3), genome, 0, 0.5)
    assert not np.array_equal(plain, generator.render(edited, np.zeros(1, np.int64)))


def test_a_stronger_edit_runs_more_steps_of_image_to_image(generator, monkeypatch):
    """As the model of random weights draws no picture, what is measured is what the pipeline is asked to do."""
    asked = []
    real = generator.image.unet.forward

    def counted(*args, **kwargs):
        asked.append(1)
        return real(*args, **kwargs)

    monkeypatch.setattr(generator.image.unet, "forward", counted)
    genome, counts = generator.draw(stream(4), 0, 1), []
    generator.render(genome, np.zeros(1, np.int64))
    for strength in (0.05, 0.5, 0.75, 0.999):
        asked.clear()
        generator.render(generator.mutate(stream(4), genome, 0, strength), np.zeros(1, np.int64))
        counts.append(len(asked))
    assert counts == [1, 2, 3, 3]


def test_strength_one_forgets_the_parent(generator):
    parents = generator.mutate(stream(5), generator.draw(stream(5), 0, 9), 0, 0.3)
    fresh = generator.mutate(stream(6), parents, 0, 1.0)
    assert np.array_equal(fresh, generator.draw(stream(6), 0, 9))


def test_a_chain_never_grows_beyond_its_genome(generator):
    genomes = generator.draw(stream(7), 0, 3)
    for step in range(EDITS + 3):
        before = genomes
        genomes = generator.mutate(stream(7, step), genomes, 0, 0.2)
        assert genomes.shape == before.shape
    assert (genomes[:, 3::2] > 0).all()
    assert np.array_equal(genomes[:, :-2], before[:, :-2])  # the last edit takes the place of the one before


def test_a_child_goes_on_from_its_mother_with_edits_of_its_father(generator):
    mothers = generator.draw(stream(8), 0, 200)
    fathers = generator.draw(stream(9), 0, 200)
    for strength in (0.3, 0.4):
        fathers = generator.mutate(stream(9), fathers, 0, strength)
    children = generator.cross(stream(10), mothers, fathers)
    assert np.array_equal(children[:, :2], mothers[:, :2])
    lengths = set(np.count_nonzero(children[:, 3::2], axis=1).tolist())
    assert lengths == {0, 1, 2}
    gaps = np.diff((children[:, 3::2] > 0).astype(int), axis=1)
    assert (gaps <= 0).all()  # edits stand one after another


def test_genomes_survive_the_wire(generator):
    genomes = generator.mutate(stream(11), generator.draw(stream(11), 0, 5), 0, 0.3)
    packet = wire.Packet(kind="test", arrays={"genomes": wire.compact(genomes)})
    back = wire.decode(wire.encode(packet)).arrays["genomes"].astype(np.float64)
    assert back.tobytes() == genomes.tobytes()


@pytest.mark.parametrize("value", [-1e300, -0.5, 7.3, 1e300])
def test_hostile_genomes_render_within_range(generator, value):
    genomes = np.full((1, generator.genome_size), value)
    assert generator.render(genomes, np.zeros(1, np.int64)).shape == (1, 16, 12)


def test_the_digest_names_everything_that_decides_an_image(generator):
    import dataclasses

    changes = [{}, {"classes": ("cat", "cow")}, {"prompts": ("a {class}",)}, {"shape": (8, 8)}, {"steps": 5},
               {"sha256": "b" * 64}]  # fmt: skip
    assert len({dataclasses.replace(generator, **change).digest for change in changes}) == len(changes)


def test_the_same_folder_makes_the_same_archive(folder, archived, tmp_path):
    diffusion.archive(folder, tmp_path / "again.tar")
    assert (
        hashlib.sha256((tmp_path / "again.tar").read_bytes()).digest() == hashlib.sha256(archived.read_bytes()).digest()
    )


@pytest.mark.parametrize("name", ["weights.bin", "weights.ckpt", "model.py", "weights.pt"])
def test_files_that_may_hold_code_are_not_archived(folder, tmp_path, name):
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "model_index.json").write_text("{}")
    (copy / name).write_bytes(b"x")
    with pytest.raises(InputError, match=name):
        diffusion.archive(copy, tmp_path / "out.tar")


def planted(path, name, kind=tarfile.REGTYPE):
    with tarfile.open(path, "w") as tar:
        entry = tarfile.TarInfo(name)
        entry.size, entry.type, entry.linkname = (2 if kind == tarfile.REGTYPE else 0), kind, "/etc/passwd"
        tar.addfile(entry, io.BytesIO(b"{}"))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("evil.py", tarfile.REGTYPE),
        ("weights.bin", tarfile.REGTYPE),
        ("link.json", tarfile.SYMTYPE),
        ("../outside.json", tarfile.REGTYPE),
        ("other.json", tarfile.REGTYPE),
    ],
)
def test_hostile_archives_are_refused_and_leave_nothing(tmp_path, monkeypatch, name, kind):
    monkeypatch.setenv(assets.FOLDERS, str(tmp_path / "assets"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    planted(tmp_path / "planted.tar", name, kind)
    sha256 = assets.add(tmp_path / "planted.tar").stem
    with pytest.raises(PlanError):
        diffusion.load(sha256, ("cat",), ("a {class}",), shape=(8, 8), steps=2)
    left = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert left == []
    assert not (tmp_path / "cache" / "outside.json").exists()


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(InputError, match=r"patevolve\[diffusers\]"):
        diffusion.load("a" * 64, ("cat",), ("a {class}",), shape=(8, 8), steps=2)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"kind": "diffusers", "asset": "a" * 64}, "prompts"),
        ({"kind": "diffusers", "prompts": ("a {class}",)}, "SHA-256"),
        ({"kind": "diffusers", "asset": "a" * 64, "prompts": ("a picture",)}, r"\{class\}"),
        ({"kind": "diffusers", "asset": "a" * 64, "prompts": ("a {class}",), "steps": 0}, "steps"),
        ({"kind": "simulator", "prompts": ("a {class}",)}, "no use"),
        ({"kind": "pool", "asset": "a" * 64, "steps": 3}, "no use"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(keys, message):
    with pytest.raises(InputError, match=message):
        Generator(**keys)


def test_the_command_keeps_a_pipeline(folder, tmp_path, monkeypatch):
    monkeypatch.setenv(assets.FOLDERS, str(tmp_path / "assets"))
    words = ["assets", "pipeline", str(folder), "--out", str(tmp_path / "p.tar"), "--format", "json"]
    ended = CliRunner().invoke(application, words)
    assert ended.exit_code == 0, ended.output
    assert assets.find(json.loads(ended.stdout)["sha256"]).read_bytes() == (tmp_path / "p.tar").read_bytes()
