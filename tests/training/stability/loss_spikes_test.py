"""Loss spikes are found by the losses before them, also in a resumed run."""

from __future__ import annotations

from typing import Any

import pytest

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.training.stability.loss_spikes import LossSpikeError, LossSpikes


def _spikes(factor: float | None, *losses: float, interval: int = 1) -> LossSpikes:
    p = Params()
    p.Define("loss_spike_factor", factor, "")
    p.Define("report_interval_steps", interval, "")
    return LossSpikes(p, _records(*losses))


def _records(*losses: float) -> list[dict[str, Any]]:
    train = [{"step": i, "split": "train", "loss": x} for i, x in enumerate(losses)]
    return [*train, {"step": 9, "split": "test", "loss": 1e9}]


def _is_spike(spikes: LossSpikes, loss: float) -> bool:
    try:
        spikes.check(7, loss)
    except LossSpikeError:
        return True
    return False


def test_a_spike_is_above_a_multiple_of_the_median() -> None:
    spikes = _spikes(3.0, 5, 2, 1, 2, 2)
    assert not _is_spike(spikes, 6.0)
    assert _is_spike(spikes, 6.1)
    with pytest.raises(LossSpikeError, match=r"step 7\b.*\b6\.1\b.*\b2$"):
        spikes.check(7, 6.1)
    assert not _is_spike(_spikes(None, 5, 2, 1, 2, 2), 1e9)


def test_negative_losses_have_spikes_too() -> None:
    spikes = _spikes(3.0, *[-2.0] * 5)
    assert not _is_spike(spikes, 1.9)
    assert _is_spike(spikes, 2.1)


def test_data_that_a_model_knows_by_heart_have_no_spikes() -> None:
    """Once any loss above 0 ended such a run."""
    assert not _is_spike(_spikes(3.0, *[0.0] * 20), 1e-9)


def test_a_few_losses_do_not_suffice() -> None:
    spikes = _spikes(2.0, 1, 1, 1, 1)
    assert not _is_spike(spikes, 100)
    spikes.add(10, 1)
    assert _is_spike(spikes, 100)


def test_only_the_last_losses_count() -> None:
    spikes = _spikes(2.0, *[100.0] * 20)
    assert not _is_spike(spikes, 150)
    for step in range(20):
        spikes.add(20 + step, 1)
    assert _is_spike(spikes, 3)


def test_losses_after_an_earlier_last_step_do_not_count() -> None:
    """A run that resumes for more steps has as many as one in one go."""
    spikes = _spikes(2.0, *[1.0] * 8, interval=2)
    spikes.add(9, 1)
    assert not _is_spike(spikes, 100)
    spikes.add(10, 1)
    assert _is_spike(spikes, 100)
