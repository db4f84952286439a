"""DICOM and NIfTI: pixels with the meaning that the standards give them, and nothing else of the file in memory."""

import contextlib
import sys
import warnings
from pathlib import Path

import nibabel as nib
import numpy as np
import pydicom
import pytest
from pydicom.dataset import FileMetaDataset
from pydicom.pixels.decoders.base import get_decoder
from pydicom.pixels.processing import apply_windowing
from pydicom.sequence import Sequence
from pydicom.uid import (
    ExplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGLossless,
    JPEGLSLossless,
    RLELossless,
)

from patevolve.shared.data.dicom import ALLOWED, ALWAYS, read_tags
from patevolve.shared.data.images import read_image
from patevolve.shared.data.target import Target
from patevolve.shared.errors import DataError

TARGET = Target(height=16, width=16)
RAMP = np.linspace(0, 4095, 256).astype(np.uint16).reshape(16, 16)
WHO = "DOE^JANE SECRET"


def dataset(pixels=RAMP, *, bits=12, **tags):
    made = pydicom.Dataset()
    made.file_meta = FileMetaDataset()
    made.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    made.file_meta.MediaStorageSOPClassUID = made.SOPClassUID = "1.2.840.10008.5.1.4.1.1.2"
    made.file_meta.MediaStorageSOPInstanceUID = "1.2.3"
    made.PatientName, made.PatientID, made.PatientBirthDate = WHO, "P-17", "19700101"
    made.StudyDescription = made.InstitutionName = made.AccessionNumber = WHO[:16]
    nested = pydicom.Dataset()
    nested.PatientName = WHO
    made.RequestAttributesSequence = Sequence([nested])
    block = made.private_block(0x0011, "vendor", create=True)
    block.add_new(1, "LO", WHO)
    frames = pixels.shape[0] if pixels.ndim == 3 else 1
    made.NumberOfFrames = frames
    made.Rows, made.Columns = pixels.shape[-2:]
    made.SamplesPerPixel, made.PhotometricInterpretation = 1, "MONOCHROME2"
    made.BitsAllocated, made.BitsStored, made.HighBit = pixels.dtype.itemsize * 8, bits, bits - 1
    made.PixelRepresentation = int(pixels.dtype.kind == "i")
    made.PixelData = pixels.tobytes()
    for name, value in tags.items():
        setattr(made, name, value)
    return made


def saved(tmp_path, made, name="x.dcm"):
    made.save_as(tmp_path / name, enforce_file_format=True)
    return tmp_path / name


def levels(tmp_path, target=TARGET, **tags):
    pixels = tags.pop("pixels", RAMP)
    (image,) = read_image(saved(tmp_path, dataset(pixels, **tags)), target).images
    return image


def test_twelve_bits_fill_the_grey_levels(tmp_path):
    assert len(np.unique(levels(tmp_path))) >= 200


def test_monochrome1_is_the_complement_of_monochrome2(tmp_path):
    for tags in ({}, {"WindowCenter": 1000, "WindowWidth": 800}, {"RescaleSlope": 2, "RescaleIntercept": -100}):
        one = levels(tmp_path, PhotometricInterpretation="MONOCHROME1", **tags)
        two = levels(tmp_path, PhotometricInterpretation="MONOCHROME2", **tags)
        assert np.abs(255 - one.astype(int) - two).max() <= 1
        assert one[0, 0] > two[0, 0]


@pytest.mark.parametrize("shape", ["LINEAR", "LINEAR_EXACT", "SIGMOID"])
@pytest.mark.parametrize(("centre", "width"), [(2000, 1000), (100, 50), (3000, 6000), (5000, 2)])
def test_windows_are_those_of_the_standard(tmp_path, shape, centre, width):
    tags = {"WindowCenter": centre, "WindowWidth": width, "VOILUTFunction": shape}
    tags |= {"RescaleSlope": 1.5, "RescaleIntercept": -1024}
    made = dataset(**tags)
    with np.errstate(over="ignore"):
        theirs = apply_windowing(RAMP * 1.5 - 1024, made)
    low, high = -1024, 4095 * 1.5 - 1024  # pydicom maps into the rescaled range of the stored bits
    expected = (theirs - low) / (high - low) * 255
    assert np.abs(levels(tmp_path, **tags) - expected).max() <= 1


