"""Image files of every kind become the plan's one target, or are refused by the one error before any charge."""

import io
import os
import pickle
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from patevolve.shared.data.images import read_image
from patevolve.shared.data.names import shown
from patevolve.shared.data.target import Frame, Target, convert, resample
from patevolve.shared.errors import DataError

SIZE = (24, 32)
TARGET = Target(height=24, width=32)
RNG = np.random.default_rng(0)
PICTURE = np.asarray(resample(RNG.integers(0, 256, (6, 8)).astype(float), *SIZE).round(), np.uint8)


def saved(path, image, **options):
    image.save(path, **options)
    return path


def one(path, target=TARGET):
    (image,) = read_image(path, target).images
    return image


# ---- levels ----------------------------------------------------------------------------------------------------------

RAMP = np.linspace(0, 65535, 24 * 32).astype(np.uint16).reshape(SIZE)


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_a_ramp_of_16_bits_keeps_its_levels(tmp_path, suffix):
    levels = one(saved(tmp_path / f"ramp.{suffix}", Image.fromarray(RAMP)))
    assert len(np.unique(levels)) >= 200
    assert (np.diff(levels.ravel().astype(int)) >= 0).all()
    assert levels.min() == 0
    assert levels.max() == 255
    broken = np.asarray(Image.fromarray(RAMP).convert("L"))  # what others do: nearly all of it turns white
    assert len(np.unique(broken)) < 200 or (broken == 255).mean() > 0.9 or np.array_equal(broken, levels)


def test_twelve_bits_in_sixteen_need_the_declared_range(tmp_path):
    path = saved(tmp_path / "x.png", Image.fromarray((RAMP >> 4).astype(np.uint16)))
    dark = read_image(path, TARGET)
    assert dark.images[0].max() <= 16
    full = one(path, Target(height=24, width=32, value_range=(0.0, 4095.0)))
    assert len(np.unique(full)) >= 200


def test_few_levels_left_are_doubted(tmp_path):
    path = saved(tmp_path / "x.png", Image.fromarray((RAMP >> 5).astype(np.uint16)))
    assert any(step.startswith("doubt: fewer") for step in read_image(path, TARGET).steps)


def test_white_is_zero_is_turned_round(tmp_path):
    path = saved(tmp_path / "x.tif", Image.fromarray(RAMP), tiffinfo={262: 0})
    assert np.array_equal(one(path), 255 - one(saved(tmp_path / "y.tif", Image.fromarray(RAMP))))


@pytest.mark.parametrize(
    "values", [np.full(SIZE, np.nan), np.where(np.eye(24, 32) > 0, np.inf, 1.0)], ids=["nan", "inf"]
)
def test_numbers_that_are_not_finite_are_refused(tmp_path, values):
    path = saved(tmp_path / "x.tif", Image.fromarray(values.astype(np.float32)))
    for bounds in ((), (0.0, 1.0)):
        with pytest.raises(DataError, match=r"NaN or infinite"):
            one(path, Target(height=24, width=32, value_range=bounds))


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_values_without_a_meaning_need_the_declared_range(tmp_path, kind):
    path = saved(tmp_path / "x.tif", Image.fromarray(PICTURE.astype(kind) - 100))
    with pytest.raises(DataError, match=r"data\.value_range"):
        one(path)
    found = one(path, Target(height=24, width=32, value_range=(-100.0, 155.0)))
    assert np.array_equal(found, PICTURE)


# ---- modes -----------------------------------------------------------------------------------------------------------

MODES = {
    "1": ("png", 128),
    "L": ("png", 0),
    "LA": ("png", 0),
    "P": ("png", 0),
    "RGB": ("png", 0),
    "RGBA": ("png", 0),
    "CMYK": ("tif", 2),
    "YCbCr": ("tif", 8),
    "I;16": ("png", 0),
}


def in_mode(mode):
    grey = Image.fromarray(PICTURE)
    if mode == "I;16":
        return Image.fromarray(PICTURE.astype(np.uint16) * 257)
    return grey.convert("RGB").convert(mode) if mode in {"CMYK", "YCbCr"} else grey.convert(mode)


@pytest.mark.parametrize("mode", MODES)
def test_one_picture_in_every_mode_gives_the_same_levels(tmp_path, mode):
    suffix, tolerance = MODES[mode]
    options = {"compression": "tiff_lzw"} if suffix == "tif" and mode == "CMYK" else {}
    found = one(saved(tmp_path / f"x.{suffix}", in_mode(mode), **options))
    assert np.abs(found.astype(int) - PICTURE).max() <= max(tolerance, 1 if mode != "1" else 255)
    assert found.dtype == np.uint8


