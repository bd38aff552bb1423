# SPDX-License-Identifier: Apache-2.0
"""Pictures of different sizes in a batch, for a model that is not told where each of them ends.

They share a canvas, the smaller ones with zeros beside them. A model without `pixel_mask` takes these for a part of
the picture: what it says of a picture would depend on which others are in its batch.
"""

from __future__ import annotations

from torch import Tensor, nn

from fewbit.tuning.calling import takes
from fewbit.tuning.tasks._base import Batch
from fewbit.tuning.unfit_samples import Unfit

MASK = "pixel_mask"


def refuse_sizes(batch: Batch, model: nn.Module) -> None:
    """Refuse a batch whose pictures are not of one size, for a model that has no use for their mask.

    Args:
        batch: with a mask where a picture is smaller than the canvas.
        model: that is to say something of each picture as a whole; of a bare `nn.Module` nobody knows what it takes.

    Raises:
        Unfit: two of the sizes.
    """
    mask = batch.get(MASK)
    if not isinstance(mask, Tensor) or mask.ndim != 3 or type(model) is nn.Module or MASK in takes(model):
        return
    there = mask != 0
    sizes = list(zip(there.any(1).sum(1).tolist(), there.any(2).sum(1).tolist()))
    other = next((row for row, size in enumerate(sizes) if size != sizes[0]), None)
    if other is None:
        return
    first, second = (f"{width} x {height}" for width, height in (sizes[0], sizes[other]))
    height, width = (min(size[axis] for size in sizes) for axis in (1, 0))
    one = height if height == width else [height, width]
    raise Unfit(
        f"pictures of different sizes in one batch, {first} and {second} pixels, and the model takes no {MASK}",
        rows=[0, other],
        of=len(sizes),
        expected="pictures of one size: a smaller one would be seen with a black border that depends on the others",
        try_="a configuration (fewbit.generate_dataset_config) with preprocessing_steps=['rescaling'] "
        f"(--step rescaling) and custom_config={{'image_size': {one}}}, or batch_size=1",
    )
