"""The public names: a change of these lists is a change for users."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest

NAMES = {
    "lingvo_pipe": """
        BaseLayer BaseTask ForwardContext InstantiableParams NestedMap OptimizerParams
        Params PipeliningLayer Plan Run ScheduleParams SingleTaskModelParams
        TrainedModel WeightInit WeightParams base_layer current_context evaluate gpipe
        initialize_devices input keras layers load models plan py_utils register_model
        resolve_pipeline testing train tshape
    """,
    "lingvo_pipe.keras": "PipelinedModel deferred_variables",
    "lingvo_pipe.testing": "assert_pipelined_equals_plain",
    "lingvo_pipe.input": """
        ImageClassificationInput LanguageModelInput ParallelFiles TfdsPairs
        TranslationInput TsvFile
    """,
    "lingvo_pipe.layers": """
        ActivationLayer BatchNormLayer Conv2DLayer DepthwiseConv2DLayer DropPathLayer
        DropoutLayer FCLayer FeatureExtractionLayer FeedForwardLayer FetchLayer
        GlobalAveragePoolingLayer KerasLayer LayerNormLayer LocalLossLayer
        MultiHeadAttentionLayer PoolingLayer ResidualLayer SeparableConv2DLayer
        SeqLayer SequentialLayer TokenEmbeddingLayer
    """,
    "lingvo_pipe.models": """
        ImageClassifier KerasTask LanguageModelTask TranslationTask language_model
        tied_embeddings translation_model
    """,
}
_LAZY = """
import sys
import lingvo_pipe as lp
lp.NestedMap, lp.Params, lp.keras, lp.layers, lp.models, lp.input
sys.exit("tensorflow" in sys.modules)
"""


@pytest.mark.parametrize("package", NAMES)
def test_they_are_listed_and_documented(package: str) -> None:
    module = importlib.import_module(package)
    names = NAMES[package].split()
    assert sorted(module.__all__) == sorted(names)
    assert [name for name in names if not inspect.getdoc(getattr(module, name))] == []


def test_tensorflow_is_imported_when_a_name_needs_it() -> None:
    assert subprocess.run([sys.executable, "-c", _LAZY]).returncode == 0
