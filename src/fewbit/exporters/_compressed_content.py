# SPDX-License-Identifier: Apache-2.0
"""Everything that a compressed-tensors checkpoint holds, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from torch import Tensor

from fewbit.exporters._checkpoint_layout import Together
from fewbit.exporters._checkpoint_matrix import Matrix
from fewbit.exporters._compressed_codes import code_entry, input_tensors, scale_tensors
from fewbit.exporters._compressed_scheme import Scheme
from fewbit.exporters._compressed_survey import Survey
from fewbit.modules.tensor_file import Entry


def beside(matrix: Matrix, scheme: Scheme, shared: Tensor | None) -> dict[str, Tensor]:
    """What stands beside the codes of a weight.

    Args:
        matrix: the weight.
        scheme: what it is.
        shared: the super scale it shares with other layers, if any.
    """
    found = scale_tensors(scheme, matrix.read(), matrix.dtype, shared)
    return found if matrix.quantizer is None else found | input_tensors(matrix.quantizer, matrix.dtype)


def entries(
    survey: Survey,
    schemes: Mapping[str, Scheme],
    shared: Mapping[str, Tensor],
    small: Mapping[str, Mapping[str, Tensor]],
    cache: Mapping[str, Tensor],
) -> Iterator[Entry]:
    """Every tensor that is written; those of a layer are made together, when it is the turn of the first.

    Args:
        survey: of the model.
        schemes: what its coded layers are.
        shared: super scales that layers share with others.
        small: what stands beside the codes of a layer, or tensors of the same dtypes and shapes.
        cache: scales of keys and values.
    """
    for layer, matrix in survey.layers.items():
        codes = code_entry(schemes[layer], matrix.shape, matrix.read)
        made = Together(partial(_tensors, matrix, schemes[layer], shared.get(layer)))
        parts = {codes.name: (codes.dtype, codes.shape)}
        parts |= {part: (tensor.dtype, tuple(tensor.shape)) for part, tensor in small[layer].items()}
        for part, (dtype, shape) in parts.items():
            yield Entry(f"{matrix.stored}.{part}", dtype, shape, partial(made.take, part))
    for name, tensor in cache.items():
        yield held_entry(name, tensor)
    yield from survey.floats.values()


def held_entry(name: str, tensor: Tensor) -> Entry:
    """A tensor that is there already."""
    return Entry(name, tensor.dtype, tuple(tensor.shape), partial(_itself, tensor))


def _tensors(matrix: Matrix, scheme: Scheme, shared: Tensor | None) -> dict[str, Tensor]:
    weight = matrix.read()
    there = replace(matrix, read=lambda: weight)
    codes = code_entry(scheme, matrix.shape, there.read)
    return {codes.name: codes.read(), **beside(there, scheme, shared)}


def _itself(tensor: Tensor) -> Tensor:
    return tensor
