"""The harness of the secure sum, as a fixture."""

import importlib.util
import pathlib
import sys

import pytest

PATH = pathlib.Path(__file__).parents[1] / "secagg" / "harness.py"


@pytest.fixture(scope="session")
def harness():
    if "secagg_harness" not in sys.modules:
        spec = importlib.util.spec_from_file_location("secagg_harness", PATH)
        sys.modules["secagg_harness"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["secagg_harness"])
    return sys.modules["secagg_harness"]


@pytest.fixture(scope="session")
def new_run(harness):
    return harness.new_run
