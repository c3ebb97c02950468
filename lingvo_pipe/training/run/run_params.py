"""The params of a run's model, from its registered name and from `params.txt`."""

import contextlib
import functools

from absl import logging

import model_registry
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.hyperparams.literals import RAW_QUOTED, Literal, read_plain
from lingvo_pipe.hyperparams.text_entries import Entry, entries_by_path
from lingvo_pipe.hyperparams.value_text import infer_value
from lingvo_pipe.training.run.changed_params import check_use, unused_params
from lingvo_pipe.training.run.run_directory import RunDirectory

_SYMBOLS = ("type", "func", "enum", "params")  # Their text names a module to import.


def params_of_run(directory: RunDirectory, dataset: str) -> Params:
    """Returns the registered model's params, with the values that the run changed.

    `dataset` names the input, such as `Test`. Only plain values are read from
    `params.txt`, so this file cannot cause an import. A warning names changes of the
    input that are not plain, such as a list of transforms.

    Raises:
        LookupError: if the model is not registered.
        ValueError: if the run trained another model.
    """
    trained = directory.read_params() or ""
    model = model_registry.GetParams(directory.model_name, "Train")
    by_class = model.ToText()
    registered = entries_by_path(by_class)
    changes = [
        entry
        for path, entry in entries_by_path(trained).items()
        if path in registered and entry != registered[path] and _is_plain(entry)
    ]
    _apply(model, changes)
    check_use(trained, model.ToText(), ())
    model.input = model_registry.GetParams(directory.model_name, dataset).input
    _apply(model, [entry for entry in changes if entry.path.startswith("input.")])
    if warning := unused_params(trained, by_class, model.ToText()):
        logging.warning(warning)
    return model


def _apply(model: Params, changes: list[Entry]) -> None:
    for entry in changes:
        # If a value does not fit, `check_use` finds a difference.
        with contextlib.suppress(AttributeError, ValueError):
            value = None if entry.kind else infer_value(entry.text)
            if isinstance(value, (bool, int, float)):
                # The type is the text's: the class may have 1 in place of 1.0.
                model.Set(**{entry.path: value})
            else:
                model.FromText(str(entry))


def _is_plain(entry: Entry) -> bool:
    """Returns whether a param's value can be read without importing a module."""
    if entry.kind in _SYMBOLS:
        return False
    read_word = functools.partial(_read_word, is_in_dict=entry.text.startswith("{"))
    try:
        # Uses the parser that reads entries, since others may read a text differently.
        if entry.text.startswith(("[", "(", "{")):
            Literal(entry.text, read_word).parse()
        else:
            read_word(entry.text)
    except (ValueError, RecursionError):
        return False
    return True


def _read_word(text: str, is_in_dict: bool) -> str:
    """Returns a word without quotes, or raises ValueError if it may cause an import.

    A text with `/` or `(` may name a class and its module, unless it is quoted. A dict
    may hold the fields of a dataclass, where a class's name may be quoted too.
    """
    is_quoted = RAW_QUOTED.fullmatch(text)
    word = str(read_plain(text.replace("\n", "\\n"))) if is_quoted else text
    may_name = "/" in word or "(" in word
    if (may_name and not is_quoted) or (is_in_dict and "/" in word):
        raise ValueError(word)
    return word
