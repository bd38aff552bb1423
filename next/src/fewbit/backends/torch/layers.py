# SPDX-License-Identifier: Apache-2.0
"""A quantized layer: a subclass of the layer's own class whose weights are packed buffers.

The module stays what it was. Its parameter becomes buffers with integers and scales, and a property of the parameter's
name gives the float values, so the forward of any subclass of Linear or of a convolution runs
unchanged. A frozen layer runs a kernel in its place (`kernels.py`). A kernel may store the integers in a layout of its
own; saving, copying, pickling and moving show the plain buffers, and the kernel is chosen anew on the other side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor, nn

from fewbit.numerics.granularity import BlockShape
from fewbit.numerics.grid import QParams, QuantizationGrid
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.quantize import fake_quantize, qparams_from_min_max
from fewbit.numerics.scales import stored_dtype

PARTS = ("packed", "scale", "zero_point", "global_scale")
"""The buffers of a weight: `weight_packed`, `weight_scale` ..."""
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_is_tracing: Callable[[], bool] = torch.jit.is_tracing  # type: ignore[attr-defined]
_is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", lambda: False)  # new in PyTorch 2.7


def set_weight(module: nn.Module, name: str, tensor: QTensor) -> QuantizedLayer:
    """Replace a float parameter by a quantized tensor of the same shape, in place.

    >>> from fewbit.numerics.dtypes import Dtype
    >>> linear, grid = nn.Linear(2, 1, bias=False), QuantizationGrid(Dtype.int4)
    >>> one = QParams(grid, (1, 2), torch.ones(1, 1))
    >>> set_weight(linear, "weight", QTensor.encode(torch.tensor([[3.2, -1.0]]), one)).weight
    tensor([[ 3., -1.]])
    """
    layer = as_quantized(module)
    thaw(layer)
    before = module._parameters.pop(name, None)
    dtype = layer.stored[name].dtype if before is None else before.dtype
    device = tensor.packed.device if before is None else before.device
    layer.stored = {**layer.stored, name: StoredWeight(tensor.grid, tensor.shape, tensor.block, dtype)}
    module.__class__ = quantized_class(layer.float_class, tuple(layer.stored))
    for part in PARTS:
        module._buffers.pop(f"{name}_{part}", None)
    for part, array in tensor.tensors().items():
        module.register_buffer(f"{name}_{part}", _as_buffer(array, part, tensor.grid).to(device))
    return layer


def _as_buffer(array: Tensor, part: str, grid: QuantizationGrid) -> Tensor:
    """16-bit patterns as PyTorch's own types: it can neither pickle nor index uint16."""
    if array.dtype is not torch.uint16:
        return array
    native = stored_dtype(grid.scale_type) if part == "scale" else grid.dtype.native
    return array.view(getattr(torch, native or "int16"))


def _from_buffer(array: Tensor, part: str, grid: QuantizationGrid) -> Tensor:
    is_pattern = array.dtype in (torch.float16, torch.bfloat16) or (part != "scale" and grid.dtype.storage == "uint16")
    return array.view(torch.uint16) if is_pattern else array


def share_weight(module: nn.Module, name: str, other: QuantizedLayer, source: str) -> None:
    """Give a layer the very buffers of another: the weights stay tied."""
    set_weight(module, name, other.qtensor(source))
    for part in PARTS:
        if f"{source}_{part}" in other._buffers:
            module._buffers[f"{name}_{part}"] = other._buffers[f"{source}_{part}"]


def as_quantized(module: nn.Module) -> QuantizedLayer:
    """Give a module the class that can hold quantized tensors, in place; it computes what it did."""
    layer: Any = module
    if not isinstance(module, QuantizedLayer):
        vars(layer).pop("_flat_weights", None)  # recurrent layers hold their parameters a second time
        base: Any = type(layer)
        layer.__class__ = quantized_class(base, ())
        layer.stored = {}
        layer.kernel = layer.conditions = None
        layer.input_quantizer = layer.output_quantizer = None
    quantized: QuantizedLayer = layer
    return quantized


@cache
def quantized_class(base: Any, names: tuple[str, ...]) -> type[nn.Module]:
    """The subclass of a module class whose parameters `names` are quantized; one per pair."""
    mixin = QuantizedRecurrent if issubclass(base, nn.RNNBase) else QuantizedLayer
    body: dict[str, Any] = {name: property(_reader(name)) for name in names}
    body |= {"float_class": base, "__module__": __name__}
    return type(f"Quantized{base.__name__}", (mixin, base), body)


def _reader(name: str) -> Callable[[QuantizedLayer], Tensor]:
    def read(layer: QuantizedLayer) -> Tensor:
        return layer.float_parameter(name)

    return read


