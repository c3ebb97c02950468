"""A run of an earlier version resumes as if it were a run of this one."""

from __future__ import annotations

import shutil
from pathlib import Path

from lingvo_pipe.training.run.metrics_log import read_metrics
from tests.support.command_line import (
    SMALL,
    CommandLine,
    saved_variables,
    write_small_model,
)

# Six steps of `Small`, made before modules moved to rooms with names, and before some
# params got the field's names.
OLD_RUN = Path(__file__).parent / "old_run"
STEPS, MORE_STEPS = 6, 9


def test_it_resumes_in_the_same_bytes(tmp_path: Path) -> None:
    write_small_model(tmp_path)
    command_line = CommandLine(tmp_path)
    model = (SMALL, "--data_dir=.", f"--max_steps={MORE_STEPS}")
    override = (
        "--model_params_override=task.train.report_interval_steps : 1; "
        "task.train.save_interval_steps : 3; task.eval.images : false"
    )
    present, _ = command_line.train(*model, override, "--mode=inspect_params")
    original = tmp_path / "original"
    for name in ("original", "old", "rewritten"):
        shutil.copytree(OLD_RUN, tmp_path / name)  # Bazel's files are links.
    params = tmp_path / "rewritten" / "params.txt"
    first_line = params.read_text().splitlines()[0]
    params.write_text(f"{first_line}\n{present.partition(chr(10) + '# ')[0]}\n")
    before = saved_variables(original, STEPS)
    for name in ("old", "rewritten"):
        output, _ = command_line.train(*model, override, f"--logdir={name}")
        assert f"Resumed from step {STEPS}" in output
    old, rewritten = (
        saved_variables(tmp_path / name, MORE_STEPS) for name in ("old", "rewritten")
    )
    assert old == rewritten
    assert old.keys() == before.keys()
    assert old != before
    logs = [read_metrics(tmp_path / name) for name in ("old", "rewritten")]
    assert logs[0] == logs[1]
    assert logs[0][: len(read_metrics(original))] == read_metrics(original)
