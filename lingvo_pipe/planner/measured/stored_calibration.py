"""This machine's calibration, kept in the user's cache folder and reused.

    ~/.cache/lingvo_pipe/calibration.json    {"host, devices, cores, versions": figures}

LINGVO_PIPE_CACHE names another folder, and LINGVO_PIPE_RECALIBRATE=1 measures again.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.atomic_file import write_atomically
from lingvo_pipe.core.regular_file import read_json
from lingvo_pipe.pipeline.devices.device_names import device_name
from lingvo_pipe.planner.measured.calibration import (
    Figures,
    calibrated_device,
    device_of,
    knows_memory,
    measured_figures,
)
from lingvo_pipe.planner.resources.device_model import DeviceModel
from lingvo_pipe.version import VERSION

_CACHE, _RECALIBRATE = "LINGVO_PIPE_CACHE", "LINGVO_PIPE_RECALIBRATE"
# The least and the largest figures that any devices may have.
_LIMITS = {
    "operation_seconds": (0.0, 1.0),
    "link_seconds": (0.0, 60.0),
    "link_bandwidth": (1e3, 1e16),
    "memory_bandwidth": (1e6, 1e16),
    "host_bandwidth": (1e3, 1e16),
}
_OPTIONAL = ("host_bandwidth",)
_ALONE = {"link_bandwidth": (math.inf, math.inf)}  # A single device sends nothing.
# Errors of a folder that cannot be read or written, or of a damaged file.
_UNUSABLE = (OSError, ValueError)


def machine_device(devices: Sequence[str]) -> DeviceModel:
    """Returns the calibrated model of devices of one kind, given by their full names.

    Measures them unless this machine's file has figures of the same devices, cores and
    versions. Workers' devices are always measured, since their machines are not known.
    """
    if not knows_memory(devices):
        return calibrated_device(devices)
    path, key = _path(), _key(devices)
    stored = _read(path)
    entry = None if os.environ.get(_RECALIBRATE) else stored.get(key)
    figures = _figures(entry, has_link=len(devices) > 1)
    if figures is None:
        figures = measured_figures(devices)
        _write(path, {**stored, key: figures._asdict()})
    return device_of(devices, figures)


def _path() -> Path:
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = os.environ.get(_CACHE) or os.path.join(caches, "lingvo_pipe")
    return Path(folder, "calibration.json")


def _key(devices: Sequence[str]) -> str:
    names = [device_name(device) for device in devices[:2]]
    kinds = {
        str(tf.config.experimental.get_device_details(device).get("device_name"))
        for device in tf.config.list_physical_devices(names[0].kind)
        if names[0].kind != "CPU"
    }
    cores = f"{len(os.sched_getaffinity(0))} cores"
    versions = f"TensorFlow {tf.version.VERSION}", f"lingvo_pipe {VERSION}"
    short = (name.short for name in names)
    return ", ".join([platform.node(), *short, *sorted(kinds), cores, *versions])


def _read(path: Path) -> dict[str, Any]:
    try:
        stored = read_json(path)
    except _UNUSABLE:
        return {}
    return stored if isinstance(stored, dict) else {}


def _figures(stored: Any, has_link: bool) -> Figures | None:
    """Returns `stored` as Figures, or None if one is missing, unknown or impossible."""
    limits = _LIMITS if has_link else {**_LIMITS, **_ALONE}
    if not isinstance(stored, Mapping) or set(stored) != set(limits):
        return None
    is_possible = all(
        (type(stored[name]) is float and low <= stored[name] <= high)
        or (stored[name] is None and name in _OPTIONAL)
        for name, (low, high) in limits.items()
    )
    return Figures(**stored) if is_possible else None


def _write(path: Path, stored: Mapping[str, Any]) -> None:
    """Writes the file, or does nothing if that fails: the next run measures again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(stored, indent=1, sort_keys=True))
    except _UNUSABLE:
        pass
