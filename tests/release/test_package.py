"""The release folder: whole or absent, the same bytes every time, any change found, no false claim."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import re
import shutil
import urllib.parse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from patevolve.shared.errors import InputError, ReleaseError
from patevolve.shared.plan import Agreed
from patevolve.shared.release import folder as folder_module
from patevolve.shared.release import package
from patevolve.shared.release.package import class_folders, verify_manifest
from patevolve.shared.release.samples import Samples

PLAIN = {"title": "x", "what": "y", "how": [], "epsilon": 1, "delta": 0.0, "limits": []}
NAMES = {"README.md", "data.csv", "guarantee.json", "manifest.json", "plan.toml", "proof.json"}


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        assert image.mode == "L"
        return np.asarray(image)


@pytest.fixture
def table_release(tmp_path: Path, release: Callable, table: Samples, table_plan: Agreed) -> Path:
    return release(tmp_path / "run" / "release", table, table_plan)


def test_a_table_reads_back_as_it_was(table_release: Path, table: Samples) -> None:
    assert set(contents(table_release)) == NAMES
    frame = pd.read_csv(table_release / "data.csv", dtype=str, keep_default_na=False)
    assert list(frame.columns) == [*table.columns, "disease"]
    assert [tuple(row) for row in frame[list(table.columns)].to_numpy()] == list(table.rows)
    assert frame["disease"].tolist() == ["no"] * 20 + ["yes"] * 20
    assert b"\r" not in (table_release / "data.csv").read_bytes()


def test_images_read_back_as_they_were(
    tmp_path: Path, release: Callable, pictures: Callable, image_plan: Callable, hostile: tuple[str, ...]
) -> None:
    samples = pictures(hostile)
    folder = release(tmp_path / "release", samples, image_plan(hostile))
    labels = pd.read_csv(folder / "labels.csv", keep_default_na=False)
    assert labels["label"].tolist() == [hostile[c] for c in samples.classes]
    read = np.stack([pixels(folder / name) for name in labels["file_name"]])
    assert read.dtype == np.uint8
    np.testing.assert_array_equal(read, samples.images)
    assert [Path(name).name for name in labels["file_name"]] == [f"{i:06d}.png" for i in range(1, 41)]
    assert {Path(name).parts[0] for name in labels["file_name"]} == {"images"}
    assert len(list((folder / "images").iterdir())) == len(hostile)
    verify_manifest(folder)


def check_folders(names: tuple[str, ...]) -> None:
    folders = class_folders(names)
    assert len({folder.casefold() for folder in folders}) == len(names)
    for folder, name in zip(folders, names, strict=True):
        assert re.fullmatch(r"[A-Za-z0-9_%~.-]+", folder)
        assert folder[0] not in ".-~"
        assert folder[-1] != "."
        assert len(folder) <= 120
        assert len(folder) > 112 or folder == "%" or urllib.parse.unquote(folder) == name


def test_class_folders_are_plain_where_they_can_be(hostile: tuple[str, ...]) -> None:
    assert class_folders(("no", "Yes", "7", "Non-anginal_2")) == ("no", "Yes", "7", "Non-anginal_2")
    assert class_folders(("..", "", "a/b", "é", "con")) == ("%2E%2E", "%", "a%2Fb", "%C3%A9", "%63on")
    check_folders((*hostile, "", "trailing "))


@settings(deadline=None)
@given(st.lists(st.text(max_size=130), unique=True, max_size=6), st.text(max_size=3))
def test_class_folders_are_distinct_and_decode(names: list[str], tail: str) -> None:
    both = dict.fromkeys(variant + tail for name in names for variant in (name, name.upper(), name.lower()))
    check_folders(tuple(both))


def test_two_writes_give_the_same_bytes(
    *, tmp_path: Path, release: Callable, table: Samples, table_plan: Agreed, pictures: Callable, image_plan: Callable
) -> None:
    for kind, samples, agreed in (("t", table, table_plan), ("i", pictures(), image_plan())):
        first = release(tmp_path / f"{kind}1", samples, agreed)
        second = release(tmp_path / "elsewhere" / f"{kind}2", samples, agreed)
        assert contents(first) == contents(second)


def test_the_manifest_lists_every_file_but_itself_and_the_proof(table_release: Path) -> None:
    manifest = json.loads((table_release / "manifest.json").read_text())
    assert list(manifest["files"]) == sorted(NAMES - {"manifest.json", "proof.json"})
    for name, digest in manifest["files"].items():
        assert hashlib.sha256((table_release / name).read_bytes()).hexdigest() == digest
    assert verify_manifest(table_release) == tuple(sorted(NAMES - {"manifest.json", "proof.json"}))


def test_the_guarantee_holds_statement_and_proof(table_release: Path, table_plan: Agreed) -> None:
    guarantee = json.loads((table_release / "guarantee.json").read_text())
    assert guarantee["statement"][0] == {"item": "Unit", "text": "one record"}
    assert guarantee["proof"] == {"events": []}
    assert guarantee["plan_sha256"] == table_plan.sha256
    assert hashlib.sha256((table_release / "plan.toml").read_bytes()).hexdigest() == table_plan.sha256


def test_the_card_states_budget_unit_trust_and_limits(table_release: Path) -> None:
    card = (table_release / "README.md").read_text()
    head, body = card.removeprefix("---\n").split("\n---\n", 1)
    assert 'pretty_name: "Small | table"' in head
    assert 'data_files: "data.csv"' in head
    for text in (
        "ε = 0.0, δ = 1e-05",
        "Unit: record (",
        "Trust: each-site (",
        "| yes | 20 |",
        "- near-duplicates: not",
        "# Small \\| table",
        "- Unit: one record",
    ):
        assert text in body
    generated = card + (table_release / "guarantee.json").read_text()
    assert not re.search(r"anonym|\bsafe\b|complian|guaranteed private", generated, re.IGNORECASE)


def test_hostile_texts_cannot_leave_their_line(
    tmp_path: Path, release: Callable, table: Samples, table_plan: Agreed
) -> None:
    card = {**PLAIN, "title": '"\n---\nlicense: x', "what": "a\n# b <i>\x1b[2J\u202e"}
    lines = (release(tmp_path / "r", table, table_plan, card=card) / "README.md").read_text().split("\n")
    assert lines.count("---") == 2
    assert 'pretty_name: "\\" --- license: x"' in lines
    assert "a \\# b &lt;i&gt; \\[2J" in lines  # neither a terminal's escape nor a change of direction


@pytest.mark.parametrize(
    "claim", ["Fully anonymous.", "It is safe.", "HIPAA compliant", "guaranteed  private", "ANONYMISED"]
)
def test_a_claim_that_no_bound_supports_is_refused(
    tmp_path: Path, release: Callable, table: Samples, table_plan: Agreed, claim: str
) -> None:
    with pytest.raises(ReleaseError, match="does not support"):
        release(tmp_path / "r", table, table_plan, statement=[("Scope", claim)])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"proof": {"epsilon": float("nan")}}, "no JSON form"),
        ({"proof": {"epsilon": object()}}, "no JSON form"),
        ({"card": {"title": "x"}}, "card: what, how, epsilon, delta, limits missing"),
        ({"card": {**PLAIN, "epsilon": float("nan")}}, "card: epsilon"),
        ({"card": {**PLAIN, "how": "text"}}, "card: how"),
        ({"card": {**PLAIN, "licence": "x"}}, "card: licence"),
        ({"statement": [("Unit", 3)]}, "pairs of texts"),
    ],
)  # fmt: skip
def test_texts_of_another_form_are_refused(
    *, tmp_path: Path, release: Callable, table: Samples, table_plan: Agreed, changes: dict, message: str
) -> None:
    with pytest.raises(ReleaseError, match=message):
        release(tmp_path / "r", table, table_plan, **changes)
    assert list(tmp_path.iterdir()) == []


def test_samples_of_another_plan_are_refused(
    tmp_path: Path, release: Callable, table: Samples, table_plan: Agreed, image_plan: Callable
) -> None:
    with pytest.raises(ReleaseError, match="plan_sha256"):
        release(tmp_path / "r", table, dataclasses.replace(table_plan, sha256="0" * 64))
    with pytest.raises(ReleaseError, match="another kind"):
        release(tmp_path / "r", table, image_plan())
    with pytest.raises(ReleaseError, match="columns"):
        release(tmp_path / "r", dataclasses.replace(table, columns=table.columns[::-1]), table_plan)


def test_any_flipped_byte_is_found(table_release: Path) -> None:
    original = contents(table_release)
    rng = np.random.default_rng(6)
    for _ in range(1000):
        name = sorted(set(original) - {"proof.json"})[rng.integers(len(original) - 1)]  # verify finds those
        data = bytearray(original[name])
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        (table_release / name).write_bytes(bytes(data))
        # a flipped digest in the manifest names the file that it no longer fits
        with pytest.raises(ReleaseError, match=None if name == "manifest.json" else re.escape(name)):
            verify_manifest(table_release)
        (table_release / name).write_bytes(original[name])
    verify_manifest(table_release)


def test_missing_and_extra_files_are_named(table_release: Path) -> None:
    (table_release / "plan.toml").unlink()
    (table_release / "sub").mkdir()
    (table_release / "sub" / ".hidden").write_bytes(b"")
    with pytest.raises(ReleaseError, match=r"missing: plan\.toml; extra: sub/\.hidden"):
        verify_manifest(table_release)


def test_a_link_in_place_of_a_file_is_found(table_release: Path, tmp_path: Path) -> None:
    shutil.copy(table_release / "data.csv", tmp_path / "same.csv")
    (table_release / "data.csv").unlink()
    (table_release / "data.csv").symlink_to(tmp_path / "same.csv")
    with pytest.raises(ReleaseError, match=r"changed: data\.csv"):
        verify_manifest(table_release)


def test_a_link_loop_and_a_linked_folder_are_extra(table_release: Path, tmp_path: Path) -> None:
    (table_release / "loop").symlink_to(table_release / "loop")
    (table_release / "out").symlink_to(tmp_path)
    with pytest.raises(ReleaseError, match="extra: loop, out"):
        verify_manifest(table_release)


@pytest.mark.parametrize(
    "manifest", [b"", b"{}", b"[]", b'{"files": []}', b'{"files": {"a": 1}, "format": 1}', b"\xff", b"[" * 100_000]
)
def test_a_manifest_of_another_form_is_refused(table_release: Path, manifest: bytes) -> None:
    (table_release / "manifest.json").write_bytes(manifest)
    with pytest.raises(ReleaseError, match=r"manifest\.json"):
        verify_manifest(table_release)


def test_a_folder_without_manifest_is_no_release(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="expected a release folder"):
        verify_manifest(tmp_path)


@pytest.mark.parametrize("after", range(7))
def test_a_full_disk_leaves_nothing_behind(
    *,
    tmp_path: Path,
    release: Callable,
    table: Samples,
    table_plan: Agreed,
    monkeypatch: pytest.MonkeyPatch,
    after: int,
) -> None:
    real, calls = folder_module._write, []

    def write(path: Path, data: bytes) -> None:
        calls.append(path)
        if len(calls) > after:
            path.write_bytes(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, data)

    monkeypatch.setattr(folder_module, "_write", write)
    if after == len(NAMES):  # the disk holds every file: the counter-check that the writer is the one used
        release(tmp_path / "release", table, table_plan)
        assert set(contents(tmp_path / "release")) == NAMES
        return
    with pytest.raises(ReleaseError, match="No space left"):
        release(tmp_path / "release", table, table_plan)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_flush_or_an_interrupt_leaves_nothing_behind(
    tmp_path: Path, release: Callable, table: Samples, table_plan: Agreed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sync(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(folder_module, "sync", sync)
    with pytest.raises(KeyboardInterrupt):
        release(tmp_path / "release", table, table_plan)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_replaced(
    tmp_path: Path, release: Callable, table: Samples, table_plan: Agreed
) -> None:
    (tmp_path / ".release.partial").mkdir()
    (tmp_path / ".release.partial" / "data.csv").write_text("half")
    (tmp_path / "release").mkdir()
    assert set(contents(release(tmp_path / "release", table, table_plan))) == NAMES
    assert [p.name for p in tmp_path.iterdir()] == ["release"]


def test_writing_again_keeps_the_same_release_and_refuses_another(
    table_release: Path, release: Callable, table: Samples, table_plan: Agreed
) -> None:
    before = contents(table_release)
    release(table_release, table, table_plan)
    other = dataclasses.replace(table, rows=table.rows[::-1])
    with pytest.raises(ReleaseError, match="move away"):
        release(table_release, other, table_plan)
    assert contents(table_release) == before
    assert [p.name for p in table_release.parent.iterdir()] == ["release"]
    (table_release / "data.csv").write_text("edited")
    with pytest.raises(ReleaseError, match=r"changed: data\.csv"):
        release(table_release, table, table_plan)


def test_a_missing_extra_is_named(
    tmp_path: Path, release: Callable, pictures: Callable, image_plan: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(package.importlib, "import_module", absent)
    with pytest.raises(InputError, match=r"Pillow.*pip install 'patevolve\[demo\]'"):
        release(tmp_path / "r", pictures(), image_plan())
    assert list(tmp_path.iterdir()) == []
