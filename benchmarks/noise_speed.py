"""Time of one million integer noise draws: this package's tables against OpenDP's ``make_gaussian`` on integers.

Run: ``python benchmarks/noise_speed.py [--repeats 5] [--draws 1000000]``. Both draw into one process in turn, so that
a busy machine slows both; the table gives the median, the range over the repeats, and the smallest ratio of any repeat.
Tables are warm; the time to build one from nothing stands beside it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import opendp.prelude as dp

from patevolve.shared.noise import discrete_gaussian, discrete_laplace, skellam
from patevolve.shared.randomness import SystemNoise

Draw = Callable[[int], object]


def opendp_gaussian(sigma: float) -> Draw:
    """Return OpenDP's exact integer Gaussian as a function of the number of draws."""
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)
    measurement = dp.m.make_gaussian(*space, scale=sigma)
    return lambda size: measurement([0] * size)


def seconds(draw: Draw, size: int) -> float:
    """Return the wall time of one call."""
    start = time.perf_counter()
    draw(size)
    return time.perf_counter() - start


def ours(law: str, sigma: float) -> tuple[Draw, float]:
    """Return a warm sampler of this law and the time it took to build its tables."""
    source = SystemNoise()
    sampler, argument = {
        "gaussian": (discrete_gaussian.sampler, sigma),
        "laplace": (discrete_laplace.sampler, sigma),
        "skellam": (skellam.sampler, sigma**2),
    }[law]
    sampler.cache_clear()
    start = time.perf_counter()
    made = sampler(argument)
    built = time.perf_counter() - start
    made.draw(1000, source)
    return lambda size: made.draw(size, source), built


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="turns of each sampler (default 5)")
    parser.add_argument("--draws", type=int, default=10**6, help="draws per turn (default 1000000)")
    options = parser.parse_args()
    print(
        "| law | scale | build, s | ours, µs per draw (range) | OpenDP Gaussian, µs per draw (range) | ratio, least |"
    )
    print("|---|---|---|---|---|---|")
    cases = [("gaussian", s) for s in (2.0, 1000.0, 1e5)] + [("laplace", 40.0), ("skellam", 40.0)]
    for law, sigma in cases:
        draw, built = ours(law, sigma)
        reference = opendp_gaussian(sigma)
        pairs = [(seconds(draw, options.draws), seconds(reference, options.draws)) for _ in range(options.repeats)]
        mine, theirs = ([1e6 * pair[side] / options.draws for pair in pairs] for side in (0, 1))
        print(
            f"| {law} | {sigma:g} | {built:.3f} "
            f"| {statistics.median(mine):.3f} ({min(mine):.3f} to {max(mine):.3f}) "
            f"| {statistics.median(theirs):.2f} ({min(theirs):.2f} to {max(theirs):.2f}) "
            f"| {statistics.median(theirs) / statistics.median(mine):.0f}, "
            f"{min(b / a for a, b in pairs):.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
