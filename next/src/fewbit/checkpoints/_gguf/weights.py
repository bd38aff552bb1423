# SPDX-License-Identifier: Apache-2.0
"""Reading GGUF files, of llama.cpp's own tools and others: tensors by the names of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from fewbit.checkpoints._gguf.architecture import ARCHITECTURES, ROPE_FACTORS
from fewbit.checkpoints._gguf.blocks import FLOAT_TYPES
from fewbit.errors import ModelError, require
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.grid import QParams, QuantizationGrid
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.scales import ScaleType

if TYPE_CHECKING:
    from torch import Tensor


class GgufWeights:
    """The tensors of a GGUF file by the names of transformers, decoded by the gguf library.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path):
        gguf = require("gguf", extra="gguf", purpose="GGUF files")
        self.path = path
        try:
            self._reader = gguf.GGUFReader(path)
        except (ValueError, IndexError, OSError) as error:
            raise ModelError(
                f"not a GGUF file: {error}", code="model-unreadable", where=str(path), expected="a complete file",
                hint="download it again",
            ) from error  # fmt: skip
        self._dequantize = gguf.dequantize
        name = str(self._field("general.architecture"))
        kinds = [kind for kind in ARCHITECTURES.values() if kind.name == name]
        if not kinds:
            raise ModelError(
                f"the architecture {name!r} of this file is not known", code="gguf-architecture", where=str(path),
                expected=", ".join(sorted({kind.name for kind in ARCHITECTURES.values()})), hint="the float model",
            )  # fmt: skip
        self.kind = kinds[0]
        self._tensors = {
            source: tensor
            for tensor in self._reader.tensors
            if (source := self.kind.source(tensor.name)) is not None and tensor.name != ROPE_FACTORS
        }
        strangers = [
            t.name for t in self._reader.tensors if self.kind.source(t.name) is None and t.name != ROPE_FACTORS
        ]
        if strangers:
            raise ModelError(
                f"{len(strangers)} tensors are not known", code="gguf-tensors", where=", ".join(strangers[:4]),
                expected=f"tensors of the architecture {name!r}", hint="the float model",
            )  # fmt: skip
        floats = {"F32": "F32", "F16": "F16", "BF16": "BF16"}
        self.headers: dict[str, dict[str, Any]] = {
            source: {
                "shape": list(self._shape(tensor)), "dtype": floats.get(tensor.tensor_type.name, "F16"),
                "type": tensor.tensor_type.name, "file": path.name,
            }
            for source, tensor in self._tensors.items()
        }  # fmt: skip

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """In the layout of transformers."""
        return tuple(self.headers[name]["shape"])

    def read(self, name: str) -> Tensor:
        """The values of one tensor: in the float type of the file, or dequantized to float32."""
        import torch

        tensor = self._tensors[name]
        values = np.array(self._dequantize(tensor.data, tensor.tensor_type), np.float32)
        values = self._restored(values.reshape(tuple(reversed(tensor.shape.tolist()))), tensor.name)
        shift = self.kind.shift_of(tensor.name)
        values = values - np.float32(shift) if shift else values
        dtype = FLOAT_TYPES.get(tensor.tensor_type.name, "float32")
        return torch.from_numpy(np.ascontiguousarray(values)).to(getattr(torch, dtype))

    def quantized(self, name: str) -> bool:
        """Whether a tensor is stored in blocks."""
        return self.headers[name]["type"] not in FLOAT_TYPES

    def qtensor(self, name: str) -> QTensor | None:
        """Integers and scales of a weight in Q4_0, Q5_0 or Q8_0; other types have no such form."""
        import torch

        tensor = self._tensors[name]
        kind = tensor.tensor_type.name
        if kind not in ("Q4_0", "Q5_0", "Q8_0"):
            return None
        rows, columns = tuple(reversed(tensor.shape.tolist()))
        data = np.array(tensor.data).reshape(rows * (columns // 32), -1)
        scale = np.ascontiguousarray(data[:, :2]).view(np.float16).astype(np.float32).reshape(rows, -1)
        bits = int(kind[1])
        if bits == 8:
            codes = data[:, 2:].view(np.int8)
        else:
            low = data[:, -16:]
            codes = np.concatenate([low & 15, low >> 4], axis=1).astype(np.int8)
            if bits == 5:
                codes |= (np.unpackbits(np.ascontiguousarray(data[:, 2:6]), axis=1, bitorder="little") << 4).astype(
                    np.int8
                )
            codes -= 1 << (bits - 1)
        codes = self._restored(codes.reshape(rows, columns), tensor.name)
        scale = self._restored(scale, tensor.name)
        axis = 1 if self.kind.is_transposed(tensor.name) else 0
        grid = QuantizationGrid(
            Dtype[f"int{bits}"], QSchemeType.per_group, axis=axis, group_size=32, full_range=True,
            scale_type=ScaleType.float16,
        )  # fmt: skip
        qparams = QParams(grid, (32, 1) if axis else (1, 32), torch.from_numpy(np.ascontiguousarray(scale)))
        return QTensor.from_codes(torch.from_numpy(np.ascontiguousarray(codes)), qparams)

    def activation(self, name: str) -> None:
        """GGUF files hold weights only."""

    def config(self) -> dict[str, Any]:
        """The configuration of transformers, as transformers reads it from the file."""
        require("transformers", extra="hf", purpose="GGUF files")
        from transformers import AutoConfig

        read = AutoConfig.from_pretrained(self.path.parent, gguf_file=self.path.name, local_files_only=True)
        config: dict[str, Any] = orjson.loads(read.to_json_string())
        config.pop("quantization_config", None)
        config["tie_word_embeddings"] = "lm_head.weight" not in self._tensors
        types = {header["dtype"] for header in self.headers.values()}
        config["dtype"] = "bfloat16" if "BF16" in types else "float16" if "F16" in types else "float32"
        return config

    def copy_tokenizer(self, writer: Any) -> None:
        """Give another file the same tokenizer."""
        for name, field in self._reader.fields.items():
            if name.startswith("tokenizer."):
                kinds = [*field.types, None]
                writer.add_key_value(name, field.contents(), kinds[0], sub_type=kinds[1])

    def _field(self, name: str) -> Any:
        field = self._reader.get_field(name)
        return None if field is None else field.contents()

    def _shape(self, tensor: Any) -> tuple[int, ...]:
        shape = tuple(int(side) for side in tensor.shape)  # ggml counts axes from the last
        return shape if self.kind.is_transposed(tensor.name) else shape[::-1]

    def _restored(self, rows: np.ndarray, target: str) -> np.ndarray:
        """Rows in the order of transformers, and [in, out] where it has that."""
        heads = int(self._field(f"{self.kind.name}.attention.head_count"))
        count = self.kind.heads_of(
            target, heads, int(self._field(f"{self.kind.name}.attention.head_count_kv") or heads)
        )
        if count:
            shape = rows.shape
            rows = rows.reshape(count, shape[0] // count // 2, 2, *shape[1:]).swapaxes(1, 2).reshape(shape)
        return rows.T if self.kind.is_transposed(target) else rows
