"""Set-up of all tests: eight devices, and a garbage collector that seldom runs."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# TensorFlow's graphs are millions of objects: with Python's own thresholds, looking
# through them for garbage takes a sixth of the time.
gc.set_threshold(50_000, 20, 50)

# Read when tensorflow_datasets is imported: tests prepare their data sets again.
_DATA = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
os.environ["TFDS_DATA_DIR"] = _DATA


def pytest_collection_finish() -> None:
    """Makes devices for pipelines of eight stages, before TensorFlow runs anything.

    Only where a test has imported what they are for.
    """
    devices = sys.modules.get("lingvo_pipe.pipeline.devices.stage_devices")
    if devices is not None:
        devices.initialize_devices(8)
    gc.freeze()  # Modules are no garbage.


_collected_at = 0  # The process's bytes at the last collection.


def pytest_runtest_logfinish() -> None:
    """Frees what tests have left behind, after each 2 GiB that the process grows."""
    global _collected_at
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    if (num_bytes := pages * resource.getpagesize()) > _collected_at + 2**31:
        gc.collect()
        _collected_at = num_bytes


def pytest_unconfigure() -> None:
    """Removes the data sets, and keeps pytest from a search for garbage of seconds."""
    gc.freeze()
    shutil.rmtree(_DATA, ignore_errors=True)


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps calibrations of this machine in a folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("lingvo_pipe_cache")
        patch.setenv("LINGVO_PIPE_CACHE", str(folder))
        yield
