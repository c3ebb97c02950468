r"""AmoebaNet's macro-structure: a list of layers for a PipeliningLayer.

    stem, [2 reduction cells,]  then for each of L normal cells:
        before cells L/3 and 2L/3 a reduction cell, with twice the filters from there on
        [after cell 2L/3 - 1 an auxiliary head]
    head

Each layer outputs its own result and the result of the previous layer; and, for
drop-path, the number of cells so far. With an auxiliary head the inputs are image,
label and weight, and the layers pass on label and weight up to that head.
"""

from __future__ import annotations

from collections.abc import Sequence

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.core.forward_cost import cost_of_sequence
from lingvo_pipe.models.amoebanet.cell import AmoebaCell, num_out
from lingvo_pipe.models.amoebanet.stem_and_head import HeadLayer, StemLayer

_IMAGENET_STEM_FILTERS = 32
_SMALL_STEM_FACTOR = 3
# A factorized reduction halves the filters; the first stem cell has F / 4.
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
    """Returns params of the layers of an AmoebaNet.

    Args:
        genotype: letter of the genotype.
        num_cells: L, the number of normal cells; a multiple of 3.
        num_filters: F of the first normal cell; F / 4 and F / 2 are rounded down.
        num_classes: number of logits.
        num_image_channels: channels of the input.
        small_images: True for CIFAR's size: the stem keeps it and has 3·F
            filters, and no reduction cells follow it.
        keep_prob: keep_prob of the dropout before the logits.
        norm_tpl: params of the batch norms; if None, their defaults.
        drop_path_tpl: params of the DropPathLayers, whose depth is the fraction of
            cells up to and including theirs; if None, nothing is dropped.
        auxiliary_tpl: params of an AuxiliaryClassifierLayer with an AuxiliaryHeadLayer,
            without their sizes; if None, there is no auxiliary head.
        image_shape: H and W of the input, which an auxiliary head depends on.

    Raises:
        ValueError: if a size is not possible.
    """
    if num_cells < 3 or num_cells % 3:
        raise UserValueError(
            path="num_cells", expected="a positive multiple of 3", got=num_cells
        )
    if num_filters < _MIN_FILTERS[small_images]:
        raise UserValueError(
            path="num_filters",
            expected=f"at least {_MIN_FILTERS[small_images]} with "
            f"small_images={small_images}",
            got=num_filters,
        )
    chain = _Chain(genotype, num_image_channels, norm_tpl or BatchNormLayer.Params())
    if small_images:
        chain.add_stem(_SMALL_STEM_FACTOR * num_filters, stride=1)
    else:
        chain.add_stem(_IMAGENET_STEM_FILTERS, stride=2)
        chain.add_cell("stem_cell_0", num_filters // 4, reduction=True)
        chain.add_cell("stem_cell_1", num_filters // 2, reduction=True)
    for i in range(num_cells):
        if i in (num_cells // 3, 2 * num_cells // 3):
            num_filters *= 2
            chain.add_cell(f"reduction_{i}", num_filters, reduction=True)
        chain.add_cell(f"cell_{i}", num_filters, reduction=False)
        if auxiliary_tpl is not None and i == 2 * num_cells // 3 - 1:
            chain.add_auxiliary_head(auxiliary_tpl, num_classes, image_shape)
    if drop_path_tpl is not None:
        cells = [p for p in chain.layers if p.cls is AmoebaCell]
        for cell in cells:
            cell.Set(drop_path_tpl=drop_path_tpl.Copy(), num_cells=len(cells))
        chain.layers[0].counts_cells = True
    chain.add_head(num_classes, keep_prob)
    return chain.layers


class _Chain:
    """The layers so far, and the sizes of their last two outputs."""

    def __init__(
        self, genotype: str, num_image_channels: int, norm_tpl: InstantiableParams
    ):
        self.layers: list[InstantiableParams] = []
        self._norm_tpl = norm_tpl
        self._genotype = genotype
        self._num_image_channels = num_image_channels
        self._channels = num_image_channels
        self._channels_before: int | None = None
        self._before_is_larger = False

    def add_stem(self, num_filters: int, stride: int) -> None:
        stem = StemLayer.Params().Set(name="stem", norm_tpl=self._norm_tpl.Copy())
        stem.Set(num_in=self._channels, num_filters=num_filters, stride=stride)
        self.layers.append(stem)
        self._channels = num_filters

    def add_cell(self, name: str, num_filters: int, reduction: bool) -> None:
        cell = AmoebaCell.Params().Set(
            name=name,
            genotype=self._genotype,
            reduction=reduction,
            num_filters=num_filters,
            num_in=self._channels,
            num_in_before=self._channels_before,
            before_is_larger=self._before_is_larger,
            norm_tpl=self._norm_tpl.Copy(),
        )
        self.layers.append(cell)
        self._channels_before = self._channels
        self._channels = num_out(cell)
        self._before_is_larger = reduction

    def add_auxiliary_head(
        self,
        tpl: InstantiableParams,
        num_classes: int,
        image_shape: Sequence[int] | None,
    ) -> None:
        if image_shape is None:
            raise UserValueError(
                "image_shape: expected [H, W], got None. An auxiliary head's window "
                "depends on the size of the images."
            )
        image = (1, *image_shape, self._num_image_channels)
        last = cost_of_sequence(self.layers, image).out_shapes[0]
        head = tpl.Copy().Set(name="auxiliary_head", num_outputs=3)
        head.classifier.Set(
            num_in=self._channels,
            image_shape=list(last[1:3]),
            num_classes=num_classes,
            norm_tpl=self._norm_tpl.Copy(),
        )
        self.layers.append(head)

    def add_head(self, num_classes: int, keep_prob: float) -> None:
        head = HeadLayer.Params().Set(name="head", num_in=self._channels)
        self.layers.append(head.Set(num_classes=num_classes, keep_prob=keep_prob))
