"""CPU time of a site in the secure sum, beside the bare expansion of as many masks, and beside Flower's SecAgg+.

    python benchmarks/secagg_speed.py [sites ...]      (default: 10 100 1000)

Every message passes as bytes: encoded, signed, verified, decoded. A site's time is all that it does for one question of
10^4 values, in both exchanges, set-up aside; half of the allowed drop-outs are lost before the first and the second.
Of that, one signature checked (of the question's request) takes the same whatever the number of sites and the length of
the vector: it is timed by itself, and the rest is set against the bare expansion too.
In each repeat all are timed one after the other, so that all meet the same load; ratios are taken per repeat.
Flower's part is its mask expansion alone (``flwr.common.secure_aggregation``), with modulus 2^32; it needs flwr 1.42.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from patevolve.shared.privacy.signing import Identity
from patevolve.shared.secagg import graph, keys
from patevolve.shared.secagg.coordinator import CoordinatorSum
from patevolve.shared.secagg.site import SiteSum
from patevolve.shared.secagg.spec import SumSpec

try:
    from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
except ImportError:
    pseudo_rand_gen = None

LENGTH = 10_000
LOST = {10: (1, 1), 100: (5, 2), 1000: (50, 20)}  # sites -> (drop-outs, colluders); others: a twentieth, a fiftieth
REPEATS = 7


def seconds(work: Callable[[], object]) -> float:
    """Return the CPU time that ``work`` took."""
    start = time.process_time()
    work()
    return time.process_time() - start


def bare(masks: int) -> None:
    """Expand as many masks as a site does, and nothing else."""
    zeros = bytes(4 * LENGTH)
    for _ in range(masks):
        Cipher(ChaCha20(os.urandom(32), bytes(16)), mode=None).encryptor().update(zeros)


def signatures(message: bytes, public_key: str) -> None:
    """Check as many signatures as a site does for one question: one."""
    keys.verify(message, public_key)


def flower(masks: int) -> None:
    """Expand as many masks by Flower's helper: 32 bytes folded to 32 bits, expanded by a Mersenne Twister."""
    for _ in range(masks):
        pseudo_rand_gen(os.urandom(32), 1 << 32, [(LENGTH,)])


def spread(values: list[float], scale: float = 1.0) -> str:
    """Return median (min to max)."""
    return f"{scale * statistics.median(values):.2f} ({scale * min(values):.2f} to {scale * max(values):.2f})"


