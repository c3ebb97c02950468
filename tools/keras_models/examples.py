"""Keras models to train: all of keras.applications, and families of KerasHub."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import keras
import numpy as np

B = 8
_T, _V = 6, 50
_LORA_RANK = 2
_SIZES = {"vocabulary_size": _V, "hidden_dim": 16, "intermediate_dim": 24}
_GROUPED = {"num_query_heads": 2, "num_key_value_heads": 1}
_IMAGE = (16, 16, 3)
_IMAGE_SIZES = (32, 48, 71, 75, 96, 224)  # For keras.applications.
_Make = Callable[[Any], tuple[Any, keras.Model]]  # Makes a backbone, and its model.


class Example(NamedTuple):
    """A model and data to train it."""

    make_model: Callable[[], keras.Model]
    inputs: Any
    targets: Any
    loss: Any


def example(name: str) -> Example:
    """Returns a model of keras.applications or of `HUB_MODELS`, and data to train it.

    A name in `HUB_MODELS` may end in " LoRA", for low-rank adapters.
    """
    is_hub = name.removesuffix(" LoRA") in HUB_MODELS
    return _hub_model(name) if is_hub else _application(name)


def _application(name: str) -> Example:
    def make(size: int) -> keras.Model:
        application = getattr(keras.applications, name)
        return application(weights=None, input_shape=(size, size, 3), classes=10)

    def takes(size: int) -> bool:
        try:
            make(size)
        except ValueError:
            return False
        return True

    size = next(filter(takes, _IMAGE_SIZES))
    random = np.random.default_rng(0)
    return Example(
        partial(make, size),
        random.uniform(size=(B, size, size, 3)).astype("float32"),
        random.integers(10, size=B),
        "sparse_categorical_crossentropy",
    )


def _hub_model(name: str) -> Example:
    family = name.removesuffix(" LoRA")

    def make_model() -> keras.Model:
        import keras_hub  # Not a dependency.

        backbone, model = HUB_MODELS[family](keras_hub.models)
        if name != family:
            backbone.enable_lora(_LORA_RANK)
        return model

    random = np.random.default_rng(0)
    model = make_model()
    inputs = model.input
    if isinstance(inputs, dict):
        inputs = {key: _values(random, key, x.shape) for key, x in inputs.items()}
    else:
        inputs = _values(random, "", inputs.shape)
    loss: Any = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    targets: Any
    if family == "CLIP":  # Each image has its text.
        targets = {"vision_logits": np.arange(B), "text_logits": np.arange(B)}
        loss = dict.fromkeys(targets, loss)
    elif family == "Stable Diffusion 3":
        targets, loss = random.normal(size=inputs["latent"].shape), "mse"
    else:
        shape = [_T if n is None else n for n in model.output.shape[1:]]
        targets = random.integers(shape[-1], size=(B, *shape[:-1]))
    return Example(make_model, inputs, targets, loss)


def _values(random: Any, name: str, shape: tuple[int | None, ...]) -> np.ndarray:
    sizes = [B, *(_T if n is None else n for n in shape[1:])]
    if "mask" in name:
        return np.ones(sizes, "int32")
    if "segment" in name:
        return np.zeros(sizes, "int32")
    if "token" in name:
        return random.integers(1, _V, sizes).astype("int32")
    return random.normal(size=sizes).astype("float32")


def _task(task: str, options: dict[str, Any], family: str, /, **params: Any) -> _Make:
    def make(hub: Any) -> tuple[Any, keras.Model]:
        backbone = getattr(hub, f"{family}Backbone")(**params)
        model = getattr(hub, f"{family}{task}")
        return backbone, model(backbone=backbone, preprocessor=None, **options)

    return make


_language_model = partial(_task, "CausalLM", {}, num_layers=3, **_SIZES)
_text_classifier = partial(
    _task,
    "TextClassifier",
    {"num_classes": 4},
    num_layers=3,
    num_heads=2,
    max_sequence_length=_T,
    **_SIZES,
)
_image_classifier = partial(
    _task, "ImageClassifier", {"num_classes": 4}, image_shape=_IMAGE
)


def _translator(family: str, **params: Any) -> _Make:
    def make(hub: Any) -> tuple[Any, keras.Model]:
        backbone = getattr(hub, f"{family}Backbone")(
            num_layers=2, num_heads=2, **_SIZES, **params
        )
        logits = keras.layers.Dense(_V)(backbone.output["decoder_sequence_output"])
        return backbone, keras.Model(backbone.input, logits)

    return make


def _clip(hub: Any) -> tuple[Any, keras.Model]:
    sizes = {"hidden_dim": 16, "num_layers": 2, "num_heads": 2, "intermediate_dim": 24}
    images = hub.CLIPVisionEncoder(patch_size=8, image_shape=_IMAGE, **sizes)
    texts = hub.CLIPTextEncoder(
        vocabulary_size=_V, embedding_dim=16, max_sequence_length=_T, **sizes
    )
    model = hub.CLIPBackbone(images, texts, projection_dim=8)
    return model, model


def _diffusion(hub: Any) -> tuple[Any, keras.Model]:
    """Makes Stable Diffusion 3's denoising transformer, the part that is trained."""
    from keras_hub.src.models.stable_diffusion_3 import mmdit

    model = mmdit.MMDiT(
        patch_size=2,
        hidden_dim=16,
        num_layers=2,
        num_heads=2,
        position_size=8,
        latent_shape=(8, 8, 4),
        context_shape=(_T, 16),
        pooled_projection_shape=(12,),
    )
    return model, model


HUB_MODELS: dict[str, _Make] = {
    "BERT": _text_classifier("Bert"),
    "RoBERTa": _text_classifier("Roberta"),
    "DistilBERT": _text_classifier("DistilBert"),
    "GPT-2": _language_model("GPT2", num_heads=2, max_sequence_length=_T),
    "Llama": _language_model("Llama", **_GROUPED),
    "Llama 3": _language_model("Llama3", **_GROUPED),
    "Gemma": _language_model("Gemma", head_dim=8, **_GROUPED),
    "Gemma 3": _language_model("Gemma3", head_dim=8, image_size=16, **_GROUPED),
    "Mistral": _language_model("Mistral", **_GROUPED),
    "Mixtral": _language_model("Mixtral", num_experts=2, **_GROUPED),
    "Qwen": _language_model("Qwen", **_GROUPED),
    "Qwen3": _language_model("Qwen3", head_dim=8, **_GROUPED),
    "Qwen MoE": _language_model(
        "QwenMoe",
        moe_intermediate_dim=8,
        shared_expert_intermediate_dim=8,
        num_experts=2,
        top_k=1,
        **_GROUPED,
    ),
    "T5": _translator("T5"),
    "Whisper": _translator(
        "Whisper",
        num_mels=8,
        max_encoder_sequence_length=8,
        max_decoder_sequence_length=_T,
    ),
    "ViT": _image_classifier(
        "ViT",
        patch_size=8,
        num_layers=3,
        num_heads=2,
        hidden_dim=16,
        mlp_dim=24,
        dropout_rate=0.1,
    ),
    "ResNet": _image_classifier(
        "ResNet",
        input_conv_filters=[64],
        input_conv_kernel_sizes=[3],
        stackwise_num_filters=[64, 64],
        stackwise_num_blocks=[1, 1],
        stackwise_num_strides=[1, 2],
        block_type="basic_block",
    ),
    "CLIP": _clip,
    "Stable Diffusion 3": _diffusion,
}
