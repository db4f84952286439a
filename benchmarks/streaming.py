"""Memory and time of inspecting and embedding large data, beside a plain loop over the same files in the same run.

    python benchmarks/streaming.py [--images 20000] [--rows 5000000] [--folder FOLDER]

Each measurement is a process of its own; its peak memory and processor time are what the operating system reports.
The plain loop is what a torch ``Dataset`` does in ``__getitem__`` (open, to grey, to an array, encode), its results
collected in a list; if torch is installed, it is run through a ``DataLoader`` as well. All share one encoder: means of
8 × 8 blocks, or one-hot rows. Files are made once and read warm by all, so decoding and not the disk is compared.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

SIDE = 224
PLAN = """
format = 1
name = "streaming"
seed = 1
[privacy]
epsilon = 3.0
delta = 1e-8
unit = "record"
[sites]
count = 1
expected_units = 1000
[data]
kind = "{kind}"
classes = ["a", "b"]
label = "label"
{data}
[generator]
kind = "{generator}"
[questions.counts]
share = 0.5
[release]
samples = 10
"""
IMAGE = PLAN.format(kind="image", data="height = 224\nwidth = 224", generator="simulator")
COLUMNS = "".join(
    f'[[data.columns]]\nname = "x{i}"\nkind = "numeric"\nedges = [0, 1, 2, 3, 4]\nmissing = true\n' for i in range(4)
)
TABLE = PLAN.format(
    kind="table",
    data=COLUMNS + '[[data.columns]]\nname = "c"\nkind = "categorical"\nvalues = ["p", "q", "r"]',
    generator="tabular",
)


class Blocks:
    """A public encoder: means of 8 × 8 blocks, 784 numbers for an image of 224 × 224."""

    dimension = (SIDE // 8) ** 2

    def encode(self, values: Any) -> Any:
        """Return (n, 784) features."""
        n = len(values)
        return values.reshape(n, SIDE // 8, 8, SIDE // 8, 8).mean(axis=(2, 4)).reshape(n, -1) / 255.0


def make_images(folder: Path, count: int) -> None:
    """Write smooth pictures in two class folders, as PNG."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for name in "ab":
        (folder / name).mkdir(parents=True, exist_ok=True)
    for i in range(count):
        small = Image.fromarray(rng.integers(0, 256, (14, 14), np.uint8))
        small.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(folder / "ab"[i % 2] / f"{i}.png", compress_level=1)


def make_table(path: Path, rows: int) -> None:
    """Write a Parquet file of five columns and a label, with nulls."""
    import pyarrow as pa
    from pyarrow import parquet

    rng = np.random.default_rng(0)
    writer = None
    for start in range(0, rows, 500_000):
        n = min(500_000, rows - start)
        columns = {f"x{i}": pa.array(rng.random(n) * 4, mask=rng.random(n) < 0.1) for i in range(4)}
        columns |= {
            "c": np.array(list("pqr"))[rng.integers(0, 3, n)],
            "label": np.array(list("ab"))[rng.integers(0, 2, n)],
        }
        table = pa.table(columns)
        writer = writer or parquet.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def plain_images(folder: Path) -> int:
    """Return the number of features that a plain loop collects."""
    return len(np.stack(list(_decoded(folder))))


def _decoded(folder: Path) -> Iterator[Any]:
    from PIL import Image

    encoder = Blocks()
    for path in sorted(folder.glob("*/*.png")):
        with Image.open(path) as image:
            yield encoder.encode(np.asarray(image.convert("L"))[None])[0]


def torch_images(folder: Path) -> int:
    """Return the number of features that a DataLoader over a Dataset gives, without workers."""
    import torch

    paths, encoder = sorted(folder.glob("*/*.png")), Blocks()

    class Files(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, i: int) -> Any:
            from PIL import Image

            with Image.open(paths[i]) as image:
                return torch.from_numpy(encoder.encode(np.asarray(image.convert("L"))[None])[0])

    return len(torch.cat(list(torch.utils.data.DataLoader(Files(), batch_size=256))))


