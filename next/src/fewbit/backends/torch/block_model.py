# SPDX-License-Identifier: Apache-2.0
"""A language model that runs block by block: embeddings and head stay loaded, blocks come and go one at a time.

The model may lie on disk. Then only its structure is built, and a block's weights are read when it is needed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fewbit.errors import ModelError


class TensorReader(Protocol):
    """Tensors of a model by name, read when asked for."""

    def __contains__(self, name: str) -> bool: ...

    def read(self, name: str) -> Tensor:
        """One tensor, in its own dtype, on the CPU."""
        ...


@dataclass(frozen=True)
class Call:
    """What a block gets besides the hidden states."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __call__(self, block: nn.Module, hidden: Tensor) -> Tensor:
        """Hidden states [batch, tokens, features] after the block."""
        output = block(hidden, *self.args, **self.kwargs)
        return output[0] if isinstance(output, tuple) else output  # type: ignore[no-any-return]


class BlockModel:
    """A module whose longest list of equal blocks is run one block at a time.

    Args:
        model: the module; with `weights` its parameters may be on the meta device.
        device: where it computes.
        dtype: in which it computes.
        weights: where parameters are read from; `None` for those of `model`, which is never changed.
    """

    def __init__(
        self, model: nn.Module, *, device: torch.device, dtype: torch.dtype, weights: TensorReader | None = None
    ):
        self.device, self.dtype, self._weights = device, dtype, weights
        self.prefix = find_blocks(model)
        blocks = model.get_submodule(self.prefix)
        self.block_names = [f"{self.prefix}.{name}" for name, _ in blocks.named_children()]
        self.blocks: list[nn.Module] = list(blocks.children())
        self._bypasses = [_Bypass(block) for block in self.blocks]
        self._outside = self._load_outside(model)

    def load_block(self, index: int) -> nn.Module:
        """A copy of a block on the device, in the dtype it computes in."""
        block = self.blocks[index]
        if self._weights is None:
            return copy.deepcopy(block).to(self.device, self.dtype).eval().requires_grad_(False)
        return self._materialize(copy.deepcopy(block), f"{self.block_names[index]}.").eval()

    def first_inputs(self, batches: Sequence[Mapping[str, Tensor]]) -> tuple[list[Tensor], list[list[Call]]]:
        """Inputs of the first block for each batch, and by block and batch what else a block gets.

        The blocks themselves do not run: the module's own code builds masks and position embeddings for each of them.
        """
        hidden, calls = [], list[list[Call]]()
        for batch in batches:
            for bypass in self._bypasses:
                bypass.call = None
            self._bypasses[-1].stop = True
            with torch.no_grad():
                try:
                    self._outside(**{name: value.to(self.device) for name, value in batch.items()}, use_cache=False)
                except _Stop:
                    pass
            self._bypasses[-1].stop = False
            first = self._bypasses[0].hidden
            if first is None or any(bypass.call is None for bypass in self._bypasses):
                raise ModelError(
                    "the blocks of the model do not run one after another", code="blocks-order", where=self.prefix,
                    expected="a decoder that calls every block once, in order", hint="{algorithm=rtn}",
                )  # fmt: skip
            hidden.append(first.to(self.dtype))
            calls.append(_share([bypass.call for bypass in self._bypasses if bypass.call], calls[0] if calls else None))
        return hidden, [list(column) for column in zip(*calls)]

    def logits(self, hidden: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """What the model makes of the hidden states after the last block: final norm and head."""
        self._bypasses[-1].answer = hidden
        with torch.no_grad():
            output = self._outside(**{name: value.to(self.device) for name, value in batch.items()}, use_cache=False)
        self._bypasses[-1].answer = None
        return output.logits  # type: ignore[no-any-return]

    def _load_outside(self, model: nn.Module) -> nn.Module:
        """The module with bypasses for its blocks, on the device."""
        parent_name, _, leaf = self.prefix.rpartition(".")
        parent = model.get_submodule(parent_name)
        blocks = getattr(parent, leaf)
        setattr(parent, leaf, nn.ModuleList(self._bypasses))
        try:
            outside = copy.deepcopy(model, {id(bypass): bypass for bypass in self._bypasses})
        finally:
            setattr(parent, leaf, blocks)
        if self._weights is None:
            return outside.to(self.device, self.dtype).eval().requires_grad_(False)
        return self._materialize(outside, "").eval()

    def _materialize(self, module: nn.Module, prefix: str) -> nn.Module:
        """Read the parameters and persistent buffers of a module; compute the buffers no file holds."""
        assert self._weights is not None
        tied: dict[int, Tensor] = {}
        for owner_name, owner in module.named_modules():
            for name, parameter in [*owner._parameters.items(), *owner._buffers.items()]:
                if parameter is None or not parameter.is_meta:
                    continue
                full = f"{prefix}{owner_name}.{name}" if owner_name else f"{prefix}{name}"
                if name in owner._non_persistent_buffers_set:
                    value = _computed_buffer(owner, name)
                elif full in self._weights:
                    value = self._weights.read(full)
                    if value.shape != parameter.shape:
                        raise ModelError(
                            f"the tensor {full} has the shape {list(value.shape)}, the configuration says "
                            f"{list(parameter.shape)}", code="weights-shape", where=full,
                            expected="weights that fit config.json", hint="download the model again",
                        )  # fmt: skip
                    value = value.to(self.device, self.dtype if value.is_floating_point() else None)
                    tied[id(parameter)] = value
                elif id(parameter) in tied:
                    value = tied[id(parameter)]
                else:
                    value = None
                if value is None:
                    continue
                if isinstance(parameter, nn.Parameter):
                    owner._parameters[name] = nn.Parameter(value.to(self.device), requires_grad=False)
                else:
                    owner._buffers[name] = value.to(self.device)
        if not prefix and hasattr(module, "tie_weights"):
            module.tie_weights()  # type: ignore[operator]
        missing = [name for name, value in [*module.named_parameters(), *module.named_buffers()] if value.is_meta]
        if any(".experts." in f".{name}" for name in missing):
            raise ModelError(
                f"the experts of {prefix or type(module).__name__} are stored one by one, and transformers joins them",
                code="experts-later", expected="a dense model; mixtures of experts are not built yet",
                hint="quantize without {data}: experts stay in float",
            )  # fmt: skip
        if missing:
            raise ModelError(
                f"weights are missing: {', '.join(prefix + name for name in missing[:4])}"
                f"{' …' if len(missing) > 4 else ''}", code="weights-missing",
                expected="every tensor of the model that config.json describes", hint="download the model again",
            )  # fmt: skip
        return module


def find_blocks(model: nn.Module) -> str:
    """Name of the list of blocks that holds most parameters.

    >>> find_blocks(nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])}))
    'layers'
    """
    sizes = {
        name: sum(parameter.numel() for parameter in module.parameters())
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) and len({type(block) for block in module}) == 1
    }
    if not sizes or max(sizes.values()) == 0:
        raise ModelError(
            f"{type(model).__name__} has no list of blocks", code="blocks-missing",
            expected="a module with an nn.ModuleList of equal blocks, as language models have",
            hint="{algorithm=rtn}",
        )  # fmt: skip
    return max(sizes, key=lambda name: sizes[name])


