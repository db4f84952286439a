"""Repeat the seed article's PATE demo honestly: its accuracy, and what its 900 answers really cost.

    OMP_NUM_THREADS=1 python benchmarks/pate_article.py

6,000 rows, 8 features, 4 classes; 10 teachers (logistic regressions), Lap(2/γ) with γ = 2, a student trained on 900
answers and judged on 900 rows. Contiguous shards as in the article, and keyed shards as PATE's proof needs.
"""

from __future__ import annotations

import argparse
import hashlib
import math

import numpy as np
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from patevolve.shared import pate_curve
from patevolve.shared.data import shard
from patevolve.shared.noise.noisy_max import GNMax, LNMax
from patevolve.shared.privacy import accountant, calibrate, pate
from patevolve.shared.privacy.events import LaplaceNoisyMax
from patevolve.shared.privacy.site_only import BADGE
from patevolve.shared.randomness import SystemNoise
from patevolve.shared.tally import ExactTally

GAMMA, TEACHERS, CLASSES, DELTA = 2.0, 10, 4, 1e-5


def data() -> tuple[np.ndarray, ...]:
    """Return the article's split: private rows and classes, public ones, judging ones."""
    x, y = make_classification(n_samples=6000, n_features=8, n_classes=4, n_informative=6, random_state=0)
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.3, random_state=0)
    x_public, x_judge, y_public, y_judge = train_test_split(x_test, y_test, test_size=0.5, random_state=0)
    return x_train, y_train, x_public, y_public, x_judge, y_judge


