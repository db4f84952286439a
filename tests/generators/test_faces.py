"""More faces for the simulator: one public file of glyphs, the same pictures wherever it is rendered."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from click.testing import CliRunner

from patevolve.shared import assets
from patevolve.shared.cli import application
from patevolve.shared.errors import InputError, PlanError
from patevolve.shared.generators import faces, fields
from patevolve.shared.generators.simulator import Simulator
from patevolve.shared.generators.strokes import STROKES
from patevolve.shared.randomness import stream

FONTS = Path(mpl.get_data_path()) / "fonts" / "ttf"


@pytest.fixture(scope="module")
def built():
    """Return a file of the digits 3 and 8 in three of matplotlib's faces, and the fonts that it is of."""
    return faces.build([FONTS], "38", 3)


@pytest.fixture
def asset(built, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv(assets.FOLDERS, str(tmp_path / "assets"))
    (tmp_path / "glyphs.npz").write_bytes(built[0])
    return assets.add(tmp_path / "glyphs.npz").stem


def test_the_file_holds_each_face_twice_and_the_written_strokes(built, asset):
    _, fonts = built
    assert len(fonts) == len(set(fonts)) == 3
    for glyph in "38":
        own = faces.read(asset)[glyph]
        assert len(own) == 2 * 3 + len(STROKES[glyph])
        drawn = fields.font_field(fields.bitmap(fonts[0], glyph), skeleton=False)
        assert np.allclose(own[0], drawn, atol=2e-3)


def test_the_simulator_draws_the_file_and_not_this_machine_s_fonts(asset, monkeypatch):
    """Nothing of the drawing libraries is called: what decides the pixels is in the file."""
    monkeypatch.setattr(fields, "fields_of", None)
    generator = Simulator(glyphs=("3", "8"), asset=asset)
    genomes = generator.draw(stream(1), 1, 40)
    images = generator.render(genomes, np.ones(40, np.int64))
    assert genomes[:, 0].max() < len(faces.read(asset)["8"])
    assert images.any(axis=(1, 2)).all()


def test_a_voting_site_needs_numpy_alone(asset):
    code = (
        "import sys\n"
        "for name in ('matplotlib', 'PIL', 'scipy'): sys.modules[name] = None\n"
        "import hashlib, numpy as np\n"
        "from patevolve.shared.generators.simulator import Simulator\n"
        "from patevolve.shared.randomness import stream\n"
        f"generator = Simulator(glyphs=('3', '8'), asset={asset!r}, variation=0.5)\n"
        "images = generator.render(generator.draw(stream(1), 0, 9), np.zeros(9, np.int64))\n"
        "print(generator.digest, hashlib.sha256(images.tobytes()).hexdigest())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    generator = Simulator(glyphs=("3", "8"), asset=asset, variation=0.5)
    images = generator.render(generator.draw(stream(1), 0, 9), np.zeros(9, np.int64))
    assert done.stdout.split() == [generator.digest, hashlib.sha256(images.tobytes()).hexdigest()]


def test_the_digest_names_faces_and_variation(asset):
    makers = [{}, {"asset": asset}, {"variation": 0.5}, {"asset": asset, "variation": 0.5}, {"variation": 0.6}]
    assert len({Simulator(glyphs=("3", "8"), **keys).digest for keys in makers}) == len(makers)


def test_plans_without_a_file_keep_their_bytes():
    """Genomes and pixels of the default family: faces and normal numbers of one stream, in half precision."""
    generator = Simulator(glyphs=("3", "8"))
    assert generator.genome_size == 39
    genomes = generator.draw(stream(1, "first"), 1, 50)
    rng = stream(1, "first")
    expected = np.hstack(
        [rng.integers(len(fields.fields_of("8")), size=(50, 1)), np.float16(rng.normal(size=(50, 38)))]
    )
    assert np.array_equal(genomes, expected)
    varied = Simulator(glyphs=("3", "8"), variation=1e-9)  # as good as none
    wide = np.hstack([genomes, np.zeros((50, varied.genome_size - 39))])
    classes = np.ones(50, np.int64)
    assert np.array_equal(varied.render(wide, classes), generator.render(genomes, classes))


def test_each_kind_of_variation_moves_the_ink():
    generator = Simulator(glyphs=("3", "8"), variation=1.0)
    genomes, classes = np.zeros((1, generator.genome_size)), np.zeros(1, np.int64)
    plain = generator.render(genomes, classes).astype(int)
    for first, last in ((39, 103), (103, 167), (167, 183)):  # right, down, pen
        moved = genomes.copy()
        moved[:, first:last] = stream(2, first).normal(size=last - first)
        assert np.abs(generator.render(moved, classes) - plain).mean() > 1.0
    assert last == generator.genome_size


def test_faces_that_draw_other_things_are_left_out():
    """Twenty faces of three glyphs close around one shape each, and one face, less close, whose glyphs are shuffled."""
    rng = np.random.default_rng(0)
    shapes = rng.normal(size=(3, 16))
    pictures = shapes + 0.1 * rng.normal(size=(21, 3, 16))
    pictures[20] = shapes[[1, 2, 0]] + 0.3 * rng.normal(size=(3, 16))
    shares = faces.agreement(pictures)
    assert (shares[:20] == 1.0).all()
    assert shares[20] == 0.0
    assert 20 not in faces.chosen(pictures, 21)


def test_the_faces_that_are_kept_differ_most():
    line = np.array([0.0, 0.1, 0.2, 5.0, 5.1, 10.0])
    pictures = np.stack([line, 100.0 + line], axis=1)[:, :, None]
    kept = faces.chosen(pictures, 3)
    assert {round(float(line[position])) for position in kept} == {0, 5, 10}
    assert len(faces.chosen(np.tile([[0.0], [9.0]], (5, 1, 1)), 5)) == 1  # equal faces are one


def test_the_command_makes_and_keeps_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv(assets.FOLDERS, str(tmp_path / "assets"))
    words = ("assets", "glyphs", str(FONTS), "--glyphs", "17", "--most", "2", "--out", str(tmp_path / "g.npz"))
    ended = CliRunner().invoke(application, [*words, "--format", "json"])
    assert ended.exit_code == 0, ended.output
    kept = json.loads(ended.stdout)
    assert len(kept["fonts"]) == 2
    assert set(faces.read(kept["sha256"])) == {"1", "7"}


def test_what_is_missing_is_said(tmp_path, asset):
    with pytest.raises(InputError, match=r"0 font\(s\) found"):
        faces.build([tmp_path], "38", 3)
    (tmp_path / "fonts").mkdir()
    (tmp_path / "fonts" / "broken.ttf").write_bytes(b"no font")
    with pytest.raises(InputError, match=r"1 font\(s\) found, none of which draws all of 3 8"):
        faces.build([tmp_path / "fonts"], "38", 3)
    with pytest.raises(PlanError, match=r"class '7' is no glyph of the file.*it has 3 8"):
        Simulator(glyphs=("3", "7"), asset=asset).fields_of(1)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": np.zeros(3)}, "holds no glyphs"),
        ({"glyphs": np.array(["3"]), "fields-0": np.zeros((2, 48, 48))}, "expected finite float16"),
        ({"glyphs": np.array(["3"]), "fields-0": np.zeros((0, 48, 48), np.float16)}, "expected finite float16"),
        ({"glyphs": np.array(["3"]), "fields-0": np.full((1, 48, 48), np.nan, np.float16)}, "expected finite float16"),
    ],
)
def test_a_file_that_holds_no_glyphs_is_refused(tmp_path, monkeypatch, arrays, message):
    monkeypatch.setenv(assets.FOLDERS, str(tmp_path / "assets"))
    np.savez(tmp_path / "wrong.npz", **arrays)
    sha256 = assets.add(tmp_path / "wrong.npz").stem
    with pytest.raises(PlanError, match=message):
        faces.read(sha256)
