"""Which device profile a site computes with: the one that a command names, else ``device.toml`` in its folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from patevolve.shared.encoder.device import DEFAULT, DeviceProfile, profile_text, read_profile
from patevolve.shared.encoder.onnx import check_gpu, providers_here
from patevolve.shared.files import write_atomic

FILE = "device.toml"


def device_of(home: Path) -> DeviceProfile:
    """Return the profile that the site's folder holds, or the default. Raises InputError for a bad file."""
    return read_profile(home / FILE) if (home / FILE).exists() else DEFAULT


def chosen(home: Path, named: str | None, *, require_gpu: bool = False) -> DeviceProfile:
    """Return the profile of a command's options. Raises InputError if it requires a GPU that is not here."""
    profile = device_of(home) if named is None else read_profile(named)
    profile = replace(profile, require_gpu=require_gpu or profile.require_gpu)
    if profile.require_gpu:
        check_gpu(profile, [each for each in providers_here() if each in profile.wanted()])
    return profile


def keep_device(home: Path, profile: DeviceProfile) -> None:
    """Keep a profile in the site's folder: whatever answers there computes with it from now on."""
    write_atomic(home / FILE, profile_text(profile).encode())
