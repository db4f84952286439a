"""Pools of public images: one file by its hash, near neighbours, integer variation, and the command that makes them."""

import hashlib
import io
import json

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from patevolve.shared import assets, pools
from patevolve.shared.cli import application
from patevolve.shared.data.target import Target
from patevolve.shared.errors import DataError, InputError, PlanError
from patevolve.shared.generators import pool
from patevolve.shared.generators.pool import Pool
from patevolve.shared.plan import agree
from patevolve.shared.plan_sections import Generator
from patevolve.shared.randomness import stream


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv(assets.FOLDERS, str(tmp_path / "assets"))
    return tmp_path


def run(*words):
    return CliRunner().invoke(application, words)


def bars(count=60, side=12):
    """Return images of one bright row or column each, at ``count`` brightnesses: the near ones differ little."""
    images = np.zeros((count, side, side), np.uint8)
    for number in range(count):
        cut = images[number].T if number % 2 else images[number]
        cut[number % side] = 50 + 3 * number
    return images


def line(count=200, known=8):
    """Return a pool whose images lie on a line: the neighbours of a number are the numbers beside it."""
    images = np.repeat(np.arange(count, dtype=np.uint8)[:, None, None], 8, axis=1).repeat(8, axis=2)
    points = np.arange(count, dtype=np.float32)[:, None]
    return Pool(images=images, neighbours=pools.nearest(points, known), sha256="a" * 64)


def test_neighbours_are_the_nearest_by_brute_force():
    points = np.random.default_rng(0).normal(size=(700, 5)).astype(np.float32)
    table = pools.nearest(points, 9)
    distance = np.linalg.norm(points[:, None].astype(float) - points, axis=2)
    np.fill_diagonal(distance, np.inf)
    assert table.dtype == np.int32
    assert np.array_equal(table, np.argsort(distance, axis=1)[:, :9])


def test_a_pool_is_built_added_and_loaded(folders):
    data = pools.build(bars())
    assert data == pools.build(bars())  # the same images make the same file, so the same hash
    (folders / "pool.npz").write_bytes(data)
    sha256 = assets.add(folders / "pool.npz").stem
    loaded = pool.load(sha256, (12, 12))
    assert np.array_equal(loaded.images, bars())
    assert loaded.neighbours.shape == (60, pools.NEIGHBOURS)
    assert np.array_equal(loaded.render(loaded.everything(), np.zeros(60, np.int64)), bars())


def test_equal_images_are_kept_once():
    twice = np.concatenate([bars(10), bars(10)])
    with np.load(io.BytesIO(pools.build(twice)), allow_pickle=False) as file:
        assert np.array_equal(file["images"], bars(10))
        assert file["neighbours"].shape == (10, 9)
    with pytest.raises(DataError, match="fewer than two different"):
        pools.build(np.zeros((5, 12, 12), np.uint8))


def test_draws_repeat_no_image_before_all_came():
    generator = line(50)
    drawn = generator.draw(stream(1, "draw"), 0, 120)[:, 0]
    counts = np.bincount(drawn.astype(int), minlength=50)
    assert len(set(drawn[:50])) == 50
    assert set(counts) == {2, 3}


def test_every_class_draws_from_one_pool():
    generator = line()
    assert np.array_equal(generator.draw(stream(1), 0, 9), generator.draw(stream(1), 3, 9))


