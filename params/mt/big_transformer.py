"""Transformer-Big of Arivazhagan et al. (1907.05019), and how it is trained."""

from __future__ import annotations

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.training.keras_optimizer import OptimizerParams, ScheduleParams
from params.mt.translation_model import TranslationModel

_WARMUP_STEPS = 40_000


class BigTransformer(TranslationModel):
    """T(6, 8192, 16), trained by Adafactor with the published rate (3.0, 40k).

    That is read as 3.0/√t for step t, after a linear warm-up of 40,000 steps. Gradients
    of each weight matrix are clipped by their own norm.
    """

    NUM_LAYERS = 6
    HIDDEN_DIM = 8192
    NUM_HEADS = 16

    LENGTH = 256
    MAX_STEPS = 500_000  # Not published.

    def _SetLearner(self, train: Params) -> None:
        train.Set(
            learning_rate=3.0 * _WARMUP_STEPS**-0.5,
            lr_schedule=ScheduleParams(
                "LinearWarmup",
                warmup_steps=_WARMUP_STEPS,
                schedule=ScheduleParams(
                    "InverseSquareRoot", constant_steps=_WARMUP_STEPS
                ),
            ),
            optimizer=OptimizerParams("Adafactor"),
            clip_gradient_single_norm_to_value=1.0,
        )
