"""Base classes of registered translation models."""

from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.input.text.translation_input import TranslationInput
from lingvo_pipe.models.transformer.logits import LogitsLayer
from lingvo_pipe.models.transformer.network import translation_model
from lingvo_pipe.models.transformer.translation_task import TranslationTask
from lingvo_pipe.training.optim.keras_optimizer import OptimizerParams
from params.transformer_model import TransformerModel, inverse_square_root

_WARMUP_STEPS = 40_000


class TranslationModel(TransformerModel):
    """A Transformer that translates, with the params of its input."""

    TASK = TranslationTask
    STREAMS = ("source", "target")

    TEMPERATURE = 5.0
    MODEL_DIM = 1024
    LOGITS_SOFT_MAX: float | None = None

    def _Data(self, split: str) -> list[InstantiableParams]:
        """Returns the params of the data sets for the split `train` or `test`."""
        raise NotImplementedError(f"{type(self).__name__}._Data")

    def _Input(self, split: str) -> InstantiableParams:
        return TranslationInput.Params().Set(
            data=self._Data(split),
            vocab_file=self.VOCAB_FILE,
            vocab_size=self.VOCAB_SIZE,
            batch_size=self.BATCH_SIZE,
            source_length=self.LENGTH,
            target_length=self.LENGTH,
            temperature=self.TEMPERATURE,
        )

    def _Cells(self) -> list[InstantiableParams]:
        logits = LogitsLayer.Params().Set(logits_soft_max=self.LOGITS_SOFT_MAX)
        return self._Network(translation_model, logits_tpl=logits)


class BigTransformer(TranslationModel):
    """T(6, 8192, 16) of Arivazhagan et al. (1907.05019), trained by Adafactor.

    The published rate (3.0, 40k) is read as 3.0/√t for step t, after a linear warm-up
    of 40,000 steps. Each weight matrix's gradient is clipped by its own norm.
    """

    NUM_LAYERS = 6
    HIDDEN_DIM = 8192
    NUM_HEADS = 16

    LENGTH = 256
    MAX_STEPS = 500_000  # Not published.

    def _SetLearner(self, train: Params) -> None:
        train.Set(
            learning_rate=3.0 * _WARMUP_STEPS**-0.5,
            lr_schedule=inverse_square_root(_WARMUP_STEPS),
            optimizer=OptimizerParams("Adafactor"),
            clip_gradient_single_norm_to_value=1.0,
        )
