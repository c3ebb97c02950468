"""What registered translation models have in common: constants that say all."""

from __future__ import annotations

from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.input.text.translation_input import TranslationInput
from lingvo_pipe.models.transformer.logits import LogitsLayer
from lingvo_pipe.models.transformer.network import tied_embeddings, translation_model
from lingvo_pipe.models.transformer.translation_task import TranslationTask
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.single_task_model_params import SingleTaskModelParams
from params.even_stages import even_stages


class TranslationModel(SingleTaskModelParams):
    """A Transformer that translates, and what it reads."""

    VOCAB_FILE: str
    VOCAB_SIZE: int
    LENGTH: int  # Tokens in a row, of sources and of translations each.
    BATCH_SIZE: int  # Rows.
    TEMPERATURE = 5.0

    NUM_LAYERS: int  # Of the encoder and of the decoder each.
    HIDDEN_DIM: int
    NUM_HEADS: int
    MODEL_DIM = 1024
    DROPOUT = 0.1
    TIED_EMBEDDINGS = False
    LOGITS_SOFT_MAX: float | None = None

    NUM_STAGES = 1
    NUM_MICRO_BATCHES = 1
    RECOMPUTE: str | None = None
    MAX_STEPS: int

    def Train(self) -> InstantiableParams:
        """The sentences to learn from."""
        return self._Input("train")

    def Test(self) -> InstantiableParams:
        """Sentences that are not learned from."""
        return self._Input("test")

    def Task(self) -> InstantiableParams:
        """The network, and how it is trained."""
        p = TranslationTask.Params()
        cells = self._Cells()
        stream = dict.fromkeys(("ids", "segment_ids", "segment_pos"), (1, self.LENGTH))
        state = NestedMap(source=NestedMap(stream), target=NestedMap(stream))
        p.pipeline.Set(
            cell_tpl=cells,
            splits=even_stages(cells, self.NUM_STAGES, state),
            tied=tied_embeddings(cells) if self.TIED_EMBEDDINGS else {},
            num_micro_batches=self.NUM_MICRO_BATCHES,
            recompute=self.RECOMPUTE,
        )
        p.train.max_steps = self.MAX_STEPS
        self._SetLearner(p.train)
        return p

    def _Data(self, split: str) -> list[InstantiableParams]:
        """Params of the data sets: the split `train` or `test`."""
        raise NotImplementedError(f"{type(self).__name__}._Data")

    def _SetLearner(self, train: Params) -> None:
        """Sets optimizer, learning rate and what else there is of them."""
        raise NotImplementedError(f"{type(self).__name__}._SetLearner")

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
        return translation_model(
            num_layers=self.NUM_LAYERS,
            hidden_dim=self.HIDDEN_DIM,
            num_heads=self.NUM_HEADS,
            num_tokens=self.VOCAB_SIZE,
            model_dim=self.MODEL_DIM,
            dropout_prob=self.DROPOUT,
            logits_tpl=LogitsLayer.Params().Set(logits_soft_max=self.LOGITS_SOFT_MAX),
        )
