"""The command runs a tiny model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tools.benchmarks

ROOT = Path(tools.benchmarks.__file__).parents[2]


@pytest.mark.exhaustive
def test_measures(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    environment.pop("BUILD_WORKING_DIRECTORY", None)
    flags = ["--quick", "--rounds=1", "--steps=2", "--output=table.json"]
    run = subprocess.run(
        [sys.executable, "-m", "tools.benchmarks.pipeline", *flags],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    ours = [row for row in rows if row["system"] == "lingvo_pipe"]
    one_device, pipelined, on_workers, _, half, one_local, two_blocks = ours
    assert [row["num_stages"] for row in ours] == [1, 2, 2, 1, 2, 1, 2]
    places = [row["placement"] for row in ours]
    assert places == ["in-process", "in-process", "workers", *["in-process"] * 4]
    assert [row["num_blocks"] for row in ours] == [1, 1, 1, 1, 1, 2, 2]
    assert [row["steps_per_call"] for row in ours] == [1, 1, 1, 1, 1, 3, 3]
    plain, plain_half = (row for row in rows if row["system"] == "tensorflow")
    assert (half["dtype"], plain_half["dtype"]) == ("bfloat16", "bfloat16")
    for row, peer in ((pipelined, plain), (half, plain_half)):
        ratio = row["step_seconds"] / peer["step_seconds"]
        assert row["step_over_tensorflow"] == pytest.approx(ratio)
    for row in ours:
        assert row["schedule"] == ("gpipe" if row["num_blocks"] == 1 else "local")
        assert row["recompute"] == ("never" if row["dtype"] == "bfloat16" else "always")
        assert 0 < row["step_seconds"] < row["start_seconds"]
        peak = row["peak_bytes_by_stage"]
        assert len(peak) == row["num_stages"]
        assert all(isinstance(n, int) and n > 0 for n in peak)
    assert one_device["speedup"] is None
    speedup = one_device["step_seconds"] / pipelined["step_seconds"]
    assert pipelined["speedup"] == pytest.approx(speedup)
    ratio = on_workers["step_seconds"] / pipelined["step_seconds"]
    assert on_workers["step_over_in_process"] == pytest.approx(ratio)
    assert pipelined["step_over_in_process"] is None
    assert one_local["speedup"] is None
    assert two_blocks["speedup_bound"] == 2
    for row in ours:
        by_shapes, sent = row["bytes_by_shapes"], row["sent_bytes"]
        if row["placement"] == "workers":
            # The rest are headers, and requests to the workers.
            assert by_shapes < sent
        else:
            assert by_shapes is sent is None
    # Of two steps one is predicted.
    assert pipelined["prediction_error"] == pipelined["prediction_error_max"] >= 0
    assert one_device["prediction_error"] is on_workers["prediction_error"] is None
    assert run.stdout.count("| lingvo_pipe ") == 7
    assert run.stdout.count("%") == 4
    assert (len(rows) == 9) == ("--torch_python=PATH" in run.stdout)
    assert "zero-bubble" in run.stdout or len(rows) == 9
