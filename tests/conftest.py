"""Set-up of all tests: eight devices, and a garbage collector that seldom runs."""

from __future__ import annotations

import gc
import sys

# TensorFlow's graphs are millions of objects: with Python's own thresholds, looking
# through them for garbage takes a sixth of the time.
gc.set_threshold(50_000, 20, 50)


def pytest_collection_finish() -> None:
    """Makes devices for pipelines of eight stages, before TensorFlow runs anything.

    Only where a test has imported what they are for.
    """
    devices = sys.modules.get("lingvo_pipe.pipeline.devices.stage_devices")
    if devices is not None:
        devices.initialize_devices(8)
