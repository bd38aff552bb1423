# SPDX-License-Identifier: Apache-2.0
"""What vLLM does not take of what compressed-tensors has a place for; transformers reads it all.

These are vLLM's published rules (its `compressed_tensors` folder, the Marlin kernels), restated.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from fewbit.exporters._base import Destined
from fewbit.exporters._compressed_scheme import FLOATS, INTEGERS, PACKED, Scheme, scheme_of

_GROUPS = (32, 64, 128)
_BLOCK = (128, 128)
# Layers that vLLM turns into one matrix.
_FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("q_a_proj", "kv_a_proj_with_mqa"), ("w1", "w3"))


def vllm_faults(weight: Destined) -> list[str]:
    """Every reason why vLLM could not take a quantized weight that the format has a place for."""
    assert weight.grid is not None
    shape = weight.shape[-2:]
    scheme = scheme_of(weight.grid, shape, weight.input, dynamic=weight.dynamic)
    by_format = {PACKED: _packed, INTEGERS: _integers, FLOATS: _floats}
    return by_format[scheme.format](scheme, shape) if scheme.format in by_format else []


def _packed(scheme: Scheme, shape: tuple[int, ...]) -> list[str]:
    bits, faults = scheme.weights.num_bits, _group_faults(scheme)
    if not scheme.weights.symmetric and bits not in (4, 8):
        faults.append(f"{bits} bits with zero points: vLLM has them for 4 and 8 bits")
    packed = shape[1:] if scheme.weights.symmetric else shape  # zero points are packed along the outputs
    return faults + [f"{n} codes of {bits} bits do not fill words of 32" for n in packed if n * bits % 32]


def _integers(scheme: Scheme, shape: tuple[int, ...]) -> list[str]:
    weights, inputs = scheme.weights, scheme.inputs
    assert inputs is not None
    token = inputs.dynamic and inputs.strategy == "token"
    eight = weights.num_bits == 8 and weights.group_size is None and (token or not inputs.dynamic)
    four = weights.num_bits == 4 and weights.strategy != "tensor" and token
    if inputs.num_bits == 8 and (eight or four):
        return _group_faults(scheme)
    found = f"{weights.num_bits}-bit weights a {weights.strategy}, {inputs.num_bits}-bit inputs a {inputs.strategy}"
    return [f"{found}: vLLM has 8-bit inputs, beside 8-bit weights a row, or 4-bit ones where each token has a scale"]


def _floats(scheme: Scheme, shape: tuple[int, ...]) -> list[str]:
    weights, inputs, faults = scheme.weights, scheme.inputs, []
    if weights.strategy == "block" and (weights.block_structure != _BLOCK or shape[0] % _BLOCK[0]):
        faults.append(f"fp8 blocks {weights.block_structure} of {list(shape)}: vLLM takes 128 x 128 that divide it")
    needed = ("group", _BLOCK[1]) if weights.strategy == "block" else ("token", None)
    if inputs is not None and inputs.dynamic and (inputs.strategy, inputs.group_size) != needed:
        faults.append(f"fp8 inputs with a scale a {inputs.strategy}: vLLM finds one a {needed[0]} in each call")
    if inputs is not None and not inputs.dynamic and weights.strategy == "block":
        faults.append("fp8 inputs with fixed scales beside blocks: vLLM finds one a group in each call")
    return faults


def _group_faults(scheme: Scheme) -> list[str]:
    size = scheme.weights.group_size
    return [] if size in (None, *_GROUPS) else [f"groups of {size}: vLLM's kernels take 32, 64, 128 or whole rows"]


def families(names: Iterable[str]) -> list[list[str]]:
    """The layers, of those named, that vLLM fuses with one another.

    >>> families(["a.q_proj", "a.k_proj", "b.q_proj"])
    [['a.q_proj', 'a.k_proj']]
    """
    known = list(names)
    parents = dict.fromkeys(name.rpartition(".")[0] for name in known)
    grouped = ([f"{parent}.{end}".lstrip(".") for end in ends] for parent in parents for ends in _FUSED)
    found = ([name for name in family if name in set(known)] for family in grouped)
    return [family for family in found if len(family) > 1]


def apart(values: Mapping[str, Hashable]) -> list[list[str]]:
    """The families whose layers have not all the same value."""
    return [family for family in families(values) if len({values[name] for name in family}) > 1]
