"""What every generator owes the loop: named streams decide it, strength moves it, rendering never leaves its range."""

import hashlib
import io
import itertools

import numpy as np
import pytest

from patevolve.shared import pools, wire
from patevolve.shared.encoder.ngrams import hashed_words
from patevolve.shared.generators.pool import Pool
from patevolve.shared.generators.simulator import Simulator
from patevolve.shared.generators.tabular import Tabular
from patevolve.shared.generators.vqvae import Layer, VqVae
from patevolve.shared.randomness import stream
from patevolve.shared.schema import Column

SIDE = 16


def public_images(count=120):
    """Return public images: discs of all sizes and places."""
    rng = np.random.default_rng(5)
    rows, columns = np.indices((SIDE, SIDE))
    y, x, radius = rng.uniform(4, 12, (3, count, 1, 1))
    ink = np.clip(radius / 2 - np.hypot(rows - y, columns - x), 0, 1)
    return np.rint(255 * ink).astype(np.uint8)


def pool(variation=0.0):
    data = pools.build(public_images())
    arrays = np.load(io.BytesIO(data), allow_pickle=False)
    return Pool(
        images=arrays["images"],
        neighbours=arrays["neighbours"],
        sha256=hashlib.sha256(data).hexdigest(),
        variation=variation,
    )


def texts():
    rng = np.random.default_rng(6)
    words = [" ".join(rng.choice(["one", "two", "three", "four", "five"], 12)) for _ in range(120)]
    data = pools.build_texts(list(dict.fromkeys(words)), 64, hashed_words)
    arrays = np.load(io.BytesIO(data), allow_pickle=False)
    return Pool(images=arrays["texts"], neighbours=arrays["neighbours"], sha256=hashlib.sha256(data).hexdigest())


def tabular():
    schema = tuple(Column(name=str(i), kind="categorical", values=tuple("abcdefgh")) for i in range(12))
    return Tabular(schema=schema)


def latents():
    """Return a small decoder of random weights: what it draws is no picture, and obeys the laws all the same."""
    rng = np.random.default_rng(8)
    sizes, layers = [(2, 6), (6, 6), (6, 1)], []
    for inputs, outputs in sizes:
        weights = np.rint(rng.normal(size=(9 * inputs, outputs)) * 300)
        layers.append(Layer(weights=weights, bias=np.zeros(outputs), shift=8, doubles=outputs == 6))
    return VqVae(
        classes=("3", "8"),
        sha256="c" * 64,
        codes=np.rint(rng.normal(size=(32, 2)) * 256),
        layers=tuple(layers),
        bank=np.rint(rng.normal(size=(90, 32)) * 256).astype(np.int16),
        labels=np.array(["3", "8", ""] * 30),
        grid=(4, 4, 2),
    )


MAKERS = {
    "simulator": lambda: Simulator(glyphs=("3", "8"), side=28),
    "varied simulator": lambda: Simulator(glyphs=("3", "8"), side=28, variation=0.7),
    "tabular": tabular,
    "pool": pool,
    "varied pool": lambda: pool(0.5),
    "vqvae": latents,
    "pool of texts": texts,
}


@pytest.fixture(scope="module", params=MAKERS, ids=list(MAKERS))
def generator(request):
    return MAKERS[request.param]()


def test_a_named_stream_decides_every_step(generator):
    def steps():
        drawn = generator.draw(stream(1, "draw"), 1, 30)
        mutants = generator.mutate(stream(1, "mutate"), drawn, 1, 0.3)
        return drawn, mutants, generator.cross(stream(1, "cross"), drawn, mutants)

    once, again = steps(), steps()
    for ours, theirs in zip(once, again, strict=True):
        assert ours.dtype == np.float64
        assert ours.shape == (30, generator.genome_size)
        assert ours.tobytes() == theirs.tobytes()
    assert generator.draw(stream(2, "draw"), 1, 30).tobytes() != once[0].tobytes()


