"""The doctor's examination of devices, and its report."""

import functools
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from lingvo_pipe.core.tables import markdown_table
from lingvo_pipe.pipeline.devices.cluster import find_workers
from lingvo_pipe.pipeline.devices.device_names import (
    WORKER_JOB,
    DeviceName,
    parse_devices,
    short_name,
)
from lingvo_pipe.pipeline.devices.handshake import WorkerDescription
from lingvo_pipe.pipeline.devices.scheduler_environment.membership import (
    find_membership,
)
from lingvo_pipe.pipeline.devices.stage_devices import (
    disable_graph_optimizer,
    initialize_devices,
)
from lingvo_pipe.tools.doctor import measurements
from lingvo_pipe.tools.doctor.byte_matrix import (
    Train,
    combinations,
    differing,
    train_combination,
)

_SEND_SECONDS, _ALL_SECONDS = 180.0, 540.0  # Latest starts of checks.
_MAX_CPUS = 4  # Unless --devices names more.
_DIVIDED_MIB = 1024  # Memory of a logical device of a single GPU.
_FAILURES = (ValueError, RuntimeError, OSError, tf.errors.OpError)
_Result = TypeVar("_Result")


def examine(
    devices: Sequence[str],
    quick: bool,
    log: Callable[[str], None],
    train: Train = train_combination,
) -> dict[str, Any]:
    """Runs all checks of devices, given by full names. Returns a report for JSON.

    `train` trains one combination of the check of bytes. Failed checks are listed under
    "problems" in the report.
    """
    checks, measure = Checks(log), functools.partial
    pairs = itertools.pairwise(devices) if quick else itertools.combinations(devices, 2)
    of_devices = {
        short_name(device): measure(measurements.device_row, device)
        for device in devices
    }
    of_links = {
        " and ".join(map(short_name, ends)): measure(measurements.link_row, *ends)
        for ends in pairs
    }
    num_rounds = 3 if quick else 15
    of_steps = {"training": measure(measurements.step_rows, devices, num_rounds)}
    of_bytes = {way.name: measure(train, way) for way in combinations(devices, quick)}
    report = {
        "versions": measurements.versions(),
        "devices": [*checks.run("device", of_devices, _SEND_SECONDS).values()],
        "links": [*checks.run("sends", of_links, _SEND_SECONDS).values()],
        "steps": sum(checks.run("step", of_steps, _ALL_SECONDS).values(), []),
    }
    left = checks.run("bytes", of_bytes, _ALL_SECONDS)
    reference = next(iter(left), "")
    wrong = {way: differing(left[way], left[reference]) for way in left}
    for way, names in wrong.items():
        if names:
            checks.problems.append(
                f"bytes: {way}: other bytes than {reference} in {', '.join(names)}"
            )
    report["bytes"] = [{"way": way, "differing": names} for way, names in wrong.items()]
    return report | {"problems": checks.problems, "no_time_for": checks.no_time_for}


class Checks:
    """A runner of checks that lists problems, and counts checks left out for time."""

    def __init__(
        self, log: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ):
        self.problems: list[str] = []
        self.no_time_for: dict[str, int] = {}
        self._log, self._clock, self._start = log, clock, clock()

    def run(
        self, kind: str, checks: Mapping[str, Callable[[], _Result]], seconds: float
    ) -> dict[str, _Result]:
        """Runs checks, and returns the results of all that succeed, by name.

        No check begins later than `seconds` after this object was made.
        """
        results = {}
        for i, (name, check) in enumerate(checks.items()):
            if self._clock() - self._start > seconds:
                self.no_time_for[kind] = len(checks) - i
                break
            self._log(f"{kind}: {name}")
            try:
                results[name] = check()
            except _FAILURES as error:
                text, _, _ = str(error).strip().partition("\n")
                self.problems.append(f"{kind}: {name}: {type(error).__name__}: {text}")
        return results


def report_text(report: dict[str, Any]) -> str:
    """Returns the report from `examine` as text: tables, and problems at the end."""
    return "\n".join(_lines(report))


def _lines(report: dict[str, Any]) -> Iterator[str]:
    yield ", ".join(f"{name} {text}" for name, text in report["versions"].items())
    for rows in (report["devices"], report["links"], report["steps"]):
        if rows:
            yield ""
            cells = [[_text(value) for value in row.values()] for row in rows]
            yield from markdown_table([list(rows[0]), *cells])
    differing = [row for row in report["bytes"] if row["differing"]]
    equal = len(report["bytes"]) - len(differing)
    yield f"\nBytes: {equal} ways to train are equal, {len(differing)} differ."
    for kind, number in report["no_time_for"].items():
        yield f"There was no time for {number} checks of {kind}."
    yield from (f"problem: {text}" for text in report["problems"])
    yield "FAILED" if report["problems"] else "ok"


def _text(value: Any) -> str:
    if value is None:
        return "unknown"
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def prepared_devices(
    devices: str | None, cluster: str | None, quick: bool
) -> list[str]:
    """Returns full names of the devices that flags ask for, ready to run.

    Raises:
        ValueError: if a device is not valid or not present.
    """
    member = find_membership(cluster, "trainer")
    if devices is not None:
        return initialize_devices(parse_devices(devices), member.cluster)
    if member.cluster is not None:
        names = _workers_devices(find_workers(member.cluster).workers)
        return initialize_devices(names, member.cluster)
    for kind in ("TPU", "GPU"):
        number = len(tf.config.list_physical_devices(kind))
        if kind == "GPU" and number == 1:
            return _divided_gpu(2 if quick else 4)
        if number:
            return initialize_devices([f"{kind.lower()}:{i}" for i in range(number)])
    return initialize_devices(min(_MAX_CPUS, max(2, os.cpu_count() or 1)))


def _workers_devices(workers: Mapping[int, WorkerDescription]) -> list[str]:
    """Returns the names of all accelerators, or of a CPU, of each worker."""
    return [
        f"{WORKER_JOB}:{task}/{kind.lower()}:{i}"
        for task, worker in sorted(workers.items())
        for i, kind in enumerate([x for x in worker.kinds if x != "CPU"] or ["CPU"])
    ]


def _divided_gpu(number: int) -> list[str]:
    (gpu,) = tf.config.list_physical_devices("GPU")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(number)
    disable_graph_optimizer()
    part = tf.config.LogicalDeviceConfiguration(memory_limit=_DIVIDED_MIB)
    tf.config.set_logical_device_configuration(gpu, [part] * number)
    return [DeviceName(None, "GPU", i).full for i in range(number)]