@dataclass(frozen=True)
class StoredWeight:
    """What the buffers of one parameter mean.

    Args:
        grid: the values it takes.
        shape: of the parameter.
        block: which elements share a scale.
        dtype: of the float values; follows when the model is cast.
    """

    grid: QuantizationGrid
    shape: tuple[int, ...]
    block: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class KernelConditions:
    """What a kernel has to respect.

    Args:
        device: where the layer is.
        exact: compute at least as precisely as the layer's own forward.
        shared: other layers use the same integers, so they stay where they are.
    """

    device: torch.device
    exact: bool = False
    shared: bool = False


class LayerKernel(Protocol):
    """What runs in the place of a layer's forward."""

    name: str
    note: str
    conditions: KernelConditions
    takes: tuple[str, ...]
    """The parts of the weight that are stored here and no longer in the layer."""
    wraps: bool
    """It runs the layer's own forward, with all arguments, and provides only the weight (`stand_in`)."""

    def run(self, layer: Any, x: Tensor) -> Tensor:
        """The layer's output, in the dtype of `x`."""
        ...

    def parts(self) -> dict[str, Tensor]:
        """The parts it took, as the layer had them."""
        ...

    def nbytes(self) -> int:
        """Bytes of what it stores."""
        ...


class QuantizedLayer(nn.Module):
    """Mixed in front of a layer's own class.

    Attributes:
        float_class: the class it had.
        stored: the quantized parameters by name.
        input_quantizer: for the first argument of `forward`, or `None`.
        output_quantizer: for what `forward` returns, or `None`.
        kernel: what runs instead of the own forward; `None` if weights are dequantized.
        conditions: of the kernel; also if no kernel took the layer, since another device may have one.
    """

    float_class: ClassVar[Any]
    stored: dict[str, StoredWeight]
    input_quantizer: ActivationQuantizer | None
    output_quantizer: ActivationQuantizer | None
    kernel: LayerKernel | None
    conditions: KernelConditions | None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        out = self.float_forward(*args, **kwargs) if self.kernel is None else _run_frozen(self, *args, **kwargs)
        return out if self.output_quantizer is None else self.output_quantizer(out)

    def float_forward(self, *args: Any, **kwargs: Any) -> Any:
        """The forward of its own class on dequantized weights and a fake-quantized input."""
        if self.input_quantizer is not None:
            if args:
                args = (self.input_quantizer(args[0]), *args[1:])
            else:
                first = next(iter(kwargs))
                kwargs = {**kwargs, first: self.input_quantizer(kwargs[first])}
        return super().forward(*args, **kwargs)

    def float_parameter(self, name: str) -> Tensor:
        """The values of a quantized parameter."""
        stand_in: Tensor | None = getattr(self.kernel, "stand_in", None)
        if stand_in is not None:
            return stand_in
        values: Tensor = self.qtensor(name).dequantize(self.stored[name].dtype)
        return values

    def qtensor(self, name: str) -> QTensor:
        """A quantized parameter; from the kernel if that stores it in another layout."""
        arrays = {part: self._buffers.get(f"{name}_{part}") for part in PARTS}
        if self.kernel is not None and name == "weight" and self.kernel.takes:
            arrays |= self.kernel.parts()
        weight = self.stored[name]
        present = {part: _from_buffer(array, part, weight.grid) for part, array in arrays.items() if array is not None}
        return QTensor.from_tensors(weight.grid, weight.shape, weight.block, present)

    def extra_repr(self) -> str:
        weights = ", ".join(f"{name}={weight.grid.dtype.name}" for name, weight in self.stored.items())
        kernel = "" if self.kernel is None else f", kernel={self.kernel.name}"
        return f"{super().extra_repr()}, {weights}{kernel}".lstrip(", ")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        with thawed(self):
            dtypes = {
                name: _dtype_after(fn, self._buffers[f"{name}_packed"], w.dtype) for name, w in self.stored.items()
            }
            with _moved_but_not_cast(self, [f"{name}_{part}" for name in self.stored for part in PARTS], fn):
                super()._apply(fn, recurse)
            self.stored = {name: replace(weight, dtype=dtypes[name]) for name, weight in self.stored.items()}
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination.update({prefix + name: part for name, part in _taken(self).items()})

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        with thawed(self):
            super()._load_from_state_dict(*args, **kwargs)

    def __reduce__(self) -> Any:
        return _rebuild, (self.float_class, tuple(self.stored)), self.__getstate__()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "kernel": None, "_buffers": {**self._buffers, **_taken(self)}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self.conditions is not None:
            freeze_layer(self, replace(self.conditions, device=device_of(self)))


