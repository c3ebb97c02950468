"""Names of devices, as users and as TensorFlow write them.

cpu:0               /job:localhost/replica:0/task:0/device:CPU:0
worker:1/gpu:0      /job:worker/replica:0/task:1/device:GPU:0
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.near_names import near_names, suggest

LOCAL_JOB = "localhost"
WORKER_JOB = "worker"

KINDS = ("CPU", "GPU", "TPU")

_DEVICE = rf"(?P<kind>{'|'.join(KINDS)}):(?P<index>\d{{1,99}})"
_SHORT = rf"({WORKER_JOB}:(?P<task>\d{{1,99}})/)?{_DEVICE}"
_LONG = (
    rf"((/job:{LOCAL_JOB})?(/replica:0)?(/task:0)?"
    rf"|/job:{WORKER_JOB}(/replica:0)?/task:(?P<task>\d{{1,99}}))/device:{_DEVICE}"
)
_FORMS = [re.compile(form, re.IGNORECASE) for form in (_SHORT, _LONG)]
# Devices of a process. More CPU devices would take gigabytes.
_MAX_DEVICES = 4096
_EXAMPLES = (
    "a number of devices, or names such as cpu:0,cpu:1 or gpu:0,gpu:1 or, for worker "
    "tasks, worker:0/gpu:0,worker:1/gpu:0"
)


@dataclass(frozen=True)
class DeviceName:
    """A device of this process, or of a worker task."""

    worker: int | None  # None for this process.
    kind: str  # CPU, GPU or TPU.
    index: int  # Among the devices of its kind and process.

    @property
    def full(self) -> str:
        """The complete name, as TensorFlow writes it."""
        job = LOCAL_JOB if self.worker is None else WORKER_JOB
        task = f"/job:{job}/replica:0/task:{self.worker or 0}"
        return f"{task}/device:{self.kind}:{self.index}"

    @property
    def short(self) -> str:
        """The name as users write it."""
        task = "" if self.worker is None else f"{WORKER_JOB}:{self.worker}/"
        return f"{task}{self.kind.lower()}:{self.index}"

    @property
    def host(self) -> "DeviceName":
        """The CPU that this device is attached to."""
        return replace(self, kind="CPU", index=0)

    @property
    def has_host_memory(self) -> bool:
        """True if the device has no other memory than its host's."""
        return self.kind == "CPU"


def device_name(text: str) -> DeviceName:
    """Parses the name of a device, short or full.

    Raises:
        ValueError: if the text is not such a name.
    """
    return device_names([text])[0]


def device_names(texts: Sequence[str], path: str = "devices") -> list[DeviceName]:
    """Parses names of devices, which must all differ. Errors name `path`.

    Raises:
        ValueError: if names are not valid or occur twice.
    """
    parsed = [_parse(text) for text in texts]
    wrong = [text for text, name in zip(texts, parsed, strict=True) if name is None]
    names = [name for name in parsed if name is not None]
    beyond = [name.short for name in names if name.index >= _MAX_DEVICES]
    twice = sorted({name.short for name in names if names.count(name) > 1})
    for is_right, expected, got in (
        (texts and not wrong, _EXAMPLES, wrong),
        (not beyond, f"numbers below {_MAX_DEVICES}", beyond),
        (not twice, "each device once", twice),
    ):
        if not is_right:
            hint = suggest(_near(wrong)).strip()
            raise UserValueError(path=path, expected=expected, got=got, hint=hint)
    return names


def parse_devices(text: str, path: str = "--devices") -> int | list[str]:
    """Parses text to a number of devices, or to a list of full names of devices.

    Raises:
        ValueError: if the number or a name is not valid.
    """
    entries = [entry.strip() for entry in text.split(",")]
    if len(entries) == 1 and re.fullmatch(r"-?\d{1,20}", entries[0], re.ASCII):
        return checked_number(int(entries[0]), path)
    return [name.full for name in device_names(entries, path)]


def checked_number(number: int, path: str = "devices") -> int:
    """Returns `number`, a number of devices that the user gave, if it is valid.

    Raises:
        ValueError: if the number is out of range. The error names `path`.
    """
    if not 1 <= number <= _MAX_DEVICES:
        expected = f"1 to {_MAX_DEVICES} devices"
        raise UserValueError(path=path, expected=expected, got=number)
    return number


def short_name(full: str) -> str:
    """Returns the short form of a full name, such as `worker:1/gpu:0`."""
    return device_name(full).short


def _parse(text: str) -> DeviceName | None:
    for form in _FORMS:
        match = form.fullmatch(text)
        if match:
            task = match["task"]
            worker = None if task is None else int(task)
            return DeviceName(worker, match["kind"].upper(), int(match["index"]))
    return None


def _near(wrong: Iterable[str]) -> list[str]:
    meant: list[str] = []
    for text in wrong:
        *tasks, index = re.findall(r"\d+", text) or ["0"]
        task = f"{WORKER_JOB}:{tasks[0]}/" if tasks else ""
        valid_names = [f"{task}{kind.lower()}:{index}" for kind in KINDS]
        meant += near_names(text, valid_names)[:1]
    return meant