def test_no_step_changes_its_parents(generator):
    drawn = generator.draw(stream(1, "draw"), 0, 20)
    kept = drawn.copy()
    generator.mutate(stream(1, "mutate"), drawn, 0, 0.7)
    generator.cross(stream(1, "cross"), drawn, drawn[::-1])
    generator.render(drawn, np.zeros(20, np.int64))
    assert drawn.tobytes() == kept.tobytes()


def test_no_candidate_is_a_population_too(generator):
    none = generator.draw(stream(1, "draw"), 0, 0)
    assert none.shape == (0, generator.genome_size)
    assert generator.mutate(stream(1, "mutate"), none, 0, 0.3).shape == none.shape
    assert generator.cross(stream(1, "cross"), none, none).shape == none.shape
    assert len(generator.render(none, np.zeros(0, np.int64))) == 0


def test_a_stronger_mutation_moves_the_values_further(generator):
    """The mean change over 400 parents of what is rendered (of texts: their words), at five strengths that double."""

    def seen(genomes):
        values = generator.render(genomes, np.zeros(400, np.int64))
        return hashed_words(values) if values.dtype == np.uint8 and values.ndim == 2 else values.reshape(400, -1)

    parents = generator.draw(stream(3, "draw"), 0, 400)
    before = seen(parents).astype(float)
    moved = []
    for strength in (0.0625, 0.125, 0.25, 0.5, 1.0):
        mutants = generator.mutate(stream(3, "mutate"), parents, 0, strength)
        moved.append(np.abs(seen(mutants) - before).mean())
    assert all(a < b for a, b in itertools.pairwise(moved)), moved


def test_genomes_survive_the_wire_and_render_alike(generator):
    drawn = generator.mutate(stream(4, "mutate"), generator.draw(stream(4, "draw"), 1, 25), 1, 0.2)
    packet = wire.Packet(kind="test", arrays={"genomes": wire.compact(drawn)})
    back = wire.decode(wire.encode(packet)).arrays["genomes"].astype(np.float64)
    assert back.tobytes() == drawn.tobytes()
    classes = np.ones(25, np.int64)
    assert generator.render(back, classes).tobytes() == generator.render(drawn, classes).tobytes()


def test_a_candidate_is_rendered_alike_alone_and_in_any_company(generator):
    classes = np.arange(40) % 2
    genomes = np.concatenate([generator.draw(stream(5, "draw", c), c, 20) for c in (0, 1)])[
        np.arange(40).reshape(2, 20).T.ravel()
    ]
    together = generator.render(genomes, classes)
    for row in (0, 1, 17, 39):
        alone = generator.render(genomes[row : row + 1], classes[row : row + 1])
        assert alone.tobytes() == together[row : row + 1].tobytes()


@pytest.mark.parametrize("value", [-1e300, -1e6, -0.5, 0.0, 7.3, 1e6, 1e300])
def test_hostile_genomes_render_within_range(generator, value):
    genomes = np.full((3, generator.genome_size), value)
    rendered = generator.render(genomes, np.array([0, 1, 0]))
    drawn = generator.render(generator.draw(stream(6, "draw"), 0, 3), np.zeros(3, np.int64))
    assert (rendered.dtype, rendered.shape) == (drawn.dtype, drawn.shape)


def test_a_child_of_equal_parents_is_like_them(generator):
    parents = generator.draw(stream(7, "draw"), 0, 30)
    children = generator.cross(stream(7, "cross"), parents, parents)
    assert np.allclose(children, parents, rtol=1e-12, atol=1e-12)


def test_digests_are_hashes_and_differ_between_kinds():
    digests = [make().digest for make in MAKERS.values()]
    assert all(len(digest) == 64 and set(digest) <= set("0123456789abcdef") for digest in digests)
    assert len(set(digests)) == len(digests)
    assert Simulator(glyphs=("3", "7"), side=28).digest != Simulator(glyphs=("3", "8"), side=28).digest
