"""The kind of a device: all that the bytes of its results depend on, as text.

    CPU  TensorFlow, instruction sets, caches, threads, settings
    GPU  TensorFlow, model, driver, TensorFloat-32, settings

The same model has the same bytes on all devices of one kind, and others on most other
kinds. oneDNN and XLA choose kernels by the processor's instruction sets; Eigen and
oneDNN cut products into blocks that fit into its caches; the threads of a device share
sums. Names and number of cores, memory and operating system do not matter.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

DeviceKind = dict[str, str]

CPU_INFO = Path("/proc/cpuinfo")
DRIVER = Path("/proc/driver/nvidia/version")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
# What the processor's list of features has besides instructions for floats.
_FLOATS = ("amx", "asimd", "avx", "bf16", "f16c", "fma", "i8mm", "sse4_", "sve")
# Variables of the environment that TensorFlow and its libraries read.
SETTINGS = (
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_SET_ONEDNN_FPMATH_MODE",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA",
    "NVIDIA_TF32_OVERRIDE",
    "TF_CUDNN_DETERMINISTIC",
    "TF_DETERMINISTIC_OPS",
    "TF_XLA_FLAGS",
    "XLA_FLAGS",
)


def kinds_by_type(num_threads: int) -> dict[str, DeviceKind]:
    """Returns the kinds of this process's devices by their type, such as CPU.

    Args:
        num_threads: number of threads of a CPU device.
    """
    settings = [f"{x}={os.environ[x]}" for x in SETTINGS if x in os.environ]
    everywhere = {"TensorFlow": tf.__version__, "settings": " ".join(settings)}
    kinds = {"CPU": everywhere | _processor() | {"threads": str(num_threads)}}
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        models = dict.fromkeys(gpu_model(i) for i in range(len(gpus)))
        has_tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
        kinds["GPU"] = everywhere | {
            "model": ", ".join(models),
            "driver": first_line(DRIVER, "NVRM version:"),
            "TensorFloat-32": "on" if has_tf32 else "off",
        }
    return kinds


def num_threads() -> int:
    """Returns the number of threads of a CPU device of this process."""
    number = tf.config.threading.get_intra_op_parallelism_threads()
    return number or len(os.sched_getaffinity(0))


def differences(before: Sequence[DeviceKind], now: Sequence[DeviceKind]) -> list[str]:
    """Returns what differs between the kinds of devices of two runs, a text each.

    Of an attribute that is a list of words, a text names only the words that differ.
    """
    if all(x in now for x in before) and all(x in before for x in now):
        return []
    texts = []
    for name in dict.fromkeys(name for kind in (*before, *now) for name in kind):
        old, new = (
            {word for kind in kinds for word in kind.get(name, "").split()}
            for kinds in (before, now)
        )
        if old != new:
            words = [" ".join(sorted(x)) or "none" for x in (old - new, new - old)]
            texts.append(f"{name}: {words[0]} before, {words[1]} now")
    return texts or [f"{len(before)} kinds of devices before, {len(now)} now"]


def gpu_model(index: int) -> str:
    """Returns the model and compute capability of this process's GPU."""
    gpus = tf.config.list_physical_devices("GPU")
    # Logical devices of one GPU have no physical device of their number.
    gpu = gpus[min(index, len(gpus) - 1)]
    details = tf.config.experimental.get_device_details(gpu)
    return f"{details.get('device_name', '')} {details.get('compute_capability')}"


def first_line(path: Path, start: str) -> str:
    """Returns the rest of a file's first line with this start; "" if there is none."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    lines = (line for line in text.splitlines() if line.startswith(start))
    return next(lines, "").removeprefix(start).strip(" \t:")


def _processor() -> DeviceKind:
    features = first_line(CPU_INFO, "flags") or first_line(CPU_INFO, "Features")
    floats = sorted(x for x in features.split() if x.startswith(_FLOATS))
    sizes = [
        (folder / "size").read_text(encoding="utf-8").strip()
        for folder in sorted(_CACHES.glob("index*"))
    ]
    return {"instruction sets": " ".join(floats), "caches": " ".join(sizes)}
