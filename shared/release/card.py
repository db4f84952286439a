"""The dataset card of a release: README.md with the metadata that data-set hubs read, in plain words."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from patevolve.shared.errors import ReleaseError
from patevolve.shared.plan import Plan
from patevolve.shared.release.folder import SOURCE
from patevolve.shared.release.samples import Samples

# A bound on privacy loss supports none of these claims, so no text that the program writes may make them.
CLAIMS = re.compile(r"\banonym\w*|\bsafe\b|\bcomplian\w*|guaranteed\s+private", re.IGNORECASE)
OPTIONAL = ("license", "source")
DATA_FILE = {"table": "data.csv", "text": "data.csv", "image": "images/**"}
TASK = {"table": "tabular", "text": "text", "image": "image"}
DATA_TEXT = {
    "table": "`data.csv`: the synthetic records; an empty cell is a missing value, a word such as NA is not.",
    "text": "`data.csv`: the texts and the class of each, as the plan spells it.",
    "image": "`images/`: one folder per class; `labels.csv`: the class of each file, as the plan spells it.",
}
UNITS = {
    "patient": "all records of one patient at one site together, added or removed",
    "record": "one record, added or removed",
}
TRUST = {
    "each-site": "each site adds the whole noise itself; neither the coordinator nor another site is trusted",
    "secure-sum": "sites add shares of the noise and only their masked sum is seen; "
    "the plan states how many sites may collude or fail",
}
LIMITS = (
    "ε and δ bound what the release reveals about one unit. Facts that hold for a whole group are not covered.",
    "Synthetic records carry errors, and noise adds more for small classes. Check a finding on real records.",
)


def _text(value: object) -> bool:
    return isinstance(value, str)


def _texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(_text(item) for item in value)


def _loss(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0  # NaN is no loss


KEYS: dict[str, Callable[[object], bool]] = {
    "title": _text,
    "what": _text,
    "how": _texts,
    "epsilon": _loss,
    "delta": _loss,
    "limits": _texts,
}


def check_card(card: Mapping[str, Any], statement: Sequence[tuple[str, str]]) -> None:
    """Do nothing for a card with the known keys and texts without forbidden claims. Raises ReleaseError."""
    wrong = [key for key, fits in KEYS.items() if not fits(card.get(key))]
    wrong += [key for key in card if key not in KEYS and not (key in OPTIONAL and _text(card[key]))]
    if wrong:
        known = ", ".join([*KEYS, *OPTIONAL])
        raise ReleaseError(f"card: {', '.join(wrong)} missing, unknown or of another type found; expected {known}.")
    if not all(_text(part) for pair in statement for part in pair):
        raise ReleaseError("a statement that is no list of (item, text) found; expected pairs of texts.")
    for text in [*card["how"], *card["limits"], *(part for pair in statement for part in pair)]:
        claim = CLAIMS.search(text)
        if claim is not None:
            raise ReleaseError(f"{claim[0]!r} found in a text of the release; a privacy bound does not support it.")


def write_card(
    samples: Samples, plan: Plan, plan_sha256: str, statement: Sequence[tuple[str, str]], card: Mapping[str, Any]
) -> str:
    """Return the text of README.md: front matter, then what it is, how it was made, privacy, limits, files."""
    kind = plan.data.kind
    size = f"{len(samples)} synthetic samples of {len(plan.data.classes)} classes."
    privacy = [
        f"ε = {float(card['epsilon'])!r}, δ = {float(card['delta'])!r}, for everything that was asked, together.",
        f"Unit: {plan.privacy.unit} ({UNITS[plan.privacy.unit]}).",
        f"Trust: {plan.privacy.trust} ({TRUST[plan.privacy.trust]}).",
        f"Plan: sha256 `{plan_sha256}`.",
        *(f"{_line(item)}: {_line(text)}" for item, text in statement),
    ]
    files = [
        DATA_TEXT[kind],
        "`plan.toml`: the protocol as all sites agreed on it.",
        "`guarantee.json`: the statement above and the events that were charged.",
        "`manifest.json`: the sha256 of every other file but `proof.json`.",
        "`proof.json`: the coordinator's ledger and the signatures over all of this; `patevolve verify` checks it.",
    ]
    return "\n".join(
        [
            *_front_matter(samples, kind, card),
            f"# {_line(card['title'])}",
            "",
            _line(card["what"]),
            "",
            size,
            "",
            *_counts(samples),
            *_section("How it was made", [_line(text) for text in card["how"]]),
            *_section("Privacy", privacy),
            *_section("Limits", [*LIMITS, *(_line(text) for text in card["limits"])]),
            *(_section("Source", [_line(card["source"])]) if "source" in card else []),
            *_section("Files", files),
        ]
    )


def as_export(text: str, kind: str, *, data_files: str, words: str, metadata: Sequence[str] = ()) -> str:
    """Return the card of a release whose data files were replaced.

    data_files:  pattern of the files that the ``datasets`` library reads
    words:       what stands about them in the list of files
    metadata:    further lines of front matter
    """
    old = f"  data_files: {json.dumps(DATA_FILE[kind])}\n"
    more = "".join(f"{line}\n" for line in metadata)
    text = text.replace(f"configs:\n- config_name: default\n{old}", f"{more}configs:\n- config_name: default\n{old}", 1)
    source = f"`{SOURCE}`: the manifest of the release that this was made from, which `proof.json` signs."
    text = text.replace(old, f"  data_files: {json.dumps(data_files)}\n", 1)
    return text.replace(DATA_TEXT[kind], f"{words}\n- {source}")


def _front_matter(samples: Samples, kind: str, card: Mapping[str, Any]) -> list[str]:
    bounds = ((1000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"))
    size = next((name for bound, name in bounds if len(samples) < bound), "100K<n<1M")
    # A JSON string of one line is a YAML string.
    return [
        "---",
        f"pretty_name: {json.dumps(_line(card['title'], raw=True), ensure_ascii=False)}",
        *([f"license: {json.dumps(_line(card['license'], raw=True))}"] if "license" in card else []),
        "tags:",
        "- synthetic",
        "- differential-privacy",
        f"- {TASK[kind]}",
        "size_categories:",
        f"- {size}",
        "configs:",
        "- config_name: default",
        f"  data_files: {json.dumps(DATA_FILE[kind])}",
        "---",
        "",
    ]


def _counts(samples: Samples) -> list[str]:
    names = enumerate(samples.class_names)
    rows = [f"| {_line(name)} | {int((samples.classes == i).sum())} |" for i, name in names]
    return ["| class | samples |", "|---|---|", *rows, ""]


def _section(title: str, points: Sequence[str]) -> list[str]:
    return [f"## {title}", "", *(f"- {point}" for point in points), ""]


def _line(text: str, *, raw: bool = False) -> str:
    """Return the text on one line without control characters and, unless ``raw``, as literal text in Markdown."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if raw else re.sub(r"([\\`*_\[\]|#])", r"\\\1", html.escape(line, quote=False))
