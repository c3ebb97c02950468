"""Trainings in processes of their own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Collection
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from lingvo_pipe.pipeline.devices.stage_devices import initialize_devices
from tools.local_study.studied_model import StudiedModel
from tools.local_study.study_rows import Row, RowKey
from tools.local_study.training import train_row


def train_in_own_process(
    model: StudiedModel, key: RowKey, record_every: int, moments: Collection[int]
) -> Row:
    """As `train_row`, in a process that ends with it.

    TensorFlow keeps graphs that nothing uses any more: a gigabyte after a training of
    a small AmoebaNet. So a study of any length needs the memory of one.

    Raises:
        ChildProcessError: if the process was killed.
    """
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, initialize_devices, (1,)) as pool:
        try:
            return pool.submit(train_row, model, key, record_every, moments).result()
        except BrokenProcessPool as error:
            raise ChildProcessError(
                f"The process that trained with {key.name} was killed, perhaps for "
                "want of memory. The trainings before are kept; start again to go on."
            ) from error
