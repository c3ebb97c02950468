"""Of several that write at a time, no line is lost."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lingvo_pipe.training.metrics_log import read_metrics
from lingvo_pipe.training.shared_log import shared_log


def test_one_waits_for_the_other(tmp_path: Path) -> None:
    opened = threading.Event()

    def write() -> None:
        with shared_log(tmp_path / "evaler") as log:
            opened.set()
            log.write(2, "dev", {"loss": 2.0})

    with ThreadPoolExecutor(1) as pool:
        with shared_log(tmp_path / "evaler") as log:
            writing = pool.submit(write)
            assert not opened.wait(0.2)
            log.write(1, "test", {"loss": 1.0})
        writing.result()
    lines = [
        (line["step"], line["split"]) for line in read_metrics(tmp_path / "evaler")
    ]
    assert lines == [(1, "test"), (2, "dev")]


def test_no_line_of_many_is_lost(tmp_path: Path) -> None:
    def write(writer: int) -> None:
        for step in range(10):
            with shared_log(tmp_path) as log:
                log.write(step, f"split_{writer}", {"loss": 0.5})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    found = {(line["step"], line["split"]) for line in read_metrics(tmp_path)}
    assert len(found) == len(read_metrics(tmp_path)) == 40
