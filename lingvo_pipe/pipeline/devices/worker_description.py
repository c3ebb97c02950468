"""What a worker says of itself, and whether that is what its trainer expects. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields


@dataclass(frozen=True)
class WorkerDescription:
    """A worker.

    Attributes:
        lingvo_pipe: version.
        tensorflow: version.
        task: which of the workers it is.
        workers: addresses of all.
        kinds: the kind of each of its devices: CPU, CPU, GPU, ...
        host: name of its machine.
        pid: of its process.
    """

    lingvo_pipe: str
    tensorflow: str
    task: int
    workers: tuple[str, ...]
    kinds: tuple[str, ...]
    host: str
    pid: int

    def to_json(self) -> str:
        """As text that `read_description` reads."""
        return json.dumps(asdict(self))

    def counts(self) -> dict[str, int]:
        """The number of its devices of each kind."""
        return dict(Counter(self.kinds))

    def __str__(self) -> str:
        devices = ", ".join(f"{n} {kind}" for kind, n in self.counts().items())
        return f"host {self.host}, process {self.pid}, {devices}"


def read_description(text: str) -> WorkerDescription | None:
    """Reads a description; None: it is none, as of another version of lingvo_pipe."""
    try:
        values = json.loads(text)
        if set(values) != {field.name for field in fields(WorkerDescription)}:
            return None
        for name in ("workers", "kinds"):
            values[name] = tuple(map(str, values[name]))
        return WorkerDescription(**values)
    except (TypeError, ValueError):
        return None


def differences(
    found: WorkerDescription, task: int, workers: Sequence[str], ours: dict[str, str]
) -> list[str]:
    """In what a worker is not what a trainer expects of it.

    Args:
        found: what it says.
        task: which worker it should be.
        workers: addresses of all, as the trainer has them.
        ours: versions of `lingvo_pipe` and `tensorflow` here.
    """
    wrong = [
        f"{package} {theirs} there, {ours[package]} here"
        for package, theirs in (
            ("lingvo_pipe", found.lingvo_pipe),
            ("tensorflow", found.tensorflow),
        )
        if theirs != ours[package]
    ]
    if found.task != task:
        wrong.append(f"worker:{found.task} there, worker:{task} here")
    if list(found.workers) != list(workers):
        wrong.append(f"workers {_listed(found.workers)} there, {_listed(workers)} here")
    return wrong


def _listed(workers: Sequence[str]) -> str:
    return ",".join(workers)
