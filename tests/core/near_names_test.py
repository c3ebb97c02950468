"""Near names."""

from __future__ import annotations

from lingvo_pipe.core.near_names import did_you_mean, near_names


def test_near_names_at_any_length() -> None:
    names = ["lr", "max_steps", "dim", "learning_rate"]
    assert near_names("rl", names) == ["lr"]
    assert near_names("LR", names) == ["lr"]
    assert near_names("max_stpes", names) == ["max_steps"]
    assert near_names("steps", names) == ["max_steps"]
    assert near_names("q", names) == []
    assert near_names("din", [1, "dim", None]) == ["dim"]
    assert did_you_mean("din", names) == " Did you mean 'dim'?"
    assert did_you_mean("q", names) == ""