def test_the_first_window_is_the_rule_and_a_broken_one_is_none(tmp_path):
    first = levels(tmp_path, WindowCenter=2000, WindowWidth=500)
    assert np.array_equal(levels(tmp_path, WindowCenter=[2000, 40], WindowWidth=[500, 10]), first)
    assert np.array_equal(levels(tmp_path, WindowCenter=2000, WindowWidth=0), levels(tmp_path))


def test_the_declared_range_stands_above_the_files_window(tmp_path):
    target = Target(height=16, width=16, value_range=(-1024.0, 3071.0))
    hidden = levels(tmp_path, target, WindowCenter=40, WindowWidth=1, RescaleIntercept=-1024, RescaleSlope=1)
    assert np.array_equal(hidden, levels(tmp_path))


def test_signed_values_need_a_window_or_the_declared_range(tmp_path):
    pixels = (RAMP.astype(np.int16) - 1024).astype(np.int16)
    with pytest.raises(DataError, match=r"data\.value_range"):
        levels(tmp_path, pixels=pixels, bits=16)
    target = Target(height=16, width=16, value_range=(-1024.0, 3071.0))
    assert np.array_equal(levels(tmp_path, target, pixels=pixels, bits=16), levels(tmp_path))


def test_padding_becomes_black(tmp_path):
    pixels = RAMP.copy()
    pixels[:4] = 4000
    for kind in ("MONOCHROME1", "MONOCHROME2"):
        image = levels(tmp_path, pixels=pixels, PixelPaddingValue=4000, PhotometricInterpretation=kind)
        assert image[:4].max() <= (255 - 3) // 4 + 70
        assert image[:4].max() == image.min()


def test_palettes_are_looked_up(tmp_path):
    made = dataset((RAMP >> 4).astype(np.uint8), bits=8, PhotometricInterpretation="PALETTE COLOR")
    for colour in ("Red", "Green", "Blue"):
        setattr(made, f"{colour}PaletteColorLookupTableDescriptor", [256, 0, 16])
        table = (np.arange(255, -1, -1) * 257).astype(np.uint16)
        setattr(made, f"{colour}PaletteColorLookupTableData", table.tobytes())
    (image,) = read_image(saved(tmp_path, made), TARGET).images
    assert np.abs(255 - image.astype(int) - (RAMP >> 4)).max() <= 1


@pytest.mark.parametrize(("rule", "expected"), [("first", [0]), ("middle", [1]), ("all", [0, 1, 2])])
def test_frames_follow_the_declared_rule(tmp_path, rule, expected):
    pixels = np.stack([np.full((16, 16), 1000 * i, np.uint16) for i in range(3)])
    path = saved(tmp_path, dataset(pixels))
    with pytest.raises(DataError, match=r"3 frames"):
        read_image(path, TARGET)
    images = read_image(path, Target(height=16, width=16, frames=rule)).images
    assert [int(image[0, 0]) for image in images] == [round(1000 * i / 4095 * 255) for i in expected]


SYNTAXES = [JPEG2000Lossless, JPEGBaseline8Bit, JPEGLossless, JPEGLSLossless, RLELossless]


@pytest.mark.parametrize("syntax", SYNTAXES, ids=lambda uid: uid.name)
def test_a_missing_codec_names_the_syntax_and_the_extra(tmp_path, syntax, monkeypatch):
    made = dataset()
    made.PixelData = pydicom.encaps.encapsulate([b"\0" * 64])
    made["PixelData"].is_undefined_length = True
    made.file_meta.TransferSyntaxUID = syntax
    monkeypatch.setattr(type(get_decoder(syntax)), "is_available", property(lambda _: False))
    with pytest.raises(DataError) as caught:
        read_image(saved(tmp_path, made), TARGET)
    assert all(word in str(caught.value) for word in (syntax.name, str(syntax), "patevolve[dicom]"))


def test_an_unknown_syntax_is_refused(tmp_path):
    path = saved(tmp_path, dataset())
    path.write_bytes(path.read_bytes().replace(b"1.2.840.10008.1.2.1\0", b"1.2.840.10008.1.2.9\0"))
    with pytest.raises(DataError, match=r"1\.2\.840\.10008\.1\.2\.9"):
        read_image(path, TARGET)


