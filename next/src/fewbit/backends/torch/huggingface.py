# SPDX-License-Identifier: Apache-2.0
"""Hugging Face folders: `config.json`, the headers of `.safetensors` files, processors and tokenizers.

No model is built and transformers is not imported, so a configuration that declares a million layers costs nothing.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import orjson

from fewbit.backends._headers import describe_content, open_model_file, unreadable
from fewbit.backends._sidecar import read_json, read_sidecar_files
from fewbit.errors import ModelError
from fewbit.model_info import ModelInfo, TensorInfo, as_labels

_MOST_HEADER = 100 << 20
"""The limit of the safetensors library."""
_KIND = "Hugging Face"
_TASKS = {
    "ForCausalLM": "text-generation", "LMHeadModel": "text-generation", "ForConditionalGeneration": "text-generation",
    "ForSequenceClassification": "text-classification", "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering", "ForMaskedLM": "masked-language-modeling",
    "ForImageClassification": "image-classification", "ForObjectDetection": "object-detection",
    "ForSemanticSegmentation": "segmentation", "ForInstanceSegmentation": "segmentation",
    "ForUniversalSegmentation": "segmentation", "ForAudioClassification": "audio-classification",
    "ForCTC": "speech-recognition", "ForSpeechSeq2Seq": "speech-recognition",
}  # fmt: skip
_BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U8": 8, "BOOL": 8}
_WIDE_WINDOWS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")


def is_model_folder(path: Path) -> bool:
    """Whether a folder holds a configuration of transformers, and no model of another backend instead of weights."""
    if not (path / "config.json").is_file():
        return False
    if any(path.glob("*.safetensors")) or any(path.glob("*.bin")):
        return True
    return not any(
        (path / name).is_file() for name in ("model.onnx", "openvino_model.xml", "model.tflite", "model.pt2")
    )


def inspect_folder(path: Path) -> ModelInfo:
    """Read what a Hugging Face folder says about its model.

    Raises:
        ModelError: the configuration or a weight file is damaged, or a weight file is missing.
    """
    config = _read_config(path)
    architecture = _architecture(config)
    text_config = config.get("text_config") if isinstance(config.get("text_config"), dict) else {}
    sidecar = read_sidecar_files(path)
    vocabulary = config.get("vocab_size", (text_config or {}).get("vocab_size"))
    size, facts = _read_weights(path)
    return ModelInfo(
        source=str(path),
        kind=architecture,
        backend="torch",
        size=size,
        inputs=_inputs(config, architecture),
        labels=sidecar.labels or as_labels(config.get("id2label")),
        task=next((task for ending, task in _TASKS.items() if architecture.endswith(ending)), None),
        preprocessing=sidecar.preprocessing,
        preprocessing_source=sidecar.preprocessing_source,
        tokenizer=sidecar.tokenizer,
        quantized=_quantized(config),
        vocabulary=vocabulary if isinstance(vocabulary, int) and not isinstance(vocabulary, bool) else None,
        takes_tensors=True,
        takes_objects=True,
        facts=facts | _config_facts(config, text_config or {}),
    )


def _read_config(path: Path) -> dict[str, Any]:
    file = path / "config.json"
    if not file.is_file():
        raise unreadable(path, _KIND, "it has no config.json", hint="model.save_pretrained(folder)")
    config = read_json(file)
    if not config:
        with open_model_file(file, _KIND) as stream:
            content_type = describe_content(stream.read(64))
        raise unreadable(
            file, _KIND, f"config.json is {content_type or 'no JSON object'}", hint="model.save_pretrained(folder)"
        )
    return config


def _architecture(config: Mapping[str, Any]) -> str:
    architectures = config.get("architectures")
    if isinstance(architectures, list) and architectures and isinstance(architectures[0], str):
        return architectures[0]
    kind = config.get("model_type")
    return kind if isinstance(kind, str) and kind else "Hugging Face model"


def _inputs(config: Mapping[str, Any], architecture: str) -> tuple[TensorInfo, ...]:
    """The main inputs of an architecture; `forward` has more, all of them optional."""
    image = TensorInfo("pixel_values", "float32", ("batch", *_image_shape(config)))
    tokens = (
        TensorInfo("input_ids", "int64", ("batch", "sequence")),
        TensorInfo("attention_mask", "int64", ("batch", "sequence"), required=False),
    )
    if any(
        word in architecture for word in ("ImageClassification", "ObjectDetection", "Segmentation", "DepthEstimation")
    ):
        return (image,)
    if any(word in architecture for word in ("ForCTC", "AudioClassification", "AudioFrameClassification")):
        return (TensorInfo("input_values", "float32", ("batch", "samples")),)
    if "SpeechSeq2Seq" in architecture or architecture.startswith("Whisper"):
        return (TensorInfo("input_features", "float32", ("batch", None, None)),)
    if "vocab_size" in config or "text_config" in config:
        optional = TensorInfo(image.name, image.dtype, None, required=False)
        return (*tokens, optional) if "vision_config" in config else tokens
    if "image_size" in config or "num_channels" in config:
        return (image,)
    return tokens


def _image_shape(config: Mapping[str, Any]) -> tuple[int | str | None, ...]:
    channels, size = config.get("num_channels", 3), config.get("image_size")
    height, width = size if isinstance(size, list) and len(size) == 2 else (size, size)
    sides = [side if isinstance(side, int) and side > 0 else None for side in (height, width)]
    return (channels if isinstance(channels, int) and channels > 0 else None, *sides)


def _quantized(config: Mapping[str, Any]) -> str | None:
    settings = config.get("quantization_config")
    if not isinstance(settings, Mapping):
        return None
    for key in ("quant_method", "quant_algo", "format"):
        if isinstance(settings.get(key), str):
            return str(settings[key])
    return "bitsandbytes" if settings.get("load_in_4bit") or settings.get("load_in_8bit") else "unknown"


def _config_facts(config: Mapping[str, Any], text_config: Mapping[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for source in (text_config, config):
        for key in ("num_hidden_layers", "hidden_size", "model_type"):
            if isinstance(source.get(key), int | str):
                facts[key] = source[key]
        for key in _WIDE_WINDOWS:
            if isinstance(source.get(key), int):
                facts.setdefault("max_positions", source[key])
    return facts


def _read_weights(path: Path) -> tuple[int | None, dict[str, Any]]:
    """Bytes of the weight files, and parameters and dtypes from their headers."""
    headers = read_headers(path)
    if not headers:
        pickles = [file for file in path.glob("*.bin") if file.is_file()]
        return (sum(file.stat().st_size for file in pickles) or None), {}
    dtypes: Counter[str] = Counter()
    for entry in headers.values():
        dtypes[entry["dtype"]] += prod(entry["shape"])
    facts = {
        "tensors": len(headers),
        "parameters": sum(dtypes.values()),
        "dtype": dtypes.most_common(1)[0][0] if dtypes else None,
    }
    return sum((path / name).stat().st_size for name in {entry["file"] for entry in headers.values()}), facts


def read_headers(path: Path) -> dict[str, dict[str, Any]]:
    """Dtype, shape and file name of every tensor in the `.safetensors` files of a folder.

    Raises:
        ModelError: a file is missing, cut short or damaged.
    """
    files = sorted(path.glob("*.safetensors"))
    _check_shards(path, {file.name for file in files})
    return {name: {**entry, "file": file.name} for file in files for name, entry in _read_header(file).items()}


def _check_shards(path: Path, present: set[str]) -> None:
    index = read_json(path / "model.safetensors.index.json")
    weights = index.get("weight_map")
    if not isinstance(weights, Mapping):
        return
    missing = sorted({str(name) for name in weights.values()} - present)
    if missing:
        raise ModelError(
            f"weight files are missing: {', '.join(missing[:4])}{' …' if len(missing) > 4 else ''}",
            code="weights-missing", where=str(path), expected="every file that model.safetensors.index.json names",
            hint="download the model again",
        )  # fmt: skip


def _read_header(file: Path) -> dict[str, Any]:
    """Tensor names, dtypes and shapes of one file, compared with its size."""
    with open_model_file(file, _KIND) as stream:
        size = os.fstat(stream.fileno()).st_size
        first = stream.read(8)
        length = int.from_bytes(first, "little")
        if len(first) < 8 or not 0 < length <= min(size - 8, _MOST_HEADER):
            raise unreadable(file, "safetensors", describe_content(first) or "its header is damaged or cut short")
        try:
            header = orjson.loads(stream.read(length))
        except (ValueError, OSError) as error:
            raise unreadable(file, "safetensors", "its header is no JSON") from error
    if not isinstance(header, dict):
        raise unreadable(file, "safetensors", "its header is no JSON object")
    header.pop("__metadata__", None)
    for name, entry in header.items():
        if reason := _lie(entry, size - 8 - length):
            raise unreadable(file, "safetensors", f"the tensor {name[:80]!r} {reason}")
    return header


def _lie(entry: Any, available: int) -> str | None:
    """What is impossible about the header of one tensor."""
    try:
        shape, (start, end), dtype = entry["shape"], entry["data_offsets"], entry["dtype"]
        if not isinstance(dtype, str) or not all(isinstance(size, int) and size >= 0 for size in (*shape, start, end)):
            return "has a damaged header"
    except (TypeError, KeyError, ValueError):
        return "has a damaged header"
    if not start <= end <= available:
        return f"ends at byte {end:,} of {available:,}: the file is cut short"
    bits = _BITS.get(dtype)
    if bits is not None and prod(shape) * bits != 8 * (end - start):
        return f"claims the shape {shape} and has {end - start:,} bytes"
    return None
