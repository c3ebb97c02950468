"""Where the workers are: `worker=host1:2222,host2:2222`, as in Lingvo. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lingvo_pipe.hyperparams.suggest import did_you_mean
from lingvo_pipe.pipeline.devices.device_names import WORKER_JOB

_HELP = f"Write {WORKER_JOB}=host1:port1,host2:port2, the same for all tasks."
_ADDRESS = re.compile(r"(\[[0-9a-f:]+\]|[^\s:/,=@\[\]]+):(\d+)", re.IGNORECASE)
_MAX_PORT = 65535


def parse_cluster_spec(text: str) -> list[str]:
    """Reads a cluster's description.

    Returns:
        The addresses of worker 0, 1, ...

    Raises:
        ValueError: if it describes anything but workers, or names an address that is
            none or stands twice.
    """
    job, _, rest = text.strip().partition("=")
    if job != WORKER_JOB:
        raise ValueError(
            f"--cluster_spec must name the job {WORKER_JOB!r} and nothing else; got "
            f"{text!r}.{did_you_mean(job, [WORKER_JOB])} {_HELP}"
        )
    addresses = [address.strip() for address in rest.split(",")]
    wrong = [address for address in addresses if not _is_address(address)]
    if wrong:
        raise ValueError(
            f"Workers must be given as host:port; {wrong} in --cluster_spec are not. "
            f"{_HELP}"
        )
    twice = sorted({a for a in addresses if addresses.count(a) > 1})
    if twice:
        raise ValueError(
            f"Each worker needs an address of its own; {twice} stand twice in "
            f"--cluster_spec. {_HELP}"
        )
    return addresses


def split_address(address: str) -> tuple[str, int]:
    """`host:port` -> host and port; `[::1]:2222` -> `::1` and 2222."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def checked_task(task: int, workers: Sequence[str]) -> int:
    """The number of a worker; raises ValueError if there is no such worker."""
    if not 0 <= task < len(workers):
        raise ValueError(
            f"--task must be one of the {len(workers)} workers in --cluster_spec, "
            f"0..{len(workers) - 1}; got {task}."
        )
    return task


def _is_address(text: str) -> bool:
    match = _ADDRESS.fullmatch(text)
    return match is not None and 1 <= int(match[2]) <= _MAX_PORT