@pytest.mark.parametrize(("strength", "furthest"), [(0.05, 1), (0.2, 3), (0.35, 6)])
def test_a_mutant_is_a_neighbour_of_a_rank_that_the_strength_allows(strength, furthest):
    """200^s is 1.3, 2.9 and 6.4: on a line the rank is the distance, two ranks to a step."""
    parents = np.full((400, 1), 100.0)
    moved = np.abs(line().mutate(stream(2), parents, 0, strength)[:, 0] - 100)
    assert moved.min() >= 1
    assert moved.max() == -(-furthest // 2)


def test_at_strength_one_a_mutant_is_any_image():
    mutants = line().mutate(stream(3), np.full((4000, 1), 100.0), 0, 1.0)[:, 0]
    counts = np.bincount(mutants.astype(int), minlength=200)
    assert counts.min() > 0
    assert abs(mutants.mean() - 99.5) < 6 * 200 / np.sqrt(12 * 4000)


def test_a_child_lies_between_parents_that_share_neighbours():
    children = line().cross(stream(4), np.full((300, 1), 97.0), np.full((300, 1), 103.0))[:, 0]
    assert set(children) <= set(range(99, 102))  # what is within 4 of both
    assert len(set(children)) == 3


def test_a_child_of_strangers_is_one_of_them():
    children = line().cross(stream(5), np.full((300, 1), 10.0), np.full((300, 1), 150.0))[:, 0]
    assert set(children) == {10.0, 150.0}


GOLDEN = "d5c9d0ca9d2dcaff53b6a4314089f7774615d8b1bad41adc3f3e1e44810d7475"


def varied(variation):
    images = np.random.default_rng(1).integers(0, 256, (20, 28, 28)).astype(np.uint8)
    return Pool(images=images, neighbours=np.zeros((20, 1), np.int32) + 1, sha256="b" * 64, variation=variation)


def test_variation_is_integer_arithmetic_that_gives_the_same_bytes_on_every_machine():
    generator = varied(0.5)
    numbers = np.linspace(-4, 4, 20 * (generator.genome_size - 1)).reshape(20, -1)
    genomes = np.hstack([np.arange(20)[:, None], numbers])
    rendered = generator.render(genomes, np.zeros(20, np.int64))
    assert hashlib.sha256(rendered.tobytes()).hexdigest() == GOLDEN


def test_an_unvaried_genome_is_the_public_image_itself():
    generator = varied(1.0)
    assert np.array_equal(generator.render(generator.everything(), np.zeros(20, np.int64)), generator.images)


def test_a_shift_moves_the_whole_image():
    generator = varied(1.0)
    genomes = generator.everything()
    genomes[:, 1] = 2.0  # 2 × 1.5 pixels down at variation 1
    rendered = generator.render(genomes, np.zeros(20, np.int64))
    assert np.array_equal(rendered[:, :25], generator.images[:, 3:])


def test_a_larger_variation_changes_more_pixels():
    changed = []
    for variation in (0.1, 0.3, 1.0):
        generator = varied(variation)
        genomes = generator.draw(stream(6), 0, 20)
        plain = generator.images[genomes[:, 0].astype(int)].astype(int)
        changed.append(np.abs(generator.render(genomes, np.zeros(20, np.int64)) - plain).mean())
    assert changed == sorted(changed)
    assert changed[0] > 0


def test_the_digest_names_the_file_and_the_variation():
    digests = {varied(0.1).digest, varied(0.2).digest, line().digest, varied(0.0).digest}
    assert len(digests) == 4


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": bars()}, "no pool of images"),
        ({"images": bars(side=9), "neighbours": np.zeros((60, 1), np.int32)}, r"expected uint8 \(n ≥ 2, 12, 12\)"),
        ({"images": bars() / 2, "neighbours": np.zeros((60, 1), np.int32)}, "expected uint8"),
        ({"images": bars(), "neighbours": np.zeros((60, 1))}, "expected int32"),
        ({"images": bars(), "neighbours": np.full((60, 1), 60, np.int32)}, "numbers of the 60 images"),
        ({"images": bars(), "neighbours": np.full((60, 1), -1, np.int32)}, "numbers of the 60 images"),
        ({"images": bars(), "neighbours": np.zeros((59, 1), np.int32)}, "numbers of the 60 images"),
        ({"images": np.array([None]), "neighbours": np.zeros((60, 1), np.int32)}, "no pool of images"),
    ],
)
def test_a_file_that_is_no_such_pool_is_refused(folders, arrays, message):
    np.savez(folders / "wrong.npz", **arrays)
    sha256 = assets.add(folders / "wrong.npz").stem
    with pytest.raises(PlanError, match=message):
        pool.load(sha256, (12, 12))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"kind": "pool"}, "expects the SHA-256"),
        ({"kind": "pool", "asset": "a" * 64, "variation": 1.5}, "expected 0 to 1"),
        ({"kind": "pool", "asset": "a" * 64, "variation": float("nan")}, "variation"),
        ({"kind": "tabular", "variation": 0.1}, "has no use for it"),
        ({"kind": "tabular", "asset": "a" * 64}, "has no use for a file"),
        ({"kind": "simulator", "asset": "glyphs.npz"}, "expected the 64 hex digits"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(keys, message):
    with pytest.raises(InputError, match=message):
        Generator(**keys)


def test_the_command_makes_and_keeps_a_pool_of_a_folder(folders):
    for number, image in enumerate(bars(6)):
        (folders / "images" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folders / "images" / "ab"[number % 2] / f"{number}.png")
    (folders / "images" / "notes.txt").write_text("no image")
    size = ("--height", "8", "--width", "10", "--fit", "stretch")
    out = str(folders / "made.npz")
    ended = run("assets", "pool", str(folders / "images"), "--out", out, *size, "--format", "json")
    assert ended.exit_code == 0, ended.output
    kept = json.loads(ended.stdout)
    assert (folders / "made.npz").read_bytes() == assets.find(kept["sha256"]).read_bytes()
    assert pool.load(kept["sha256"], (8, 10)).images.shape == (6, 8, 10)


def test_the_command_makes_a_pool_of_an_npz_file(folders):
    np.savez(folders / "public.npz", images=bars())
    ended = run("assets", "pool", str(folders / "public.npz"), "--out", str(folders / "made.npz"))
    assert ended.exit_code == 0, ended.output
    assert np.array_equal(pool.load(ended.stdout.strip(), (12, 12)).images, bars())


@pytest.mark.parametrize("given", [("--height", "8"), ("--width", "8")])
def test_half_a_size_is_refused(folders, given):
    np.savez(folders / "public.npz", images=bars())
    assert run("assets", "pool", str(folders / "public.npz"), *given).exit_code == 2


def test_what_is_no_pool_of_images_is_refused(folders):
    (folders / "empty").mkdir()
    with pytest.raises(DataError, match="holds 0 image"):
        pools.read_public(folders / "empty", Target(height=8, width=8))
    with pytest.raises(DataError, match="expected --height and --width"):
        pools.read_public(folders / "empty", None)
    with pytest.raises(DataError, match="cannot be read as a folder"):
        pools.read_public(folders / "absent.npz", None)
    np.savez(folders / "odd.npz", images=bars()[:, :, :, None])
    with pytest.raises(DataError, match=r"expected uint8 \(n ≥ 2, height, width\)"):
        pools.read_public(folders / "odd.npz", None)
    np.savez(folders / "small.npz", images=bars())
    with pytest.raises(DataError, match="expected 8 × 8"):
        pools.read_public(folders / "small.npz", Target(height=8, width=8))


# ---- colour ----------------------------------------------------------------------------------------------------------


def tinted(count=20):
    """Return three grey pools' images as one in colour."""
    return np.random.default_rng(1).integers(0, 256, (count, 28, 20, 3)).astype(np.uint8)


def test_variation_bends_each_channel_alike():
    neighbours = np.zeros((20, 1), np.int32) + 1
    colour = Pool(images=tinted(), neighbours=neighbours, sha256="b" * 64, variation=0.7)
    genomes = colour.draw(stream(1), 0, 20)
    bent = colour.render(genomes, np.zeros(20, np.int64))
    assert bent.shape == (20, 28, 20, 3)
    assert not np.array_equal(bent, colour.images[colour.numbers_of(genomes)])
    for channel in range(3):
        images = np.ascontiguousarray(tinted()[..., channel])
        grey = Pool(images=images, neighbours=neighbours, sha256="b" * 64, variation=0.7)
        assert np.array_equal(bent[..., channel], grey.render(genomes, np.zeros(20, np.int64)))


def test_a_pool_in_colour_is_for_a_plan_in_colour(folders):
    (folders / "pool.npz").write_bytes(pools.build(tinted(40)))
    sha256 = assets.add(folders / "pool.npz").stem
    assert pool.load(sha256, (28, 20, 3)).images.shape == (40, 28, 20, 3)
    with pytest.raises(PlanError, match=r"expected uint8 \(n ≥ 2, 28, 20\).*channels"):
        pool.load(sha256, (28, 20))
    (folders / "grey.npz").write_bytes(pools.build(bars()))
    with pytest.raises(PlanError, match=r"expected uint8 \(n ≥ 2, 12, 12, 3\)"):
        pool.load(assets.add(folders / "grey.npz").stem, (12, 12, 3))


@pytest.mark.parametrize(("channels", "good"), [((), False), (("--channels", "3"), True)])
def test_the_command_takes_an_npz_file_in_colour_if_told_so(folders, channels, good):
    np.savez(folders / "public.npz", images=tinted())
    ended = run("assets", "pool", str(folders / "public.npz"), "--out", str(folders / "made.npz"), *channels)
    assert (ended.exit_code == 0) == good
    if good:
        assert np.array_equal(pool.load(ended.stdout.strip(), (28, 20, 3)).images, tinted())
    else:
        assert isinstance(ended.exception, DataError) or "height, width" in ended.output


PLAN = """
format = 1
name = "colour"
seed = 1
[privacy]
epsilon = 1.0
delta = 1e-5
unit = "record"
[sites]
count = 2
expected_units = 100
[data]
kind = "image"
classes = ["a", "b"]
label = "label"
height = 28
width = 28
{data}
[generator]
{generator}
[questions]
[release]
samples = 4
"""
POOLED = f'kind = "pool"\nasset = "{"a" * 64}"'


@pytest.mark.parametrize(
    ("data", "generator", "message"),
    [
        ("channels = 3", 'kind = "simulator"', "'simulator' with data.channels = 3.*'pool' or 'diffusers'"),
        ("channels = 3", f'kind = "vqvae"\nasset = "{"a" * 64}"', "'vqvae' with data.channels = 3"),
        ("channels = 2", POOLED, "expected 1 .grey. or 3 .RGB."),
        ("channels = 3\nvalue_range = [0, 9]", POOLED, "value_range with channels = 3"),
    ],
)
def test_a_plan_in_colour_that_cannot_be_is_refused(data, generator, message):
    with pytest.raises(PlanError, match=message):
        agree(PLAN.format(data=data, generator=generator))


def test_a_plan_in_colour_is_read_and_grey_is_the_default():
    assert agree(PLAN.format(data="channels = 3", generator=POOLED)).plan.data.shape == (28, 28, 3)
    assert agree(PLAN.format(data="", generator=POOLED)).plan.data.shape == (28, 28)
