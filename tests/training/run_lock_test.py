"""A run's directory has one trainer; one that is gone holds nobody up."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from lingvo_pipe.training.run_directory import RunDirectory
from lingvo_pipe.training.run_lock import RunLock


def _hold(directory: Path, pipe: Connection) -> None:
    lock = RunLock(directory)
    lock.acquire()
    pipe.send(os.getpid())
    pipe.recv()


def test_another_process_is_refused_until_it_is_killed(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    holder = context.Process(target=_hold, args=(tmp_path, there))
    holder.start()
    try:
        number = here.recv()
        with pytest.raises(ValueError, match=rf"{tmp_path}\b.*\b{number}\b"):
            RunLock(tmp_path).acquire()
    finally:
        holder.kill()
        holder.join()
    lock = RunLock(tmp_path)
    lock.acquire()
    assert f"process {os.getpid()} " in (tmp_path / "lock").read_text()
    lock.release()


def test_it_may_be_taken_twice_and_again(tmp_path: Path) -> None:
    lock, other = RunLock(tmp_path), RunLock(tmp_path)
    lock.acquire()
    lock.acquire()
    with pytest.raises(ValueError, match=rf"{tmp_path}\b.*\b{os.getpid()}\b"):
        other.acquire()
    lock.release()
    lock.release()
    other.acquire()
    other.release()


def test_a_directory_where_nothing_but_a_lock_was_left_is_new(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run", "toy.Toy")
    directory.lock()  # And killed before it wrote the params.
    directory.unlock()
    again = RunDirectory(tmp_path / "run", "toy.Toy")
    again.lock()
    again.unlock()
