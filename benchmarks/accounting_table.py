"""The accounting table of the README as Markdown: ε at δ = 1e-5 of q answers with noise σ, by five accountants.

Run: ``python benchmarks/accounting_table.py`` (a second) or with ``--pld`` for the tight figures of the true discrete
noise where they are bounded in time (about two minutes). A query is a vote that moves from one class to another
(L1 = 2, L2 = √2) among ten classes; ten sites add equal shares, none drops out or colludes. Rows with σ < 6.4 have
shares below 2, which the mechanism refuses: they show why.
"""

from __future__ import annotations

import argparse
import math

from patevolve.shared.privacy import accountant, tight
from patevolve.shared.privacy.events import DiscreteGaussian, DiscreteGaussianSum, Event, Skellam

DELTA = 1e-5
SIGMAS = (2, 5, 10, 20, 40)
QUERIES = (10, 100, 1_000, 10_000)
SHARES = 10
CLASSES = 10


def events(sigma: float, queries: int) -> tuple[DiscreteGaussian, Skellam, DiscreteGaussianSum]:
    """Return the same queries under the three kinds of noise, all of standard deviation ``sigma``."""
    l1, l2 = 2.0, math.sqrt(2.0)
    return (
        DiscreteGaussian(sigma=sigma, l2=l2, count=queries),
        Skellam(variance=sigma**2, l1=l1, l2=l2, count=queries),
        DiscreteGaussianSum(
            share_sigma=sigma / math.sqrt(SHARES), shares=SHARES, l1=l1, l2=l2, dimension=CLASSES, count=queries
        ),
    )


def rdp(event: Event) -> float:
    """Return ε by Rényi composition, as ledgers charge it."""
    return accountant.epsilon(accountant.rdp(event), DELTA).epsilon


def figures(sigma: float, queries: int, *, pld: bool) -> list[str]:
    """Return the cells of one row."""
    gaussian, skellam, shares = events(sigma, queries)
    cells = [tight.figure([gaussian], DELTA).epsilon, rdp(gaussian), rdp(skellam), rdp(shares)]
    texts = [f"{cell:,.3f}" for cell in cells]
    for event in (skellam, shares) if pld else ():
        figure = tight.figure([event], DELTA)
        texts.append(f"{figure.epsilon:,.3f}" if figure.accountant == "pld" else "-")
    return texts


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pld", action="store_true", help="add the tight figures of the true discrete noise")
    options = parser.parse_args()
    heads = ["σ", "q", "Gaussian, exact", "Gaussian, RDP", "Skellam, RDP", "sum of ten shares, RDP"]
    heads += ["Skellam, PLD", "sum of ten shares, PLD"] if options.pld else []
    print("| " + " | ".join(heads) + " |")
    print("|" + "---:|" * len(heads))
    for sigma in SIGMAS:
        for queries in QUERIES:
            row = [str(sigma), f"{queries:,}", *figures(float(sigma), queries, pld=options.pld)]
            print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
