# SPDX-License-Identifier: Apache-2.0
"""nvfp4 layers that vLLM makes one matrix of: one global scale for all of them, where that changes no value."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fewbit.exporters._checkpoint_matrix import Matrix
from fewbit.exporters._compressed_codes import rescaled
from fewbit.exporters._compressed_scheme import NVFP4, Scheme
from fewbit.exporters._compressed_vllm import families


def shared_scales(
    layers: Mapping[str, Matrix], schemes: Mapping[str, Scheme]
) -> tuple[dict[str, Tensor], list[tuple[str, str]]]:
    """The super scale that each layer of a family is written with, where its own is another.

    vLLM keeps one global scale of a family and drops the others. The block scales can take up the difference if they
    stay on the grid of e4m3, as with powers of two; where they do not, the layers have to be quantized with one scale.

    Args:
        layers: the coded layers.
        schemes: what each is.

    Returns:
        The scales by layer, and the layers that cannot share one, with the reason.
    """
    scales, faults = {}, []
    for family in families(name for name, scheme in schemes.items() if scheme.format == NVFP4):
        weights = {name: layers[name].read() for name in family}
        own = {name: weight.super_scale for name, weight in weights.items() if weight.super_scale is not None}
        largest = max(own.values(), key=float)
        for name in (name for name in family if float(own[name]) != float(largest)):
            if rescaled(weights[name], largest).float().isnan().any():
                faults.append((name, f"another global scale than its neighbours: vLLM fuses {', '.join(family)}"))
            else:
                scales[name] = largest
    return scales, faults