class QuantizedRecurrent(QuantizedLayer):
    """In front of LSTM, GRU and RNN, which read their weights from a list next to the parameters."""

    _flat_weights_names: list[str]

    @property
    def _flat_weights(self) -> list[Any]:
        return [getattr(self, name, None) for name in self._flat_weights_names]

    @_flat_weights.setter
    def _flat_weights(self, weights: Any) -> None:
        """PyTorch fills the list when the module moves; the float weights exist in a forward only."""

    def _init_flat_weights(self) -> None: ...

    def _update_flat_weights(self) -> None: ...

    def flatten_parameters(self) -> None:
        """Nothing to flatten."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_flat_weight_refs"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _flat_weight_refs=[])


def _rebuild(base: Any, names: tuple[str, ...]) -> nn.Module:
    cls = quantized_class(base, names)
    return cls.__new__(cls)


@contextmanager
def _moved_but_not_cast(module: nn.Module, names: list[str], fn: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """`model.half()` casts float buffers; scales belong to the scheme and only follow to another device.

    Buffers change in place, as parameters do, so that layers that share one still share it.
    """
    buffers = {name: module._buffers.pop(name) for name in names if name in module._buffers}
    try:
        yield
    finally:
        for name, buffer in buffers.items():
            module._buffers[name] = None if buffer is None else _moved(buffer, fn)


def _moved(buffer: Tensor, fn: Callable[[Tensor], Tensor]) -> Tensor:
    disguised = buffer.view(_INTEGERS[buffer.element_size()])  # casts to float types leave integers alone
    after = fn(disguised)
    if after.dtype is not disguised.dtype:  # `model.type(...)` casts integers too
        after = disguised.to(after.device)
    after = after.view(buffer.dtype)
    if not torch._has_compatible_shallow_copy_type(buffer, after):
        return after
    buffer.data = after
    return buffer


def _dtype_after(fn: Callable[[Tensor], Tensor], packed: Tensor | None, dtype: torch.dtype) -> torch.dtype:
    """What a float dtype becomes when the model is cast."""
    after = fn(torch.empty(1, dtype=dtype, device=None if packed is None else packed.device)).dtype
    return after if after.is_floating_point else dtype


class ActivationQuantizer(nn.Module):
    """Rounds an activation to the values of a grid; gradients pass as if it did not.

    Args:
        grid: the values.
        features: the axis of the features, counted from the end.
        fixed: scales found beforehand; without them every call computes its own.

    >>> from fewbit.numerics.dtypes import Dtype
    >>> ActivationQuantizer(QuantizationGrid(Dtype.int2))(torch.tensor([[1.0, 0.1]]))
    tensor([[0.6667, 0.0000]])
    """

    scale: Tensor | None
    zero_point: Tensor | None
    global_scale: Tensor | None

    def __init__(self, grid: QuantizationGrid, features: int = -1, fixed: QParams | None = None):
        super().__init__()
        self.grid, self.features, self.dynamic = grid, features, fixed is None
        zero = None if fixed is None or fixed.zero_point is None else fixed.zero_point.flatten()
        self.register_buffer("scale", None if fixed is None else fixed.scale.flatten())
        self.register_buffer("zero_point", zero)
        self.register_buffer("global_scale", None if fixed is None else fixed.global_scale)

    def qparams(self, x: Tensor) -> QParams:
        """Scales and zero points for one activation."""
        block = self.grid.activation_block(tuple(x.shape), features=self.features, dynamic=self.dynamic)
        blocks = BlockShape(tuple(x.shape), block)
        if self.scale is None:
            return qparams_from_min_max(*blocks.extremes(x.float()), self.grid, block)
        zero = None if self.zero_point is None else self.zero_point.reshape(blocks.counts)
        return QParams(self.grid, block, self.scale.reshape(blocks.counts), zero, self.global_scale)

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad and torch.is_grad_enabled() and not _is_tracing():
            passed: Tensor = _StraightThrough.apply(self, x)  # type: ignore[no-untyped-call]
            return passed
        return self.rounded(x.detach())

    def rounded(self, x: Tensor) -> Tensor:
        """`x` on the grid."""
        return fake_quantize(x, self.qparams(x)) if x.numel() else x.clone()

    def extra_repr(self) -> str:
        return f"{self.grid.dtype.name}, {self.grid.granularity.value}, {'dynamic' if self.dynamic else 'static'}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        with _moved_but_not_cast(self, ["scale", "zero_point", "global_scale"], fn):
            super()._apply(fn, recurse)
        return self


class _StraightThrough(torch.autograd.Function):
    """Rounding has no slope, so that of the identity stands for it."""

    @staticmethod
    def forward(ctx: Any, quantizer: ActivationQuantizer, x: Tensor) -> Tensor:  # type: ignore[override]
        return quantizer.rounded(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:  # type: ignore[override]
        return None, grad


# Frozen layers.


def freeze_layer(layer: QuantizedLayer, conditions: KernelConditions) -> dict[str, str]:
    """Give a layer the fastest kernel that can run it, in place; returns why others cannot."""
    from fewbit.backends.torch.kernels import choose_kernel

    layer.conditions = conditions
    kernel, reasons = choose_kernel(layer, conditions)
    if kernel is not None:
        for part in kernel.takes:
            layer._buffers.pop(f"weight_{part}", None)
        layer.kernel = kernel
    return reasons


def thaw(layer: QuantizedLayer) -> None:
    """Remove the kernel, in place."""
    parts = _taken(layer)
    layer.kernel = layer.conditions = None
    layer._buffers.update(parts)


@contextmanager
def thawed(layer: QuantizedLayer) -> Iterator[None]:
    """A layer without its kernel for a while; afterwards it gets the one that suits its new device and type."""
    conditions = layer.conditions
    thaw(layer)
    try:
        yield
    finally:
        if conditions is not None:
            freeze_layer(layer, replace(conditions, device=device_of(layer)))


def device_of(layer: QuantizedLayer) -> torch.device:
    """Where a layer's buffers are."""
    return next(buffer.device for buffer in layer._buffers.values() if buffer is not None)