def test_a_syntax_that_damage_made_a_name_is_not_quoted(tmp_path):
    path = saved(tmp_path, dataset())
    path.write_bytes(path.read_bytes().replace(b"1.2.840.10008.1.2.1\0", b"DOE^JANE SECRET 123\0"))
    with pytest.raises(DataError, match="a transfer syntax that is no identifier") as caught:
        read_image(path, TARGET)
    assert "JANE" not in str(caught.value)


@pytest.mark.parametrize(("library", "extra"), [("pydicom", "dicom"), ("nibabel", "nifti"), ("PIL", "demo")])
def test_a_missing_library_names_the_extra(tmp_path, library, extra, monkeypatch):
    made = {
        "pydicom": lambda: saved(tmp_path, dataset()),
        "nibabel": lambda: volume(tmp_path),
        "PIL": lambda: png(tmp_path),
    }
    path = made[library]()
    for name in [name for name in sys.modules if name.split(".")[0] == library]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DataError, match=rf"patevolve\[{extra}\]"):
        read_image(path, TARGET)


def png(tmp_path):
    from PIL import Image

    Image.fromarray(np.zeros((16, 16), np.uint8)).save(tmp_path / "x.png")
    return tmp_path / "x.png"


def test_enhanced_classes_are_refused_because_their_scale_is_not_read(tmp_path):
    with pytest.raises(DataError, match=r"Enhanced MR.*single-frame"):
        levels(tmp_path, SOPClassUID="1.2.840.10008.5.1.4.1.1.4.1")


# ---- what is read into memory ----------------------------------------------------------------------------------------


def test_no_tag_beyond_the_list_is_read(tmp_path):
    found = read_tags(saved(tmp_path, dataset()), "x")
    assert {element.keyword for element in found} <= ALLOWED | ALWAYS
    assert "PatientID" not in found
    assert WHO not in str(found)
    assert b"SECRET" not in b"".join(
        element.value for element in found.values() if isinstance(getattr(element, "value", None), bytes)
    )


def test_the_patients_id_is_read_only_when_it_is_the_unit(tmp_path):
    path = saved(tmp_path, dataset())
    assert read_image(path, TARGET).unit == ""
    assert read_image(path, TARGET, unit_tag=True).unit == "P-17"
    found = read_tags(path, "x", unit_tag=True)
    assert {element.keyword for element in found} <= ALLOWED | ALWAYS | {"PatientID"}
    with pytest.raises(DataError, match=r"PatientID"):
        read_image(saved(tmp_path, dataset(PatientID="")), TARGET, unit_tag=True)


def test_in_other_peoples_files_no_tag_beyond_the_list_is_read():
    seen = 0
    for name in sorted((Path(pydicom.__file__).parent / "data" / "test_files").glob("*.dcm")):
        with warnings.catch_warnings(), contextlib.suppress(DataError):
            warnings.simplefilter("ignore")
            found = {pydicom.datadict.keyword_for_tag(tag) for tag in read_tags(name, "x").keys()}  # noqa: SIM118 - not values
            assert found <= ALLOWED | ALWAYS
            seen += 1
    assert seen >= 50


def test_the_list_names_no_person_place_date_or_reference():
    words = ("Name", "Date", "Time", "Patient", "Physician", "Institution", "Address", "UID", "Description", "Comment")
    assert [name for name in ALLOWED for word in words if word in name] == ["SOPClassUID"]


