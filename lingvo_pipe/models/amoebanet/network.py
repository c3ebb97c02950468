r"""AmoebaNet's macro-structure: a list of layers for a PipeliningLayer.

    stem, [2 reduction cells,]  then for each of L normal cells:
        before cells L/3 and 2L/3 a reduction cell, with twice the filters from there on
        [after cell 2L/3 - 1 an auxiliary head]
    head

Each layer outputs its own result, the previous layer's result and, for drop-path, the
number of cells so far. Up to an auxiliary head, label and weight are passed on too.
"""

from collections.abc import Sequence

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.convolution import out_size
from lingvo_pipe.models.amoebanet.cell import AmoebaCell, num_out
from lingvo_pipe.models.amoebanet.stem_and_head import HeadLayer, StemLayer

_IMAGENET_STEM_FILTERS = 32
# A factorized reduction halves F; large images have a stem cell of F / 4 filters.
_MIN_FILTERS = {False: 8, True: 2}


def amoebanet(
    genotype: str,
    num_cells: int,
    num_filters: int,
    num_classes: int,
    num_image_channels: int = 3,
    small_images: bool = False,
    keep_prob: float = 0.5,
    norm_tpl: InstantiableParams | None = None,
    drop_path_tpl: InstantiableParams | None = None,
    auxiliary_tpl: InstantiableParams | None = None,
    image_shape: Sequence[int] | None = None,
) -> list[InstantiableParams]:
    """Returns params of AmoebaNet's layers.

    Args:
        genotype: letter of the genotype.
        num_cells: L, the number of normal cells, a multiple of 3.
        num_filters: F of the first normal cell. The reduction cells before it have F /
            4 and F / 2, rounded down.
        num_classes: number of logits.
        num_image_channels: channels of the input.
        small_images: True for CIFAR's size: the stem keeps the size and has 3·F
            filters, and no reduction cells follow the stem.
        keep_prob: keep_prob of the dropout before the logits.
        norm_tpl: params of the batch norms. If None, their defaults.
        drop_path_tpl: params of the DropPathLayers. If None, nothing is dropped.
        auxiliary_tpl: params of an AuxiliaryClassifierLayer with an AuxiliaryHeadLayer,
            without their sizes. If None, there is no auxiliary head.
        image_shape: H and W of the input, which an auxiliary head depends on.

    Raises:
        ValueError: if a size is not possible.
    """
    if num_cells < 3 or num_cells % 3:
        raise UserValueError(
            path="num_cells", expected="a positive multiple of 3", got=num_cells
        )
    if num_filters < _MIN_FILTERS[small_images]:
        least = _MIN_FILTERS[small_images]
        expected = f"at least {least} with small_images={small_images}"
        raise UserValueError(path="num_filters", expected=expected, got=num_filters)
    norm_tpl = norm_tpl or BatchNormLayer.Params()
    stem = StemLayer.Params().Set(
        name="stem",
        num_in=num_image_channels,
        num_filters=3 * num_filters if small_images else _IMAGENET_STEM_FILTERS,
        stride=1 if small_images else 2,
        norm_tpl=norm_tpl.Copy(),
        counts_cells=drop_path_tpl is not None,
    )
    sizes = _cell_sizes(num_cells, num_filters, small_images)
    cell_tpl = AmoebaCell.Params().Set(genotype=genotype, norm_tpl=norm_tpl)
    if drop_path_tpl is not None:
        cell_tpl.Set(drop_path_tpl=drop_path_tpl, num_cells=len(sizes))
    layers, num_in, num_in_before, was_reduction = [stem], stem.num_filters, None, False
    for name, cell_filters, reduction in sizes:
        cell = cell_tpl.Copy().Set(
            name=name,
            reduction=reduction,
            num_filters=cell_filters,
            num_in=num_in,
            num_in_before=num_in_before,
            before_is_larger=was_reduction,
        )
        layers.append(cell)
        num_in, num_in_before, was_reduction = num_out(cell), num_in, reduction
        if auxiliary_tpl is not None and name == f"cell_{2 * num_cells // 3 - 1}":
            head = _auxiliary_head(auxiliary_tpl, layers, image_shape)
            head.classifier.Set(num_in=num_in, num_classes=num_classes)
            layers.append(head)
    head = HeadLayer.Params().Set(name="head", num_in=num_in, keep_prob=keep_prob)
    return [*layers, head.Set(num_classes=num_classes)]


def _auxiliary_head(
    tpl: InstantiableParams,
    layers: list[InstantiableParams],
    image_shape: Sequence[int] | None,
) -> InstantiableParams:
    if image_shape is None:
        expected = "[H, W], which an auxiliary head's window depends on"
        raise UserValueError(path="image_shape", expected=expected, got=None)
    stem, *cells = layers
    conv = stem.cls.Parts(stem)["conv"]
    window = conv.filter_shape[0], conv.filter_stride[0], conv.padding
    size = [out_size(n, *window) for n in image_shape]
    for cell in cells:
        size = [out_size(n, 1, 2, "SAME") if cell.reduction else n for n in size]
    head = tpl.Copy().Set(name="auxiliary_head", num_outputs=3)
    head.classifier.Set(image_shape=size, norm_tpl=stem.norm_tpl.Copy())
    return head


def _cell_sizes(
    num_cells: int, num_filters: int, small_images: bool
) -> list[tuple[str, int, bool]]:
    sizes: list[tuple[str, int, bool]] = []
    if not small_images:
        sizes.append(("stem_cell_0", num_filters // 4, True))
        sizes.append(("stem_cell_1", num_filters // 2, True))
    for i in range(num_cells):
        if i in (num_cells // 3, 2 * num_cells // 3):
            num_filters *= 2
            sizes.append((f"reduction_{i}", num_filters, True))
        sizes.append((f"cell_{i}", num_filters, False))
    return sizes
