# SPDX-License-Identifier: Apache-2.0
"""Operators of ATen, translated one by one to neutral operators.

A translation looks at a `Call` and emits nodes. It returns False if it does not understand the call; the call then
becomes an opaque node. Operators that are several neutral ones emit several nodes, with temporary values between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from fewbit.graph.ir import Constant, Node, Value, is_float

TRANSLATIONS: dict[str, Callable[[Call], bool]] = {}
"""By the name of the operator without overload and without the underscore of in-place variants."""

_SPATIAL = {1: "W", 2: "HW", 3: "DHW"}
_UNARY = (
    "sigmoid tanh silu gelu exp exp2 expm1 erf sqrt rsqrt reciprocal hardswish hardsigmoid cos sin tan log log2 log10 "
    "log1p mish softplus elu selu celu log_sigmoid square floor ceil round trunc sign atan asin acos sinh cosh logit "
    "softsign erfc sinc isnan isinf logical_not bitwise_not"
)


class GraphUnderConstruction(Protocol):
    """What translations see of the reader."""

    values: dict[str, Value]
    constants: dict[str, Constant]
    nodes: list[Node]
    prefix: str

    def label_of(self, inputs: Iterable[str | None], scope: str) -> str: ...
    def name_of(self, argument: Any) -> str | None: ...
    def add_literal(self, number: float) -> str: ...
    def add_temporary(self, name: str, shape: tuple[int, ...], dtype: str) -> str: ...


class Call:
    """One call of an operator, with its arguments by name."""

    def __init__(
        self,
        reader: GraphUnderConstruction,
        node: Any,
        native: str,
        arguments: Mapping[str, Any],
        outputs: tuple[str, ...],
        scope: str,
    ):
        self._reader, self._node, self.native = reader, node, native
        self.arguments, self.outputs, self.scope = arguments, outputs, scope
        self._temporaries = 0

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def get(self, name: str, default: Any = None) -> Any:
        """An argument that not every overload has."""
        value = self.arguments.get(name, default)
        return default if value is None else value

    def name(self, argument: str) -> str | None:
        """The value or constant that an argument is; `None` for a number or nothing."""
        return self._reader.name_of(self.arguments.get(argument))

    def names(self, argument: str) -> tuple[str, ...] | None:
        """The values of an argument that is a list of tensors; `None` if some are not."""
        names = [self._reader.name_of(item) for item in self.arguments[argument]]
        return None if None in names else tuple(name for name in names if name is not None)

    def item(self, argument: str, position: int) -> tuple[str, bool] | None:
        """One value of a list of tensors, and whether it is boolean."""
        name = self._reader.name_of(self.arguments[argument][position])
        if name is None:
            return None
        tensors: Mapping[str, Constant | Value] = {**self._reader.constants, **self._reader.values}
        return name, tensors[name].dtype == "bool"

    def operand(self, argument: str) -> str | None:
        """A value, a constant, or a number as a constant."""
        value = self.arguments.get(argument)
        if isinstance(value, bool | int | float):
            return self._reader.add_literal(float(value))
        return self._reader.name_of(value)

    def dims(self, name: str | None) -> tuple[int, ...]:
        """The example shape of a value or constant."""
        if name in self._reader.constants:
            return self._reader.constants[name or ""].shape
        value = self._reader.values.get(name or "")
        return (value.dims or ()) if value is not None else ()

    def rank(self, name: str | None) -> int:
        """The number of axes of a value or constant."""
        if name in self._reader.constants:
            return len(self._reader.constants[name or ""].shape)
        value = self._reader.values.get(name or "")
        return len(value.shape or ()) if value is not None else 0

    @property
    def is_float(self) -> bool:
        """Whether it computes floats: sums of integers are arithmetic on positions and masks, nothing to follow."""
        return is_float(self._reader.values[self.outputs[0]].dtype)

    def axis(self, argument: str, rank: int) -> int:
        """An axis argument, counted from the front."""
        return int(self.arguments[argument]) % max(rank, 1)

    def temporary(self, shape: tuple[int, ...]) -> str:
        """A value between two nodes of this call."""
        dtype = self._reader.values[self.outputs[0]].dtype
        self._temporaries += 1
        return self._reader.add_temporary(f"{self._node.name}!{self._temporaries}", shape, dtype)

    def scaled(self, operand: str, factor: float) -> str:
        """An operand times a number."""
        if factor == 1:
            return operand
        result = self.temporary(self.dims(operand))
        self.emit("mul", (operand, self._reader.add_literal(float(factor))), (result,))
        return result

    def emit(self, op: str, inputs: Sequence[str | None], outputs: tuple[str, ...] | None = None, **attrs: Any) -> bool:
        """Add a node; always True, so that a translation can end with it."""
        name = self._reader.prefix + self._node.name if outputs is None else outputs[0]
        label = self._reader.label_of(inputs, self.scope)
        outputs = self.outputs if outputs is None else outputs
        node = Node(name, op, tuple(inputs), outputs, attrs, native=self.native, scope=self.scope, label=label)
        self._reader.nodes.append(node)
        return True


def translates(*names: str) -> Callable[[Callable[[Call], bool]], Callable[[Call], bool]]:
    """Register a translation for operators of ATen."""

    def register(translate: Callable[[Call], bool]) -> Callable[[Call], bool]:
        TRANSLATIONS.update(dict.fromkeys(names, translate))
        return translate

    return register


# Products with weights.


@translates("linear")
def _linear(call: Call) -> bool:
    return call.emit("matmul", _some(call.name("input"), call.name("weight"), call.name("bias")), transpose_b=True)


@translates("mm", "bmm", "matmul", "mv")
def _matmul(call: Call) -> bool:
    left = call.name("self")
    right = call.name("mat2") or call.name("other") or call.name("vec")
    return call.emit("matmul", (left, right), transpose_a=False, transpose_b=False)


@translates("addmm", "baddbmm")
def _addmm(call: Call) -> bool:
    """beta * bias + alpha * a @ b: one node if both factors are 1."""
    left, right = (call.name("mat1") or call.name("batch1")), (call.name("mat2") or call.name("batch2"))
    if call["alpha"] == 1 and call["beta"] == 1:
        return call.emit("matmul", (left, right, call.name("self")), transpose_a=False, transpose_b=False)
    product = call.temporary((*call.dims(left)[:-1], call.dims(right)[-1]))
    call.emit("matmul", (left, right), (product,), transpose_a=False, transpose_b=False)
    product = call.scaled(product, call["alpha"])
    if call["beta"] == 0:
        return call.emit("identity", (product,))
    return call.emit("add", (product, call.scaled(call.name("self") or "", call["beta"])))


@translates("conv1d", "conv2d", "conv3d")
def _conv(call: Call) -> bool:
    return _emit_conv(call, "conv", call["padding"], transposed=False)


@translates("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _conv_transpose(call: Call) -> bool:
    return _emit_conv(call, "conv_transpose", call["padding"], transposed=True)


@translates("convolution")
def _convolution(call: Call) -> bool:
    op = "conv_transpose" if call["transposed"] else "conv"
    return _emit_conv(call, op, call["padding"], transposed=bool(call["transposed"]))


def _emit_conv(call: Call, op: str, padding: Any, *, transposed: bool) -> bool:
    data, weight = call.name("input"), call.name("weight")
    kernel = call.dims(weight)[2:]
    if len(kernel) not in _SPATIAL or call.rank(data) != len(kernel) + 2:  # without a batch axis
        return False
    letters = _SPATIAL[len(kernel)]
    dilations = _each(call["dilation"], len(kernel))
    if padding == "valid":
        pads = [(0, 0)] * len(kernel)
    elif padding == "same":
        totals = [(size - 1) * dilation for size, dilation in zip(kernel, dilations)]
        pads = [(total // 2, total - total // 2) for total in totals]
    else:
        pads = [(int(pad), int(pad)) for pad in _each(padding, len(kernel))]
    return call.emit(
        op, _some(data, weight, call.name("bias")), data="NC" + letters,
        weight=("IO" if transposed else "OI") + letters, groups=int(call["groups"]),
        strides=tuple(_each(call["stride"], len(kernel))), pads=tuple(pads), dilations=tuple(dilations),
    )  # fmt: skip


@translates("embedding")
def _embedding(call: Call) -> bool:
    return call.emit("gather", (call.name("weight"), call.name("indices")), axis=0)


@translates("index_select")
def _index_select(call: Call) -> bool:
    data = call.name("self")
    return call.emit("gather", (data, call.name("index")), axis=call.axis("dim", call.rank(data)))


@translates("index")
def _index(call: Call) -> bool:
    positions = [position for position, item in enumerate(call["indices"]) if item is not None]
    if len(positions) != 1:
        return False
    index = call.item("indices", positions[0])
    return index is not None and not index[1] and call.emit("gather", (call.name("self"), index[0]), axis=positions[0])


@translates("scaled_dot_product_attention")
def _attention(call: Call) -> bool:
    inputs = _some(call.name("query"), call.name("key"), call.name("value"), call.name("attn_mask"))
    return call.emit("attention", inputs, causal=bool(call["is_causal"]), scale=call["scale"])


# Norms.


@translates("batch_norm", "_native_batch_norm_legit_no_training", "native_batch_norm", "cudnn_batch_norm")
def _batch_norm(call: Call) -> bool:
    inputs = tuple(call.name(name) for name in ("input", "weight", "bias", "running_mean", "running_var"))
    if call.get("training", False) or inputs[3] is None or inputs[4] is None:
        return False
    return call.emit("batch_norm", inputs, axis=1, eps=call["eps"])


@translates("layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm")
def _layer_norm(call: Call) -> bool:
    data = call.name("input")
    rank = call.rank(data)
    axes = tuple(range(rank - len(call["normalized_shape"]), rank))
    inputs = (data, call.name("weight"), call.name("bias"))
    return call.emit("rms_norm" if "rms" in call.native else "layer_norm", inputs, axes=axes, eps=call["eps"])


@translates("group_norm", "instance_norm")
def _group_norm(call: Call) -> bool:
    data = call.name("input")
    if call.native == "instance_norm" and call.name("running_mean") is not None and not call["use_input_stats"]:
        return False
    groups = call["num_groups"] if call.native == "group_norm" else call.dims(data)[1]
    inputs = (data, call.name("weight"), call.name("bias"))
    return call.emit("group_norm", inputs, axis=1, groups=int(groups), eps=call["eps"])


# Elementwise.


@translates("relu", "neg", "abs")
def _same_name(call: Call) -> bool:
    return call.emit(call.native, (call.name("self"),))


@translates("prelu")
def _prelu(call: Call) -> bool:
    """One slope, or one per channel, which is the second axis."""
    data, slope = call.name("self"), call.name("weight")
    axes = call.rank(data) - 2
    if call.dims(slope) != (1,) and axes > 0:
        column = call.temporary((*call.dims(slope), *(1,) * axes))
        call.emit("reshape", (slope,), (column,))
        slope = column
    return call.emit("prelu", (data, slope))


@translates("leaky_relu")
def _leaky_relu(call: Call) -> bool:
    return call.emit("leaky_relu", (call.name("self"),), slope=call["negative_slope"])


@translates("hardtanh", "relu6", "clamp", "clamp_min", "clamp_max")
def _clip(call: Call) -> bool:
    limits = {"relu6": (0, 6), "hardtanh": (call.get("min_val"), call.get("max_val"))}
    low, high = limits.get(call.native, (call.get("min"), call.get("max")))
    if any(hasattr(limit, "all_input_nodes") for limit in (low, high)):
        return False
    if low == 0 and high is None:
        return call.emit("relu", (call.name("self"),))
    return call.emit("clip", (call.name("self"),), low=low, high=high)


@translates(*_UNARY.split())
def _unary(call: Call) -> bool:
    data = call.name("self")
    return data is not None and call.emit("unary", (data,), fn=call.native)


@translates("pow", "float_power")
def _pow(call: Call) -> bool:
    return call.emit("pow", (call.operand("self"), call.operand("exponent")))


@translates("add", "sub", "rsub", "mul", "div", "maximum", "minimum")
def _binary(call: Call) -> bool:
    one, other = call.operand("self"), call.operand("other")
    if one is None or other is None or call.get("rounding_mode") is not None or not call.is_float:
        return False
    if call.native == "rsub":
        one, other = other, call.scaled(one, call["alpha"])
    else:
        other = call.scaled(other, call.get("alpha", 1))
    op = {"maximum": "max", "minimum": "min", "rsub": "sub"}.get(call.native, call.native)
    return call.emit(op, (one, other))


@translates("where")
def _where(call: Call) -> bool:
    inputs = (call.name("condition"), call.operand("self"), call.operand("other"))
    return None not in inputs and call.emit("where", inputs)


@translates("masked_fill")
def _masked_fill(call: Call) -> bool:
    inputs = (call.name("mask"), call.operand("value"), call.name("self"))
    return None not in inputs and call.emit("where", inputs)


@translates("softmax", "_softmax", "log_softmax", "_log_softmax")
def _softmax(call: Call) -> bool:
    if "log" in call.native:
        return call.emit("unary", (call.name("self"),), fn="log_softmax")
    return call.emit("softmax", (call.name("self"),), axis=call.axis("dim", call.rank(call.name("self"))))


@translates("glu")
def _glu(call: Call) -> bool:
    """The first half times the sigmoid of the second."""
    data, shape = call.name("self"), call.dims(call.outputs[0])
    axis = call.axis("dim", call.rank(data))
    half, gate, weight = (call.temporary(shape) for _ in range(3))
    call.emit("split", (data,), (half, gate), axis=axis, sizes=(shape[axis], shape[axis]))
    call.emit("unary", (gate,), (weight,), fn="sigmoid")
    return call.emit("mul", (half, weight))


# Over axes.


@translates("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d",
            "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
            "max_pool2d_with_indices")  # fmt: skip
def _pool(call: Call) -> bool:
    data = call.name("self")
    if call.rank(data) - 2 not in _SPATIAL:
        return False
    axes = call.rank(data) - 2
    attrs: dict[str, Any] = {"data": "NC" + _SPATIAL[axes]}
    if not call.native.startswith("adaptive"):
        kernel = _each(call["kernel_size"], axes)
        strides = _each(call["stride"], axes) if call.get("stride") else kernel
        pads = tuple((pad, pad) for pad in _each(call["padding"], axes))
        attrs |= {"kernel": tuple(kernel), "strides": tuple(strides), "pads": pads}
    return call.emit("max_pool" if "max" in call.native else "avg_pool", (data,), **attrs)


@translates("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact2d",
            "upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d",
            "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")  # fmt: skip
def _resize(call: Call) -> bool:
    data = call.name("self") or call.name("input")
    return call.rank(data) - 2 in _SPATIAL and call.emit("resize", (data,), data="NC" + _SPATIAL[call.rank(data) - 2])


@translates(
    "mean", "sum", "amax", "amin", "max", "min", "var", "std", "prod", "logsumexp", "linalg_vector_norm", "norm"
)
def _reduce(call: Call) -> bool:
    data = call.name("self")
    if call.name("other") is not None:  # max and min of two tensors
        return call.emit(call.native, (data, call.name("other")))
    dim = call.get("dim")
    axes = [*range(call.rank(data))] if dim is None or dim == [] else [dim] if isinstance(dim, int) else list(dim)
    fn = {"amax": "max", "amin": "min", "linalg_vector_norm": "norm"}.get(call.native, call.native)
    axes = [int(axis) % max(call.rank(data), 1) for axis in axes]
    return call.emit("reduce", (data,), fn=fn, axes=tuple(axes), keepdims=bool(call.get("keepdim", False)))


@translates("cumsum")
def _cumsum(call: Call) -> bool:
    data = call.name("self")
    return call.is_float and call.emit("cumsum", (data,), axis=call.axis("dim", call.rank(data)))


@translates("topk")
def _topk(call: Call) -> bool:
    data = call.name("self")
    return call.emit("topk", (data,), axis=call.axis("dim", call.rank(data)))


def _some(*names: str | None) -> tuple[str | None, ...]:
    """Inputs without the optional ones at the end that are left out."""
    while names and names[-1] is None:
        names = names[:-1]
    return names


def _each(value: Any, count: int) -> list[int]:
    """One number per spatial axis: torch takes a single one for all."""
    numbers = [value] if isinstance(value, int) else [int(number) for number in value]
    return numbers * count if len(numbers) == 1 else numbers
