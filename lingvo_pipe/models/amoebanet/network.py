r"""AmoebaNet's macro-structure: a list of layers for a PipeliningLayer.

    stem, [2 reduction cells,]  then for each of L normal cells:
        before cells L/3 and 2L/3 a reduction cell, with twice the filters from there on
    head

Each layer hands on two outputs, its own and the one before.
"""

from __future__ import annotations

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.models.amoebanet.cell import AmoebaCell, cell_genotype
from lingvo_pipe.models.amoebanet.ends import HeadLayer, StemLayer

_IMAGENET_STEM_FILTERS = 32
_SMALL_STEM_FACTOR = 3


def amoebanet(
    genotype: str,
    num_cells: int,
    num_filters: int,
    num_classes: int,
    num_image_channels: int = 3,
    small_images: bool = False,
    keep_prob: float = 0.5,
    norm_tpl: InstantiableParams | None = None,
) -> list[InstantiableParams]:
    """Params of the layers of an AmoebaNet.

    Args:
        genotype: letter of the genotype.
        num_cells: L, the number of normal cells; a multiple of 3.
        num_filters: F of the first normal cell.
        num_classes: number of logits.
        num_image_channels: of the input.
        small_images: as for CIFAR: the stem keeps the image's size and has 3·F filters,
            and no reduction cells follow it.
        keep_prob: of the dropout before the logits.
        norm_tpl: params of the batch norms; None: their defaults.

    Raises:
        ValueError: if a size is not possible.
    """
    if num_cells < 3 or num_cells % 3:
        raise ValueError(
            f"num_cells must be a positive multiple of 3; got {num_cells}."
        )
    if num_filters < 1 or (not small_images and num_filters % 4):
        raise ValueError(
            "num_filters must be positive, and a multiple of 4 for the stem's cells "
            f"unless small_images; got {num_filters}."
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
    chain.add_head(num_classes, keep_prob)
    return chain.layers


class _Chain:
    """The layers so far, and what is known of their last two outputs."""

    def __init__(
        self, genotype: str, num_image_channels: int, norm_tpl: InstantiableParams
    ):
        self.layers: list[InstantiableParams] = []
        self._norm_tpl = norm_tpl
        self._genotype = genotype
        self._channels = num_image_channels
        self._channels_before: int | None = None
        self._before_is_larger = False

    def add_stem(self, num_filters: int, stride: int) -> None:
        self.layers.append(
            StemLayer.Params().Set(
                name="stem",
                num_in=self._channels,
                num_filters=num_filters,
                stride=stride,
                norm_tpl=self._norm_tpl.Copy(),
            )
        )
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
        self._channels = num_filters * len(cell_genotype(cell).concat)
        self._before_is_larger = reduction

    def add_head(self, num_classes: int, keep_prob: float) -> None:
        self.layers.append(
            HeadLayer.Params().Set(
                name="head",
                num_in=self._channels,
                num_classes=num_classes,
                keep_prob=keep_prob,
            )
        )
