"""What inputs of text demand of their params."""

from __future__ import annotations

from typing import Any

from lingvo_pipe.hyperparams import InstantiableParams


def check_sizes(p: InstantiableParams, *sizes: str) -> None:
    """Raises a ValueError that names every param that is unset or out of range.

    Args:
        p: The params, with `vocab_file` and `random_seed`.
        *sizes: The params that must be positive numbers.
    """
    faults = [
        f"{name} must be a positive int; got {p.Get(name)!r}"
        for name in sizes
        if not _is_int(p.Get(name), 1)
    ]
    if not isinstance(p.vocab_file, str) or not p.vocab_file:
        faults.append(f"vocab_file must be a file's name; got {p.vocab_file!r}")
    if not _is_int(p.random_seed, 0) or p.random_seed >= 2**64:
        faults.append(
            f"random_seed must be an int from 0 to 2**64 - 1; got {p.random_seed!r}"
        )
    if faults:
        raise ValueError(f"{'; '.join(faults)}. Set them in the params of {_name(p)}.")


def check_data(p: InstantiableParams) -> None:
    """Raises a ValueError unless `data` are params of data sets."""
    is_list = isinstance(p.data, list | tuple) and len(p.data) > 0
    if not is_list or not all(isinstance(x, InstantiableParams) for x in p.data):
        raise ValueError(
            "data must be a list of params of data sets, such as [TfdsPairs.Params()"
            f".Set(dataset='wmt14_translate/de-en')]; got {p.data!r}. Set it in the "
            f"params of {_name(p)}."
        )


def check_start_step(start_step: int) -> None:
    """Raises a ValueError if the number of steps already trained is negative."""
    if start_step < 0:
        raise ValueError(
            f"start_step must not be negative; got {start_step}. Give the number of "
            "steps already trained."
        )


def _is_int(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _name(p: InstantiableParams) -> str:
    return p.cls.__name__
