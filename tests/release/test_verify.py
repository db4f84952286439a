"""``patevolve verify``: any changed byte, any exchanged part, any ε that the ledger does not bear out, is found."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patevolve.client.policy import draft
from patevolve.client.simulate import load_records, open_sites, simulate
from patevolve.shared.errors import InputError, ReleaseError
from patevolve.shared.plan import Agreed, agree
from patevolve.shared.plan_edit import vary
from patevolve.shared.privacy.chain import canonical
from patevolve.shared.privacy.global_ledger import GlobalLedger
from patevolve.shared.privacy.signing import create_identity, load_identity
from patevolve.shared.release.export import export
from patevolve.shared.release.proof import Claim, Keys, Signer, check_proof, read_keys, write_proof
from patevolve.shared.release.samples import Samples
from patevolve.shared.schedule import schedule
from patevolve.shared.tools import tools_of
from patevolve.shared.verify import describe, describe_text, verify_release

PLAN = """
format = 1
name = "two sites at ε = 0.001"
seed = 1
[privacy]
epsilon = 2.0
delta = 1e-5
unit = "record"
trust = "secure-sum"
[sites]
count = 2
expected_units = 60
[data]
kind = "table"
classes = ["no", "yes"]
label = "y"
site = "hospital"
hold_out = 0.2
[[data.columns]]
name = "size"
kind = "numeric"
edges = [0, 1, 2, 3]
[[data.columns]]
name = "sex"
kind = "categorical"
values = ["f", "m"]
[generator]
kind = "tabular"
[questions.counts]
share = 0.4
[questions.prototypes]
share = 0.4
[questions.score]
share = 0.2
[evolution]
population = 40
generations = 1
[release]
samples = 40
"""


def _run(place: Path, agreed: Agreed) -> Path:
    rows = [f"{'north' if i % 2 else 'south'},{('no', 'yes')[i // 60]},{i % 3},{'fm'[i % 2]}" for i in range(120)]
    (place / "data.csv").write_text("hospital,y,size,sex\n" + "\n".join(rows) + "\n", encoding="utf-8")
    homes = {name: place / name for name in ("north", "south")}
    for name, home in homes.items():
        home.mkdir()
        (home / "policy.toml").write_text(draft(name, agreed, reserve=1.0), encoding="utf-8")
    records = load_records(place / "data.csv", agreed.plan)
    simulate(agreed, open_sites(homes, records, agreed), place / "run")
    return place


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two sites in one process, with its sites' folders."""
    return _run(tmp_path_factory.mktemp("made"), agree(PLAN))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of another plan."""
    return _run(tmp_path_factory.mktemp("other"), vary(agree(PLAN), {"seed": 2}))


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """The release, to be tampered with."""
    return Path(shutil.copytree(made / "run" / "release", tmp_path / "release"))


def _keys(place: Path) -> Keys:
    return Keys(sites={name: load_identity(place / name / "identity.key").public_key for name in ("north", "south")})


def _manifest(folder: Path) -> None:
    """Write the manifest anew, as someone without a key can."""
    names = [p for p in folder.rglob("*") if p.is_file() and p.name not in {"manifest.json", "proof.json"}]
    files = {p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in names}
    text = json.dumps({"format": 1, "files": files}, indent=1, sort_keys=True) + "\n"
    (folder / "manifest.json").write_text(text, encoding="utf-8")


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_a_release_as_it_was_written_passes(made: Path, folder: Path) -> None:
    alone, held = verify_release(folder), verify_release(folder, _keys(made))
    assert (alone.own_keys, held.own_keys) == (True, False)
    assert held.proven.spent.epsilon == pytest.approx(2.0, rel=1e-3)
    assert [name for name, _ in held.proven.claim.events] == ["counts", "prototypes", "score"]
    assert held.proven.unrecorded == ()  # the score was asked after the release was written, and is on record
    assert {name for role, name, _ in held.proven.signers if role == "site"} == {"north", "south"}
    assert "keys in the folder only" in describe_text(alone)
    assert "keys that were given" in describe_text(held)
    assert describe(held)["keys"] == "given"
    assert json.loads(json.dumps(describe(held)))["verified"] is True


def test_any_of_a_thousand_flipped_bits_is_found(folder: Path) -> None:
    """Over all files alike, so that small ones are hit too; a bit may turn a letter of a hash into its capital."""
    original = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    rng = np.random.default_rng(7)
    hit = set()
    for _ in range(1000):
        path = sorted(original)[rng.integers(len(original))]
        data = bytearray(original[path])
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(data))
        with pytest.raises(ReleaseError):
            verify_release(folder)
        path.write_bytes(original[path])
        hit.add(path.name)
    verify_release(folder)
    assert hit == {"README.md", "data.csv", "guarantee.json", "manifest.json", "plan.toml", "proof.json"}


def test_any_flipped_bit_of_the_proof_is_found(folder: Path) -> None:
    """Byte by byte, the case bit first: signatures and keys are hexadecimal, where a capital means the same."""
    original, agreed = (folder / "proof.json").read_bytes(), agree(PLAN)
    assert check_proof(original, agreed, None).claim.plan_sha256 == agreed.sha256
    for position in range(0, len(original), 3):
        for bit in (0x20, 0x01):
            data = bytearray(original)
            data[position] ^= bit
            with pytest.raises(ReleaseError):
                check_proof(bytes(data), agreed, None)


def test_any_cut_end_of_the_proof_is_found(folder: Path) -> None:
    path = folder / "proof.json"
    data = path.read_bytes()
    for end in (0, 1, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:end])
        with pytest.raises(ReleaseError):
            verify_release(folder)


def test_added_removed_and_linked_files_are_found(folder: Path) -> None:
    (folder / "note.txt").write_text("x", encoding="utf-8")
    with pytest.raises(ReleaseError, match=r"extra: note\.txt"):
        verify_release(folder)
    (folder / "note.txt").unlink()
    (folder / "data.csv").rename(folder.parent / "data.csv")
    with pytest.raises(ReleaseError, match=r"missing: data\.csv"):
        verify_release(folder)
    (folder.parent / "data.csv").rename(folder / "data.csv")
    (folder / "proof.json").rename(folder.parent / "proof.json")
    with pytest.raises(ReleaseError, match=r"holds no proof\.json"):
        verify_release(folder)
    (folder / "proof.json").symlink_to(folder.parent / "proof.json")
    with pytest.raises(ReleaseError, match=r"extra: proof\.json"):
        verify_release(folder)


def test_files_changed_together_with_their_manifest_are_found(folder: Path) -> None:
    rows = (folder / "data.csv").read_text(encoding="utf-8").splitlines()
    (folder / "data.csv").write_text("\n".join([rows[0], *rows[:0:-1]]) + "\n", encoding="utf-8")
    _manifest(folder)
    with pytest.raises(ReleaseError, match="signs another manifest"):
        verify_release(folder)


def test_another_runs_manifest_is_found(folder: Path, other: Path) -> None:
    shutil.copy(other / "run" / "release" / "manifest.json", folder / "manifest.json")
    with pytest.raises(ReleaseError, match="changed"):
        verify_release(folder)


def test_an_epsilon_changed_together_with_its_manifest_is_found(folder: Path) -> None:
    for name in ("README.md", "guarantee.json"):
        _replace(folder / name, "ε = 2.0 at", "ε = 0.5 at")
    _replace(folder / "README.md", "ε = 1.999", "ε = 0.499")
    _manifest(folder)
    with pytest.raises(ReleaseError, match="signs another manifest"):
        verify_release(folder)


def test_a_proof_of_another_plan_is_found(folder: Path, other: Path) -> None:
    shutil.copy(other / "run" / "release" / "proof.json", folder / "proof.json")
    with pytest.raises(ReleaseError, match="of plan"):
        verify_release(folder)


def test_a_proof_of_another_run_of_the_same_plan_is_found(folder: Path, tmp_path: Path) -> None:
    for attempt in range(20):  # now and then two runs draw the same 40 samples, and then their manifests are one
        (tmp_path / f"again-{attempt}").mkdir()
        again = _run(tmp_path / f"again-{attempt}", agree(PLAN))
        if (again / "run" / "release" / "manifest.json").read_bytes() != (folder / "manifest.json").read_bytes():
            break
    shutil.copy(again / "run" / "release" / "proof.json", folder / "proof.json")
    with pytest.raises(ReleaseError, match="signs another manifest"):
        verify_release(folder)


# What follows is done by someone who holds every site's key: the proof itself must not lie.


@dataclasses.dataclass(kw_only=True)
class Forger:
    """The honest parts of a proof, to be signed anew with changes."""

    place: Path
    folder: Path
    agreed: Agreed

    def sign(self, *, rows: Any = None, names: tuple[str, ...] = ("north", "south"), **claimed: Any) -> None:
        with GlobalLedger.open(self.place / "run" / "global.sqlite") as ledger:
            rows = ledger.rows() if rows is None else rows(ledger.rows())
        asks = schedule(self.agreed.plan, tools_of(self.agreed.plan).encoder.embedding_size)
        spent = verify_release(self.place / "run" / "release").proven.spent
        run = (self.place / "run" / "run.id").read_text(encoding="utf-8")
        start: dict[str, Any] = {"plan_sha256": self.agreed.sha256, "run": run, "epsilon": spent.epsilon}
        start |= {"events": tuple((ask.name, ask.event) for ask in asks), "delta": 1e-5}
        signers = [Signer(role="site", name=n, identity=load_identity(self.place / n / "identity.key")) for n in names]
        manifest = hashlib.sha256((self.folder / "manifest.json").read_bytes()).hexdigest()
        proof = write_proof(Claim(**(start | claimed)), manifest_sha256=manifest, rows=rows, signers=signers)
        (self.folder / "proof.json").write_bytes(proof)


@pytest.fixture
def forger(made: Path, folder: Path) -> Forger:
    return Forger(place=made, folder=folder, agreed=agree(PLAN))


def test_the_forger_without_a_change_passes(forger: Forger) -> None:
    """The counter-check of what follows."""
    forger.sign()
    verify_release(forger.folder, _keys(forger.place))


def test_a_signed_epsilon_that_does_not_follow_from_the_events_is_found(forger: Forger) -> None:
    forger.sign(epsilon=1.5)
    with pytest.raises(ReleaseError, match="the ledger's events cost"):
        verify_release(forger.folder)


def test_texts_that_state_another_epsilon_are_found_though_signed(forger: Forger) -> None:
    card = (forger.folder / "README.md").read_bytes()
    for name, old, new in (
        ("README.md", "ε = 2.0 at", "ε = 1.9 at"),
        ("README.md", "ε = 2.0 at", "ε = 2.9 at"),
        ("guarantee.json", "ε = 2.0 at", "ε = 0.2 at"),
    ):
        (forger.folder / "README.md").write_bytes(card)
        _replace(forger.folder / name, old, new)
        _manifest(forger.folder)
        forger.sign()
        with pytest.raises(ReleaseError, match=f"{name} says ε"):
            verify_release(forger.folder)


def test_a_question_left_out_of_the_claim_is_found(forger: Forger) -> None:
    asks = schedule(forger.agreed.plan, tools_of(forger.agreed.plan).encoder.embedding_size)
    forger.sign(events=tuple((ask.name, ask.event) for ask in asks if ask.name != "counts"), epsilon=1.0)
    with pytest.raises(ReleaseError, match="does not pay for"):
        verify_release(forger.folder)


def test_events_with_more_noise_than_the_plan_implies_are_found(forger: Forger) -> None:
    """Claim, ledger and statement agree with one another and not with the plan."""

    def quieter(rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
        return [(kind, row.replace('"shares":2', '"shares":3')) for kind, row in rows]

    asks = schedule(forger.agreed.plan, tools_of(forger.agreed.plan).encoder.embedding_size)
    events = tuple((ask.name, dataclasses.replace(ask.event, shares=3)) for ask in asks)
    forger.sign(events=events, rows=quieter, epsilon=1.4)
    with pytest.raises(ReleaseError, match="cost"):
        verify_release(forger.folder)


def test_a_ledger_with_a_row_changed_or_cut_is_found(forger: Forger) -> None:
    forger.sign(rows=lambda rows: rows[1:])
    with pytest.raises(ReleaseError, match="does not hold together"):
        verify_release(forger.folder)
    forger.sign(rows=lambda rows: [*rows, (rows[-1][0], rows[-1][1].replace('"seq\\":', '"seq\\":1'))])
    with pytest.raises(ReleaseError, match="does not hold together"):
        verify_release(forger.folder)


def test_a_site_that_did_not_sign_and_nobody_at_all_are_found(forger: Forger) -> None:
    forger.sign(names=("north",))
    with pytest.raises(ReleaseError, match="south did not sign"):
        verify_release(forger.folder)
    forger.sign(names=())
    with pytest.raises(ReleaseError, match="nobody signed"):
        verify_release(forger.folder)


def test_keys_that_were_given_decide(made: Path, folder: Path, other: Path) -> None:
    """Whoever makes a folder anew makes its keys as well: only keys that came by another way show it."""
    mine = _keys(made)
    verify_release(other / "run" / "release")
    with pytest.raises(ReleaseError, match="another key than the one given"):
        verify_release(other / "run" / "release", mine)
    with pytest.raises(ReleaseError, match="hold none of site 'south'"):
        verify_release(folder, Keys(sites={"north": mine.sites["north"]}))


def test_a_coordinator_signs_alone(made: Path, folder: Path, tmp_path: Path) -> None:
    identity = create_identity(tmp_path / "coordinator.key")
    forger = Forger(place=made, folder=folder, agreed=agree(PLAN))
    forger.sign(names=())
    value = json.loads((folder / "proof.json").read_text(encoding="utf-8"))
    digest = hashlib.sha256(canonical(value["body"]).encode()).digest()
    signed = identity.key.sign(b"patevolve release proof 2\n" + digest)
    one = {"role": "coordinator", "name": "coordinator", "public_key": identity.public_key, "signature": signed.hex()}

    def write(**changes: str) -> None:
        text = canonical({**value, "signatures": [{**one, **changes}]}) + "\n"
        (folder / "proof.json").write_text(text, encoding="utf-8")

    write()
    sites = _keys(made).sites
    found = verify_release(folder, Keys(sites=sites, coordinator=identity.public_key))
    assert found.proven.signers == (("coordinator", "coordinator", identity.public_key),)
    with pytest.raises(ReleaseError, match="hold none of coordinator"):
        verify_release(folder, Keys(sites=sites))
    with pytest.raises(ReleaseError, match="another key than the one it is known by"):
        verify_release(folder, Keys(sites=sites, coordinator="0" * 64))
    write(name="someone")
    with pytest.raises(ReleaseError, match="someone"):
        verify_release(folder)
    write(signature=one["signature"].upper())
    with pytest.raises(ReleaseError, match="does not fit"):
        verify_release(folder)


def test_an_export_is_verified_and_says_what_is_signed(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(made / "run" / "release", out, "parquet")
    found = verify_release(out, _keys(made))
    assert found.export
    assert "checksums alone" in describe_text(found)
    (out / "plan.toml").write_text((out / "plan.toml").read_text(encoding="utf-8") + "\n", encoding="utf-8")
    _manifest(out)
    with pytest.raises(ReleaseError):
        verify_release(out)


def test_an_epsilon_changed_in_an_export_is_found(made: Path, tmp_path: Path) -> None:
    for name in ("README.md", "guarantee.json"):
        out = tmp_path / name
        export(made / "run" / "release", out, "parquet")
        _replace(out / name, "ε = 2.0 at", "ε = 0.5 at")
        _manifest(out)
        with pytest.raises(ReleaseError):
            verify_release(out)


def test_an_export_of_another_release_is_found(made: Path, other: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(made / "run" / "release", out, "parquet")
    shutil.copy(other / "run" / "release" / "manifest.json", out / "release-manifest.json")
    _manifest(out)
    with pytest.raises(ReleaseError, match="signs another release"):
        verify_release(out)


def test_no_release_and_an_unreadable_file_are_said_plainly(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ReleaseError, match="expected a release folder"):
        verify_release(tmp_path)
    with pytest.raises(ReleaseError, match="expected a release folder"):
        verify_release(tmp_path / "absent")
    (folder / "proof.json").chmod(0)
    try:
        (folder / "proof.json").read_bytes()
    except PermissionError:
        with pytest.raises(ReleaseError, match="ermission"):
            verify_release(folder)


def test_hostile_proofs_are_refused_with_one_kind_of_error(folder: Path) -> None:
    for data in (b"", b"{}", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"format":"patevolve-proof/1"}\n', b"1e999\n"):
        (folder / "proof.json").write_bytes(data)
        with pytest.raises(ReleaseError):
            verify_release(folder)


@pytest.mark.parametrize("text", ["", "{}x", "[]", '{"sites": 3}', '{"sites": {"a": "b"}}', '{"coordinator": 1}'])
def test_a_file_that_holds_no_keys_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="roster"):
        read_keys(tmp_path / "keys.json")
    with pytest.raises(InputError):
        read_keys(tmp_path / "absent.json")


def test_keys_are_read_as_a_roster_has_them(tmp_path: Path) -> None:
    (tmp_path / "roster.json").write_text(json.dumps({"sites": {"a": "1" * 64}, "coordinator": "2" * 64}))
    assert read_keys(tmp_path / "roster.json") == Keys(sites={"a": "1" * 64}, coordinator="2" * 64)


def test_images_whose_plan_asked_nothing_are_verified(
    tmp_path: Path, release: Callable, pictures: Callable, image_plan: Callable
) -> None:
    samples: Samples = pictures(("0", "1"))
    folder = release(tmp_path / "r", samples, image_plan(("0", "1")))
    assert verify_release(folder).files == 44
