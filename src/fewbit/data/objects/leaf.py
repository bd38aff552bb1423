# SPDX-License-Identifier: Apache-2.0
"""One leaf of a sample (an array, a tensor, a picture, a number, a text) as bytes, and back. Nothing is pickled."""

from __future__ import annotations

import base64
import sys
from typing import Any

import numpy as np

from fewbit.data.kinds import comes_from
from fewbit.errors import DataError


def encode(leaf: Any) -> tuple[dict[str, Any], bytes]:
    """A JSON tag and the raw bytes.

    Raises:
        DataError: the leaf is of a kind that has no safe form on disk.
    """
    if leaf is None or isinstance(leaf, bool | str):
        return {"kind": "value", "value": leaf}, b""
    if isinstance(leaf, int):
        return {"kind": "int", "value": str(leaf)}, b""  # JSON numbers end at 64 bits
    if isinstance(leaf, float):
        return {"kind": "float", "value": leaf.hex()}, b""  # and know no NaN
    if isinstance(leaf, bytes):
        return {"kind": "bytes", "value": base64.b64encode(leaf).decode()}, b""
    if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind not in "OV":
        array = np.asarray(leaf)
        return {"kind": "numpy", "dtype": array.dtype.str, "shape": array.shape}, array.tobytes()
    if comes_from(leaf, "torch.Tensor") and not leaf.is_sparse and not leaf.is_quantized:
        flat = leaf.detach().cpu().contiguous().reshape(-1)
        tag = {"dtype": str(leaf.dtype).removeprefix("torch."), "shape": tuple(leaf.shape), "device": str(leaf.device)}
        return {"kind": "torch", **tag}, flat.view(sys.modules["torch"].uint8).numpy().tobytes()
    if comes_from(leaf, "PIL.Image.Image"):
        return {"kind": "picture", "mode": leaf.mode, "size": leaf.size}, leaf.tobytes()
    raise DataError(
        f"a {type(leaf).__module__}.{type(leaf).__qualname__} cannot be kept on disk for a second pass",
        code="not-spoolable",
        expected="arrays, tensors, pictures, numbers, texts, and containers of them",
        try_="pass a list, or a function that returns a fresh iterator: Dataset(lambda: my_generator())",
    )


def decode(tag: dict[str, Any], payload: bytes) -> Any:
    """The leaf that `encode` saw."""
    if tag["kind"] == "value":
        return tag["value"]
    if tag["kind"] == "int":
        return int(tag["value"])
    if tag["kind"] == "float":
        return float.fromhex(tag["value"])
    if tag["kind"] == "bytes":
        return base64.b64decode(tag["value"])
    if tag["kind"] == "numpy":
        return np.frombuffer(bytearray(payload), tag["dtype"]).reshape(tag["shape"])
    if tag["kind"] == "torch":
        torch = sys.modules["torch"]
        dtype = getattr(torch, tag["dtype"])
        if not payload:
            return torch.empty(tag["shape"], dtype=dtype, device=tag["device"])
        return torch.frombuffer(bytearray(payload), dtype=dtype).reshape(tag["shape"]).to(tag["device"])
    from PIL import Image

    return Image.frombytes(tag["mode"], tuple(tag["size"]), payload)
