"""DICOM secondary captures of released images: new identifiers, and marks in every tag that says what an image is.

The marks follow DICOM PS3.3 (Synthetic Data 0008,001C; ConversionType SYN; General Image; Patient Identity Removed).
"""

from __future__ import annotations

import hashlib
import io
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from patevolve.shared.errors import InputError
from patevolve.shared.plan import Plan
from patevolve.shared.release.package import class_folders, csv_bytes, optional
from patevolve.shared.release.source import Picture, pictures

STORAGE = "1.2.840.10008.5.1.4.1.1.7"  # Secondary Capture Image Storage
EXPLICIT = "1.2.840.10008.1.2.1"  # Explicit VR Little Endian
METHOD = "Synthetic: drawn from a public generator, no acquisition"
SHORT = 63  # characters: a DICOM LO has 64, of which one may be the blank that makes its bytes even


def dicom_files(folder: Path, plan: Plan) -> Iterator[tuple[str, bytes]]:
    """Yield one file for each image and ``labels.csv``; one study, one series for each class.

    The identifiers are new and follow from the release's own bytes, so two exports give the same ones.
    Raises InputError if pydicom is not installed.
    """
    root = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    folders = dict(zip(plan.data.classes, class_folders(plan.data.classes), strict=True))
    rows = []
    for picture in pictures(folder, plan):
        name = f"images/{folders[picture.label]}/{picture.key}.dcm"
        rows.append((name, picture.label))
        yield name, _file(picture, plan, root)
    yield "labels.csv", csv_bytes(("file_name", "label"), rows)


def new_uid(*parts: str) -> str:
    """Return a UID of the form 2.25.UUID (ISO/IEC 9834-8) that follows from the parts."""
    digest = hashlib.sha256("\x1f".join(parts).encode()).digest()
    return f"2.25.{uuid.UUID(bytes=digest[:16], version=5).int}"


def _file(picture: Picture, plan: Plan, root: str) -> bytes:
    try:
        import pydicom  # noqa: PLC0415 - an extra: only this format needs it
        from pydicom.dataset import FileMetaDataset  # noqa: PLC0415 - the same
    except ImportError as reason:
        raise InputError(
            "pydicom is not installed, and DICOM needs it. Run: pip install 'patevolve[dicom]'"
        ) from reason
    found = pydicom.Dataset()
    instance = new_uid(root, picture.name)
    found.file_meta = FileMetaDataset()
    found.file_meta.MediaStorageSOPClassUID = pydicom.uid.UID(STORAGE)
    found.file_meta.MediaStorageSOPInstanceUID = pydicom.uid.UID(instance)
    found.file_meta.TransferSyntaxUID = pydicom.uid.UID(EXPLICIT)
    _mark(found, picture, plan)
    found.SOPClassUID, found.SOPInstanceUID = STORAGE, instance
    found.StudyInstanceUID, found.SeriesInstanceUID = new_uid(root, "study"), new_uid(root, "series", picture.label)
    found.SeriesNumber, found.InstanceNumber = picture.number + 1, int(picture.key)
    _pixels(found, picture)
    buffer = io.BytesIO()
    pydicom.dcmwrite(buffer, found, enforce_file_format=True)
    return buffer.getvalue()


def _mark(found: Any, picture: Picture, plan: Plan) -> None:
    """Say in every tag that viewers and archives show that this is no image of a patient."""
    found.SpecificCharacterSet = "ISO_IR 192"
    found.SyntheticData = "YES"
    found.ImageType = ["DERIVED", "SECONDARY"]
    found.ConversionType = "SYN"
    found.Modality = "OT"
    found.PatientName = "SYNTHETIC^SYNTHETIC"
    found.PatientID = f"SYNTHETIC-{picture.key}"
    found.PatientIdentityRemoved = "YES"
    found.DeidentificationMethod = METHOD
    found.BurnedInAnnotation = "NO"
    found.StudyDescription = _short(f"SYNTHETIC: {plan.name}")
    found.SeriesDescription = _short(f"SYNTHETIC: {picture.label}")
    found.ImageComments = _plain(f"Synthetic image of class {picture.label}")
    found.ManufacturerModelName = "patevolve"
    for unknown in ("Manufacturer", "PatientBirthDate", "PatientSex", "StudyDate", "StudyTime", "AccessionNumber"):
        setattr(found, unknown, "")  # DICOM wants the tags, and they have no value here
    found.ReferringPhysicianName, found.StudyID, found.PatientOrientation = "", "", ""


def _pixels(found: Any, picture: Picture) -> None:
    with optional("PIL.Image", "Pillow").open(io.BytesIO(picture.png)) as image:
        values = np.asarray(image, np.uint8)
    found.SamplesPerPixel, found.PhotometricInterpretation = 1, "MONOCHROME2"
    if values.ndim == 3:
        found.SamplesPerPixel, found.PhotometricInterpretation, found.PlanarConfiguration = 3, "RGB", 0
    found.Rows, found.Columns = values.shape[:2]
    found.BitsAllocated, found.BitsStored, found.HighBit, found.PixelRepresentation = 8, 8, 7, 0
    data = values.tobytes()
    found.PixelData = data + b"\0" * (len(data) % 2)


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)


def _short(text: str) -> str:
    """Return a text that a DICOM LO holds: one value of bounded length (a backslash would part two values)."""
    return _plain(text).replace("\\", "/").strip()[:SHORT].strip()
