"""How bright a colour is: the one rule by which colour becomes grey, wherever that is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

GREY = (0.299, 0.587, 0.114)  # of red, green and blue: ITU-R BT.601-7, section 2.5.1


def luminance(images: NDArray[Any]) -> NDArray[np.float32]:
    """Return (...) float32 levels of (..., 3) RGB, each a function of its own pixel alone, bit by bit."""
    # Products and sums of single numbers, in this order: no library may choose another one by the number of images.
    red, green, blue = (np.float32(weight) * images[..., i].astype(np.float32) for i, weight in enumerate(GREY))
    bright: NDArray[np.float32] = red + green + blue  # label: own-luminance
    return bright
