"""Devices for pipelines of up to eight stages, made before TensorFlow runs anything."""

from __future__ import annotations

import sys


def pytest_collection_finish() -> None:
    """Makes them where a test has imported what they are for, and only there."""
    devices = sys.modules.get("lingvo_pipe.pipeline.devices.stage_devices")
    if devices is not None:
        devices.initialize_devices(8)
