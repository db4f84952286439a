"""A target in colour: RGB as it is, grey repeated and counted, whatever kind of file it comes from."""

import io
from pathlib import Path

import nibabel as nib
import numpy as np
import pydicom
import pytest
from PIL import Image
from pydicom.data import get_testdata_file
from skimage import data as samples

from patevolve.shared.data.images import read_image
from patevolve.shared.data.layout import Layout
from patevolve.shared.data.load import load_images
from patevolve.shared.data.survey import Surveyor, fingerprint
from patevolve.shared.data.target import Frame, Target, convert
from patevolve.shared.errors import DataError
from patevolve.shared.luminance import luminance

ASTRONAUT = np.asarray(samples.astronaut())
REPEATED = "grey repeated in red, green and blue"
COLOUR = Target(height=512, width=512, channels=3)


def read(path, image, target=COLOUR, **options):
    Image.fromarray(image).save(path, **options) if isinstance(image, np.ndarray) else image.save(path, **options)
    reading = read_image(path, target)
    return reading.images[0], reading.steps


def test_a_photograph_stays_as_it_is(tmp_path):
    image, steps = read(tmp_path / "x.png", ASTRONAUT)
    assert np.array_equal(image, ASTRONAUT)
    assert steps == ()


def test_the_same_photograph_becomes_grey_where_the_plan_says_so(tmp_path):
    image, steps = read(tmp_path / "x.png", ASTRONAUT, Target(height=512, width=512))
    assert image.shape == (512, 512)
    assert steps == ("colour to grey",)
    assert np.abs(image - luminance(ASTRONAUT)).max() <= 0.51


@pytest.mark.parametrize("mode", ["L", "1", "LA", "I;16"])
def test_grey_is_repeated_and_counted(tmp_path, mode):
    grey = np.asarray(samples.camera())
    picture = Image.fromarray(grey.astype(np.uint16) * 257) if mode == "I;16" else Image.fromarray(grey).convert(mode)
    image, steps = read(tmp_path / "x.png", picture)
    assert REPEATED in steps
    assert image.shape == (512, 512, 3)
    assert (image == image[:, :, :1]).all()
    if mode != "1":
        assert np.array_equal(image[:, :, 0], grey)


def test_colour_that_happens_to_be_grey_is_no_conversion(tmp_path):
    grey = np.repeat(np.asarray(samples.camera())[:, :, None], 3, axis=2)
    image, steps = read(tmp_path / "x.png", grey)
    assert np.array_equal(image, grey)
    assert steps == ()


def test_transparency_is_put_on_black_and_counted(tmp_path):
    logo = np.asarray(samples.logo())  # RGBA
    target = Target(height=logo.shape[0], width=logo.shape[1], channels=3)
    image, steps = read(tmp_path / "x.png", logo, target)
    assert steps == ("transparency put on black",)
    assert (image[logo[:, :, 3] == 0] == 0).all()
    assert np.array_equal(image[logo[:, :, 3] == 255], logo[logo[:, :, 3] == 255][:, :3])


@pytest.mark.parametrize("mode", ["P", "CMYK"])
def test_palettes_and_printers_colours_become_rgb(tmp_path, mode):
    picture = Image.fromarray(ASTRONAUT).convert(mode)
    image, steps = read(tmp_path / ("x.png" if mode == "P" else "x.tif"), picture)
    assert np.array_equal(image, np.asarray(picture.convert("RGB")))
    assert steps == (f"{mode} to RGB",)


@pytest.mark.parametrize("fit", ["pad", "crop", "stretch"])
def test_each_channel_is_resized_as_a_grey_image_is(fit):
    cat = np.asarray(samples.chelsea())
    image, steps = convert(Frame(values=cat, span=None), Target(height=40, width=30, channels=3, fit=fit), "cat")
    assert image.shape == (40, 30, 3)
    assert steps == [f"resized ({fit})"]
    for channel in range(3):
        own = Frame(values=np.ascontiguousarray(cat[:, :, channel]), span=None)
        assert np.array_equal(image[:, :, channel], convert(own, Target(height=40, width=30, fit=fit), "one")[0])


def test_one_colour_only_is_doubted():
    plain = np.full((9, 9, 3), (10, 200, 30), np.uint8)
    target = Target(height=9, width=9, channels=3)
    assert convert(Frame(values=plain, span=None), target, "x")[1] == ["doubt: one colour only"]
    plain[4, 4, 2] = 31
    assert convert(Frame(values=plain, span=None), target, "x")[1] == []


def test_four_channels_and_values_without_a_range_are_refused():
    with pytest.raises(DataError, match=r"\(9, 9, 4\)"):
        convert(Frame(values=np.zeros((9, 9, 4), np.uint8), span=None), Target(height=9, width=9, channels=3), "x")
    with pytest.raises(DataError, match="declares no range"):
        convert(Frame(values=np.ones((9, 9)), span=None), Target(height=9, width=9, channels=3), "x")


