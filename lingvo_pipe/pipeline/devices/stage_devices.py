"""The devices that stages run on.

A device is named as TensorFlow names it, `cpu:0` or `gpu:1`; one of a worker task
`worker:0/gpu:1`. On a machine without accelerators logical CPU devices of one core each
stand in, so that every pipeline can be run and tested anywhere.

Stages may run on devices of different kinds. The bytes of results are the same for all
placements on devices of one kind.

A TPU runs what XLA has compiled and nothing else: neither loops that exchange messages
nor what they keep. So the loop of a TPU's stage runs on its host, and calls functions
on the TPU. This is built as TensorFlow documents it and was never run on a TPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import tensorflow as tf

from lingvo_pipe.pipeline.devices.cluster import Meeting, connect, meet
from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from lingvo_pipe.pipeline.devices.device_choice import TaskDevices, choose_devices
from lingvo_pipe.pipeline.devices.device_names import (
    KINDS,
    WORKER_JOB,
    DeviceName,
    checked_number,
    device_name,
    device_names,
)

_ACCELERATORS = [kind for kind in KINDS if kind != "CPU"]


def initialize_devices(
    wanted: int | Sequence[str],
    cluster: Cluster | None = None,
    await_workers: Callable[[], None] | None = None,
) -> list[str]:
    """Prepares the devices of this process and its workers, once, first of all.

    Operations get one thread each, for the parallelism is that between the devices,
    and results then do not depend on the number of cores. The graph optimizer is
    switched off; see `run_graphs_as_they_are`.

    Args:
        wanted: as from `parse_devices`; a number means so many GPUs if the machine has
            any, else logical CPU devices; or so many of the cluster's, see
            `choose_devices`.
        cluster: the workers, if there are any.
        await_workers: called before they are met, to wait for those that are not up
            yet; None: there are seconds for that.

    Returns:
        Full device names, one for each stage.

    Raises:
        ValueError: if these are no devices, or not present.
        ConnectionError: if workers can't be reached, or are not what they should be.
        RuntimeError: if TensorFlow has run something before, on other devices.
    """
    names = _local(wanted) if isinstance(wanted, int) else device_names(wanted)
    if not isinstance(wanted, int):
        _check_tasks(names, cluster)
    if cluster is not None and await_workers is not None:
        await_workers()
    met = None if cluster is None else meet(cluster)
    if cluster is not None and met is not None:
        if isinstance(wanted, int):
            names = choose_devices(wanted, _tasks(cluster, met))
        _check_lent(names, met)
    local = [name for name in names if name.worker is None]
    _check_accelerators(local)
    _configure(local)
    if cluster is not None and met is not None:
        connect(cluster, met)
        _check_present([name.full for name in names])
    if any(name.kind == "TPU" for name in names):
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
        tf.tpu.experimental.initialize_tpu_system(resolver)
    return [name.full for name in names]


def stage_devices(names: Sequence[str] | None, num_devices: int) -> list[str]:
    """Full names of the devices that stages run on.

    Args:
        names: of the devices, as in `cpu:0` or full; None: the first of this process's
            GPUs, or of its CPU devices if it has no GPU.
        num_devices: K, how many the stages need.

    Raises:
        ValueError: if there are not K of them, or some are not present.
    """
    if names is None:
        kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
        local = [name for name in _present(kind) if name.worker is None]
        if len(local) < num_devices:
            raise ValueError(
                "Each stage needs a device, or each stages_per_device of them; they "
                f"need {num_devices}, and there are {len(local)} {kind} devices. Call "
                f"initialize_devices({num_devices}) first, or use fewer stages."
            )
        return [name.full for name in local[:num_devices]]
    if not isinstance(names, (list, tuple)):
        raise ValueError(f"devices must be a list of names; got {names!r}.")
    if len(names) != num_devices:
        raise ValueError(
            "Each stage needs a device, or each stages_per_device of them; they need "
            f"{num_devices}, and {len(names)} are named: {list(names)}. Change splits, "
            "stages_per_device or devices."
        )
    full = [name.full for name in device_names(names)]
    _check_present(full)
    return full


def run_graphs_as_they_are() -> None:
    """Switches TensorFlow's graph optimizer off in this process.

    It rewrites sums differently for each number of stages, which costs the last bit.
    """
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def as_it_is() -> bytes:
    """For an operation that calls a function: its graph optimizer is off too."""
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config.SerializeToString()


def must_compile(device: str) -> bool:
    """Whether a device runs only what XLA has compiled."""
    return device_name(device).kind == "TPU"


def loop_device(device: str) -> str:
    """Where the loop of a stage on `device` runs: there, or on its host."""
    name = device_name(device)
    return (name.host if must_compile(device) else name).full


def identities_in_place(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The tensors once more, each on the device where it is; a node for each device."""
    found = list(tensors)
    for device in dict.fromkeys(x.device for x in tensors):
        places = [i for i, x in enumerate(tensors) if x.device == device]
        with tf.device(device):
            copies = tf.raw_ops.IdentityN(input=[tensors[i] for i in places])
        for i, copy in zip(places, copies, strict=True):
            found[i] = copy
    return found