def plain_table(path: Path) -> int:
    """Return the number of rows that pandas reads whole and one-hot encodes."""
    import pandas as pd

    frame = pd.read_parquet(path)
    binned = {name: pd.cut(frame[name], [0, 1, 2, 3, 4], right=False) for name in frame if name.startswith("x")}
    hot = pd.get_dummies(pd.DataFrame(binned | {"c": frame["c"]}), dummy_na=True, dtype=float)
    return len(hot)


def inspected(path: Path, text: str) -> int:
    """Return the number of records that the inspection counts."""
    from patevolve.client.inspect import inspect_data
    from patevolve.shared.plan import agree

    report = inspect_data(path, agree(text).plan).open_at_site()
    return sum(site.records for site in report.survey.sites.values())


def embedded(path: Path, text: str, folder: Path, key: bytes | None) -> int:
    """Return the number of records in the index that is written, or found complete."""
    from patevolve.client.stored_index import embed_data
    from patevolve.shared.data.index import pieces_of
    from patevolve.shared.plan import agree
    from patevolve.shared.tools import tools_of

    agreed = agree(text)
    encoder: Any = Blocks() if agreed.plan.data.kind == "image" else tools_of(agreed.plan).encoder
    return sum(len(piece) for piece in pieces_of(embed_data(path, agreed, encoder, folder, key=key)))


def run(what: str, path: Path, folder: Path) -> int:
    """Do one measurement's work."""
    works = {
        "plain loop": lambda: plain_images(path),
        "torch DataLoader": lambda: torch_images(path),
        "pandas, whole": lambda: plain_table(path),
        "inspect": lambda: inspected(path, IMAGE if path.is_dir() else TABLE),
        "embed": lambda: embedded(path, IMAGE if path.is_dir() else TABLE, folder / "plain", None),
        "embed, sealed": lambda: embedded(path, IMAGE if path.is_dir() else TABLE, folder / "sealed", b"k" * 32),
        "embed again": lambda: embedded(path, IMAGE if path.is_dir() else TABLE, folder / "sealed", b"k" * 32),
    }
    return works[what]()


def measure(what: str, path: Path, folder: Path) -> dict[str, Any]:
    """Run one measurement in its own process and return its figures."""
    command = [sys.executable, __file__, "--work", what, "--data", str(path), "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - this very script
    return dict(json.loads(done.stdout.splitlines()[-1]))


def table(title: str, path: Path, folder: Path, names: list[str]) -> None:
    """Print one table."""
    print(f"\n{title}\n{'':<18}{'records':>10}{'CPU s':>10}{'wall s':>10}{'peak MiB':>10}", flush=True)
    for name in names:
        found = measure(name, path, folder)
        print(
            f"{name:<18}{found['records']:>10}{found['cpu']:>10.1f}{found['wall']:>10.1f}{found['mib']:>10.0f}",
            flush=True,
        )


def main() -> None:
    """Make the data, measure, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--work")
    parser.add_argument("--data", type=Path)
    options = parser.parse_args()
    if options.work:
        started = time.perf_counter()
        records = run(options.work, options.data, options.folder)
        used = resource.getrusage(resource.RUSAGE_SELF)
        wall, cpu = time.perf_counter() - started, used.ru_utime + used.ru_stime
        print(json.dumps({"records": records, "cpu": cpu, "wall": wall, "mib": used.ru_maxrss / 1024}))
        return
    torch = ["torch DataLoader"] if importlib.util.find_spec("torch") else []
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        ours = ["inspect", "embed", "embed, sealed", "embed again"]
        for count in (options.images // 4, options.images):
            images = folder / f"images-{count}"
            make_images(images, count)
            table(f"{count} PNG images of {SIDE} × {SIDE}", images, folder / f"i{count}", ["plain loop", *torch, *ours])
        for rows in (options.rows // 4, options.rows):
            path = folder / f"{rows}.parquet"
            make_table(path, rows)
            table(f"Parquet, {rows} rows of 5 columns", path, folder / f"t{rows}", ["pandas, whole", *ours])


if __name__ == "__main__":
    main()
