r"""The params of a pipeline whose blocks are trained each by a loss of its own.

    cell_tpl   [ c0  c1 | c2  c3 ]        two blocks
    becomes    [ c0  c1  local_0  c2  c3 ]        `|` no gradient goes back

    overlapping, c1 in both blocks:
               [ c0  local_0  c1  c2 ]
                        `-> [ c1'  head ] -> loss     c1' has the weights of c1

Cells keep their names, and so do variables and checkpoints: what is trained block by
block is used as the plain model, in which the heads are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.local_loss import LocalLossLayer
from lingvo_pipe.layers.model_size import trained_paths
from lingvo_pipe.layers.sequential import SequentialLayer
from lingvo_pipe.local.blocks import Block
from lingvo_pipe.pipeline.splitting.partition import is_auto, resolve_ends

# From the number of cells that have run to the params of the head behind them.
MakeHead = Callable[[int], InstantiableParams]


def local_pipeline(
    pipeline: InstantiableParams, blocks: Sequence[Block], make_head: MakeHead
) -> InstantiableParams:
    """Params of a pipeline with a `LocalLossLayer` behind every block but the last.

    They are called local_0, local_1 and so on, as the metrics of their losses are, and
    stay in the stage, and in the list of `recompute`, of the cell before. A number of
    stages is of the model's own cells; `auto` balances what heads cost too. Layers of
    `before_tpl` are trained with the first block.

    Where blocks overlap, a block runs copies of the cells that it looks ahead to, and
    those cells run once more in the next block, which is given what the first block's
    own cells hand on. A copy's pass is one of its own, with random numbers of its own.
    The trained weights are those of the cell, so their gradient is the sum of both
    blocks' gradients; they are created where the copy is, under the cell's name. What
    is not trained, such as batch norm's moving averages, is not the cell's: the copy
    has its own, which nothing uses, and the cell's are updated by its own pass alone. A
    loss that a cell adds by itself is added in both blocks.

    Args:
        pipeline: params of a PipeliningLayer; they stay as they are.
        blocks: of its cells, as `make_blocks` makes them.
        make_head: called with the number of cells, from the first, that have run before
            the head; returns params of a layer from what they hand on to what the last
            cell returns.

    Raises:
        ValueError: if the pipeline has local losses already, its splits can't be, or
            `cell_costs` lists numbers.
    """
    p = pipeline.Copy()
    _check(p)
    if len(blocks) == 1:
        return p
    cells = [
        cell.Set(name=cell.name or f"cells_{i}") for i, cell in enumerate(p.cell_tpl)
    ]
    ends = [block.end for block in blocks[:-1]]
    p.cell_tpl = []
    for number, block in enumerate(blocks):
        p.cell_tpl += cells[block.begin : block.end]
        if block is not blocks[-1]:
            ahead = cells[block.end : block.end + block.ahead]
            name, head = f"local_{number}", make_head(block.end + block.ahead)
            p.cell_tpl.append(_loss_cell(name, ahead, head))
            p.tied = {**p.tied, **_ties(name, ahead, p.tied)}
    if not is_auto(p.splits):
        own = resolve_ends(p.splits, len(cells))
        p.splits = [end + _num_up_to(end, ends) for end in own]
    if isinstance(p.recompute, (list, tuple)):
        p.recompute = _with_loss_cells(p.recompute, ends)
    return p


def _check(p: InstantiableParams) -> None:
    if any(cell.cls is LocalLossLayer for cell in p.cell_tpl):
        raise ValueError(
            "Blocks are made of the cells of a plain model; this pipeline has "
            "LocalLossLayers already. Give it without them, or the scheme "
            "'backpropagation', which leaves a model as it is."
        )
    if isinstance(p.cell_costs, (list, tuple)):
        raise ValueError(
            "Where blocks have losses of their own, cell_costs must be None or "
            "'measured': what the heads cost is in no list of the model's own cells, "
            f"and this one has {len(p.cell_costs)} numbers. Leave it out, or list the "
            "stages in splits."
        )


def _loss_cell(
    name: str, ahead: Sequence[InstantiableParams], head: InstantiableParams
) -> InstantiableParams:
    if ahead:
        copies = [cell.Copy().Set(name="") for cell in ahead]
        head = SequentialLayer.Params().Set(sub=[*copies, head])
    return LocalLossLayer.Params().Set(name=name, loss_name=name, head=head)


def _ties(
    name: str, ahead: Sequence[InstantiableParams], tied: dict[str, str]
) -> dict[str, str]:
    """From the weights of the copies to those of the cells; see `tied`."""
    found = {}
    for i, cell in enumerate(ahead):
        for path in trained_paths(cell):
            own = f"{cell.name}/{path}"
            found[f"{name}/head/sub_{i}/{path}"] = tied.get(own, own)
    return found


def _num_up_to(end: int, ends: Sequence[int]) -> int:
    """How many blocks but the last are over after `end` cells."""
    return sum(other <= end for other in ends)


def _with_loss_cells(indices: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Indices of cells among all, and of the loss cells right behind them."""
    found = []
    for i in indices:
        found.append(i + _num_up_to(i, ends))
        if i + 1 in ends:
            found.append(found[-1] + 1)
    return found
