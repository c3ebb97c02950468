r"""Translation with the data of the WMT evaluations, from TensorFlow Datasets.

`TransformerBig` needs a vocabulary of 32,000 tokens in `--data_dir`:

    lingvo_pipe vocab --output=/data/wmt14_de_en.vocab \
        --vocab_size=32000 --languages=de,en --dataset=wmt14_translate/de-en
"""

import model_registry
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.text.tfds_pairs import TfdsPairs
from params.mt.translation_model import BigTransformer


@model_registry.RegisterSingleTaskModel
class TransformerBig(BigTransformer):
    """German to English, 375.1 million parameters (1811.06965v5, table 5, row 1)."""

    VOCAB_FILE = "wmt14_de_en.vocab"
    VOCAB_SIZE = 32_000
    BATCH_SIZE = 1024
    NUM_MICRO_BATCHES = 32

    def _Data(self, split: str) -> list[InstantiableParams]:
        data = TfdsPairs.Params().Set(dataset="wmt14_translate/de-en", split=split)
        return [data.Set(pairs=[("de", "en")])]
