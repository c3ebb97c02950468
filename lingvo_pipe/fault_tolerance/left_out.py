"""Workers and devices that an elastic job leaves out, for the job's next process."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

_VARIABLE = "LINGVO_PIPE_LEFT_OUT"


@dataclass(frozen=True)
class LeftOut:
    """Workers and devices that an elastic job goes on without, and what it needs.

    Attributes:
        workers: numbers of the workers that were lost, and are not waited for again.
        devices: full names of the devices that failed.
        too_few: a number of devices on which the model does not fit.
        misfit: why it does not fit, as a phrase.
        kind: the kind of the job's devices, such as GPU, or "" if none is chosen yet.
            Another kind would change the bytes of results.
    """

    workers: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()
    too_few: int = 0
    misfit: str = ""
    kind: str = ""

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> "LeftOut":
        """Returns what the process before left to this one by `variables`."""
        values = json.loads(environment.get(_VARIABLE) or "{}")
        for name in ("workers", "devices"):
            values[name] = tuple(values.get(name, ()))
        return cls(**values)

    def variables(self) -> dict[str, str]:
        """Returns the environment variables for the next process of the job."""
        return {_VARIABLE: json.dumps(asdict(self))}
