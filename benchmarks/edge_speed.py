"""Cold start of the voting client: from the first import to the first answer to a vote. One line of JSON.

    python benchmarks/edge_speed.py [--network FILE]

The process imports what a site imports, reads its records, and answers one ``neighbours`` question on 400 candidates,
charged to a fresh ledger. Its folder is made by another process before. The records are the heart demonstration's; with
an ONNX file, 300 random images that it describes, as the 400 candidates out of a pool, with statistics fitted before.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from patevolve.shared.plan import Agreed

HEAVY = ("torch", "tensorflow", "scipy", "sklearn", "pandas", "matplotlib")
SITE = "Hungary"
CANDIDATES = 400
IMAGES = 300
HEART = Path(__file__).parents[1] / "client/demo_data"


def make(folder: Path, network: Path | None) -> None:
    """Write the site's folder and the question, as approving a plan and a coordinator would."""
    import numpy as np

    from patevolve.client.policy import FILE, draft
    from patevolve.shared.files import write_atomic
    from patevolve.shared.messages import Question, encode_question
    from patevolve.shared.randomness import stream
    from patevolve.shared.tools import tools_of

    agreed = heart(folder) if network is None else pictures(folder, network)
    (folder / "plan.toml").write_text(agreed.text, encoding="utf-8")
    write_atomic(folder / "site" / FILE, draft(SITE, agreed, reserve=2.0).encode())
    asking, tools = agreed.plan.questions.neighbours, tools_of(agreed.plan)
    classes = np.arange(asking.candidates) % len(agreed.plan.data.classes)
    arrays = {"genomes": tools.generator.draw(stream(1, "edge"), 0, asking.candidates), "classes": classes}
    question = Question(kind="neighbours", name="neighbours/1", plan=agreed.sha256, run="bench", arrays=arrays)
    (folder / "question").write_bytes(encode_question(question))


def changes() -> dict[str, Any]:
    """Return what makes any plan one of a single kind of question, at each site alone."""
    from patevolve.client.variants import PRIVATE_EVOLUTION

    sizes = {"questions.neighbours.candidates": CANDIDATES, "release.samples": CANDIDATES}
    return {**PRIVATE_EVOLUTION, "privacy.trust": "each-site", "evolution.population": CANDIDATES, **sizes}


def heart(folder: Path) -> Agreed:
    """Return the plan of tables, and copy the hospital's records."""
    from patevolve.shared.plan import agree
    from patevolve.shared.plan_edit import vary

    shutil.copy(HEART / "heart.csv", folder / "data.csv")
    return vary(agree((HEART / "heart.toml").read_text(encoding="utf-8")), changes())


def pictures(folder: Path, network: Path) -> Agreed:
    """Return the plan of images that a network describes, and write records, pool and statistics."""
    import numpy as np

    from patevolve.shared import assets, pools
    from patevolve.shared.plan import agree
    from patevolve.shared.plan_edit import vary
    from patevolve.shared.tools import fitted_file

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (IMAGES + 500, 28, 28)).astype(np.uint8)
    (folder / "pool.npz").write_bytes(pools.build(images[IMAGES:]))
    own = {"images": images[:IMAGES], "digit": rng.integers(0, 10, IMAGES).astype(str), "site": np.full(IMAGES, SITE)}
    np.savez(folder / "data.npz", **own)
    given = {
        "generator.kind": "pool",
        "generator.asset": assets.add(folder / "pool.npz").stem,
        "encoder.kind": "onnx",
        "encoder.asset": assets.add(network).stem,
    }
    agreed = vary(agree((HEART / "digits.toml").read_text(encoding="utf-8")), {**changes(), **given})
    (folder / "fit.npz").write_bytes(fitted_file(agreed.plan))
    return vary(agreed, {"encoder.fitted": assets.add(folder / "fit.npz").stem})


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
    (data,) = folder.glob("data.*")
    records = load_records(data, agreed.plan)[SITE]
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
    times = os.times()
    spent = {"cpu_s": times.user + times.system, "probe_cpu_s": times.children_user + times.children_system}
    figures = {"import_s": imported - start, "first_vote_s": seconds, **spent, "peak_mib": peak, "heavy": loaded}
    print(json.dumps(figures | {"answer_bytes": len(answer)}))


def main() -> None:
    """Make the folder in one process, vote in another."""
    if len(sys.argv) > 1 and sys.argv[1] in {"make", "vote"}:
        network = [Path(name) for name in sys.argv[3:]]
        make(Path(sys.argv[2]), *(network or [None])) if sys.argv[1] == "make" else vote(Path(sys.argv[2]))
        return
    network = sys.argv[2:] if sys.argv[1:2] == ["--network"] else []
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PATEVOLVE_ASSETS": str(Path(folder) / "assets")}
        for step in ("make", "vote"):
            command = [sys.executable, __file__, step, folder, *(network if step == "make" else [])]
            subprocess.run(command, check=True, env=environment)  # noqa: S603 - this very file


if __name__ == "__main__":
    main()
