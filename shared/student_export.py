"""The student of a run as a folder that other tools load: ONNX or safetensors, a model card and the run's papers."""

from __future__ import annotations

import io
import itertools
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.errors import ReleaseError
from patevolve.shared.finish import RELEASE, STUDENT
from patevolve.shared.plan import Agreed, Plan, read_plan
from patevolve.shared.release.card import TASK
from patevolve.shared.release.export import check_out
from patevolve.shared.release.folder import SOURCE, verify_manifest, whole_folder, write_files
from patevolve.shared.release.package import csv_bytes
from patevolve.shared.release.source import CARD, card, kept_proof, papers
from patevolve.shared.schema import Column
from patevolve.shared.students.files import CLASS, INPUT, OPSET, SCORES, onnx_bytes, safetensors_bytes

LAYOUT = "features.csv"
FORMATS: dict[str, tuple[str, Callable[..., bytes]]] = {
    "onnx": ("student.onnx", onnx_bytes),
    "safetensors": ("student.safetensors", safetensors_bytes),
}
CARD_TEXT = """\
---
tags:
- synthetic
- differential-privacy
- {task}-classification
---
# Student of {name}

Multinomial logistic regression on the features of a public encoder. It was trained on the synthetic samples of the
release alone, so it costs no privacy beyond the release.

## Use

{use}

It is for trying out what the release supports. It is no medical device and was not tested on any population; compare it
on real records of the place where it is to be used.

## Input

{dimension} numbers, `{input}`: what the public encoder of the plan makes of one record. {layout}

```python
from pathlib import Path
from patevolve.shared.plan import read_plan
from patevolve.shared.tools import tools_of

encoder = tools_of(read_plan(Path("plan.toml")).plan).encoder
features = encoder.encode(records)  # records: {records}
```

## Output

{output}

Classes, in order: {classes}.

## Training data

The release of plan sha256 `{sha256}`; its manifest is `{source}`.

## Privacy
{privacy}
## Limits

- A linear model of these features: what they do not hold, it does not know.
- Noise in the release is noise in the student, more so for small classes.

## Files

- `{file}`: the student.
{layout_file}- `plan.toml`, `guarantee.json`: the protocol, and the guarantee item by item.
- `manifest.json`: the sha256 of every other file but `proof.json`.
- `proof.json`: the coordinator's ledger and the signatures over the release; `patevolve verify` checks it.
"""


def export_student(run: Path, out: Path, fmt: str) -> None:
    """Write the student of a finished run as one of FORMATS into a new folder ``out``.

    Raises InputError for an ``out`` in use or an extra that is not installed, ReleaseError if release or student are
    not as they were written, or the disk fails: then nothing is left behind.
    """
    release = run / RELEASE
    verify_manifest(release)
    agreed = read_plan(release / "plan.toml")
    student = _student(run / STUDENT, agreed)
    check_out(release, out)
    with whole_folder(out) as aside:
        write_files(aside, _files(release, agreed, student, fmt), seal=kept_proof(release))


def _student(folder: Path, agreed: Agreed) -> dict[str, NDArray[np.float64]]:
    """Return the arrays of a run's student. Raises ReleaseError unless they are a linear student of this plan."""
    try:
        data = (folder / "student.npz").read_bytes()
        stated = (folder / CARD).read_text(encoding="utf-8")
        with np.load(io.BytesIO(data), allow_pickle=False) as found:
            arrays = {name: np.asarray(found[name], np.float64) for name in ("weights", "bias")}
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as reason:
        raise ReleaseError(f"{folder} holds no student ({reason}); expected that of a finished run.") from reason
    weights, bias, classes = arrays["weights"], arrays["bias"], len(agreed.plan.data.classes)
    sound = weights.ndim == 2 and weights.shape[1:] == bias.shape == (classes,)
    if not sound or not (np.isfinite(weights).all() and np.isfinite(bias).all()) or agreed.sha256 not in stated:
        raise ReleaseError(f"{folder} holds no student of plan {agreed.sha256[:12]}…; expected that of the same run.")
    return arrays


def _files(
    release: Path, agreed: Agreed, student: dict[str, NDArray[np.float64]], fmt: str
) -> Iterator[tuple[str, bytes]]:
    plan, (name, encode) = agreed.plan, FORMATS[fmt]
    yield name, encode(student["weights"], student["bias"], plan.data.classes)
    if plan.data.kind == "table":
        yield LAYOUT, csv_bytes(("feature", "column", "level"), _levels(plan.data.columns))
    yield from papers(release)
    yield CARD, _card(release, agreed, len(student["weights"]), fmt).encode()


def _card(release: Path, agreed: Agreed, dimension: int, fmt: str) -> str:
    plan = agreed.plan
    kind = plan.data.kind
    table = kind == "table"
    count = len(plan.data.classes)
    outputs = {
        "onnx": f"`{SCORES}` (n, {count}) and `{CLASS}` (n,), the place of the likeliest class. One file, opset "
        f"{OPSET}; `{INPUT}` is float32.",
        "safetensors": f"`weights` ({dimension}, {count}) and `bias`: the scores are features @ weights + bias, the "
        "class is the highest.",
    }
    values: dict[str, Any] = {
        "task": TASK[kind],
        "name": _plain(plan.name),
        "use": _use(plan),
        "dimension": dimension,
        "input": INPUT,
        "layout": f"`{LAYOUT}` names each: 1 where the column has that level, else 0." if table else "",
        "records": {
            "table": "(n, columns) codes of patevolve.shared.schema.encode_column",
            "text": f"patevolve.shared.texts.packed(texts in normal form, {plan.data.length})",
            "image": f"(n, {', '.join(map(str, plan.data.shape))}) {_levels_of(plan)} 0 to 255",
        }[kind],
        "output": outputs[fmt],
        "classes": ", ".join(_plain(label) for label in plan.data.classes),
        "sha256": agreed.sha256,
        "source": SOURCE,
        "privacy": card(release).partition("\n## Privacy\n")[2].partition("\n## ")[0],
        "file": FORMATS[fmt][0],
        "layout_file": f"- `{LAYOUT}`: what each feature is.\n" if table else "",
    }
    return CARD_TEXT.format(**values)


def _levels_of(plan: Plan) -> str:
    return "grey levels" if plan.data.channels == 1 else "levels of red, green and blue,"


def _use(plan: Plan) -> str:
    thing = {"table": "a row", "text": "a text", "image": "an image"}[plan.data.kind]
    return f"It tells to which of {len(plan.data.classes)} classes {thing} belongs."


def _levels(columns: tuple[Column, ...]) -> Iterator[tuple[str, str, str]]:
    number = 0
    for column in columns:
        edges = column.edges
        bins = [f"from {low:g} to below {high:g}" for low, high in itertools.pairwise(edges)]
        for level in [*(bins or column.values), *(["missing"] if column.missing else [])]:
            yield str(number), column.name, level
            number += 1


def _plain(text: str) -> str:
    """Return a text on one line that is no Markdown."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return "".join(f"\\{c}" if c in "\\`*_[]|#<>&" else c for c in line)
