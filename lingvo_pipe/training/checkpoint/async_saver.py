"""The saving of checkpoints on a thread while training continues."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager

from lingvo_pipe.training.checkpoint.checkpointer import Checkpointer


class AsyncSaver(AbstractContextManager["AsyncSaver"]):
    """A thread that saves checkpoints.

    `save` takes a snapshot of the variables at once. A variable's next update then
    creates another tensor, so memory may hold two tensors for each variable. If
    training has failed and writing fails too, the error of training is raised, and
    `log` gets a line about the checkpoint.
    """

    def __init__(self, checkpointer: Checkpointer, log: Callable[[str], None]) -> None:
        self._checkpointer = checkpointer
        self._log = log
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoints")
        self._saving: Future[None] | None = None

    def save(
        self,
        step: int,
        pinned: int | None = None,
        when_written: Callable[[], None] | None = None,
    ) -> None:
        """Calls `wait`, then starts what `Checkpointer.save` does."""
        self.wait()
        values = self._checkpointer.snapshot()
        self._saving = self._thread.submit(
            self._checkpointer.save, step, values, pinned, when_written
        )

    def wait(self) -> None:
        """Waits for the checkpoint being written, and raises the error if it failed."""
        try:
            if self._saving is not None:
                self._saving.result()
        finally:
            self._saving = None

    def is_writing(self) -> bool:
        """Returns whether a checkpoint is being written. Any thread may ask."""
        saving = self._saving
        return saving is not None and not saving.done()

    def close(self) -> None:
        """Waits for the checkpoint being written, and ends the thread."""
        with self._thread:
            self.wait()

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        try:
            self.close()
        except Exception as error:
            if kind is None:
                raise
            # The error that ended training matters more to the user.
            self._log(f"The last checkpoint could not be written: {error}")