def test_damaged_files_are_read_or_refused_and_nobody_is_named(tmp_path, caplog, capfd):
    """Damage moves a name into a tag that is read; pydicom would then quote it in its log and its errors."""
    whole, rng, path, words = saved(tmp_path, dataset()).read_bytes(), np.random.default_rng(0), tmp_path / "x.dcm", []
    for trial in range(300):
        data = bytearray(whole[: rng.integers(0, len(whole))] if trial % 3 == 0 else whole)
        for _ in range(0 if trial % 3 == 0 else 1 + trial // 10):
            data[rng.integers(0, min(len(data), 700))] = rng.integers(0, 256)
        path.write_bytes(data)
        try:
            read_image(path, Target(height=16, width=16, fit="pad", frames="first", value_range=(0.0, 4095.0)))
        except DataError as reason:
            words.append(str(reason))
    told = capfd.readouterr()
    assert len(words) >= 50
    assert not any("JANE" in text or "SECRET" in text for text in [*words, caplog.text, told.out, told.err])


# ---- NIfTI -----------------------------------------------------------------------------------------------------------

BODY = np.zeros((16, 16, 3), np.uint8)  # RAS+: x to the patient's right, y to anterior, z to the head
BODY[2, :, :] = 50  # a mark at the left
BODY[:, 13, :] = 200  # a mark in front
BODY[..., 2] //= 2


def volume(tmp_path, array=BODY, affine=None, name="x.nii.gz", code=1):
    image = nib.Nifti1Image(array, np.eye(4) if affine is None else affine)
    image.set_sform(image.affine, code=code)
    image.set_qform(image.affine if code else None, code=code)
    nib.save(image, tmp_path / name)
    return tmp_path / name


MIDDLE = Target(height=16, width=16, frames="middle")


def test_a_slice_shows_anterior_above_and_the_left_at_the_left(tmp_path):
    (image,) = read_image(volume(tmp_path), MIDDLE).images
    assert (image[:2, 5] == 0).all()
    assert image[2, 5] == 200
    assert image[8, 2] == 50
    assert image[8, 13] == 0


@pytest.mark.parametrize("axes", ["LAS", "RPS", "RAI", "ASR", "SRA", "PIL", "LPI", "IRP"])
def test_every_stored_orientation_gives_the_same_slices(tmp_path, axes):
    """The volume is stored along other axes; its affine says so."""
    expected = read_image(volume(tmp_path), Target(height=16, width=16, frames="all")).images
    start = nib.Nifti1Image(BODY, np.eye(4))
    turn = nib.orientations.ornt_transform(
        nib.orientations.io_orientation(start.affine), nib.orientations.axcodes2ornt(tuple(axes))
    )
    turned = start.as_reoriented(turn)
    path = volume(tmp_path, np.asarray(turned.dataobj), turned.affine, name=f"{axes}.nii")
    reading = read_image(path, Target(height=16, width=16, frames="all"))
    assert all(np.array_equal(a, b) for a, b in zip(reading.images, expected, strict=True))
    assert "turned to the canonical orientation" in reading.steps


def test_a_scaled_volume_is_in_its_own_units(tmp_path):
    array = np.linspace(-1000, 3000, 16 * 16 * 3).reshape(16, 16, 3).astype(np.float32)
    path = volume(tmp_path, array)
    with pytest.raises(DataError, match=r"data\.value_range"):
        read_image(path, MIDDLE)
    (image,) = read_image(path, Target(height=16, width=16, frames="middle", value_range=(-1000.0, 3000.0))).images
    expected = (array[:, :, 1].T[::-1] + 1000) / 4000 * 255
    assert np.abs(image - expected).max() <= 1


BAD_VOLUMES = {
    "four dimensions": ({"array": np.zeros((16, 16, 3, 2), np.uint8)}, "one volume"),
    "no orientation": ({"code": 0}, "no orientation"),
    "complex": ({"array": np.zeros((16, 16, 3), np.complex64)}, "complex64"),
    "nan": ({"array": np.full((16, 16, 3), np.nan, np.float32)}, "NaN"),
}


@pytest.mark.parametrize("name", BAD_VOLUMES)
def test_faulty_volumes_are_refused_in_words(tmp_path, name):
    options, words = BAD_VOLUMES[name]
    with pytest.raises(DataError, match=words):
        read_image(volume(tmp_path, **options), Target(height=16, width=16, frames="middle", value_range=(0.0, 1.0)))


def test_cut_off_volumes_are_refused(tmp_path):
    for name in ("x.nii", "x.nii.gz"):
        path = volume(tmp_path, RAMP.reshape(16, 16, 1), name=name)
        whole = path.read_bytes()
        for end in (100, 352, len(whole) - 20):
            path.write_bytes(whole[:end])
            with pytest.raises(DataError, match=r"x\.nii"):
                read_image(path, TARGET)
