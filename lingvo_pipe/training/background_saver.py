"""Saves checkpoints while training goes on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from lingvo_pipe.training.checkpoints import Checkpointer


class BackgroundSaver:
    """Saves with a checkpointer, on a thread of its own.

    The state of a step is noted at once: a tensor that a variable holds is kept as it
    is, and the variable's next update makes another. Until the checkpoint is written
    there may be two of each.

    Use it as a context manager, or close it. Leaving it waits for what is being saved,
    also when training has failed: nothing that was begun is lost.

    Args:
        checkpointer: saves; nothing else may save with it meanwhile.
        log: takes a line if training has failed, and what was being saved could not
            be written either.
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
        """Begins to save the present state, when the one before has been saved.

        Args:
            step: as of `Checkpointer.save`.
            pinned: likewise.
            when_written: likewise; called on the saver's thread.

        Raises:
            OSError: if the one before could not be written, or one of TensorFlow's
                errors.
            ValueError: if a later step is already saved.
        """
        self.wait()
        values = self._checkpointer.snapshot()
        self._saving = self._thread.submit(
            self._checkpointer.save, step, values, pinned, when_written
        )

    def wait(self) -> None:
        """Waits for what is being saved.

        Raises:
            Exception: as of `save`.
        """
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def close(self) -> None:
        """Waits as `wait` does, and ends the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()

    def __enter__(self) -> BackgroundSaver:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        try:
            self.close()
        except Exception as error:
            if kind is None:
                raise
            # Why training failed is what the user must see most.
            self._log(f"The last checkpoint could not be written: {error}")
