# SPDX-License-Identifier: Apache-2.0
"""PyTorch: `nn.Module` objects, `FILE.py:FN` factories, Hugging Face folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fewbit.backends._base import Edit, Inputs, Layer, Model
from fewbit.model_info import ModelInfo


class TorchBackend:
    """Reads modules, factories and Hugging Face folders."""

    name = "torch"
    suffixes = ("FILE.py:FN",)
    extra = "torch"
    target = "pytorch"
    edits: frozenset[type[Edit]] = frozenset()

    def matches(self, source: Any) -> bool:
        """A module, `FILE.py:FN`, or a folder with a `config.json` of transformers; torch is not imported."""
        from fewbit.backends.torch.huggingface import is_model_folder
        from fewbit.data.inputs.modules import is_module
        from fewbit.data.user_code import parse_reference

        if isinstance(source, str | Path):
            path = Path(source)
            return parse_reference(str(source)) is not None or is_model_folder(path) or path.suffix == ".gguf"
        return is_module(source)

    def inspect(self, source: Any) -> ModelInfo:
        """The signature of `forward`, or the configuration of a folder; weights are not read."""
        if isinstance(source, str | Path):
            from fewbit.data.user_code import parse_reference

            if parse_reference(str(source)) is not None:
                from fewbit.backends.torch.factory import inspect_factory

                return inspect_factory(str(source))
            if Path(source).suffix == ".gguf":
                from fewbit.backends.torch.gguf_file import inspect_gguf

                return inspect_gguf(Path(source))
            from fewbit.backends.torch.huggingface import inspect_folder

            return inspect_folder(Path(source))
        from fewbit.data.inputs.modules import module_info

        return module_info(source)

    def is_language_model(self, source: Any) -> bool:
        """Whether a folder holds a decoder that generates text."""
        from fewbit.backends.torch.huggingface import inspect_folder, is_model_folder

        if isinstance(source, str | Path) and Path(source).suffix == ".gguf":
            return True
        if not isinstance(source, str | Path) or not is_model_folder(Path(source)):
            return False
        return inspect_folder(Path(source)).task == "text-generation"

    def weight_files(self, source: Path) -> Any:
        """Names and tensors of the weight files."""
        from fewbit.backends.torch.weight_files import open_source

        return open_source(Path(source))

    def linear_layers(self, source: Path) -> tuple[Layer, ...]:
        """The linear layers of the blocks and the head."""
        from fewbit.backends.torch.weight_files import list_linear_layers

        return list_linear_layers(source)

    def block_stream(
        self,
        source: Any,
        batches: Sequence[Inputs],
        held_out: Sequence[Inputs],
        *,
        device: str,
        formats: Mapping[str, Any],
    ) -> Any:
        """The model with batches before its first block."""
        from fewbit.backends.torch.weight_files import open_stream

        return open_stream(source, batches, held_out, device=device, formats=formats)

    def load_checkpoint(self, weights: Any, *, device: str, freeze: bool) -> Any:
        """The model of any checkpoint, quantized linear layers packed."""
        from fewbit.backends.torch.checkpoint_model import load_checkpoint

        return load_checkpoint(weights, device=device, freeze=freeze)

    def load(self, source: Any) -> Model:
        """A copy of a module; of a path the complete model. Folders are quantized block by block: `block_stream`."""
        from fewbit.backends.torch.module_model import ModuleModel

        if isinstance(source, str | Path):
            from fewbit.backends.torch.loading import load_module

            loaded: Any = ModuleModel(load_module(source))
            return loaded  # type: ignore[no-any-return]
        copy: Any = ModuleModel.read(source)
        return copy  # type: ignore[no-any-return]


BACKEND = TorchBackend()