def test_transparency_is_put_on_black(tmp_path):
    alpha = np.dstack([PICTURE] * 3 + [np.full(SIZE, 128, np.uint8)])
    reading = read_image(saved(tmp_path / "x.png", Image.fromarray(alpha, "RGBA")), TARGET)
    assert np.abs(reading.images[0] - PICTURE * (128 / 255)).max() <= 1.5
    assert "transparency put on black" in reading.steps


@pytest.mark.parametrize("suffix", ["png", "jpg", "tif", "bmp", "gif"])
def test_the_format_is_told_by_content(tmp_path, suffix):
    buffer = io.BytesIO()
    Image.fromarray(PICTURE).save(buffer, {"jpg": "JPEG", "tif": "TIFF"}.get(suffix, suffix.upper()))
    for name in (f"a.{suffix}", "b.png", "without", "c.txt"):
        (tmp_path / name).write_bytes(buffer.getvalue())
        assert np.abs(one(tmp_path / name).astype(int) - PICTURE).max() <= (12 if suffix == "jpg" else 0)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(tmp_path, orientation):
    turns = {2: [0], 3: [3], 4: [1], 5: [5], 6: [2], 7: [6], 8: [4]}  # the operation that stores it so
    image = Image.fromarray(PICTURE)
    for operation in turns.get(orientation, []):
        image = image.transpose(Image.Transpose(operation))
    exif = Image.Exif()
    exif[0x0112] = orientation
    for suffix in ("jpg", "png", "tif"):
        path = saved(tmp_path / f"x.{suffix}", image, exif=exif, **({"quality": 100} if suffix == "jpg" else {}))
        assert np.abs(one(path).astype(int) - PICTURE).max() <= 3, suffix


# ---- size and frames -------------------------------------------------------------------------------------------------


def test_another_size_is_refused_unless_declared(tmp_path):
    path = saved(tmp_path / "x.png", Image.fromarray(PICTURE))
    with pytest.raises(DataError, match=r"24 × 32 pixels found; expected 8 × 8.*data\.fit"):
        one(path, Target(height=8, width=8))
    for fit in ("pad", "crop", "stretch"):
        reading = read_image(path, Target(height=8, width=8, fit=fit))
        assert reading.images[0].shape == (8, 8)
        assert f"resized ({fit})" in reading.steps


def frame_of(values):
    return Frame(values=np.asarray(values), span=None)


def test_padding_is_black_and_cropping_keeps_the_middle():
    white = frame_of(np.full((10, 20), 255, np.uint8))
    padded, _ = convert(white, Target(height=20, width=20, fit="pad"), "x")
    assert (padded[5:15] == 255).all()
    assert padded[:5].max() == padded[15:].max() == 0
    marked = np.zeros((10, 30), np.uint8)
    marked[:, 10:20] = 255
    cropped, _ = convert(frame_of(marked), Target(height=10, width=10, fit="crop"), "x")
    assert (cropped == 255).all()


@settings(max_examples=60, deadline=None)
@given(st.tuples(*[st.integers(1, 40)] * 4), st.integers(0, 255), st.sampled_from(["pad", "crop", "stretch"]))
def test_resampling_keeps_a_flat_image_flat(sizes, level, fit):
    height, width, to_height, to_width = sizes
    done, _ = convert(
        frame_of(np.full((height, width), level, np.uint8)), Target(height=to_height, width=to_width, fit=fit), "x"
    )
    assert done.shape == (to_height, to_width)
    assert set(np.unique(done)) <= {0, level} if fit == "pad" else set(np.unique(done)) == {level}


def test_resampling_agrees_with_pillow():
    image = RNG.integers(0, 256, (60, 90)).astype(np.float32)
    for size in ((20, 33), (60, 90), (100, 91)):
        theirs = np.asarray(Image.fromarray(image).resize(size[::-1], Image.Resampling.BILINEAR))
        assert np.abs(resample(image.astype(float), *size) - theirs).max() < 0.01


