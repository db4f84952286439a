"""The measurements behind ``make bench``: each prints its rows of the performance table as JSON.

    OMP_NUM_THREADS=1 python benchmarks/bench_rows.py tally|generation|noise|accounting|pate|wire|sites|edge|networks

A ratio's two sides are timed in turn in one process, so that both meet the same load, and the ratio is taken in each
repeat. The middle one stands in the table, and the least and the greatest beside it. ``bench.py`` asks each measurement
for its share of the repeats once in each round (ROUND); by itself it makes all of them.
"""

from __future__ import annotations

import functools
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
REPEATS = 10
ROUND = "PATEVOLVE_BENCH_ROUND"  # "2/5": the third of five rounds
KEEP = "PATEVOLVE_BENCH_KEEP"  # the folder of what the first round makes for all
TALLY = (6000, 4000, 128, 20)  # private records, candidates, dimensions, votes of a record
Row = dict[str, Any]


def row(number: int, what: str, values: Sequence[float], unit: str, **rest: Any) -> Row:
    """Return one row.

    ``rest``: most or least (the goal), note, next (idea); figures: values of each repeat whose middles the note names;
    few: it has no five repeats.
    """
    return {"row": number, "what": what, "values": [float(value) for value in values], "unit": unit, **rest}


def repeats(count: int) -> range:
    """Return the numbers of this round's repeats, when all rounds make ``count`` or a few more."""
    now, rounds = map(int, os.environ.get(ROUND, "0/1").split("/"))
    each = -(-count // rounds)
    return range(now * each, (now + 1) * each)


def kept(name: str, make: Callable[[Path], object]) -> Path:
    """Return a file or folder of this name, which the first round makes."""
    path = Path(os.environ[KEEP]) / name
    if not path.exists():
        make(path)
    return path


def seconds(work: Callable[[], object]) -> float:
    """Return the wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def spent(work: Callable[[], object]) -> float:
    """Return the processor time of one call, of all its threads."""
    start = time.process_time()
    work()
    return time.process_time() - start


def paired(one: Callable[[], object], other: Callable[[], object]) -> list[float]:
    """Return the processor time of ``one`` over that of ``other``, in turn, after one call of each."""
    one(), other()
    return [spent(one) / spent(other) for _ in repeats(REPEATS)]


def script(name: str, *arguments: str) -> Any:
    """Return the JSON that a benchmark of this folder prints, run in a process of its own."""
    command = [sys.executable, str(HERE / name), *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - our own scripts
    return json.loads(done.stdout)


def voting(classes: int) -> tuple[Callable[[], object], np.ndarray, np.ndarray]:
    """Return one vote tally of the sizes TALLY, and its private and public features."""
    from patevolve.shared.votes import ballots

    n, P, d, k = TALLY
    rng = np.random.default_rng(0)
    features, candidates = rng.normal(size=(n, d)), rng.normal(size=(P, d))
    voters = ballots.Electorate(np.array([f"unit {number}" for number in range(n)]))
    bounds, own, theirs = ballots.neighbours_bounds(P, k, 1), rng.integers(0, classes, n), np.arange(P) % classes

    def vote() -> object:
        return ballots.neighbours(voters, features, own, (candidates, theirs), nearest=k, bounds=bounds)

    return vote, features, candidates


def tally() -> list[Row]:
    """Row 1: soft votes of 6,000 records on 4,000 candidates in 128 dimensions."""
    from sklearn.neighbors import NearestNeighbors

    (once, features, candidates), (split, _, _) = voting(1), voting(10)
    n, P, d, k = TALLY

    def library() -> object:
        return NearestNeighbors(n_neighbors=k, algorithm="brute").fit(candidates).kneighbors(features)

    def product() -> object:
        return features @ candidates.T

    sizes = f"n = {n:,}, P = {P:,}, d = {d}, k = {k}"
    whole = paired(once, product)
    single, pool = features.astype(np.float32), candidates.astype(np.float32)
    least = paired(once, lambda: single @ pool.T)
    in_ten = paired(split, product)
    against = [1 / value for value in paired(once, library)]
    memory = []
    for _ in repeats(REPEATS):
        tracemalloc.start()
        once()
        memory.append(tracemalloc.get_traced_memory()[1] / 1e6)
        tracemalloc.stop()
    exact = (
        "processor time; screened in single precision, exact products where that cannot tell "
        "(shared/votes/SENSITIVITY.md, lemma 9)"
    )
    return [
        row(1, f"vote tally in one class / bare matrix product ({sizes})", whole, "×", most=1.6, note=exact),
        row(1, "vote tally in one class / bare matrix product in single precision", least, "×"),
        row(1, "vote tally in ten classes / bare matrix product of all", in_ten, "×", most=1.6),
        row(
            1,
            "scikit-learn's brute-force search / vote tally, one class",
            against,
            "×",
            least=2.0,
            note="scikit-learn: a library's exact search at the same k, in double precision",
            next="the product in single precision is 55 % of the tally, and finding what is near in it, which reads it "
            "twice more, 20 %; blocks of other sizes, or selected in parts that fit a cache, save at most 5 %. Left is "
            "selection compiled into the product: numpy alone cannot",
        ),
        row(1, "memory of a tally over its inputs", memory, "MB", most=200.0),
    ]


def generation() -> list[Row]:
    """Row 2: breed, render, embed, vote and select, with one vote of 4,000 private digits."""
    from patevolve.client.demo import plan_of
    from patevolve.client.digits import load_digits
    from patevolve.client.study import join
    from patevolve.shared.evolution.breed import breed, strength_at
    from patevolve.shared.evolution.select import resample, smooth
    from patevolve.shared.randomness import stream
    from patevolve.shared.tools import tools_of
    from patevolve.shared.votes import ballots

    plan = plan_of("digits", 4.0, 1).plan
    tools, private = tools_of(plan), join(list(load_digits(1).train.values()))
    features, voters = tools.encoder.encode(private.values), ballots.Electorate(private.units)
    classes, nearest = len(plan.data.classes), plan.questions.neighbours.nearest

    def one(count: int) -> dict[str, float]:
        each, clock = count // classes, {"breed": 0.0, "render": 0.0, "embed": 0.0, "vote": 0.0, "select": 0.0}
        parents = [tools.generator.draw(stream(1, "bench", cls), cls, max(1, each // 2)) for cls in range(classes)]
        marks = [time.process_time()]

        def lap(name: str) -> None:
            marks.append(time.process_time())
            clock[name] += marks[-1] - marks[-2]

        strength = strength_at(plan.evolution, 3)
        bred = [
            breed(stream(2, cls), tools.generator, parents[cls], cls, each, settings=plan.evolution, strength=strength)
            for cls in range(classes)
        ]
        genomes, own = np.concatenate(bred), np.repeat(np.arange(classes), each)
        lap("breed")
        values = tools.generator.render(genomes, own)
        lap("render")
        seen = tools.encoder.encode(values)
        lap("embed")
        bounds = ballots.neighbours_bounds(len(own), nearest, 1)
        votes = ballots.neighbours(voters, features, private.classes, (seen, own), nearest=nearest, bounds=bounds)
        lap("vote")
        for cls in range(classes):
            at = own == cls
            weights = smooth(seen[at], votes.values[at] / bounds.scale, plan.evolution.bandwidth)
            resample(stream(3, cls), weights, max(1, each // 2))
        lap("select")
        return {name: spent / len(own) for name, spent in clock.items()}

    def mean(count: int, times: int) -> dict[str, float]:
        laps = [one(count) for _ in range(times)]
        return {name: statistics.fmean(lap[name] for lap in laps) for name in laps[0]}

    one(250)
    often = {250: 20, 2560: 5, 25_600: 1}  # the small ones last too short to be timed once
    turns = [{count: mean(count, times) for count, times in often.items()} for _ in repeats(5)]
    whole = [{count: sum(lap.values()) for count, lap in turn.items()} for turn in turns]
    generator = {
        count: [100 * (turn[count]["render"] + turn[count]["embed"]) / sum(turn[count].values()) for turn in turns]
        for count in (2560, 25_600)
    }
    top = max(turns[0][25_600], key=lambda name: statistics.median(turn[25_600][name] for turn in turns))
    return [
        row(
            2,
            "processor time per candidate of a generation with 2,560 candidates / with 250",
            [turn[2560] / turn[250] for turn in whole],
            "×",
            most=1.05,
            note=f"digits, one site of {len(private.units):,} images; top cost: {top}",
        ),
        row(
            2,
            "the same with 25,600 candidates / with 2,560",
            [turn[25_600] / turn[2560] for turn in whole],
            "×",
            most=1.05,
            next="smooth in smaller groups than of 4,096 candidates, at a price in what noise averages out",
        ),
        row(2, "share of it in rendering and embedding, 2,560 candidates", generator[2560], "%", least=70.0),
        row(2, "the same share, 25,600 candidates", generator[25_600], "%", least=70.0),
    ]


def noise() -> list[Row]:
    """Row 3: exact integer noise."""
    import noise_speed

    rows, draws, fewer = [], 10**6, 10**5
    for law, sigma in (("gaussian", 2.0), ("gaussian", 1000.0), ("gaussian", 1e5), ("skellam", 40.0)):
        draw, _ = noise_speed.ours(law, sigma)
        theirs = noise_speed.opendp_gaussian(sigma)
        few, all_ = functools.partial(theirs, fewer), functools.partial(draw, draws)
        ratios = [10 * spent(few) / spent(all_) for _ in repeats(5)]
        words = f"OpenDP's discrete Gaussian / {law} noise of scale {sigma:g}, 10⁶ draws"
        note = "processor time; OpenDP is timed on 10⁵ draws, times ten"
        rows.append(row(3, words, ratios, "×", least=30.0, note=note, next="fewer random bits for wide tables"))
    return rows


def accounting() -> list[Row]:
    """Row 4: planning, a large ledger's ε, durable charges."""
    import ledger_speed

    from patevolve.client.demo import plan_of
    from patevolve.shared.privacy.ledger import Ledger
    from patevolve.shared.schedule import schedule

    plans = [plan_of("digits", 3.0 + repeat / 10, 1).plan for repeat in repeats(REPEATS)]
    planning = [seconds(lambda plan=plan: schedule(plan, 1000)) for plan in plans]  # each ε anew: nothing is kept
    with tempfile.TemporaryDirectory() as folder:
        _, charges, bare = ledger_speed.side_by_side(Path(folder), len(repeats(REPEATS)))

    def fill(path: Path) -> None:
        with Ledger.create(path, site="benchmark") as ledger:
            ledger._chain._connection.execute("PRAGMA synchronous=OFF")  # noqa: SLF001 - filling is not measured
            for number in range(ledger_speed.LARGE):
                ledger_speed.charge(ledger, f"q{number}", sigma=4e5 + number % 100)

    with Ledger.open(kept("large.sqlite", fill)) as ledger:
        spent = [seconds(lambda: ledger.spent(ledger_speed.CAP.delta)) for _ in repeats(REPEATS)]
    return [
        row(4, "planning: every question's noise, digits", planning, "s", most=1.0),
        row(4, "ε of a ledger of 10⁵ charges, 100 distinct events", spent, "s", most=1.0),
        row(
            4,
            "durable charges / bare appends of as many bytes, each with fsync",
            [one / other for one, other in zip(charges, bare, strict=True)],
            "×",
            note="the goal is 500 a second, or the disk's own rate where that is lower",
        ),
        row(4, "durable charges a second", charges, "1/s", least=min(500.0, statistics.median(bare))),
    ]


def pate() -> list[Row]:
    """Row 4, continued: the data-dependent PATE bound against a loop over queries."""
    import pate_speed

    from patevolve.shared.privacy import pate as bounds

    sigma, sample, queries, orders = 40.0, 1000, 100_000, np.arange(2.0, 32.0, 0.5)
    counts = pate_speed.histograms(queries, 10, 250, 0)

    def ours() -> object:
        return bounds.gnmax_total(bounds.log_q_gaussian(counts, sigma), sigma, orders)

    def loop() -> object:
        return [pate_speed.rowwise(some, sigma, orders) for some in counts[:sample]]

    ratios = [queries / sample / value for value in paired(ours, loop)]
    words = "PATE bound query by query / all at once (10⁵ queries, 60 orders)"
    return [row(4, words, ratios, "×", note="the loop is timed on 1,000 queries and scaled")]


WIRE_NEXT = (
    "at 28 pixels the goals leave 6 and 8 bytes a candidate, and the answer alone takes 8, so genomes cannot reach "
    "them. Sites could draw the pool themselves from the seed and the released tallies, and get its SHA-256. That "
    "would leave the answer alone: 38 × (4 bytes and 75 × under masks). Not built: a site would repeat all of the "
    "coordinator's free evolution, 20 s of processor time on digits, in floating point that another kind of processor "
    "rounds otherwise, so that candidates would have to be sent all the same where a site cannot follow, also by "
    "file, where nobody can ask back. Sending the population and letting sites mutate it would leave 24 bytes (13 ×) "
    "at the first vote and 39 at the second"
)


def wire() -> list[Row]:
    """Row 5: bytes of one vote of the digits plan to and from a site, against the same candidates as images."""
    from PIL import Image

    from patevolve.client.demo import plan_of
    from patevolve.shared.generators.simulator import Simulator
    from patevolve.shared.messages import Answer, Question, encode_answer, encode_question
    from patevolve.shared.randomness import stream

    agreed = plan_of("digits", 4.0, 1)
    plan, asking = agreed.plan, agreed.plan.questions.neighbours
    names, count = plan.data.classes, asking.candidates // len(plan.data.classes)
    rows, sample = [], 20
    for side in (plan.data.height, 224):
        simulator, png, flat = Simulator(glyphs=names, side=side), [], []
        for seed in repeats(5):
            drawn = [simulator.draw(stream(seed, "wire", cls), cls, count) for cls in range(len(names))]
            classes = np.repeat(np.arange(len(names)), count)
            arrays = {"genomes": np.concatenate(drawn), "classes": classes}
            posed = Question(kind="neighbours", name="neighbours/1", plan=agreed.sha256, run="bench", arrays=arrays)
            votes = np.rint(stream(seed, "votes").normal(0.0, 4e3, len(classes))).astype(np.int64)
            answer = Answer(question="0" * 64, site="site", values=votes, std=4e3, full=False, head="")
            back = len(encode_answer(answer)) / len(classes)
            ours = len(encode_question(posed)) / len(classes) + back
            some = np.concatenate([own[:sample] for own in drawn])
            images = simulator.render(some, np.repeat(np.arange(len(names)), sample))
            png.append(float(np.mean([png_bytes(Image.fromarray(image)) for image in images])) + back)
            flat.append(4 * side * side + back)
            png[-1], flat[-1] = png[-1] / ours, flat[-1] / ours
        note = f"{asking.candidates:,} candidates of {ours:.0f} bytes there and back, the same answer to both; "
        note += f"{asking.times} of the plan's {plan.evolution.generations} generations ask, the others send nothing"
        rest = {"note": note, "next": WIRE_NEXT}
        rows.append(row(5, f"PNG images / genomes, {side} pixels", png, "×", least=50.0, **rest))
        rows.append(row(5, f"float32 images / genomes, {side} pixels", flat, "×", least=400.0, **rest))
    return rows


def png_bytes(image: Any) -> int:
    """Return the size of an image as PNG."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return buffer.tell()


def sites() -> list[Row]:
    """Row 6: many sites in one process."""
    found: dict[int, list[dict[str, float]]] = {10: [], 100: [], 1000: []}
    often = {10: 10, 100: 5, 1000: 1}  # the small ones last too short to be timed once
    for _ in repeats(5):
        for count, runs in found.items():
            runs.append(script("sites_speed.py", str(count), "--times", str(often[count])))
    thousand = found[1000]
    work = {count: [run["founding_cpu_s"] + run["run_cpu_s"] for run in runs] for count, runs in found.items()}
    early = [(b - a) / 90 for a, b in zip(work[10], work[100], strict=True)]
    late = [(b - a) / 900 for a, b in zip(work[100], work[1000], strict=True)]
    memory = [(b["peak_mib"] - a["peak_mib"]) * 1024 / 900 for a, b in zip(found[100], found[1000], strict=True)]
    own = "each site with its own folder, key and ledger, in memory, so without waiting for a disk"
    note = f"counts, prototypes and one vote; {own}; "
    note += (
        "what a process makes once, libraries and tables, counts in the seconds and not in what a further site takes"
    )
    return [
        row(
            6,
            "1,000 sites in one process: founding and one full generation",
            [run["once_s"] + run["founding_s"] + run["run_s"] for run in thousand],
            "s",
            most=60.0,
            note=note,
        ),
        row(6, "the same: peak memory", [run["peak_mib"] for run in thousand], "MiB", most=2048.0),
        row(
            6,
            "processor time of each further site, from 100 to 1,000 / from 10 to 100",
            [b / a for a, b in zip(early, late, strict=True)],
            "×",
            most=1.1,
            note="{each:.0f} ms of processor time for each, site and coordinator together",
            figures={"each": [1000 * value for value in late]},
        ),
        row(6, "memory per site, from 100 to 1,000", memory, "KiB"),
    ]


def edge() -> list[Row]:
    """Row 7: cold start of the voting client."""
    runs = [script("edge_speed.py") for _ in repeats(REPEATS)]
    heavy = sorted({name for run in runs for name in run["heavy"]})
    note = f"heavy libraries loaded: {', '.join(heavy) or 'none (no torch, SciPy, scikit-learn, pandas, matplotlib)'}"
    note += "; starting the interpreter is not counted, and the files are in the page cache"
    return [
        row(7, "voting client: import to first vote", [run["first_vote_s"] for run in runs], "s", most=2.0, note=note),
        row(7, "the same: peak memory", [run["peak_mib"] for run in runs], "MiB", most=250.0),
    ]


def networks() -> list[Row]:
    """Row 7: a public network by onnxruntime against PyTorch, and the voting client whose plan names it."""
    from patevolve.shared.encoder import efficientnet

    files = kept("networks", Path.mkdir)
    often = {"1": 60, "64": REPEATS}
    counts = [f"{batch}:{len(repeats(count))}" for batch, count in often.items()]
    ratios = script("encoder_speed.py", "--folder", str(files), "--repeats", *counts)
    file = kept("backbone.onnx", lambda path: path.write_bytes(efficientnet.checked(size=64, blocks=(11,))[0]))
    runs = [script("edge_speed.py", "--network", str(file)) for _ in repeats(REPEATS)]
    rows = [
        row(7, f"PyTorch eager / onnxruntime {name}, {images}", ratios[f"{name}_{batch}"], "×", least=least)
        for name, least in (("fp32", 1.5), ("int8", 2.5))
        for batch, images in ((1, "one image"), (64, "64 images"))
    ]
    rows[0]["figures"] = {
        f"{name}_{batch}": [ratios[f"ms_{batch}"][name]] for name in ("fp32", "int8") for batch in often
    }
    rows[0]["note"] = (
        "EfficientNet-Lite0 to block 11, 64 × 64 pixels, one thread, processor time: onnxruntime takes {fp32_1:.2f} ms "
        "for an image alone and {fp32_64:.2f} ms for one of 64, int8 {int8_1:.2f} and {int8_64:.2f} ms"
    )
    spent = [run["cpu_s"] + run["probe_cpu_s"] for run in runs]
    own = "processor time with the interpreter's start and the probe; 300 records and 400 candidates are described"
    return [
        *rows,
        row(7, "voting client with that network: start to first vote, processor time", spent, "s", most=2.0, note=own),
        row(7, "the same: peak memory", [run["peak_mib"] for run in runs], "MiB", most=250.0),
    ]


MEASUREMENTS: dict[str, Callable[[], list[Row]]] = {
    "tally": tally,
    "generation": generation,
    "noise": noise,
    "accounting": accounting,
    "pate": pate,
    "wire": wire,
    "sites": sites,
    "edge": edge,
    "networks": networks,
}

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as own:
        os.environ.setdefault(KEEP, own)
        print(json.dumps(MEASUREMENTS[sys.argv[1]]()))
