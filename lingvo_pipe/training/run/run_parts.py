"""The parts of a run, in `parts.json`: when and where each was trained, and how fast.

A part ends at the step of its last checkpoint. The time from there to the first step of
the next part is lost, since steps after the checkpoint are trained again.
"""

import contextlib
import dataclasses
import datetime
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from lingvo_pipe.core.atomic_file import write_atomically
from lingvo_pipe.core.regular_file import MALFORMED, damaged, read_json
from lingvo_pipe.pipeline.devices.device_kind import DeviceKind, kind_differences


@dataclasses.dataclass
class RunPart:
    """A part of a run, from `after_step` until the run stops or rolls back."""

    after_step: int
    place: str  # Parameters, stages and devices, as text.
    predicted_bubble: float | None = None  # Idle fraction, predicted from flops.
    last_step: int = 0  # The last step so far.
    seconds: float = 0.0  # Since the part's start, evaluations and building included.
    num_steps: int = 0  # Number of steps that took `train_seconds`.
    train_seconds: float = 0.0  # Time of calls that train, without the first.
    examples_per_second: float | None = None
    stages_busy: float | None = None  # Fraction of the devices' time in the last step.
    device_kinds: list[DeviceKind] = dataclasses.field(default_factory=list)
    train_loss: str = ""  # How the train loss differs from the test's.
    cause: str = ""  # Why the process restarted or rolled back, as sentences.
    begin: float = 0.0  # When the first step began, in seconds since 1970; 0: unknown.
    end: float = 0.0  # When the last step was saved.
    has_stopped: bool = False  # As planned: at its last step, or by a signal.

    def __post_init__(self) -> None:
        self._start, self._is_built = time.monotonic() - self.seconds, False

    @contextlib.contextmanager
    def timing(self, num_steps: int, batch_size: int) -> Iterator[None]:
        """Measures each block that trains, except the first, which builds graphs."""
        begin = time.monotonic()
        self.begin = self.begin or time.time()
        yield
        if self._is_built:
            self.num_steps += num_steps
            self.train_seconds += time.monotonic() - begin
            self.examples_per_second = self.num_steps * batch_size / self.train_seconds
        self._is_built = True

    def write(self, path: Path) -> None:
        """Writes this part if it has steps. Cuts off earlier parts where it begins."""
        if self.last_step <= self.after_step:
            return
        self.seconds, self.end = time.monotonic() - self._start, time.time()
        parts = [x for x in read_parts(path) if x.after_step < self.after_step]
        for part in parts:
            part.cut_off(self.after_step)
        records = list(map(dataclasses.asdict, [*parts, self]))
        write_atomically(path, json.dumps(records, indent=2) + "\n")

    def cut_off(self, step: int) -> None:
        """Ends the part after `step`, if it is longer. Estimates when that was."""
        if self.last_step > step:
            kept = (step - self.after_step) / (self.last_step - self.after_step)
            self.end = self.begin + kept * (self.end - self.begin)
            self.last_step, self.has_stopped = step, False

    def text(self) -> str:
        """Returns the part's facts as text."""
        bubble, busy = self.predicted_bubble, self.stages_busy
        begin = datetime.datetime.fromtimestamp(self.begin).astimezone()
        facts = [
            f"{begin:%Y-%m-%d %H:%M:%S %Z}" if self.begin else "",
            self.place,
            "" if bubble is None else f"bubble {bubble:.1%} as predicted from flops",
            "" if busy is None else f"stages {busy:.1%} busy in the last step",
            f"time {_duration(self.seconds)}",
            self.speed_text(),
        ]
        return "; ".join(filter(None, facts))

    def speed_text(self) -> str:
        """Returns the speed of training steps as text, or "" if it is unknown."""
        speed = self.examples_per_second
        return "" if speed is None else f"{speed:,.4g} examples/s"


def disturbances(parts: Sequence[RunPart]) -> list[str]:
    """Returns a line for each time that a run was disturbed, with the time lost.

    The time is unknown if nothing was saved before, or by an old version. A planned
    stop is no disturbance.
    """
    lines = []
    for before, part in itertools.pairwise([None, *parts]):
        assert part is not None
        lost, cause = "", part.cause
        if before is not None and before.end and part.begin:
            # Clocks of two hosts may differ.
            lost = f"{_duration(max(0.0, part.begin - before.end))} lost. "
            cause = cause or "The trainer was started again." * (not before.has_stopped)
        if cause:
            lines.append(f"after step {part.after_step:,}: {lost}{cause}")
    return lines


def _duration(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(seconds)))


def read_parts(path: Path) -> list[RunPart]:
    """Returns all parts of a run, or an empty list if there is no file.

    Raises:
        ValueError: if the file is damaged.
    """
    hint = "Remove the file; the trainer writes it again."
    records = read_json(path, hint)
    try:
        parts = [RunPart(**record) for record in records or []]
        for part in parts:  # Values of wrong types cannot be formatted.
            f"{part.after_step:d} {part.last_step:d} {part.train_loss:s} {part.text()}"
            f"{part.cause:s} {_duration(part.end - part.begin)}"
            for kind in part.device_kinds:
                " ".join({**kind}.values())
    except (*MALFORMED, OSError) as error:  # OSError: of a time that is too large.
        raise damaged(path, "a list of a run's parts", error, hint) from error
    return parts


def kinds_note(parts: Sequence[RunPart], step: int, now: Sequence[DeviceKind]) -> str:
    """Returns a line if a run resumes on other kinds of devices, as far as known."""
    before = [part.device_kinds for part in parts if part.after_step < step][-1:]
    texts = kind_differences(before[0], now) if before and before[0] else []
    if not texts:
        return ""
    return (
        f"Another kind of device ({'; '.join(texts)}): from here on bytes may differ "
        "from an uninterrupted run's."
    )
