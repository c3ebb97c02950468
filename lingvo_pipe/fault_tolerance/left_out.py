"""Workers and devices that an elastic job leaves out, for the job's next process."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

_VARIABLE = "LINGVO_PIPE_LEFT_OUT"


@dataclass(frozen=True)
class LeftOut:
    """Workers and devices that an elastic job leaves out, and what it needs."""

    workers: tuple[int, ...] = ()  # Lost, and not waited for again.
    # Full name of each failed device -> number of devices of its kind in its task then.
    devices: dict[str, int] = field(default_factory=dict)
    too_few: int = 0  # A number of devices on which the model does not fit.
    misfit: str = ""  # Why it does not fit, as a phrase.
    # The job's `DeviceKind`, or {} before devices are chosen. Another changes bytes.
    kind: dict[str, str] = field(default_factory=dict)
    # Workers that ended alone since the progress `lost_at`, once for each time.
    lost: tuple[int, ...] = ()
    lost_at: str = ""

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> "LeftOut":
        """Returns what the previous process passed to this one by `variables`."""
        values = json.loads(environment.get(_VARIABLE) or "{}")
        for name in ("workers", "lost"):
            values[name] = tuple(values.get(name, ()))
        return cls(**values)

    def variables(self) -> dict[str, str]:
        """Returns the environment variables for the next process of the job."""
        return {_VARIABLE: json.dumps(asdict(self))}
