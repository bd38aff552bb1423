# SPDX-License-Identifier: Apache-2.0
"""A quantized Hugging Face model as compressed-tensors sees it: matrices that are codes, and tensors that are not.

Tables and the head are written as the floats their codes stand for: most readers look rows up, and share the head with
a table, in float. So are weights that are a cast (bfloat16, float16), coded biases, and matrices of classes that no
reader takes for a linear layer, such as routers of experts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import nn

from fewbit.exporters._base import Destined
from fewbit.exporters._checkpoint_layout import Contents
from fewbit.exporters._checkpoint_matrix import Matrix
from fewbit.exporters._checkpoint_names import in_checkpoint
from fewbit.exporters._compressed_experts import Rows, cut_stack
from fewbit.exporters._compressed_floats import coded_entry, saved_entries
from fewbit.modules.coded import Quantized
from fewbit.modules.inventory import named_modules, take
from fewbit.modules.tensor_file import Entry
from fewbit.numerics.qtensor import QTensor

_CUT = "transformers cuts or merges this weight for its checkpoints, which codes cannot follow"


@dataclass
class Survey:
    """What was found; names are those of the model's modules unless said otherwise.

    Args:
        layers: the weights that are written as codes, by layer; experts by the name they have in a checkpoint.
        floats: every other tensor of a checkpoint, under its name there.
        dequantized: tensors that are codes in the model and floats in the checkpoint, and what codes.
        ignored: modules with a matrix in float, which a reader must not look for codes of.
        tied: names that another tensor stands for.
        float_inputs: layers whose quantized input a reader leaves in float.
        cut: stacks in float that are written in pieces.
        faults: what speaks against writing, with layer and reason.
    """

    layers: dict[str, Matrix] = field(default_factory=dict)
    floats: dict[str, Entry] = field(default_factory=dict)
    dequantized: dict[str, str] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    tied: dict[str, str] = field(default_factory=dict)
    float_inputs: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    faults: list[tuple[str, str]] = field(default_factory=list)

    def weights(self) -> list[Destined]:
        """The coded weights, as a plan would have told of them."""
        return [matrix.destined(name) for name, matrix in self.layers.items()]


def take_survey(model: Any, *, vllm: bool, contents: Contents | None = None) -> Survey:
    """Look at every module of a Hugging Face model once.

    Args:
        model: the model.
        vllm: whether stacks of experts in float are cut, as vLLM has them. Beside codes transformers looks for none of
            their pieces, but for the stack itself.
        contents: gives the values of floats, where the model has only stand-ins.
    """
    survey, head, inventory = Survey(), model.get_output_embeddings(), take(model)
    once: set[int] = set()
    plain, survey.tied = saved_entries(model, inventory)
    later: list[Entry] = []
    for name, module in named_modules(model):
        if id(module) in once:
            continue
        once.add(id(module))
        if isinstance(module, Quantized):
            for weight in module.coded:
                later += _look(survey, model, (name, module, weight), head=module is head, aliases=inventory.aliases)
            _look_at_activations(survey, name, module, head=module is head)
        if _has_matrix(module) and name not in survey.layers:
            survey.ignored.append(name)
    empty = contents is not None
    names, entries = in_checkpoint(model, later, plain, empty=empty)
    stacks = [entry for entry in plain if names[entry.name] is None]
    if vllm:
        survey.cut, stacks = [entry.name for entry in stacks], []
    elif stacks:
        _, entries = in_checkpoint(model, later, [entry for entry in plain if entry not in stacks], empty=empty)
    entries += stacks
    _name(survey, names)
    coded = {f"{matrix.stored}.weight" for matrix in survey.layers.values()}
    floats = [entry for entry in entries if entry.name not in coded]
    survey.floats = {entry.name: entry if contents is None else contents.floats(entry) for entry in floats}
    return survey


def _look(
    survey: Survey, model: Any, which: tuple[str, Quantized, str], *, head: bool, aliases: Mapping[str, str]
) -> list[Entry]:
    """Take one coded parameter in; returns it as the floats it stands for, unless it has no name in a checkpoint."""
    name, module, weight = which
    layer: Any = module
    coded, full = module.coded[weight], f"{name}.{weight}".lstrip(".")
    if f"{full}_packed" in aliases:
        survey.tied[full] = aliases[f"{full}_packed"].removesuffix("_packed")
        return []
    other = not isinstance(layer, nn.Linear) and coded.axes == (0, 1)
    if head or other or isinstance(layer, nn.Embedding) or coded.grid.dtype.is_cast or len(coded.shape) < 2:
        survey.dequantized[full] = f"{coded.grid.dtype.name} {coded.grid.granularity.value}"
        return [coded_entry(module, full, weight)]
    read = partial(module.codes_of, weight)
    if isinstance(layer, nn.Linear) and weight == "weight":
        matrix = Matrix(name, coded.shape, coded.grid, coded.dtype, read, module.input_quantizer)
        survey.layers[name] = matrix
        return [coded_entry(module, full, weight)]
    rows = cut_stack(model, full, coded.shape) if len(coded.shape) == 3 and coded.axes == (0, 1, 2) else None
    for part in rows or []:
        shape = (part.stop - part.start, coded.shape[2])
        matrix = Matrix(part.layer, shape, coded.grid, coded.dtype, partial(_rows, part, read), expert=True)
        survey.layers[part.layer] = matrix
    if rows is None:
        kind = module.float_class.__name__
        survey.faults.append((name, f"{weight} of a {kind}: codes are there for linear layers only"))
    elif any(parameter is not None and parameter.ndim == 3 for parameter in layer._parameters.values()):
        survey.faults.append((name, "experts partly in float: readers take all or none as codes"))
    return []


def _look_at_activations(survey: Survey, name: str, module: Quantized, *, head: bool) -> None:
    if module.output_quantizer is not None:
        survey.faults.append((name, "a quantized output: readers quantize inputs only"))
    if module.input_quantizer is not None and name not in survey.layers:
        if head:
            survey.float_inputs.append(name)
        else:
            survey.faults.append((name, "a quantized input beside a weight that is not the matrix of a linear layer"))


def _name(survey: Survey, names: Mapping[str, str | None]) -> None:
    """Note what layers are called in a checkpoint; some readers know only one of the two names."""
    for name in [name for name, matrix in survey.layers.items() if not matrix.expert]:
        there = names[f"{name}.weight"]
        if there is None:
            survey.faults.append((name, _CUT))
        else:
            survey.layers[name] = replace(survey.layers[name], stored=there.removesuffix(".weight"))
    others = [str(names.get(f"{name}.weight") or name).removesuffix(".weight") for name in survey.ignored]
    survey.ignored = list(dict.fromkeys([*survey.ignored, *others]))


def _rows(part: Rows, read: Callable[[], QTensor]) -> QTensor:
    return part.of(read())


def _has_matrix(module: nn.Module) -> bool:
    """Whether a reader may take it for a linear layer: routers of experts are of classes of their own."""
    weight = module._parameters.get("weight")
    matrix = isinstance(module, nn.Linear) or (weight is not None and weight.ndim == 2)
    return matrix and not isinstance(module, nn.Embedding)
