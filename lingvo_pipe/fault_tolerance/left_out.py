"""Workers and devices that an elastic job leaves out, for the job's next process."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

_VARIABLE = "LINGVO_PIPE_LEFT_OUT"


@dataclass(frozen=True)
class LeftOut:
    """Workers and devices that an elastic job leaves out, and what it needs.

    Attributes:
        workers: numbers of the workers that were lost, and are not waited for again.
        devices: full names of the devices that failed, each with the number of devices
            of its kind that its task had then.
        too_few: a number of devices on which the model does not fit.
        misfit: why it does not fit, as a phrase.
        kind: the `DeviceKind` of the job's devices, or empty before they are chosen.
            Another kind would change the bytes of results.
    """

    workers: tuple[int, ...] = ()
    devices: dict[str, int] = field(default_factory=dict)
    too_few: int = 0
    misfit: str = ""
    kind: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> "LeftOut":
        """Returns what the process before left to this one by `variables`."""
        values = json.loads(environment.get(_VARIABLE) or "{}")
        values["workers"] = tuple(values.get("workers", ()))
        return cls(**values)

    def variables(self) -> dict[str, str]:
        """Returns the environment variables for the next process of the job."""
        return {_VARIABLE: json.dumps(asdict(self))}
