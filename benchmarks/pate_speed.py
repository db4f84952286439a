"""Time the data-dependent PATE bound: 10⁵ queries × 10 classes × 60 orders, vectorised against query by query.

    OMP_NUM_THREADS=1 python benchmarks/pate_speed.py

Two reference loops follow the published formulas (Papernot 2018, Propositions 7 and 10, Theorem 6):
``rowwise`` takes one query at a time with the 60 orders as a vector, the way the published analysis code is used;
``scalar`` takes one query and one order at a time. They run on a sample of the same histograms, and their time is
scaled up. Their results must agree with the vectorised ones to 1e-9.
"""

from __future__ import annotations

import argparse
import math
import time

import numpy as np
from scipy import stats

from patevolve.shared.privacy import pate


def histograms(queries: int, classes: int, teachers: int, seed: int) -> np.ndarray:
    """Return random vote histograms from near unanimity to dissent."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(classes, 0.15), size=queries)
    return rng.multinomial(teachers, p)


def rowwise(counts: np.ndarray, sigma: float, orders: np.ndarray) -> np.ndarray:
    """Bound one query: the orders as one vector."""
    best = int(np.argmax(counts))
    gaps = np.delete(counts[best] - counts, best)
    terms = stats.norm.logsf(gaps, scale=math.sqrt(2.0) * sigma)
    log_q = min(float(np.logaddexp.reduce(terms)), math.log(1 - 1 / counts.size))
    independent = orders / sigma**2
    mu2 = sigma * math.sqrt(-log_q)
    if not theorem_holds(log_q, mu2, sigma):
        return independent
    log_1q = math.log1p(-math.exp(log_q))
    log_a = (orders - 1) * (log_1q - math.log1p(-math.exp((log_q + mu2 / sigma**2) * (1 - 1 / mu2))))
    log_b = (orders - 1) * ((mu2 + 1) / sigma**2 - log_q / mu2)
    bound = np.logaddexp(log_1q + log_a, log_q + log_b) / (orders - 1)
    return np.where(mu2 + 1 > orders, np.minimum(bound, independent), independent)


def scalar(counts: np.ndarray, sigma: float, order: float) -> float:
    """Bound one query at one order."""
    best = int(np.argmax(counts))
    gaps = [int(counts[best]) - int(c) for i, c in enumerate(counts) if i != best]
    terms = stats.norm.logsf(gaps, scale=math.sqrt(2.0) * sigma)
    top = float(terms.max())
    log_q = min(top + math.log(sum(math.exp(t - top) for t in terms)), math.log(1 - 1 / counts.size))
    independent = order / sigma**2
    mu2 = sigma * math.sqrt(-log_q)
    if not (mu2 + 1 > order and theorem_holds(log_q, mu2, sigma)):
        return independent
    log_1q = math.log1p(-math.exp(log_q))
    log_a = (order - 1) * (log_1q - math.log1p(-math.exp((log_q + mu2 / sigma**2) * (1 - 1 / mu2))))
    log_b = (order - 1) * ((mu2 + 1) / sigma**2 - log_q / mu2)
    return min(independent, float(np.logaddexp(log_1q + log_a, log_q + log_b)) / (order - 1))


def theorem_holds(log_q: float, mu2: float, sigma: float) -> bool:
    """Check Theorem 6's conditions that do not depend on the order."""
    if mu2 <= 1:
        return False
    lemma_9 = (mu2 - 1) * mu2 / sigma**2 - mu2 * (math.log1p(1 / mu2) + math.log1p(1 / (mu2 - 1)))
    return log_q <= lemma_9 and -log_q > mu2 / sigma**2


def main() -> None:
    """Run the three and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=100_000, help="histograms to bound")
    parser.add_argument("--sigma", type=float, default=40.0, help="GNMax noise, votes")
    parser.add_argument("--sample", type=int, default=3_000, help="queries of the row-wise loop")
    args = parser.parse_args()
    orders = np.arange(2.0, 32.0, 0.5)
    counts = histograms(args.queries, 10, 250, 0)

    matrix, curve = math.inf, math.inf
    for _ in range(7):
        begin = time.process_time()
        bounds = pate.gnmax_bound(pate.log_q_gaussian(counts, args.sigma), args.sigma, orders)
        matrix = min(matrix, time.process_time() - begin)
        begin = time.process_time()
        total = pate.gnmax_total(pate.log_q_gaussian(counts, args.sigma), args.sigma, orders)
        curve = min(curve, time.process_time() - begin)

    begin = time.process_time()
    rows = np.stack([rowwise(c, args.sigma, orders) for c in counts[: args.sample]])
    by_row = (time.process_time() - begin) * args.queries / args.sample
    few = max(1, args.sample // 30)
    begin = time.process_time()
    cells = np.array([[scalar(c, args.sigma, float(a)) for a in orders] for c in counts[:few]])
    by_cell = (time.process_time() - begin) * args.queries / few

    np.testing.assert_allclose(bounds[: args.sample], rows, rtol=1e-9)
    np.testing.assert_allclose(bounds[:few], cells, rtol=1e-9)
    np.testing.assert_allclose(total, bounds.sum(axis=0), rtol=1e-9)
    helped = float((bounds < orders / args.sigma**2).mean())
    print(
        f"{args.queries} queries x 10 classes x {orders.size} orders, sigma={args.sigma:g}; bound helps in {helped:.0%}"
    )
    print("CPU seconds; the loops are timed on a sample and scaled; ours from the raw counts, best of 7")
    print(f"{'':<42}{'seconds':>9}{'/ curve':>10}{'/ matrix':>10}")
    print(f"{'ours, composed curve (orders)':<42}{curve:9.3f}{1.0:10.1f}{curve / matrix:10.2f}")
    print(f"{'ours, every bound (queries x orders)':<42}{matrix:9.3f}{matrix / curve:10.2f}{1.0:10.1f}")
    loops = {f"query by query ({args.sample} run)": by_row, f"query and order by order ({few} run)": by_cell}
    for name, seconds in loops.items():
        print(f"{name:<42}{seconds:9.1f}{seconds / curve:10.0f}{seconds / matrix:10.0f}")


if __name__ == "__main__":
    main()