def linear_layers(block: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The linear layers of a block; GPT-2 calls them Conv1D and stores the weight transposed."""
    for name, module in block.named_modules():
        if isinstance(module, nn.Linear) or is_transposed(module):
            yield name, module


def is_transposed(module: nn.Module) -> bool:
    """Whether a linear layer stores its weight [in, out]."""
    weight = getattr(module, "weight", None)
    return type(module).__name__ == "Conv1D" and isinstance(weight, Tensor) and weight.ndim == 2


def weight_of(module: nn.Module) -> Tensor:
    """The weight of a linear layer, [out, in]."""
    weight: Tensor = module.weight  # type: ignore[assignment]
    return weight.T if is_transposed(module) else weight


class _Stop(Exception):
    """Ends a forward pass where nothing after it is needed."""


class _Bypass(nn.Module):
    """Stands for a block: notes what the block would get, and passes the hidden states on."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.__dict__["block"] = block  # not a child
        self.call: Call | None = None
        self.hidden: Tensor | None = None
        self.answer: Tensor | None = None
        self.stop = False

    def forward(self, hidden: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        self.hidden, self.call = hidden, Call(args, kwargs)
        if self.stop:
            raise _Stop
        return hidden if self.answer is None else self.answer

    def __getattr__(self, name: str) -> Any:
        """Decoders ask blocks for facts such as `attention_type`."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["block"], name)


def _share(calls: list[Call], first: list[Call] | None) -> list[Call]:
    """Calls that hold the same values become one object, so that masks and position embeddings are kept once."""
    shared = list[Call]()
    for index, call in enumerate(calls):
        known = [*([first[index]] if first else []), *shared]
        shared.append(next((other for other in known if _equal(call, other)), call))
    return shared


def _equal(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, Call) and isinstance(other, Call):
        return _equal(one.args, other.args) and _equal(dict(one.kwargs), dict(other.kwargs))
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    return type(one) is type(other) and bool(one == other)


def _computed_buffer(owner: nn.Module, name: str) -> Tensor | None:
    """A buffer that is computed from the configuration, such as the frequencies of rotary embeddings."""
    config = getattr(owner, "config", None)
    build: Callable[..., nn.Module] = type(owner)
    if config is None:
        return None
    with torch.device("cpu"):
        return build(config)._buffers.get(name)
