"""Public files by digest: found in the order of the folders, and never with other bytes than the plan names."""

import hashlib

import pytest

from patevolve.shared import assets
from patevolve.shared.errors import InputError, PlanError


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv(assets.FOLDERS, str(tmp_path / "first"))
    return tmp_path


def test_an_added_file_is_found_by_its_hash(folders):
    (folders / "model.onnx").write_bytes(b"weights")
    path = assets.add(folders / "model.onnx")
    sha256 = hashlib.sha256(b"weights").hexdigest()
    assert path == folders / "first" / f"{sha256}.onnx"
    assert assets.find(sha256) == path
    assert path in assets.listed()


def test_a_missing_file_is_asked_for_by_name(folders):
    with pytest.raises(PlanError, match=r"no public file with SHA-256 0{64} found.*patevolve assets add"):
        assets.find("0" * 64)


def test_a_file_that_was_changed_is_refused_even_after_it_was_found(folders):
    (folders / "pool.npz").write_bytes(b"images")
    path = assets.add(folders / "pool.npz")
    sha256 = path.stem
    assert assets.find(sha256) == path
    path.write_bytes(b"other images")
    with pytest.raises(PlanError, match="has other bytes than its name says"):
        assets.find(sha256)


def test_what_cannot_be_read_is_not_added(folders):
    with pytest.raises(InputError, match="cannot be read"):
        assets.add(folders / "absent")
