"""The kind of a device: all properties known to change the bytes of its results.

    CPU  TensorFlow, processor, instruction sets, caches, threads, settings
    GPU  TensorFlow, model, driver, TensorFloat-32, settings
    TPU  TensorFlow, settings

If the hosts of GPUs update the weights, their processors, instruction sets and caches
count, too.

The same model has the same bytes on devices of one kind. oneDNN and XLA choose kernels
by the processor and its instruction sets. Eigen and oneDNN cut matrix products into
blocks that fit into the processor's caches. Each thread of a device adds a part of a
sum. The number of cores and the size of the memory do not matter.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from lingvo_pipe.pipeline.devices.device_names import DeviceName

DeviceKind = dict[str, str]

# Threads of a pipeline's CPU device.
NUM_THREADS = 1

CPU_INFO = Path("/proc/cpuinfo")
DRIVER = Path("/proc/driver/nvidia/version")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
# Lines of CPU_INFO that name a processor: of x86, and of Arm.
_PROCESSOR = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part")
# Prefixes of the features that compute with floats.
_FLOATS = ("amx", "asimd", "avx", "bf16", "f16c", "fma", "i8mm", "sse4_", "sve")
_THREADS = "TF_NUM_INTRAOP_THREADS"
# Variables of the environment that TensorFlow and its libraries read.
SETTINGS = (
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_SET_ONEDNN_FPMATH_MODE",
    "ONEDNN_CPU_ISA_HINTS",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_CPU_ISA_HINTS",
    "DNNL_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA",
    "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE",
    "TF_CUDNN_DETERMINISTIC",
    "TF_CUDNN_USE_AUTOTUNE",
    "TF_DETERMINISTIC_OPS",
    "TF_XLA_FLAGS",
    "XLA_FLAGS",
)
# Before the names of a GPU's attributes that are its host's.
_HOST = "host's "
# Attributes that are lists, of which only the items that differ are shown.
_LISTS = ("instruction sets", "settings")


def local_kind(device: DeviceName, threads: int) -> DeviceKind:
    """Returns the kind of a device of this process. A CPU has `threads` threads."""
    settings = " ".join(f"{x}={os.environ[x]}" for x in SETTINGS if x in os.environ)
    kind = {"type": device.kind, "TensorFlow": tf.__version__, "settings": settings}
    if device.kind == "CPU":
        return kind | _processor() | {"threads": str(threads)}
    if device.kind == "GPU":
        has_tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
        host = {f"{_HOST}{name}": text for name, text in _processor().items()}
        return kind | {
            "model": gpu_model(device.index),
            "driver": first_line(DRIVER, "NVRM version:"),
            "TensorFloat-32": "on" if has_tf32 else "off",
            **host,
        }
    return kind


def without_host(kind: DeviceKind) -> DeviceKind:
    """Returns a kind without its host's attributes, which then are not compared."""
    return {name: text for name, text in kind.items() if not name.startswith(_HOST)}


def num_threads() -> int:
    """Returns the number of threads of each CPU device of this process."""
    number = tf.config.threading.get_intra_op_parallelism_threads()
    setting = os.environ.get(_THREADS, "")
    by_setting = int(setting) if setting.isdecimal() else 0
    return number or by_setting or len(os.sched_getaffinity(0))


def kind_differences(
    before: Sequence[DeviceKind], now: Sequence[DeviceKind]
) -> list[str]:
    """Returns phrases on how device kinds differ. Skips what only one of them has."""
    if len(before) != 1 or len(now) != 1:
        is_same = all(x in now for x in before) and all(x in before for x in now)
        text = f"{len(before)} kinds of devices before, {len(now)} other ones now"
        return [] if is_same else [text]
    (old,), (new,) = before, now
    if old.get("type") != new.get("type"):
        return [f"{old.get('type')} before, {new.get('type')} now"]
    texts = []
    for name in old.keys() & new.keys():
        is_known = bool(old[name] and new[name]) or name == "settings"
        if is_known and old[name] != new[name]:
            texts.append(f"{name}: {_changed(name, old[name], new[name])}")
    return sorted(texts)


def _changed(name: str, old: str, new: str) -> str:
    if name.removeprefix(_HOST) in _LISTS:
        items = old.split(), new.split()
        gone = " ".join(x for x in items[0] if x not in items[1])
        added = " ".join(x for x in items[1] if x not in items[0])
        if gone or added:
            old, new = gone, added
    return f"{old or 'none'} before, {new or 'none'} now"


def gpu_model(index: int) -> str:
    """Returns the model and compute capability of a GPU of this process."""
    gpus = tf.config.list_physical_devices("GPU")
    # Logical devices of one GPU have no physical device of their number.
    gpu = gpus[min(index, len(gpus) - 1)]
    details = tf.config.experimental.get_device_details(gpu)
    return f"{details.get('device_name', '')} {details.get('compute_capability')}"


def first_line(path: Path, start: str) -> str:
    """Returns the rest of the first line of a file that begins with `start`, or ""."""
    lines = (line for line in _text(path).splitlines() if line.startswith(start))
    return next(lines, "").removeprefix(start).strip(" \t:")


def _processor() -> DeviceKind:
    features = first_line(CPU_INFO, "flags") or first_line(CPU_INFO, "Features")
    floats = sorted(x for x in features.split() if x.startswith(_FLOATS))
    sizes = (_text(folder / "size") for folder in sorted(_CACHES.glob("index*")))
    return {
        "processor": " ".join(first_line(CPU_INFO, x) for x in _PROCESSOR).strip(),
        "instruction sets": " ".join(floats),
        "caches": " ".join("".join(sizes).split()),
    }


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
