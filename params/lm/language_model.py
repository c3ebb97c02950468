"""What registered language models have in common: constants that say all."""

from __future__ import annotations

from collections.abc import Sequence

from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.input.text.documents import LINES
from lingvo_pipe.input.text.language_model_input import LanguageModelInput
from lingvo_pipe.models.transformer.language_model_task import LanguageModelTask
from lingvo_pipe.models.transformer.network import language_model, tied_embeddings
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.single_task_model_params import SingleTaskModelParams
from params.even_stages import even_stages


class LanguageModel(SingleTaskModelParams):
    """A Transformer that predicts each token from those before it."""

    TRAIN_FILES: Sequence[str]
    TEST_FILES: Sequence[str]
    DOCUMENTS = LINES
    VOCAB_FILE: str
    VOCAB_SIZE: int
    LENGTH: int  # Tokens in a row.
    BATCH_SIZE: int  # Rows.

    NUM_LAYERS: int
    HIDDEN_DIM: int
    NUM_HEADS: int
    MODEL_DIM: int
    DROPOUT = 0.1
    TIED_EMBEDDINGS = False

    NUM_STAGES = 1
    NUM_MICRO_BATCHES = 1
    RECOMPUTE: str | None = None
    MAX_STEPS: int

    def Train(self) -> InstantiableParams:
        """The text to learn from."""
        return self._Input(self.TRAIN_FILES)

    def Test(self) -> InstantiableParams:
        """Text that is not learned from."""
        return self._Input(self.TEST_FILES)

    def Task(self) -> InstantiableParams:
        """The network, and how it is trained."""
        p = LanguageModelTask.Params()
        cells = self._Cells()
        stream = dict.fromkeys(("ids", "segment_ids", "segment_pos"), (1, self.LENGTH))
        state = NestedMap(target=NestedMap(stream))
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

    def _SetLearner(self, train: Params) -> None:
        """Sets optimizer, learning rate and what else there is of them."""
        raise NotImplementedError(f"{type(self).__name__}._SetLearner")

    def _Input(self, files: Sequence[str]) -> InstantiableParams:
        return LanguageModelInput.Params().Set(
            # What is no list, such as a name, the input refuses.
            files=list(files) if isinstance(files, tuple) else files,
            documents=self.DOCUMENTS,
            vocab_file=self.VOCAB_FILE,
            vocab_size=self.VOCAB_SIZE,
            batch_size=self.BATCH_SIZE,
            length=self.LENGTH,
        )

    def _Cells(self) -> list[InstantiableParams]:
        return language_model(
            num_layers=self.NUM_LAYERS,
            hidden_dim=self.HIDDEN_DIM,
            num_heads=self.NUM_HEADS,
            num_tokens=self.VOCAB_SIZE,
            model_dim=self.MODEL_DIM,
            dropout_prob=self.DROPOUT,
        )