@pytest.mark.parametrize(("rule", "expected"), [("first", [0]), ("middle", [2]), ("all", [0, 1, 2, 3])])
@pytest.mark.parametrize("suffix", ["tif", "gif"])
def test_frames_follow_the_declared_rule(tmp_path, rule, expected, suffix):
    pages = [Image.fromarray(np.where(np.eye(24, 32) > 0, 200, 40 * i).astype(np.uint8)) for i in range(4)]
    path = saved(tmp_path / f"x.{suffix}", pages[0], save_all=True, append_images=pages[1:])
    with pytest.raises(DataError, match=r"4 frames.*data\.frames"):
        read_image(path, TARGET)
    images = read_image(path, Target(height=24, width=32, frames=rule)).images
    assert [int(np.median(image)) for image in images] == [40 * i for i in expected]


# ---- damage ----------------------------------------------------------------------------------------------------------


def written(suffix):
    buffer = io.BytesIO()
    image = Image.fromarray(np.dstack([PICTURE, PICTURE.T.reshape(SIZE), 255 - PICTURE]))
    image.save(buffer, {"jpg": "JPEG", "tif": "TIFF"}.get(suffix, suffix.upper()))
    return buffer.getvalue()


@pytest.mark.parametrize("suffix", ["png", "jpg", "tif", "bmp", "gif"])
def test_a_damaged_file_is_read_or_refused_and_nothing_else(tmp_path, suffix):
    whole, rng, path = written(suffix), np.random.default_rng(1), tmp_path / f"x.{suffix}"
    words = []
    for trial in range(150):
        data = bytearray(whole[: rng.integers(0, len(whole))] if trial % 2 else whole)
        for _ in range(0 if trial % 2 else 1 + trial // 10):
            data[rng.integers(0, len(data))] = rng.integers(0, 256)
        path.write_bytes(data)
        try:
            assert one(path, Target(height=24, width=32, fit="pad", frames="first")).dtype == np.uint8
        except DataError as reason:
            words.append(str(reason))
    assert len(words) >= 20
    assert all("x." in text and "\n" not in text for text in words)


def test_a_file_that_claims_to_be_huge_is_refused_before_it_is_decoded(tmp_path):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"0")) + chunk(b"IEND", b"")
    (tmp_path / "huge.png").write_bytes(data)
    with pytest.raises(DataError, match=r"huge\.png"):
        one(tmp_path / "huge.png")


@pytest.mark.parametrize("content", [b"", b"\x89PNG", pickle.dumps({"a": 1}), b"<svg/>", os.urandom(600)], ids=range(5))
def test_what_is_no_image_is_refused(tmp_path, content):
    (tmp_path / "x.png").write_bytes(content)
    with pytest.raises(DataError, match=r"x\.png"):
        one(tmp_path / "x.png")


NAMES = [
    "a,b.png",
    "two\nlines.png",
    "😀.png",
    "é" * 125 + ".png",
    "x" * 251 + ".png",
    "tab\t.png",
    " .png",
    "'\".png",
    "-rf.png",
]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_any_name_is_read_and_shown_in_one_printable_line(tmp_path, name):
    path = saved(tmp_path / name, Image.fromarray(PICTURE))
    assert np.array_equal(one(path), PICTURE)
    path.write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(DataError) as caught:
        one(path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_a_name_that_is_no_text_is_read_and_shown(tmp_path):
    path = os.fsencode(tmp_path) + b"/caf\xe9.png"
    saved(tmp_path / "x.png", Image.fromarray(PICTURE)).rename(os.fsdecode(path))
    found = next(tmp_path.iterdir())
    assert np.array_equal(one(found), PICTURE)
    assert shown(found.name).isprintable()


def test_a_file_that_is_gone_locked_or_a_loop_is_refused(tmp_path):
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    (tmp_path / "dangling.png").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder.png").mkdir()
    for name in ("loop.png", "dangling.png", "folder.png", "never.png"):
        with pytest.raises(DataError, match=name):
            one(tmp_path / name)


def test_a_file_without_permission_is_refused(tmp_path, monkeypatch):
    path = saved(tmp_path / "x.png", Image.fromarray(PICTURE))

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "open", refuse)  # root reads whatever the mode says
    with pytest.raises(DataError, match=r"x\.png cannot be read \(Permission denied\)"):
        one(path)


def test_a_file_deleted_while_it_is_read_is_refused(tmp_path, monkeypatch):
    from patevolve.shared.data import images

    path = saved(tmp_path / "x.png", Image.fromarray(PICTURE))
    known = images.kind_of

    def delete(found):
        kind = known(found)
        found.unlink()
        return kind

    monkeypatch.setattr(images, "kind_of", delete)
    with pytest.raises(DataError, match=r"x\.png cannot be read.*No such file"):
        one(path)
