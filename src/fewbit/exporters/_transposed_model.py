# SPDX-License-Identifier: Apache-2.0
"""A quantized Hugging Face model taken apart: layers that stay codes, and every other tensor as the floats it means."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from fewbit.errors import UsageError
from fewbit.exporters._base import Destined
from fewbit.exporters._checkpoint_files import add_to_config
from fewbit.exporters._checkpoint_layout import Contents
from fewbit.exporters._checkpoint_matrix import Matrix
from fewbit.exporters._checkpoint_names import in_checkpoint
from fewbit.exporters._transposed_limits import Limits, find_refusals, kept_wide, refuse
from fewbit.exporters._transposed_words import fit_half
from fewbit.modules import huggingface
from fewbit.modules.activation import ActivationQuantizer
from fewbit.modules.inventory import Inventory, named_modules, take
from fewbit.modules.quantized import Coded, Quantized, float_weight, get_weight
from fewbit.modules.tensor_file import Entry

_SCALES = (
    "a scale that float16 does not have; another would change values, and the float weights to round again are gone: "
    "quantize with scale_type='float16'"
)
_CUT = "transformers cuts or merges this weight for its checkpoints, which codes cannot follow"


@dataclass(frozen=True)
class Parts:
    """A model in pieces, under the names its checkpoints have.

    Args:
        model: the model itself.
        coded: the weights that stay codes, by layer.
        rest: every other tensor of a checkpoint.
        dequantized: the names of those in `rest` that are codes in the model.
        floats: the layers whose weights are floats in the files, also under the names they have in the model.
        recomputed: tensors that no checkpoint has: the model makes them itself.
        tied: further names, and the name that each is stored under.
        names: what each tensor of the model is called in the files; `None` where it was cut into others.
    """

    model: Any
    coded: dict[str, Matrix]
    rest: list[Entry]
    dequantized: list[str]
    floats: list[str]
    recomputed: list[str]
    tied: dict[str, str]
    names: dict[str, str | None]

    def to_dict(self) -> dict[str, Any]:
        """What the manifest says of it."""
        return {
            "class": type(self.model).__name__,
            "coded": list(self.coded),
            "dequantized": self.dequantized,
            "tied": self.tied,
            "recomputed": self.recomputed,
        }


def take_apart(model: Any, limits: Limits, contents: Contents | None = None) -> Parts:
    """The pieces of a model for a format.

    Args:
        model: the model.
        limits: of the format.
        contents: gives the values where the model has only stand-ins.

    Raises:
        UsageError: not a Hugging Face model, or one the format has no place for; every reason at once.
    """
    model = getattr(model, "_orig_mod", model)  # what torch.compile stands before
    if not huggingface.is_pretrained(model):
        raise UsageError(
            f"a {type(model).__name__} cannot be written in the format {limits.name}",
            expected="a Hugging Face model: runtimes build it from its config.json",
            try_="export(…, format='safetensors'), which keeps any module",
        )
    weights = list(_destined(model))
    refuse([*find_refusals(weights, limits), *_activations(model)], limits)
    wide = [(weight.layer, weight.tensor) for weight in kept_wide(weights, limits)]
    stay = [weight.layer for weight in weights if weight.grid and (weight.layer, weight.tensor) not in wide]
    refuse([(path, _SCALES) for path in stay if not fit_half(get_weight(model.get_submodule(path), "weight"))], limits)
    inventory = take(model)
    plain, recomputed = _plain(model, inventory)
    tied = {name: first for name, first in inventory.aliases.items() if first in plain}
    # Only tables and heads are tied for a runtime; other layers that share codes have them each.
    for name in (f"{path}.{weight}" for path, weight in wide):
        if (first := inventory.aliases.get(f"{name}_packed")) is not None:
            tied[name] = first.removesuffix("_packed")
    own = [*((path, "weight") for path in stay), *(pair for pair in wide if ".".join(pair) not in tied)]
    floats = [_float_entry(model, *pair) for pair in own]
    names, tensors = in_checkpoint(model, floats, list(plain.values()), empty=contents is not None)
    refuse([(path, _CUT) for path, weight in own if names[f"{path}.{weight}"] is None], limits)
    matrices = [_matrix(model, path, str(names[f"{path}.weight"]).removesuffix(".weight")) for path in stay]
    coded = {matrix.stored: matrix if contents is None else matrix.reading(contents) for matrix in matrices}
    rest = [entry for entry in tensors if entry.name.removesuffix(".weight") not in coded]
    return Parts(
        model=model,
        coded=coded,
        rest=rest if contents is None else [contents.floats(entry) for entry in rest],
        dequantized=[str(names[f"{path}.{weight}"]) for path, weight in own[len(stay) :]],
        floats=_float_layers(weights, stay, names),
        recomputed=recomputed,
        tied=tied,
        names=names,
    )


def save_config(parts: Parts, folder: Path, quantization: dict[str, Any]) -> None:
    """Write config.json.

    Args:
        parts: the model.
        folder: an empty folder.
        quantization: what it shall say of codes.
    """
    huggingface.save_files(parts.model, folder)
    model = parts.model
    ends = (model.get_output_embeddings(), model.get_input_embeddings())
    names = [f"{name}.weight" for name, module in model.named_modules() if module in ends]
    # Where each has values of its own now, a loader would tie them again.
    add_to_config(folder, quantization, untie=len(names) == 2 and set(names) <= parts.names.keys())


def _destined(model: nn.Module) -> Iterator[Destined]:
    """Every weight of the model, quantized or not, in its order; inputs are `_activations`."""
    for path, module in named_modules(model):
        table = isinstance(module, nn.Embedding | nn.EmbeddingBag)
        for name, coded in _coded(module).items():
            yield Destined(path, name, coded.shape, coded.grid, embedding=table)
        for name, parameter in module._parameters.items():
            if path and parameter is not None and parameter.ndim > 1:  # the model itself is no layer to be named
                yield Destined(path, name, tuple(parameter.shape), None, embedding=table)


def _activations(model: nn.Module) -> list[tuple[str, str]]:
    reason = "a quantized activation: only weights are codes in this format"
    return [(path, reason) for path, module in named_modules(model) if isinstance(module, ActivationQuantizer)]


def _matrix(model: nn.Module, path: str, stored: str) -> Matrix:
    layer: Any = model.get_submodule(path)
    coded: Coded = layer.coded["weight"]
    return Matrix(stored, coded.shape, coded.grid, coded.dtype, partial(get_weight, layer, "weight"))


def _coded(module: nn.Module) -> dict[str, Coded]:
    return module.coded if isinstance(module, Quantized) else {}


def _float_entry(model: nn.Module, path: str, weight: str) -> Entry:
    """A quantized weight as the floats it means; made when it is its turn."""
    layer: Any = model.get_submodule(path)
    coded = layer.coded[weight]
    return Entry(f"{path}.{weight}", coded.dtype, coded.own_shape, partial(float_weight, layer, weight))


def _plain(model: Any, inventory: Inventory) -> tuple[dict[str, Entry], list[str]]:
    """The tensors that are stored as they are; and the names of those that the model computes when it is built."""
    passing = {
        f"{path}.{name}".lstrip(".")
        for path, module in named_modules(model)
        for name in getattr(module, "_non_persistent_buffers_set", ())
    }
    passing |= set(getattr(model, "_keys_to_ignore_on_save", None) or ())
    stored, recomputed = {}, []
    for name, entry in inventory.entries.items():
        kind = inventory.kinds[name]
        if kind == "attribute" or name in passing:
            recomputed.append(name)
        elif kind != "code":
            stored[name] = entry
    return stored, recomputed


def _float_layers(weights: list[Destined], stay: list[str], names: dict[str, str | None]) -> list[str]:
    """Layers with float weights, as the files and as the model call them: some runtimes know only one of the two."""
    found: list[str] = []
    for weight in weights:
        if not weight.embedding and weight.layer not in stay:
            stored = names.get(f"{weight.layer}.{weight.tensor}") or weight.layer
            found += [stored.removesuffix(f".{weight.tensor}"), weight.layer]
    return list(dict.fromkeys(found))
