"""Known kinds of devices, and a parser for devices that users name.

The figures are the vendors', without sparsity and with sums in float32. They are for a
core of TPUv2 and TPUv3, a chip of later TPUs, and the matrix units of a GPU. Sources:

    TPUs            Google Cloud's pages of each version, 2026; a link is the chip's
                    bandwidth divided by its ports and by both directions
    P100, V100, T4  NVIDIA's data sheets, 2016, 2020, 2019; DGX-1's, 2017
    A100            NVIDIA's data sheet, 2021; DGX A100's, 2021
    A10G            AWS's page of EC2 G5 and NVIDIA's data sheet, 2021
    L4, L40S        NVIDIA's data sheets, 2023
    RTX             NVIDIA's papers on GA102, 2020, Ada, 2022, and RTX Blackwell, 2025
    H100, H200      NVIDIA's data sheets, 2023 and 2024; DGX H100's, 2023
    B200            NVIDIA's data sheets of HGX and DGX B200, 2024
    MI300X          AMD's data sheet, 2023
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from lingvo_pipe.core.checks import is_number
from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.core.near_names import did_you_mean
from lingvo_pipe.core.regular_file import read_json
from lingvo_pipe.planner.resources.device_model import GIGA, MEASURED, DeviceModel

_TERA, _MIB, _GIB = 10**12, 2**20, 2**30

# GB/s between hosts: of a device, and of a whole host. TPUs' own links connect chips of
# all hosts. The others are NVIDIA's servers of eight GPUs: DGX-1 with four ports of 100
# Gb/s, DGX A100 with eight of 200, DGX H100, H200 and B200 with eight of 400.
_DGX_A100, _DGX_H100 = (25, 200), (50, 400)

# - memory in GiB as the device reports it, and MiB that the system reserves: on TPUs as
#   XLA's errors report it (TPUv4's where none was found), on GPUs as TensorFlow leaves
#   it to the system, by compute capability
# - teraflops in float32 and in 16 bits. A TPU multiplies float32 as bfloat16. From
#   Ampere on TensorFlow lets an NVIDIA GPU multiply it as TF32
# - GB/s of the memory, and to a neighbor in one direction: by NVLink or Infinity
#   Fabric, or else by PCIe
# - the network
_B, _F = "bfloat16", "float16"
_KNOWN: list[tuple[str, float, int, float, str, float, int, float, Any]] = [
    ("TPUv2", 8, 528, 22.5, _B, 22.5, 300, 62, (62, math.inf)),
    ("TPUv3", 16, 528, 61.5, _B, 61.5, 450, 70, (70, math.inf)),
    ("TPUv4", 32, 1280, 275, _B, 275, 1200, 50, (50, math.inf)),
    ("TPUv5e", 16, 528, 197, _B, 197, 819, 50, (50, math.inf)),
    ("TPUv5p", 95, 1280, 459, _B, 459, 2765, 100, (100, math.inf)),
    ("TPUv6e", 32, 1280, 918, _B, 918, 1638, 100, (100, math.inf)),
    ("P100", 15.9, 500, 9.3, _F, 18.7, 732, 12, (12, 50)),
    ("V100", 15.8, 1050, 15.7, _F, 125, 900, 150, (12.5, 50)),
    ("T4", 14.7, 1050, 8.1, _F, 65, 320, 16, None),
    ("A10G", 22, 1536, 35, _B, 70, 600, 32, None),
    ("A100-40GB", 39.6, 1536, 156, _B, 312, 1555, 300, _DGX_A100),
    ("A100-80GB", 79.2, 1536, 156, _B, 312, 2039, 300, _DGX_A100),
    ("RTX3090", 23.7, 1536, 35.6, _B, 71, 936, 32, None),
    ("RTX4090", 23.6, 1536, 82.6, _B, 165, 1008, 32, None),
    ("RTX5090", 31.4, 1800, 105, _B, 210, 1792, 64, None),
    ("L4", 22, 1536, 60, _B, 121, 300, 32, None),
    ("L40S", 44.4, 1536, 183, _B, 362, 864, 32, None),
    ("H100", 79.6, 1800, 494, _B, 989, 3350, 450, _DGX_H100),
    ("H100-PCIe", 79.2, 1800, 378, _B, 756, 2000, 64, None),
    ("H200", 140, 1800, 494, _B, 989, 4800, 450, _DGX_H100),
    ("B200", 178, 1800, 1100, _B, 2250, 8000, 900, _DGX_H100),
    ("MI300X", 191.9, 1800, 163, _B, 1307, 5300, 64, None),
]
# GB/s of PCIe in one direction, where the link to a neighbor is another.
_PCIE = {
    "V100": 16,
    "A100-40GB": 32,
    "A100-80GB": 32,
    "H100": 64,
    "H200": 64,
    "B200": 64,
}
DEVICES = {
    name: DeviceModel(
        name,
        int(memory * _GIB),
        reserved * _MIB,
        {"float32": single * _TERA, half: fast * _TERA},
        memory_bandwidth * GIGA,
        link * GIGA,
        has_replicas=not name.startswith("TPU"),
        in_place=name.startswith("TPU"),
        network=network and (network[0] * GIGA, network[1] * GIGA),
        # Offloading from TPUs is refused.
        host_bandwidth=None if name.startswith("TPU") else _PCIE.get(name, link) * GIGA,
    )
    for name, memory, reserved, single, half, fast, memory_bandwidth, link, network in (
        _KNOWN
    )
}
_OTHER_NAMES = {"A100": "A100-40GB"}

# Figures for devices given by memory and speed: about the lowest of GPUs above.
_CAUTIOUS_MEMORY_BANDWIDTH, _CAUTIOUS_LINK = 300, 12  # GB/s.
_CAUTIOUS_RESERVED = 1.8  # GB.
_SIZED = re.compile(r"(\d+(?:\.\d+)?)GB@(\d+(?:\.\d+)?)TFLOPS", re.IGNORECASE)
# [[hosts x] number x] kind.
_FORM = re.compile(r"(?:(?:(\d+)x)?(\d+)x)?(\S+)")
_DTYPES = ("float32", "bfloat16", "float16")


# The model of each device, or the number of this machine's, which are to be measured.
Requested: TypeAlias = tuple[DeviceModel, ...] | int


def parse_devices(
    text: str, network_gbits: float | None = None, prefix: str = "--"
) -> Requested:
    """Parses the text for devices, such as `8xTPUv3` or, in order, `4xA100,4xT4`.

    `TPUv3` is one device, and `2x8xV100` are eight devices on each of two hosts. A kind
    may also be `80GB@312TFLOPS`, or a `.json` file with a device's fields.
    `network_gbits` is the bandwidth between several hosts (see `DeviceModel.on_hosts`).

    Raises:
        UserValueError: if the text, the file or `network_gbits` is not valid. The error
            names the field, or the argument with `prefix` before its name.
    """
    path, parts = f"{prefix}devices", text.split(",")
    if len(parts) > 1:
        for part in parts:
            _check_part(part, path)
    models: tuple[DeviceModel, ...] = ()
    for part in parts:
        requested = _parse_kind(part, network_gbits, prefix)
        if isinstance(requested, int):
            return requested
        models += requested
    tpus = [model.name for model in models if not model.has_replicas]
    if tpus and any(model != models[0] for model in models):
        raise UserValueError(
            path=path,
            expected="TPUs of one kind alone, as the trainer uses them",
            got=text,
            hint=f"Plan for {tpus[0]} alone, or leave it out.",
        )
    return models


def _check_part(part: str, path: str) -> None:
    match = _FORM.fullmatch(part.strip())
    if match and (match[1] or match[3].lower() == MEASURED):
        raise UserValueError(
            path=path,
            expected=f"kinds of one host in a list, and no {MEASURED} devices",
            got=part,
            hint="Leave out the number of hosts, name the kind, or plan for it alone.",
        )


def _parse_kind(text: str, network_gbits: float | None, prefix: str) -> Requested:
    path = f"{prefix}devices"
    match = _FORM.fullmatch(text.strip())
    hosts, per_host, name = match.groups() if match else (None, "0", text)
    number = int(hosts or 1) * int(per_host or 1)
    kind = _kind(name, path) if number else None
    is_measured = name.lower() == MEASURED and not hosts
    if number < 1 or not (kind or is_measured):
        names = [*DEVICES, MEASURED]
        near = "" if name in names else did_you_mean(name, names)
        raise UserValueError(
            path=path,
            expected="a number and a kind of devices, such as 8xTPUv3, or 2x8xV100 on "
            "two hosts",
            got=text,
            hint=f"{near} Kinds are {', '.join(names)}; {MEASURED} stands for the "
            "devices of this machine, one host, whose speed is measured. Others are "
            "given by memory and speed, 8x80GB@312TFLOPS, or by a file, "
            "8xdevice.json.".lstrip(),
        )
    if network_gbits is not None and not _is_positive(network_gbits):
        raise UserValueError(
            path=f"{prefix}network_gbits",
            expected="a positive number",
            got=network_gbits,
        )
    if network_gbits is not None and not hosts:
        expected = f"several hosts for {prefix}network_gbits, such as 2x8xV100"
        raise UserValueError(path=path, expected=expected, got=text)
    if kind is not None and hosts:
        if network_gbits is None and kind.network is None:
            raise UserValueError(
                path=f"{prefix}network_gbits",
                expected=f"gigabits per second between your hosts of {kind.name}, "
                "because the vendor's server is not known",
                got=None,
                hint=f"Hosts for rent mostly have 10 to 100: {prefix}network_gbits=25.",
            )
        kind = kind.on_hosts(int(per_host), network_gbits)
    return (kind,) * number if kind else number


def _kind(name: str, path: str) -> DeviceModel | None:
    if sizes := _SIZED.fullmatch(name):
        return _sized_device(name, path, *map(float, sizes.groups()))
    if name.endswith(".json"):
        return _device_in_file(name)
    by_lower = {kind.lower(): kind for kind in DEVICES}
    by_lower |= {other.lower(): kind for other, kind in _OTHER_NAMES.items()}
    return DEVICES.get(by_lower.get(name.lower(), ""))


def _sized_device(name: str, path: str, memory: float, teraflops: float) -> DeviceModel:
    if memory <= _CAUTIOUS_RESERVED or not teraflops:
        expected = f"more than the {_CAUTIOUS_RESERVED} GB reserved, and a speed"
        raise UserValueError(path=path, expected=expected, got=name)
    return _device(
        name=name,
        memory=memory,
        teraflops=dict.fromkeys(_DTYPES, teraflops),
        memory_bandwidth=_CAUTIOUS_MEMORY_BANDWIDTH,
        link_bandwidth=_CAUTIOUS_LINK,
        host_bandwidth=_CAUTIOUS_LINK,
    )


def _device(
    name: str,
    memory: float,
    teraflops: dict[str, float],
    memory_bandwidth: float,
    link_bandwidth: float,
    reserved: float = _CAUTIOUS_RESERVED,
    host_bandwidth: float | None = None,
    **others: Any,
) -> DeviceModel:
    return DeviceModel(
        name,
        int(memory * GIGA),
        int(reserved * GIGA),
        {dtype: speed * _TERA for dtype, speed in teraflops.items()},
        memory_bandwidth * GIGA,
        link_bandwidth * GIGA,
        host_bandwidth=host_bandwidth and host_bandwidth * GIGA,
        **others,
    )


def _is_positive(value: Any) -> bool:
    return is_number(value) and 0 < value < math.inf


def _is_speeds(value: Any) -> bool:
    if not isinstance(value, dict) or not value.keys() <= set(_DTYPES):
        return False
    return bool(value) and all(map(_is_positive, value.values()))


_REQUIRED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "name": (lambda x: isinstance(x, str) and x.isprintable() and x != "", "a name"),
    "memory": (_is_positive, "a positive number of GB"),
    "teraflops": (
        _is_speeds,
        f"positive numbers by dtype, {' or '.join(_DTYPES)}, such as "
        '{"float32": 156, "bfloat16": 312}',
    ),
    "memory_bandwidth": (_is_positive, "a positive number of GB/s"),
    "link_bandwidth": (_is_positive, "a positive number of GB/s"),
}
_SECONDS = (_is_positive, "a positive number of seconds")
_RULES = {
    **_REQUIRED,
    "reserved": (_is_positive, "a positive number of GB"),
    "host_bandwidth": (_is_positive, "a positive number of GB/s"),
    "link_seconds": _SECONDS,
    "operation_seconds": _SECONDS,
    "efficiency": (lambda x: _is_positive(x) and x <= 1, "above 0 and at most 1"),
}


def _device_in_file(name: str) -> DeviceModel:
    """Reads a device from a JSON file whose fields are those in `_RULES`."""
    fields = read_json(Path(os.path.expanduser(name)), "Correct the file.")
    if not isinstance(fields, dict):
        raise UserValueError(
            path=name,
            expected=f"a JSON file of an object with {', '.join(_REQUIRED)}",
            got=Words("no file") if fields is None else fields,
        )
    for field in (*_REQUIRED, *fields):
        if field not in _RULES:
            raise UserValueError(
                path=f"{name}: {field}",
                expected=f"one of {', '.join(_RULES)}",
                got=field,
                names=_RULES,
            )
        is_valid, expected = _RULES[field]
        if field not in fields or not is_valid(fields[field]):
            got = fields.get(field, Words("nothing"))
            raise UserValueError(path=f"{name}: {field}", expected=expected, got=got)
    reserved = fields.get("reserved", _CAUTIOUS_RESERVED)
    if fields["memory"] <= reserved:
        raise UserValueError(
            path=f"{name}: memory",
            expected=f"more than the {reserved} GB reserved",
            got=fields["memory"],
        )
    return _device(**fields)
