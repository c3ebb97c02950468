from .images.image_classifier import ImageClassifier
from .keras.keras_task import KerasTask
from .transformer.language_model_task import LanguageModelTask
from .transformer.network import language_model, tied_embeddings, translation_model
from .transformer.translation_task import TranslationTask
