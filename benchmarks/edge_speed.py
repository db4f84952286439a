"""Cold start of the voting client: from the first import to the first answer to a vote. One line of JSON.

    python benchmarks/edge_speed.py

The process imports what a site imports, reads its records, and answers one ``neighbours`` question on 400 candidates
of the heart demonstration's schema, charged to a fresh ledger. Its folder is made by another process before.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HEAVY = ("torch", "tensorflow", "scipy", "sklearn", "pandas", "matplotlib")
SITE = "Hungary"
CANDIDATES = 400


def make(folder: Path) -> None:
    """Write the site's folder and the question, as approving a plan and a coordinator would."""
    import numpy as np

    from patevolve.client.policy import FILE, draft
    from patevolve.client.variants import PRIVATE_EVOLUTION
    from patevolve.shared.files import write_atomic
    from patevolve.shared.messages import Question, encode_question
    from patevolve.shared.plan import agree
    from patevolve.shared.plan_edit import vary
    from patevolve.shared.randomness import stream
    from patevolve.shared.tools import tools_of

    heart = Path(__file__).parents[1] / "client/demo_data/heart.toml"
    changes = {**PRIVATE_EVOLUTION, "privacy.trust": "each-site", "evolution.population": CANDIDATES}
    sizes = {"questions.neighbours.candidates": CANDIDATES, "release.samples": CANDIDATES}
    agreed = vary(agree(heart.read_text(encoding="utf-8")), {**changes, **sizes})
    (folder / "plan.toml").write_text(agreed.text, encoding="utf-8")
    write_atomic(folder / "site" / FILE, draft(SITE, agreed, reserve=2.0).encode())
    asking, tools = agreed.plan.questions.neighbours, tools_of(agreed.plan)
    classes = np.arange(asking.candidates) % len(agreed.plan.data.classes)
    arrays = {"genomes": tools.generator.draw(stream(1, "edge"), 0, asking.candidates), "classes": classes}
    question = Question(kind="neighbours", name="neighbours/1", plan=agreed.sha256, run="bench", arrays=arrays)
    (folder / "question").write_bytes(encode_question(question))


def vote(folder: Path) -> None:
    """Start cold, answer once, and print what it took."""
    start = time.perf_counter()
    from patevolve.client.guard import Guard
    from patevolve.client.home import open_home
    from patevolve.client.institution import Institution, render_once
    from patevolve.client.simulate import index_of, load_records, system_noise
    from patevolve.client.teachers import teach
    from patevolve.shared.envelopes import cohort_sha256
    from patevolve.shared.plan import read_plan
    from patevolve.shared.schedule import schedule
    from patevolve.shared.tools import tools_of

    imported = time.perf_counter()
    agreed = read_plan(folder / "plan.toml")
    home, tools = open_home(folder / "site", site=SITE), tools_of(agreed.plan)
    records = load_records(Path(__file__).parents[1] / "client/demo_data/heart.csv", agreed.plan)[SITE]
    index = index_of(home, records, agreed.plan, tools)
    with home.open_ledger() as ledger:
        site = Institution(
            agreed=agreed,
            asks=schedule(agreed.plan, tools.encoder.embedding_size),
            cohort=cohort_sha256(agreed.sha256, [SITE]),
            guard=Guard(policy=home.policy, ledger=ledger, identity=home.identity, noise=system_noise),
            index=index,
            encoder=tools.encoder,
            generator=tools.generator,
            teach=teach(index.members, home.secret, 0),
            rendered=render_once(tools.generator, tools.encoder),
        )
        answer = site.handle((folder / "question").read_bytes())
    seconds = time.perf_counter() - start
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    loaded = sorted(name for name in HEAVY if name in sys.modules)
    figures = {"import_s": imported - start, "first_vote_s": seconds, "peak_mib": peak, "heavy": loaded}
    print(json.dumps(figures | {"answer_bytes": len(answer)}))


def main() -> None:
    """Make the folder in one process, vote in another."""
    if len(sys.argv) > 1:
        {"make": make, "vote": vote}[sys.argv[1]](Path(sys.argv[2]))
        return
    with tempfile.TemporaryDirectory() as folder:
        for step in ("make", "vote"):
            subprocess.run([sys.executable, __file__, step, folder], check=True)  # noqa: S603 - this very file


if __name__ == "__main__":
    main()