def _taken(layer: QuantizedLayer) -> dict[str, Tensor]:
    """The buffers that a kernel took, as they were."""
    if layer.kernel is None or not layer.kernel.takes:
        return {}
    return {f"weight_{part}": array for part, array in layer.kernel.parts().items()}


def exporting() -> bool:
    """Whether `torch.export` is tracing; PyTorch 2.11 says so of `torch.compile` too."""
    return _is_exporting() and not torch.compiler.is_dynamo_compiling()


def _run_frozen(layer: QuantizedLayer, *args: Any, **kwargs: Any) -> Any:
    kernel = layer.kernel
    assert kernel is not None
    if kernel.wraps:
        return kernel.run(layer, *args, **kwargs)
    values = [*args, *kwargs.values()]
    if len(values) != 1 or not isinstance(values[0], Tensor):
        return layer.float_forward(*args, **kwargs)  # which says what is wrong with such a call
    x = values[0]
    kind = x.device.type
    if x.is_floating_point() and x.dtype is not torch.float64 and torch.is_autocast_enabled(kind):
        x = x.to(torch.get_autocast_dtype(kind))  # as the operators it stands for would
    learns = x.requires_grad and torch.is_grad_enabled()
    if torch.compiler.is_compiling():
        if not learns or exporting():
            return kernel.run(layer, x.detach() if learns else x)  # an exported program does not learn
        from fewbit.backends.torch.compiled import outside_the_graph

        # Operators on packed integers have no derivative, and the compiler loses that of quantized activations.
        return outside_the_graph(layer, x)
    if not x.numel():
        return layer.float_forward(x)
    return differentiable(layer, x) if learns else kernel.run(layer, x)


def differentiable(layer: QuantizedLayer, x: Tensor) -> Tensor:
    """The output of the kernel, with the gradient of the layer's own forward."""
    out: Tensor = _KernelFunction.apply(layer, x)  # type: ignore[no-untyped-call]
    return out


class _KernelFunction(torch.autograd.Function):
    """Parameters of a frozen layer get no gradient."""

    @staticmethod
    def forward(ctx: Any, layer: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.layer, ctx.precision = layer, _autocast_now(x.device.type)
        ctx.save_for_backward(x)
        out: Tensor = layer.kernel.run(layer, x)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor | None]:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        with torch.enable_grad(), ctx.precision:
            x = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(ctx.layer.float_forward(x), x, grad, allow_unused=True)
        return None, gradient


def _autocast_now(kind: str) -> AbstractContextManager[Any]:
    """Autocast as it is now, for a backward pass, which runs outside of it."""
    return torch.autocast(kind, torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else nullcontext()


# The fused encoder layer of PyTorch.


def close_fast_paths(model: nn.Module) -> None:
    """Make transformer encoders that contain quantized layers call their parts.

    In evaluation `nn.TransformerEncoderLayer` hands the weights of its parts to one fused function and calls none of
    them: quantizers and kernels would be passed by.
    """
    for module in model.modules():
        if not isinstance(module, nn.TransformerEncoderLayer | nn.TransformerEncoder):
            continue
        if not any(isinstance(part, QuantizedLayer) for part in module.modules()):
            continue
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False  # nested tensors exist on the fast path only
        elif _no_fast_path not in module._forward_pre_hooks.values():
            module.register_forward_pre_hook(_no_fast_path)


def _no_fast_path(module: nn.Module, args: Any) -> None:
    """PyTorch takes the long way if there are hooks to call."""
