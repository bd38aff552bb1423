# SPDX-License-Identifier: Apache-2.0
"""Whether a float model is of the build that was exported: every difference at once, before anything is changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from fewbit.errors import DataError
from fewbit.modules.description import Description, Layer
from fewbit.modules.inventory import slots
from fewbit.modules.quantized import Quantized

_CACHE = "fewbit_cache"
_SHOWN = 8


def refuse_misfit(
    model: nn.Module, description: Description, tensors: Mapping[str, Tensor], kinds: Mapping[str, str]
) -> None:
    """Raise a DataError that lists what does not fit."""
    faults = [
        *(fault for path, layer in description.layers.items() for fault in _of_layer(model, path, layer)),
        *_of_quantizers(model, description, tensors),
        *_of_places(model, description, tensors),
        *_of_tensors(model, description, tensors, kinds),
    ]
    if faults:
        more = f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        raise DataError(
            f"the model is not of the build that was exported: {'; '.join(faults[:_SHOWN])}{more}",
            code="model-differs",
            where=type(model).__name__,
            expected="a float model made by the same code with the same sizes",
            try_="give the right one: load(folder, model=…)",
        )


def cache_place(path: str) -> tuple[str, int, str] | None:
    """The module a cache's quantizer hangs on, the cache's layer and the side; none for other quantizers.

    >>> cache_place("decoder.fewbit_cache.3.key.quantizer")
    ('decoder', 3, 'key')
    """
    owner, marked, rest = f".{path}".partition(f".{_CACHE}.")
    index, *sides = rest.split(".")
    if not (marked and index.isdecimal() and sides in (["key", "quantizer"], ["value", "quantizer"])):
        return None
    return owner.lstrip("."), int(index), sides[0]


def _of_layer(model: nn.Module, path: str, layer: Layer) -> Iterator[str]:
    module = _module(model, path)
    if module is None:
        yield f"no layer {path}"
        return
    if isinstance(module, Quantized):
        yield f"{path} is quantized already"
        return
    if type(module).__name__ != layer.float_class:
        yield f"{path} is a {type(module).__name__}, not a {layer.float_class}"
    for name, coded in layer.weights.items():
        parameter = module._parameters.get(name)
        shape = list(coded.own_shape)
        if parameter is None:
            yield f"{path} has no parameter {name}"
        elif list(parameter.shape) != shape:
            yield f"{path}.{name} is {list(parameter.shape)}, not {shape}"


def _of_quantizers(model: nn.Module, description: Description, tensors: Mapping[str, Tensor]) -> Iterator[str]:
    for path, how in description.quantizers.items():
        parent, _, name = path.rpartition(".")
        cached = cache_place(path)
        if cached is None and not (name in ("input_quantizer", "output_quantizer") and parent in description.layers):
            yield f"no place for the quantizer {path}"
        if cached is not None and _module(model, cached[0]) is None:
            yield f"no module {cached[0]} for the cache's quantizer {path}"
        if not how.dynamic and f"{path}.scale" not in tensors:
            yield f"no scale for the quantizer {path}"


def _of_places(model: nn.Module, description: Description, tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """What the model has and the file does not, or in another shape."""
    for path, module in model.named_modules():
        layer = description.layers.get(path)
        for own, (kind, tensor) in slots(module).items():
            name = f"{path}.{own}".lstrip(".")
            given = tensors.get(name)
            if kind == "attribute" or (layer is not None and own in layer.weights):
                continue
            if given is None:
                yield f"no {kind} {name} in the file"
            elif kind == "parameter" and given.shape != tensor.shape:
                yield f"{name} is {list(tensor.shape)}, not {list(given.shape)}"


def _of_tensors(
    model: nn.Module, description: Description, tensors: Mapping[str, Tensor], kinds: Mapping[str, str]
) -> Iterator[str]:
    """What the file has and the model does not; buffers and attributes that came with use are no fault."""
    parts = description.parts()
    for name in tensors:
        path, _, own = name.rpartition(".")
        module = _module(model, path)
        if kinds[name] == "code":
            fits = name in parts or any(other in parts for other in _other_names(model, path, own, description))
        elif is_quantizer(model, path, description):
            fits = own in ("scale", "zero_point", "super_scale")
        else:
            fits = module is not None and own != "" and _takes(module, own, kinds[name])
        if not fits:
            yield f"no place for the {kinds[name]} {name}"


def _takes(module: nn.Module, name: str, kind: str) -> bool:
    if kind == "parameter":
        return module._parameters.get(name) is not None
    known = slots(module).get(name)
    return known[0] == kind if known is not None else not hasattr(module, name)


def is_quantizer(model: nn.Module, path: str, description: Description) -> bool:
    """Whether a quantizer is described here, or under another path of the layer it belongs to."""
    layer, _, name = path.rpartition(".")
    return path in description.quantizers or any(
        other in description.quantizers for other in _other_names(model, layer, name, description)
    )


def _other_names(model: nn.Module, path: str, own: str, description: Description) -> Iterator[str]:
    """The names under which a module's tensor is described, if the module has several paths."""
    module = _module(model, path)
    for known in description.layers:
        if module is not None and _module(model, known) is module:
            yield f"{known}.{own}".lstrip(".")


def _module(model: nn.Module, path: str) -> nn.Module | None:
    try:
        return model.get_submodule(path)
    except AttributeError:
        return None