def begin(count: int) -> tuple[SumSpec, CoordinatorSum, dict[str, SiteSum], float]:
    """Set up a run; return it and the set-up's CPU time per site, in seconds."""
    dropouts, colluders = LOST.get(count, (count // 20, count // 50))
    identities = {f"site{number:05d}": Identity(key=Ed25519PrivateKey.generate()) for number in range(count)}
    chief = Identity(key=Ed25519PrivateKey.generate())
    spec = SumSpec(
        plan="ab" * 32,
        run="benchmark",
        sites={name: identity.public_key for name, identity in identities.items()},
        coordinator=chief.public_key,
        dropouts=dropouts,
        colluders=colluders,
    )
    graph.build(spec)  # its sizes are searched once for a plan: no part of a site's set-up
    coordinator, sites, spent = CoordinatorSum(spec, identity=chief), {}, 0.0
    for name, identity in identities.items():
        start = time.process_time()
        sites[name] = SiteSum(spec, site=name, identity=identity)
        data = sites[name].advert()
        spent += time.process_time() - start
        coordinator.receive_advert(data)
    data = coordinator.close_setup()
    spent += seconds(lambda: [site.accept_keys(data) for site in sites.values()])
    return spec, coordinator, sites, spent / count


def question(coordinator: CoordinatorSum, sites: dict[str, SiteSum], name: str, lost: int) -> dict[str, object]:
    """Ask one question; return CPU seconds of each site and of the coordinator, and the largest messages."""
    values = {site: np.random.default_rng(number).integers(-1000, 1000, LENGTH) for number, site in enumerate(sites)}
    spent, up, down, start = dict.fromkeys(sites, 0.0), 0, 0, time.process_time()
    ask = coordinator.ask(name, LENGTH)
    alive = list(sites)[lost:]
    for site in alive:
        before = time.process_time()
        masked = sites[site].mask(ask, values[site])
        spent[site] += time.process_time() - before
        up = max(up, len(masked))
        coordinator.receive_masked(masked)
    for site, request in coordinator.close_masked(name).items():
        if site in alive[lost:]:
            before = time.process_time()
            shares = sites[site].unmask(request)
            spent[site] += time.process_time() - before
            down = max(down, len(request))
            coordinator.receive_unmasked(shares)
        sites[site].forget(name)
    opened = coordinator.result(name)
    if not np.array_equal(opened.values, sum(values[site] for site in alive)):
        sys.exit("the sum is wrong")
    coordinator.forget(name)
    busy = [spent[site] for site in alive]
    total = time.process_time() - start
    return {"site": statistics.fmean(busy), "worst": max(busy), "rest": total - sum(busy), "up": up, "down": down}


def measure(count: int) -> None:
    """Print the figures for one number of sites."""
    spec, coordinator, sites, setup = begin(count)
    built = graph.build(spec)
    masks = 1 + built.neighbours.shape[1]
    times: dict[str, list[float]] = {"site": [], "worst": [], "bare": [], "signed": [], "flower": [], "rest": []}
    someone = Identity(key=Ed25519PrivateKey.generate())
    message = keys.sign(b"ask", someone)
    question(coordinator, sites, "warm", spec.dropouts // 2)
    for repeat in range(REPEATS if count < 500 else 3):
        figures = question(coordinator, sites, f"q{repeat}", spec.dropouts // 2)
        for key in ("site", "worst", "rest"):
            times[key].append(float(figures[key]))
        times["bare"].append(seconds(lambda: [bare(masks) for _ in range(30)]) / 30)
        times["signed"].append(seconds(lambda: [signatures(message, someone.public_key) for _ in range(30)]) / 30)
        if pseudo_rand_gen is not None:
            times["flower"].append(seconds(lambda: [flower(masks) for _ in range(3)]) / 3)
    ratios = [one / other for one, other in zip(times["site"], times["bare"], strict=True)]
    print(f"\n{count} sites, d = {spec.dropouts}, t = {spec.colluders}: {masks - 1} neighbours, {built.sizes}")
    print(f"  site, ms CPU a question     {spread(times['site'], 1e3)}; largest {spread(times['worst'], 1e3)}")
    print(f"  site, us CPU a mask         {spread(times['site'], 1e6 / masks)}")
    print(f"  bare ChaCha20, ms           {spread(times['bare'], 1e3)} for {masks} masks")
    print(f"  site / bare                 {spread(ratios)}")
    rest = [(own - sig) / other for own, sig, other in zip(times["site"], times["signed"], times["bare"], strict=True)]
    print(f"  signature, ms               {spread(times['signed'], 1e3)} whatever the sites and the length")
    print(f"  site less this / bare       {spread(rest)}")
    if pseudo_rand_gen is None:
        print("  Flower's mask expansion     flwr is not installed")
    else:
        print(f"  Flower's expansion, ms      {spread(times['flower'], 1e3)} for {masks} masks")
        pairs = zip(times["flower"], times["site"], strict=True)
        print(f"  Flower's expansion / site   {spread([one / other for one, other in pairs])}")
    print(f"  coordinator, ms CPU         {spread(times['rest'], 1e3)} (all sites)")
    print(f"  set-up, ms CPU a site       {1e3 * setup:.2f} (once in a run)")
    print(f"  bytes up, and down to a decider: {figures['up']}, {figures['down']}")


def main() -> None:
    """Measure each number of sites named on the command line."""
    for count in [int(text) for text in sys.argv[1:]] or [10, 100, 1000]:
        measure(count)


if __name__ == "__main__":
    main()
