# SPDX-License-Identifier: Apache-2.0
"""The weight files of a Hugging Face folder: tensors by name, read when asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fewbit.backends._base import Inputs, Layer
from fewbit.backends.torch.block_model import BlockModel, find_blocks, is_transposed
from fewbit.backends.torch.block_model import linear_layers as named_linear_layers
from fewbit.backends.torch.blockwise import BlockStream
from fewbit.backends.torch.huggingface import read_headers
from fewbit.backends.torch.processes import Processes
from fewbit.checkpoints._folder import quantization_of
from fewbit.checkpoints._open import open_weights
from fewbit.checkpoints._weights import read_tensor
from fewbit.errors import ModelError, require


class WeightFiles:
    """Every tensor of a folder of `.safetensors` files.

    Args:
        folder: of the model.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.headers = read_headers(folder)

    def __contains__(self, name: str) -> bool:
        return name in self.headers

    def __iter__(self) -> Iterator[str]:
        return iter(self.headers)

    def shape(self, name: str) -> tuple[int, ...]:
        """From the header."""
        return tuple(self.headers[name]["shape"])

    def read(self, name: str) -> Tensor:
        """One tensor, as it is stored."""
        entry = self.headers[name]
        return read_tensor(self.folder / entry["file"], entry)


def open_source(source: Path) -> Any:
    """The tensors of a model by name; quantized ones are decoded one at a time, when they are read.

    Args:
        source: a folder, float or quantized by whatever tool, or a `.gguf` file.
    """
    if source.is_dir() and not quantization_of(source) and any(source.glob("*.safetensors")):
        return WeightFiles(source)
    return open_weights(source)


def open_language_model(folder: Path, *, device: torch.device, dtype: torch.dtype | None = None) -> BlockModel:
    """A model whose weights stay on disk until a block needs them.

    Args:
        folder: with `config.json` and `.safetensors` files.
        device: where it computes.
        dtype: in which it computes; by default float32 on a CPU and the dtype of the files elsewhere.

    Raises:
        ModelError: the configuration does not describe the weights, or weights are missing.
    """
    require("transformers", extra="hf", purpose="Hugging Face models")
    weights = open_source(folder)
    structure = build_structure(folder, weights)
    if dtype is None:
        dtype = torch.float32 if device.type == "cpu" else _main_dtype(weights)
    return BlockModel(structure, device=device, dtype=dtype, weights=weights)


def list_linear_layers(folder: Path) -> tuple[Layer, ...]:
    """The linear layers of the blocks and the head whose weights are in the files, in the order of the model."""
    weights = open_source(folder)
    structure = build_structure(folder, weights)
    blocks = find_blocks(structure)
    head = structure.get_output_embeddings()  # type: ignore[operator]
    layers = []
    for name, module in named_linear_layers(structure):
        if (name.startswith(f"{blocks}.") or module is head) and f"{name}.weight" in weights:
            axis = 1 if is_transposed(module) else 0
            shape, role = weights.shape(f"{name}.weight"), "head" if module is head else ""
            layers.append(Layer(name, type(module).__name__, f"{name}.weight", shape, axis, role))
    return tuple(layers)


def open_stream(
    folder: Path, batches: Sequence[Inputs], held_out: Sequence[Inputs], *, device: str, formats: Mapping[str, Any]
) -> BlockStream:
    """The model of a folder with batches before its first block; `device` auto takes a GPU if there is one."""
    name = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    if name == "cuda":
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    model = open_language_model(folder, device=torch.device(name))
    activations = {layer: kind.activation for layer, kind in formats.items() if kind.activation is not None}
    return BlockStream(
        model,
        [_as_tensors(batch) for batch in batches],
        [_as_tensors(batch) for batch in held_out],
        input_grids=activations,
        processes=Processes.from_environment(model.device.type),
    )


def _as_tensors(batch: Inputs) -> dict[str, Tensor]:
    return {name: torch.as_tensor(value) for name, value in batch.items()}


def build_structure(folder: Path, weights: Any) -> nn.Module:
    """The module that `config.json` describes, without weights: all parameters are on the meta device."""
    from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

    if isinstance(weights, WeightFiles):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    else:  # without the settings of its quantization: the structure is that of the float model
        values = weights.config()
        config = CONFIG_MAPPING[values["model_type"]].from_dict(values)
    _check_size(config, weights, folder)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, trust_remote_code=False).eval()  # type: ignore[no-any-return]


def _check_size(config: Any, weights: Any, folder: Path) -> None:
    """A configuration that declares far more layers than the files hold is refused before anything is built."""
    declared = getattr(config.get_text_config(), "num_hidden_layers", None)
    numbers = {int(part) for name in weights for part in name.split(".") if part.isdecimal()}
    present = max(numbers, default=-1) + 1
    if isinstance(declared, int) and numbers and declared > present:
        raise ModelError(
            f"config.json declares {declared:,} layers, the weight files hold {present:,}", code="config-mismatch",
            where=str(folder / "config.json"), expected="a configuration that belongs to these weights",
            hint="download the model again",
        )  # fmt: skip


def _main_dtype(weights: Any) -> torch.dtype:
    """The 16-bit float dtype of the files, else float32."""
    names = [entry["dtype"] for entry in weights.headers.values()]
    common = max(set(names), key=names.count)
    return {"BF16": torch.bfloat16, "F16": torch.float16}.get(common, torch.float32)
