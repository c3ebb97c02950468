"""Optimizer slots in the memory of each device's host, and updates there.

    device   gradient  -->  host   slots, update  -->  device   weight

A CPU device updates its weights on the host's first CPU, with the same bytes.
"""

from collections.abc import Collection

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.pipeline.devices.device_names import device_name
from lingvo_pipe.pipeline.devices.stage_devices import must_compile


def slot_device(device: str, on_host: bool) -> str:
    """Returns the device of the slots of a weight on `device`, which is a full name."""
    return device_name(device).host.full if on_host else device


def check_host_slots(devices: Collection[str], path: str) -> None:
    """Checks that weights on these devices can have their slots on the host.

    Logs a warning if the host may round updates differently from a device. `devices`
    are full names.

    Raises:
        ValueError: if a device is a TPU, which no one has tried.
    """
    kinds = map(device_name, devices)
    names = sorted({x.short for x in kinds if not x.has_host_memory})
    if any(map(must_compile, devices)):
        raise UserValueError(
            path=path, expected="False on TPUs", got=Words(", ".join(names))
        )
    if names:
        text = (
            "%s: the hosts of %s update the weights. A host may round the last digits "
            "differently from these devices, so the weights may differ from a run's "
            "without it. With it, they do not depend on the stages."
        )
        tf.get_logger().warning(text, path, ", ".join(names))