# ---- DICOM and NIfTI -------------------------------------------------------------------------------------------------


def dicom(name):
    path = Path(get_testdata_file(name))
    rows, columns = (pydicom.dcmread(path, stop_before_pixels=True)[tag].value for tag in ("Rows", "Columns"))
    reading = read_image(path, Target(height=rows, width=columns, channels=3, frames="first"))
    return path, reading


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("examples_rgb_color.dcm", ()),
        ("examples_ybr_color.dcm", ("YBR to RGB",)),
        ("examples_palette.dcm", ("palette to RGB", "values 0 to 65535 scaled to 0 to 255")),
        ("SC_rgb_rle_16bit.dcm", ("values 0 to 65535 scaled to 0 to 255",)),
    ],
)
def test_dicom_of_every_kind_of_colour_is_read_as_rgb(name, step):
    _, reading = dicom(name)
    assert reading.steps == step
    image = reading.images[0].astype(int)
    assert image.shape[2] == 3
    if "16bit" not in name:  # a photograph and two scans with coloured marks: channels differ
        assert np.abs(image[:, :, 0] - image[:, :, 2]).max() > 50


def test_the_same_picture_has_the_same_colours_in_rgb_and_in_ybr():
    plain = dicom("SC_rgb_small_odd.dcm")[1].images[0]
    assert plain.shape == (3, 3, 3)
    bars = dicom("SC_ybr_full_422_uncompressed.dcm")[1].images[0].astype(int)
    rgb = dicom("SC_rgb_rle_16bit.dcm")[1].images[0].astype(int)
    assert np.abs(bars - rgb)[5:-5, 5:-5].mean() < 4  # bars of pure colours; half the chroma of 422 is lost at edges


def test_grey_dicom_is_shown_through_its_window_and_repeated():
    path, reading = dicom("examples_overlay.dcm")
    grey = read_image(path, Target(height=reading.images[0].shape[0], width=reading.images[0].shape[1], frames="first"))
    assert reading.steps == (*grey.steps, REPEATED)
    assert (reading.images[0] == grey.images[0][:, :, None]).all()


def test_a_volume_has_no_colour(tmp_path):
    nib.save(nib.Nifti1Image(np.zeros((8, 8, 1), np.uint8), np.eye(4)), tmp_path / "x.nii")
    with pytest.raises(DataError, match=r"no colour.*data\.channels = 1"):
        read_image(tmp_path / "x.nii", Target(height=8, width=8, channels=3))


# ---- arrays, and what is counted -------------------------------------------------------------------------------------


def npz(images, target):
    buffer = io.BytesIO()
    np.savez(buffer, images=images, label=np.array(["a", "b"] * (len(images) // 2)))
    return buffer.getvalue(), target


@pytest.mark.parametrize(
    ("shape", "channels", "good"),
    [((4, 9, 8, 3), 3, True), ((4, 9, 8), 3, False), ((4, 9, 8, 4), 3, False), ((4, 9, 8, 3), 1, False)],
)
def test_an_npz_file_holds_what_the_plan_declares(tmp_path, shape, channels, good):
    images = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    data, target = npz(images, Target(height=9, width=8, channels=channels))
    (tmp_path / "x.npz").write_bytes(data)
    layout = Layout(classes=("a", "b"), label="label")
    if good:
        (records,) = load_images(tmp_path / "x.npz", (9, 8), layout, target).values()
        assert np.array_equal(records.values, images)
    else:
        with pytest.raises(DataError, match="expected uint8"):
            load_images(tmp_path / "x.npz", (9, 8), layout, target)


def test_an_npz_file_in_colour_is_resized_as_the_plan_says(tmp_path):
    cats = np.stack([np.asarray(samples.chelsea())] * 2)
    (tmp_path / "x.npz").write_bytes(npz(cats, None)[0])
    target = Target(height=20, width=30, channels=3, fit="stretch")
    (records,) = load_images(tmp_path / "x.npz", (20, 30), Layout(classes=("a", "b"), label="label"), target).values()
    assert records.values.shape == (2, 20, 30, 3)


def test_near_duplicates_in_colour_are_seen_by_their_luminance():
    cat, other = np.asarray(samples.chelsea()), np.asarray(samples.coffee())
    surveyor = Surveyor(1, units=False)
    surveyor.add_images([cat, cat, (cat * 0.98).astype(np.uint8), other], label=0, unit="")
    repeats = surveyor.survey(per_unit=1, prints=True).repeats
    assert repeats.equal == 1
    assert repeats.near == 2
    grey = np.rint(luminance(cat)).astype(np.uint8)
    assert (fingerprint(cat) ^ fingerprint(grey)).bit_count() <= 1


def test_luminance_is_of_each_pixel_alone():
    whole = luminance(ASTRONAUT)
    assert luminance(ASTRONAUT[7:8, 3:5]).tobytes() == whole[7:8, 3:5].tobytes()
    assert luminance(np.full((2, 2, 3), 255, np.uint8)) == pytest.approx(255.0, abs=1e-3)
