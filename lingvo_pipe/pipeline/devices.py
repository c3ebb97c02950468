"""The devices that stages run on.

A device is named as TensorFlow names it: `cpu:0`, `gpu:1`. On a machine without
accelerators logical CPU devices of one core each stand in, so that every pipeline can
be run and tested anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import tensorflow as tf

_NAME = re.compile(r"(cpu|gpu):(\d+)", re.IGNORECASE)
_HELP = "Give a number of devices, or names such as cpu:0,cpu:1 or gpu:0,gpu:1."


def parse_devices(text: str) -> int | list[str]:
    """Reads a list of devices: a number, or names separated by commas.

    Returns:
        The number, or names such as `CPU:0`.

    Raises:
        ValueError: naming every entry that is not a device, or that stands twice.
    """
    entries = [entry.strip() for entry in text.split(",")]
    if len(entries) == 1 and entries[0].lstrip("-").isdigit():
        return _checked_number(int(entries[0]))
    return _checked_names(entries)


def _checked_names(entries: Sequence[str]) -> list[str]:
    """Names in capitals; raises ValueError as `parse_devices`."""
    wrong = [entry for entry in entries if not _NAME.fullmatch(entry)]
    if wrong or not entries:
        raise ValueError(f"These are no names of devices: {wrong}. {_HELP}")
    names = [entry.upper() for entry in entries]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"Each device takes one stage; {twice} stand twice. {_HELP}")
    return names


def _checked_number(number: int) -> int:
    if number < 1:
        raise ValueError(f"There must be at least 1 device; got {number}. {_HELP}")
    return number


def initialize_devices(wanted: int | Sequence[str]) -> list[str]:
    """Prepares this process's devices, once, before TensorFlow has run anything.

    Operations get one thread each, for the parallelism is that between the devices,
    and results then do not depend on the number of cores. The graph optimizer is
    switched off: it rewrites sums differently for each number of stages, which costs
    the last bit.

    Args:
        wanted: as from `parse_devices`; a number means so many GPUs if the machine has
            any, else logical CPU devices.

    Returns:
        Full device names, one for each stage.

    Raises:
        ValueError: if these are no devices, or more GPUs than there are.
        RuntimeError: if TensorFlow has run something before, on other devices.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if isinstance(wanted, int):
        kind = "GPU" if gpus else "CPU"
        wanted = [f"{kind}:{i}" for i in range(_checked_number(wanted))]
    wanted = _checked_names(wanted)
    absent = [n for n in wanted if n.startswith("GPU") and _index(n) >= len(gpus)]
    if absent:
        raise ValueError(
            f"Devices must be present; this machine has {len(gpus)} GPUs, so there is "
            f"no {', '.join(absent).lower()}. Ask for fewer, or for CPU devices: "
            f"cpu:0..cpu:{len(wanted) - 1}."
        )
    num_cpus = 1 + max((_index(n) for n in wanted if n.startswith("CPU")), default=0)
    _configure(num_cpus, len(wanted))
    return [f"/job:localhost/replica:0/task:0/device:{name}" for name in wanted]


def _index(name: str) -> int:
    return int(name.split(":")[1])


def _configure(num_cpus: int, num_devices: int) -> None:
    try:
        _set_options(num_cpus, num_devices)
    except RuntimeError as error:
        raise RuntimeError(
            "Devices must be initialized before TensorFlow runs anything; it has, with "
            f"other devices or threads ({error}). Call initialize_devices first of all."
        ) from error


def _set_options(num_cpus: int, num_devices: int) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(max(2, num_devices))
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * num_cpus
    )
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)


def stage_devices(names: Sequence[str] | None, num_stages: int) -> list[str]:
    """Full names of the devices that stages run on.

    Args:
        names: one for each stage, full or as in `cpu:0`; None: the first of this
            process's GPUs, or of its CPU devices if it has no GPU.
        num_stages: K.

    Raises:
        ValueError: if there are not K of them, or some are not present.
    """
    if names is None:
        kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
        present = _present_names(kind)
        if len(present) < num_stages:
            raise ValueError(
                f"Each stage needs a device of its own; there are {num_stages} stages "
                f"and {len(present)} {kind} devices. Call initialize_devices"
                f"({num_stages}) first, or use fewer stages."
            )
        return present[:num_stages]
    if not isinstance(names, (list, tuple)):
        raise ValueError(f"devices must be a list of names; got {names!r}.")
    if len(names) != num_stages:
        raise ValueError(
            f"Each stage needs a device of its own; there are {num_stages} stages and "
            f"{len(names)} devices: {list(names)}. Change splits or devices."
        )
    full, present = [_full_name(name) for name in names], _present_names()
    absent = [name for name in full if name not in present]
    if absent:
        raise ValueError(
            f"Devices of stages must be present; {absent} are not. There are {present};"
            " call initialize_devices first for more CPU devices."
        )
    return full


def _present_names(kind: str | None = None) -> list[str]:
    return [_full_name(device.name) for device in tf.config.list_logical_devices(kind)]


def _full_name(name: str) -> str:
    """`cpu:1` -> `/job:localhost/replica:0/task:0/device:CPU:1`."""
    if _NAME.fullmatch(name):
        name = f"/device:{name.upper()}"
    try:
        spec = tf.DeviceSpec.from_string(name)
    except ValueError as error:
        raise ValueError(f"{name!r} is no name of a device. {_HELP}") from error
    here = tf.DeviceSpec(job="localhost", replica=0, task=0)
    return here.make_merged_spec(spec).to_string()
