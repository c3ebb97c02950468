r"""Params of a pipeline whose blocks are each trained by their own loss.

    cell_tpl   [ c0  c1 | c2  c3 ]        two blocks
    becomes    [ c0  c1  local_0  c2  c3 ]        `|` no gradient goes back

    overlapping, c1 in both blocks:
               [ c0  local_0  c1  c2 ]
                        `-> [ c1'  head ] -> loss     c1' has the weights of c1

Cells and variables keep their names, so trained weights fit the plain model, which has
no heads.
"""

import bisect
from collections.abc import Callable, Sequence

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.model_size import trained_paths
from lingvo_pipe.layers.local_loss import LocalLossLayer
from lingvo_pipe.layers.sequential import SequentialLayer
from lingvo_pipe.local_parallelism.blocks import Block
from lingvo_pipe.pipeline.splitting.partitioning import is_auto, resolve_boundaries

# Number of cells that have run -> params of the head after them.
MakeHead = Callable[[int], InstantiableParams]


def local_pipeline(
    pipeline: InstantiableParams, blocks: Sequence[Block], make_head: MakeHead
) -> InstantiableParams:
    """Returns params of a pipeline with local losses after all blocks but the last.

    The added LocalLossLayers are called local_0 and so on. Each is in the stage of the
    cell before it. If the param `recompute` or `offload` lists that cell, the result
    also lists the layer. Numbers in the given `splits` count only the model's own
    cells. If `splits` is `auto`, the heads' cost is balanced too. The first block's
    loss trains the prologue, `before_tpl`.

    An overlapping block also runs copies of the next block's first cells. A copy has
    random numbers of its own, and shares the trained weights of its cell. So the
    weights' gradient is the sum of both blocks' gradients. Untrained variables, such as
    moving averages, are not shared. A cell's auxiliary loss is added in both blocks.

    `make_head(n)` returns params of a head that follows the model's first n cells. The
    head maps their outputs to predictions like the outputs of the model's last cell.

    Raises:
        ValueError: if splits do not fit, or there are local losses or listed costs.
    """
    p = pipeline.Copy()
    _check(p)
    if len(blocks) == 1:
        return p
    cells = [
        cell.Set(name=cell.name or f"cells_{i}") for i, cell in enumerate(p.cell_tpl)
    ]
    boundaries = [block.end for block in blocks[:-1]]
    p.cell_tpl = []
    for number, block in enumerate(blocks[:-1]):
        ahead = cells[block.end : block.end + block.ahead]
        name, head = f"local_{number}", make_head(block.end + block.ahead)
        p.cell_tpl += cells[block.begin : block.end]
        p.cell_tpl.append(_loss_cell(name, ahead, head))
        p.tied = {**p.tied, **_ties(name, ahead, p.tied)}
    p.cell_tpl += cells[blocks[-1].begin :]
    if not is_auto(p.splits):
        ends = resolve_boundaries(p.splits, len(cells))
        p.splits = [end + bisect.bisect(boundaries, end) for end in ends]
    for name in ("recompute", "offload"):
        if isinstance(p.Get(name), (list, tuple)):
            p.Set(**{name: _with_loss_cells(p.Get(name), boundaries)})
    return p


def _check(p: InstantiableParams) -> None:
    if any(cell.cls is LocalLossLayer for cell in p.cell_tpl):
        raise UserValueError(
            path="cell_tpl",
            expected="the cells of a plain model",
            got=Words("LocalLossLayers"),
            hint="Remove them, or use the scheme 'backpropagation', which adds none.",
        )
    if isinstance(p.cell_costs, (list, tuple)):
        raise UserValueError(
            path="cell_costs",
            expected="None or 'measured' for blocks with losses of their own",
            got=p.cell_costs,
            hint="The numbers leave out the heads. Or list the stages in splits.",
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
    """Returns, by the path of each copied weight, the path of the weight it shares."""
    ties = {}
    for i, cell in enumerate(ahead):
        for path in trained_paths(cell):
            weight = f"{cell.name}/{path}"
            ties[f"{name}/head/sub_{i}/{path}"] = tied.get(weight, weight)
    return ties


def _with_loss_cells(indices: Sequence[int], boundaries: Sequence[int]) -> list[int]:
    """Returns the cells' indices after loss cells are inserted at `boundaries`.

    Includes each loss cell that directly follows one of these cells.
    """
    all_indices = []
    for i in indices:
        all_indices.append(i + bisect.bisect(boundaries, i))
        if i + 1 in boundaries:
            all_indices.append(all_indices[-1] + 1)
    return all_indices
