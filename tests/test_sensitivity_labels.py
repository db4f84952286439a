"""Every step that a written proof cites stands in the code under its label, once, and no label is orphaned."""

import collections
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
FOLDERS = ("client", "server", "shared")
CITED = re.compile(r"\[label: ([^\]]*)\]")
WRITTEN = re.compile(r"# label: (.*)")
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")

# Labels that no sensitivity proof cites: they mark the order of steps that the guard promises, which its tests hold.
ORDER = {"charge-before-draw", "store-before-send"}


def texts(pattern):
    return {path: path.read_text(encoding="utf-8") for folder in FOLDERS for path in (ROOT / folder).rglob(pattern)}


def faults(proofs, code):
    """Return what is wrong between proofs {name: text} and code {name: text}."""
    cited = {name for text in proofs.values() for name in CITED.findall(text)}
    written = collections.Counter(name.strip() for text in code.values() for name in WRITTEN.findall(text))
    return [
        *(f"cited but not in the code: {name}" for name in sorted(cited - set(written))),
        *(f"in the code but cited nowhere: {name}" for name in sorted(set(written) - cited - ORDER)),
        *(f"{count} times in the code: {name}" for name, count in sorted(written.items()) if count != 1),
        *(f"not a label: {name!r}" for name in sorted(cited | set(written)) if not NAME.fullmatch(name)),
    ]


def test_proofs_and_code_agree():
    proofs, code = texts("*.md"), texts("*.py")
    assert any(CITED.search(text) for text in proofs.values())
    assert faults(proofs, code) == []


def test_every_room_that_bounds_or_noises_has_a_proof():
    for room in ("votes", "noise"):
        assert CITED.search((ROOT / "shared" / room / "SENSITIVITY.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("proof", "code"),
    [
        ("[label: clip]", ""),
        ("", "x = 1  # label: clip"),
        ("[label: clip]", "x = 1  # label: clip\ny = 1  # label: clip"),
        ("[label: Clip it]", "x = 1  # label: Clip it"),
    ],
)
def test_planted_faults_are_seen(proof, code):
    assert faults({"a": proof}, {"b": code})