def identity_in_place(x: tf.Tensor) -> tf.Tensor:
    """The tensor once more, on the device where it is."""
    with tf.device(x.device):
        return tf.identity(x)


def _local(number: int) -> list[DeviceName]:
    """The first GPUs of this machine, or CPU devices if it has no GPU."""
    kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    return [DeviceName(None, kind, i) for i in range(checked_number(number))]


def _tasks(cluster: Cluster, met: Meeting) -> list[TaskDevices]:
    """The devices of all tasks, the trainer's among them if it is one of them."""
    num_gpus = len(tf.config.list_physical_devices("GPU"))
    own = [TaskDevices(None, num_gpus, os.cpu_count() or 1)]
    counts = [worker.counts() for worker in met.workers]
    return [
        *(own if cluster.trainer is not None else []),
        *(
            TaskDevices(task, count.get("GPU", 0), count.get("CPU", 0))
            for task, count in enumerate(counts)
        ),
    ]


def _check_tasks(names: Sequence[DeviceName], cluster: Cluster | None) -> None:
    """Raises ValueError unless names and workers belong together."""
    num_workers = 0 if cluster is None else len(cluster.workers)
    remote = [name for name in names if name.worker is not None]
    if num_workers and not remote:
        raise ValueError(
            "With workers, some of the devices that are named must be theirs; got "
            f"{[name.short for name in names]}. For example: --devices={num_workers}, "
            "or --devices="
            + ",".join(f"{WORKER_JOB}:{task}/cpu:0" for task in range(num_workers))
        )
    absent = [n.short for n in remote if (n.worker or 0) >= num_workers]
    if absent:
        raise ValueError(
            f"Devices of workers need workers; {absent} are of none, and there are "
            f"{num_workers}, counted from 0. Give the addresses of all: --cluster="
            "worker=host1:port1,host2:port2."
        )
    tpus = [name.short for name in remote if name.kind == "TPU"]
    if tpus:
        raise ValueError(
            f"TPUs must be those of the trainer's machine; {tpus} are workers'. Run "
            "the trainer there."
        )


def _check_lent(names: Sequence[DeviceName], met: Meeting) -> None:
    """Raises ValueError unless workers have the devices that are named."""
    absent = [
        f"{name.short} ({met.workers[name.worker]})"
        for name in names
        if name.worker is not None
        and name.index >= met.workers[name.worker].counts().get(name.kind, 0)
    ]
    if absent:
        raise ValueError(
            "Workers must have the devices that are named; there is no "
            f"{' and no '.join(absent)}. Ask for fewer of that worker, or for others."
        )


def _check_accelerators(names: Sequence[DeviceName]) -> None:
    """Raises ValueError if this machine has not all of them."""
    for kind in _ACCELERATORS:
        num_present = len(tf.config.list_physical_devices(kind))
        absent = [n.short for n in names if n.kind == kind and n.index >= num_present]
        if absent:
            raise ValueError(
                f"Devices must be present; this machine has {num_present} {kind}s, so "
                f"there is no {', '.join(absent)}. Ask for fewer, or for CPU devices: "
                f"cpu:0..cpu:{len(names) - 1}."
            )


def _check_present(full: Sequence[str]) -> None:
    present = _present()
    absent = [name for name in device_names(full) if name not in present]
    if absent:
        raise ValueError(
            f"Devices of stages must be present; {[name.short for name in absent]} are "
            f"not. There are {[name.short for name in present]}; call "
            "initialize_devices first for more CPU devices."
        )


def _present(kind: str | None = None) -> list[DeviceName]:
    """The devices of this process, and of its workers, of one kind or all."""
    return [
        device_name(device.name)
        for each in ([kind] if kind else KINDS)
        for device in tf.config.list_logical_devices(each)
    ]


def _configure(local: Sequence[DeviceName]) -> None:
    try:
        _set_options(local)
    except RuntimeError as error:
        raise RuntimeError(
            "Devices must be initialized before TensorFlow runs anything; it has, with "
            f"other devices or threads ({error}). Call initialize_devices first of all."
        ) from error


def _set_options(local: Sequence[DeviceName]) -> None:
    num_cpus = 1 + max((n.index for n in local if n.kind == "CPU"), default=0)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(max(2, len(local)))
    run_graphs_as_they_are()
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * num_cpus
    )
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
