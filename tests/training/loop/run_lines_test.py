"""Lines about the start and the end of a run say what is saved."""

from __future__ import annotations

from pathlib import Path

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.training.checkpoint.checkpointer import Checkpointer
from lingvo_pipe.training.loop.run_lines import (
    result_text,
    resumed_text,
    stopped_line,
)
from lingvo_pipe.training.run.best_evaluation import BestEvaluation, define_best_params
from lingvo_pipe.training.run.run_parts import RunPart


def test_a_stopped_run_says_from_where_it_resumes() -> None:
    assert "nothing is saved" in stopped_line("SIGTERM", 0, [])
    assert stopped_line("SIGTERM", 4, [2, 4]).endswith("resumes from there.")
    assert stopped_line("SIGTERM", 5, [2, 4]).endswith("resumes from step 4.")


def test_a_resumed_run_says_what_is_not_known() -> None:
    kinds = [{"type": "CPU"}]
    part = RunPart(0, "here", last_step=4, device_kinds=[{"type": "CPU"}])
    assert resumed_text(4, 9, [part], kinds) == "Resumed from step 4."
    assert "--max_steps" in resumed_text(9, 9, [part], kinds)
    assert "parts.json is missing" in resumed_text(4, 9, [], kinds)
    assert "GPU now" in resumed_text(4, 9, [part], [{"type": "GPU"}])
    assert resumed_text(4, 9, [part], kinds, ["a : 1 -> 2"]).endswith(": a : 1 -> 2")


def test_a_damaged_checkpoint_is_no_result(tmp_path: Path) -> None:
    """Once a run named one as its newest."""
    checkpointer, p = Checkpointer(tmp_path, {}), Params()
    define_best_params(p)
    for step in (50, 100):
        Path(f"{checkpointer.prefix(step)}.index").touch()
    checkpointer.unreadable = {100}
    text = result_text(BestEvaluation(p), checkpointer)
    assert text.endswith(str(checkpointer.prefix(50)))
