# SPDX-License-Identifier: Apache-2.0
"""A second reader of fewbit's own format, from its description alone: NumPy, no torch, no safetensors, no fewbit."""

import json
from itertools import product
from pathlib import Path

import numpy as np

PLAIN = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?", "BF16": "<u2", "F8_E4M3": "u1", "F8_E5M2": "u1",
}  # fmt: skip
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
FLOATS = {"fp4": (2, 1), "fp6_e2m3": (2, 3), "fp6_e3m2": (3, 2), "fp8_e4m3": (4, 3), "fp8_e5m2": (5, 2)}


def raw_tensors(path: Path) -> dict:
    """Every tensor of a file as an array of its raw numbers (bfloat16 and fp8 as bit patterns)."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__", None)
    data = content[8 + length :]
    found = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        found[name] = np.frombuffer(data[start:end], PLAIN[entry["dtype"]]).reshape(entry["shape"])
    return found


def weights(folder: Path) -> dict:
    """The float32 values of every quantized weight of a folder, in fewbit's layout."""
    manifest = json.loads((folder / "fewbit.json").read_text())
    tensors = {}
    for file in {entry["file"] for entry in manifest["tensors"].values()}:
        tensors |= raw_tensors(folder / file)
    tensors |= {alias: tensors[name] for alias, name in manifest["aliases"].items()}
    return {
        f"{path}.{name}".lstrip("."): decode(how, {p: tensors.get(f"{path}.{name}_{p}".lstrip(".")) for p in PARTS})
        for path, layer in manifest["layers"].items()
        for name, how in layer["weights"].items()
    }


PARTS = ("packed", "scale", "zero_point", "super_scale")


def decode(how: dict, parts: dict) -> np.ndarray:
    """(code - zero point) * scale * super scale, element by block."""
    grid, shape, block = how["grid"], how["shape"], how["block"]
    dtype = grid["dtype"]
    values = numbers(dtype, bits_of(dtype, parts["packed"], shape))
    scale = scales(grid["scale_type"], parts["scale"])
    if parts["super_scale"] is not None:
        scale = scale * parts["super_scale"]
    out = np.empty(shape, np.float32)
    for index in product(*(range(n) for n in scale.shape)):
        place = tuple(slice(i * b, (i + 1) * b) for i, b in zip(index, block))
        part = values[place]
        if parts["zero_point"] is not None:
            part = part - np.float32(parts["zero_point"][index])
        out[place] = part * scale[index]
    return out


def width(dtype: str) -> int:
    if dtype.startswith(("int", "uint")):
        return int(dtype.lstrip("uint"))
    return {"fp4": 4, "nf4": 4, "float16": 16, "bfloat16": 16, "float32": 32}.get(dtype) or 1 + sum(FLOATS[dtype])


def bits_of(dtype: str, packed: np.ndarray, shape: list) -> np.ndarray:
    """Each element's bit pattern: element 0 in the lowest bits of byte 0, along the last axis, no gaps."""
    bits = width(dtype)
    if bits in (8, 16, 32):
        return packed.view(f"<u{bits // 8}").astype(np.int64)
    stream = np.unpackbits(packed, axis=-1, bitorder="little")[..., : shape[-1] * bits].reshape(*shape, bits)
    return (stream.astype(np.int64) << np.arange(bits)).sum(-1)


def numbers(dtype: str, patterns: np.ndarray) -> np.ndarray:
    bits = width(dtype)
    if dtype.startswith("uint"):
        return patterns.astype(np.float32)
    if dtype.startswith("int"):
        return np.where(patterns >> (bits - 1) & 1, patterns - (1 << bits), patterns).astype(np.float32)
    if dtype == "nf4":
        return np.array(NF4, np.float32)[patterns]
    if dtype == "float16":
        return patterns.astype(np.uint16).view(np.float16).astype(np.float32)
    if dtype == "bfloat16":
        return (patterns.astype(np.uint32) << 16).view(np.float32)
    if dtype == "float32":
        return patterns.astype(np.uint32).view(np.float32)
    return small_floats(patterns, *FLOATS[dtype])


def small_floats(patterns: np.ndarray, exponent: int, mantissa: int, signed: bool = True) -> np.ndarray:
    fraction = (patterns & ((1 << mantissa) - 1)) / 2.0**mantissa
    power = patterns >> mantissa & ((1 << exponent) - 1)
    bias = 2 ** (exponent - 1) - 1
    value = np.where(power > 0, (1 + fraction) * 2.0 ** (power - bias), fraction * 2.0 ** (1 - bias))
    sign = np.where(patterns >> (exponent + mantissa) & 1, -1.0, 1.0) if signed else 1.0
    return (sign * value).astype(np.float32)


def scales(kind: str, stored: np.ndarray) -> np.ndarray:
    """Stored scales as float32."""
    if kind in ("pof2", "float8_e8m0fnu"):
        return (2.0 ** (stored.astype(np.float64) - 127)).astype(np.float32)
    if kind == "float8_e4m3fn":
        return small_floats(stored.astype(np.int64), 4, 3)
    if kind == "float8_e5m3":
        return small_floats(stored.astype(np.int64), 5, 3, signed=False)
    if kind == "bfloat16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32)
