"""From chosen candidates to files: one image that shows nothing does not cost the release."""

from __future__ import annotations

import numpy as np

from patevolve.shared.evolution.population import Population
from patevolve.shared.finish import release
from patevolve.shared.generators.simulator import Simulator
from patevolve.shared.labels import Labelling
from patevolve.shared.plan_edit import vary
from patevolve.shared.randomness import stream
from patevolve.shared.rounds import Outcome
from patevolve.shared.runfolder import open_run
from patevolve.shared.schedule import schedule
from patevolve.shared.tools import tools_of


def test_a_blank_image_among_many_is_left_out_of_release_features_and_student(two_digits, tmp_path, monkeypatch):
    agreed = vary(two_digits, {"release.samples": 200, "evolution.population": 200})
    tools = tools_of(agreed.plan)
    genomes = np.concatenate([tools.generator.draw(stream(1, "finish", cls), cls, 100) for cls in range(2)])
    classes = np.repeat([0, 1], 100)
    render = Simulator.render

    def slipped(self, genomes, classes):
        images = render(self, genomes, classes)
        if len(images) == 200:
            images[7] = 0
        return images

    monkeypatch.setattr(Simulator, "render", slipped)
    labelling = Labelling(method="votes", reason="", classes=classes)
    outcome = Outcome(learnt=None, population=Population(genomes=genomes, classes=classes), labelling=labelling)
    asks = schedule(agreed.plan, tools.encoder.embedding_size)
    released = release(agreed, outcome, tools, asks, open_run(tmp_path / "run", agreed), lambda _: b"{}")
    assert len(released.samples) == len(released.features) == 199
    assert released.gate[0].found == "every sample as expected; 1 of one grey value left out"
    whole = render(tools.generator, genomes, classes)
    assert np.array_equal(released.samples.images, np.delete(whole, 7, axis=0))
    assert np.array_equal(released.samples.classes, np.delete(classes, 7))
