"""A small table release and a small image release, made from plans that the plan reader accepts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patevolve.shared.plan import Agreed, agree
from patevolve.shared.privacy.global_ledger import GlobalLedger
from patevolve.shared.privacy.signing import create_identity
from patevolve.shared.release.package import write_release
from patevolve.shared.release.proof import Claim, Signer, write_proof
from patevolve.shared.release.samples import Samples

TABLE = """
format = 1
name = "small"
seed = 7
[privacy]
epsilon = 1.0
delta = 1e-5
unit = "record"
[sites]
count = 2
expected_units = 100
[data]
kind = "table"
classes = ["no", "yes"]
label = "disease"
[[data.columns]]
name = "age"
kind = "numeric"
edges = [20, 40, 60, 80]
missing = true
[[data.columns]]
name = "oldpeak"
kind = "numeric"
edges = [-1.5, 0.0, 6.25]
decimals = 1
[[data.columns]]
name = "pain, \\"typical\\"\\nor not"
kind = "categorical"
values = ["NA", "a,b", "é🩺"]
missing = true
[[data.columns]]
name = "sex"
kind = "categorical"
values = ["f", "m"]
[generator]
kind = "tabular"
[questions]
[release]
samples = 40
"""

IMAGE = """
format = 1
name = "pictures"
seed = 7
[privacy]
epsilon = 1.0
delta = 1e-5
unit = "record"
[sites]
count = 2
expected_units = 100
[data]
kind = "image"
classes = {classes}
label = "labels"
height = 9
width = 8
[generator]
kind = "simulator"
[questions]
[release]
samples = 40
"""

HOSTILE = (
    ".",
    "..",
    "../../etc/passwd",
    "/",
    "a/b",
    "A/b",
    "yes",
    "YES",
    "Yes",
    "con",
    "CON.txt",
    ".DS_Store",
    "-rf",
    "~",
    "%",
    "%41",
    "🩺",
    'new\nline, comma "quote"',
    "tab\tnul\x01",
    "trailing.",
    "é",
    "e\u0301",
    "manifest.json",
    "x" * 255,
    "x" * 254 + "y",
    "🩺" * 64,
)

STATEMENT = (
    ("Unit", "one record"),
    ("Privacy loss", "ε = 0 at δ = 1e-05"),
    ("Accountant", "Rényi, converted by Canonne, Kamath and Steinke"),
)
EVENTS: dict[str, Any] = {"events": []}  # the plans here ask nothing
CARD = {
    "title": "Small | table",
    "what": "Synthetic rows of a test.",
    "how": ["Evolved from a public schema."],
    "epsilon": 0.0,
    "delta": 1e-5,
    "limits": ["near-duplicates: not asked."],
    "license": "cc-by-4.0",
}


@pytest.fixture(scope="session")
def hostile() -> tuple[str, ...]:
    """Class names that break careless folder names."""
    return HOSTILE


@pytest.fixture(scope="session")
def table_plan() -> Agreed:
    """A plan with every kind of column."""
    return agree(TABLE)


@pytest.fixture(scope="session")
def image_plan() -> Callable[..., Agreed]:
    """A plan of 9 × 8 images with these classes."""
    # JSON without ASCII escapes is TOML here: TOML has no surrogate pairs
    return lambda classes=("no", "yes"): agree(IMAGE.format(classes=json.dumps(list(classes), ensure_ascii=False)))


@pytest.fixture(scope="session")
def table(table_plan: Agreed) -> Samples:
    """Forty rows that use every category, bounds and missing values."""
    columns = table_plan.plan.data.columns
    rng = np.random.default_rng(1)
    rows = [
        (
            "" if i % 7 == 0 else str(int(rng.integers(20, 81))),
            f"{rng.uniform(-1.5, 6.2):.1f}",
            ("NA", "a,b", "é🩺", "")[i % 4],
            "fm"[i % 2],
        )
        for i in range(40)
    ]
    rows[1] = ("80", "6.2", "NA", "m")
    return Samples(
        columns=tuple(column.name for column in columns),
        rows=tuple(rows),
        classes=np.arange(40, dtype=np.int64) // 20,
        class_names=table_plan.plan.data.classes,
    )


@pytest.fixture(scope="session")
def pictures() -> Callable[..., Samples]:
    """Forty noisy images, classes in turn."""

    def make(classes: tuple[str, ...] = ("no", "yes")) -> Samples:
        images = np.random.default_rng(2).integers(0, 256, (40, 9, 8), dtype=np.uint8)
        return Samples(images=images, classes=np.arange(40, dtype=np.int64) % len(classes), class_names=classes)

    return make


@pytest.fixture(scope="session")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    """The one site of these runs."""
    identity = create_identity(tmp_path_factory.mktemp("keys") / "identity.key")
    return Signer(role="site", name="north", identity=identity)


@pytest.fixture(scope="session")
def seal(signer: Signer, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Callable[[str], bytes]]:
    """Return what signs a release of a plan that asked nothing."""
    with GlobalLedger.create(tmp_path_factory.mktemp("ledger") / "global.sqlite", coordinator="hub") as ledger:
        ledger.register_site("north", signer.identity.public_key)
        rows = ledger.rows()

    def sealed(agreed: Agreed, signers: tuple[Signer, ...] = (signer,), **changes: Any) -> Callable[[str], bytes]:
        start: dict[str, Any] = {"plan_sha256": agreed.sha256, "run": "r", "events": (), "epsilon": 0.0}
        claim = Claim(**{**start, "delta": agreed.plan.privacy.delta, **changes})
        return lambda manifest: write_proof(claim, manifest_sha256=manifest, rows=rows, signers=signers)

    return sealed


@pytest.fixture(scope="session")
def release(seal: Callable[..., Callable[[str], bytes]]) -> Callable[..., Path]:
    """Write a release with ordinary texts; keywords replace them."""

    def write(folder: Path, samples: Samples, agreed: Agreed, **changes: Any) -> Path:
        texts: dict[str, Any] = {"statement": STATEMENT, "proof": EVENTS, "card": CARD, "seal": seal(agreed), **changes}
        write_release(folder, samples, plan_text=agreed.text, plan_sha256=agreed.sha256, **texts)
        return folder

    return write
