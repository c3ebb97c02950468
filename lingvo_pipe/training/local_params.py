"""How a task's params say that its blocks are trained each by a loss of its own."""

from __future__ import annotations

from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.local.blocks import SCHEMES

BACKPROPAGATION = SCHEMES[0]


def local_params() -> Params:
    """What `task.local` is."""
    p = Params()
    p.Define(
        "scheme",
        BACKPROPAGATION,
        "Which blocks of pipeline.cell_tpl have a loss of their own, and hand no "
        f"gradient back: one of {', '.join(SCHEMES)}; see `local.blocks`.",
    )
    p.Define(
        "chunks",
        None,
        "For 'chunked': the number of blocks, of as even a number of cells as can be; "
        "or a list of their ends.",
    )
    p.Define(
        "head",
        None,
        "Params of the layer that makes what the loss takes, of all that a block's "
        "last cell hands on; None: a small one, which the task knows. Its num_in, or "
        "input_dim, and num_classes, or output_dim, may be left 0: they become the "
        "channels of what is handed on first, and of the model's own outputs.",
    )
    return p


def plain_task(task_params: InstantiableParams) -> InstantiableParams:
    """A copy of a task's params that is the plain model, whatever `local` says.

    It has the variables of the trained one but for the heads', of the same paths: with
    it a run is evaluated, decoded and exported.
    """
    p = task_params.Copy()
    p.local.scheme, p.local.chunks = BACKPROPAGATION, None
    return p


def check_plain(p: InstantiableParams, where: str) -> None:
    """Checks that no blocks are still to be made of a task's cells.

    Raises:
        ValueError: if `local` asks for some.
    """
    if p.local.scheme != BACKPROPAGATION:
        raise ValueError(
            "A task is made of params whose blocks have their heads; those of "
            f"{where} only ask for them, by local.scheme={p.local.scheme!r}, and it "
            "would be trained by backpropagation. Make it of "
            "with_local_losses(task_params, input_generator), or for a use without "
            "training of plain_task(task_params)."
        )
