# SPDX-License-Identifier: Apache-2.0
"""PyTorch: `nn.Module` objects, `FILE.py:FN` factories, Hugging Face folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fewbit.backends._base import Edit, Inputs, Layer, Model
from fewbit.backends._headers import not_built
from fewbit.model_info import ModelInfo


class TorchBackend:
    """Reads modules, factories and Hugging Face folders."""

    name = "torch"
    suffixes = ("FILE.py:FN",)
    extra = "torch"
    target = "torch"
    edits: frozenset[type[Edit]] = frozenset()

    def matches(self, source: Any) -> bool:
        """A module, `FILE.py:FN`, or a folder with a `config.json` of transformers; torch is not imported."""
        from fewbit.backends.torch.huggingface import is_model_folder
        from fewbit.data.inputs.modules import is_module
        from fewbit.data.user_code import parse_reference

        if isinstance(source, str | Path):
            return parse_reference(str(source)) is not None or is_model_folder(Path(source))
        return is_module(source)

    def inspect(self, source: Any) -> ModelInfo:
        """The signature of `forward`, or the configuration of a folder; weights are not read."""
        if isinstance(source, str | Path):
            from fewbit.data.user_code import parse_reference

            if parse_reference(str(source)) is not None:
                from fewbit.backends.torch.factory import inspect_factory

                return inspect_factory(str(source))
            from fewbit.backends.torch.huggingface import inspect_folder

            return inspect_folder(Path(source))
        from fewbit.data.inputs.modules import module_info

        return module_info(source)

    def is_language_model(self, source: Any) -> bool:
        """Whether a folder holds a decoder that generates text."""
        from fewbit.backends.torch.huggingface import inspect_folder, is_model_folder

        if not isinstance(source, str | Path) or not is_model_folder(Path(source)):
            return False
        return inspect_folder(Path(source)).task == "text-generation"

    def weight_files(self, source: Path) -> Any:
        """Names and tensors of the weight files."""
        from fewbit.backends.torch.weight_files import WeightFiles

        return WeightFiles(source)

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

    def load(self, source: Any) -> Model:
        """Not built yet."""
        raise not_built("PyTorch", source)


BACKEND = TorchBackend()