def shards(kind: str, size: int, seed: int) -> np.ndarray:
    """Return each row's teacher: contiguous slices (the article), or the keyed hash of the row's id."""
    if kind == "contiguous":
        return np.minimum(np.arange(size) // (size // TEACHERS), TEACHERS - 1)
    secret = hashlib.sha256(f"demonstration secret {seed}".encode()).digest()
    return shard.teacher_of(secret, np.arange(size).astype(str), TEACHERS)


def teachers_changed_by_one_removal(kind: str, size: int) -> int:
    """Return how many teachers' training sets change when the first row leaves."""
    everyone = np.arange(size)
    before = shards(kind, size, 0)
    if kind == "contiguous":
        after = dict(zip(everyone[1:].tolist(), shards(kind, size - 1, 0).tolist(), strict=True))
    else:
        after = dict(zip(everyone[1:].tolist(), before[1:].tolist(), strict=True))
    sets = [
        (frozenset(everyone[before == k].tolist()), frozenset(row for row, t in after.items() if t == k))
        for k in range(TEACHERS)
    ]
    return sum(old != new for old, new in sets)


def vote(kind: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the votes on the public rows, (900, 4), and each teacher's accuracy on the judging rows."""
    x, y, x_public, _, x_judge, y_judge = data()
    models = pate_curve.train_teachers(x, y, shards(kind, len(y), seed), TEACHERS)
    votes = pate_curve.count_votes([model.predict(x_public) for model in models], CLASSES)
    return votes, np.array([model.score(x_judge, y_judge) for model in models])


def student(labels: np.ndarray) -> float:
    """Return the accuracy of the article's student."""
    _, _, x_public, _, x_judge, y_judge = data()
    return float(LogisticRegression(max_iter=500).fit(x_public, labels).score(x_judge, y_judge))


def tally(votes: np.ndarray) -> ExactTally:
    """Return the votes as the aggregators take them."""
    return ExactTally(values=votes.ravel(), l1=2.0 * len(votes), l2=math.sqrt(2.0 * len(votes)))


def float_laplace(votes: np.ndarray, seed: int) -> np.ndarray:
    """Return labels by the article's own float noise, Lap(2/γ) on each count (seeded, as there)."""
    noise = np.random.default_rng(seed).laplace(scale=2.0 / GAMMA, size=votes.shape)
    return (votes + noise).argmax(axis=1)


def costs(votes: np.ndarray) -> None:
    """Print ε of the 900 answers by each analysis."""
    queries, orders = len(votes), np.array(accountant.ORDERS)
    print(
        f"\nε of {queries} answers at γ = {GAMMA:g} (noise Lap({2 / GAMMA:g}), "
        f"each answer is ε = {GAMMA:g}), δ = {DELTA:g}"
    )
    curve = accountant.compose([LaplaceNoisyMax(scale=2 / GAMMA, count=queries)])
    print(f"  {'sum of the answers (pure DP)':<58}{queries * GAMMA:10.4g}")
    print(f"  {'Rényi, any votes':<58}{accountant.epsilon(curve, DELTA).epsilon:10.4g}")
    dependent = pate.lnmax_dependent(votes, 2 / GAMMA, orders).open_at_site()
    print(f"  {'Rényi, these votes [' + BADGE + ']':<58}{accountant.epsilon(dependent, DELTA).epsilon:10.4g}")
    ordered = np.sort(votes, axis=1)
    margins = ordered[:, -1] - ordered[:, -2]
    article = float((2 / GAMMA * np.exp(-margins / GAMMA)).sum())
    print(f"  {'the article: Σ (2/γ)·exp(−m/γ) over these margins':<58}{article:10.4g}   too low")
    print(f"  {'the article: q·(2/γ), its cost without margins':<58}{queries * 2 / GAMMA:10.4g}   too low")
    print(f"  margins: median {np.median(margins):g} of {TEACHERS}; {np.mean(margins <= 2):.0%} are 2 votes or fewer")


def honest_settings(votes: np.ndarray, truth: np.ndarray, repeats: int) -> None:
    """Print what ε of 1, 8 and 50 for the same 900 answers, or for 100 of them, leaves of labels and student."""
    print("\nThe same teachers at an honest ε (GNMax, Rényi; labels right, student; mean ± sd over the noise)")
    for queries in (900, 100):
        for target in (1.0, 8.0, 50.0):
            sigma = calibrate.sigma_for(target, DELTA, math.sqrt(2.0), queries)
            draws = [
                GNMax(sigma=sigma, classes=CLASSES).release(tally(votes[:queries]), SystemNoise())
                for _ in range(repeats)
            ]
            right = np.array([(labels == truth[:queries]).mean() for labels in draws])
            x_public, x_judge, y_judge = data()[2], data()[4], data()[5]
            fits = [LogisticRegression(max_iter=500).fit(x_public[:queries], labels) for labels in draws]
            scores = np.array([fit.score(x_judge, y_judge) for fit in fits])
            print(
                f"  {queries:4d} answers, ε = {target:<3g} σ = {sigma:6.1f} votes:  "
                f"labels {right.mean():.3f} ± {right.std(ddof=1):.3f}   "
                f"student {scores.mean():.3f} ± {scores.std(ddof=1):.3f}"
            )


def main() -> None:
    """Run the demo and print its accuracies and costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10, help="noise draws per figure (the article shows one)")
    args = parser.parse_args()
    x, y, x_public, y_public, x_judge, y_judge = data()
    keyed_votes = vote("keyed", 0)[0]
    for kind in ("contiguous", "keyed"):
        votes, alone = vote(kind, 0)
        plain = student(votes.argmax(axis=1))
        theirs = np.array([student(float_laplace(votes, seed)) for seed in range(args.repeats)])
        mechanism = LNMax(scale=2 / GAMMA, classes=CLASSES)
        ours = np.array([student(mechanism.release(tally(votes), SystemNoise())) for _ in range(args.repeats)])
        print(
            f"{kind} shards: removing one row changes "
            f"{teachers_changed_by_one_removal(kind, len(y))} of {TEACHERS} teachers"
        )
        print(f"  single teacher             {alone.mean():.3f} ± {alone.std(ddof=1):.3f}")
        print(
            f"  student, float Lap({2 / GAMMA:g})      {theirs.mean():.3f} ± {theirs.std(ddof=1):.3f}   "
            "(as in the article)"
        )
        print(f"  student, integer noise     {ours.mean():.3f} ± {ours.std(ddof=1):.3f}")
        print(f"  student, no noise          {plain:.3f}")
    everyone = LogisticRegression(max_iter=500).fit(x, y).score(x_judge, y_judge)
    on_truth = LogisticRegression(max_iter=500).fit(x_public, y_public).score(x_judge, y_judge)
    print(f"no privacy, all 4,200 rows   {everyone:.3f}")
    print(f"student on true labels       {on_truth:.3f}")
    print(f"chance (largest class)       {np.bincount(y_judge).max() / len(y_judge):.3f}")
    costs(keyed_votes)
    honest_settings(keyed_votes, y_public, args.repeats)


if __name__ == "__main__":
    main()
