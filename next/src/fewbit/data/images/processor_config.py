# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's `preprocessor_config.json` as settings of `ImagePreprocessing`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""Pillow's filters, in the order of their numbers."""
_SHORTEST_EDGE = ("clip", "convnext", "bit", "levit", "mobilenet", "poolformer", "videomae", "vivit", "flava")
"""Processors for which a size without a key is that of the shorter edge; for others it is a square."""
_OWN_STEPS = (
    "do_image_splitting", "image_grid_pinpoints", "merge_size", "do_thumbnail", "do_align_long_axis", "do_grayscale",
    "size_divisor", "ensure_multiple_of", "pad_size",
)  # fmt: skip
"""Settings, if they are set, of steps that are not built in: tiles, patches, thumbnails, multiples, other borders."""


def is_preprocessor_config(config: Mapping[str, Any]) -> bool:
    """Whether it is the configuration of an image processor, not of one for audio."""
    return any(key in config for key in ("image_mean", "do_resize", "image_processor_type"))


def from_preprocessor_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `ImagePreprocessing` that do the same.

    Returns:
        Settings for `ImagePreprocessing.from_dict`; empty if it is no image processor, `unsupported` with a reason if
        it does more than resize, crop, rescale and normalize.

    >>> from_preprocessor_config({"feature_extractor_type": "WhisperFeatureExtractor", "sampling_rate": 16000})
    {}
    """
    if not is_preprocessor_config(config):
        return {}
    config = {key: value for key, value in config.items() if value is not None}
    own = [key for key in _OWN_STEPS if config.get(key) and not (type(config[key]) is int and config[key] <= 1)]
    if own:
        return {"unsupported": f"has its own step: {own[0]}"}
    processor = str(config.get("image_processor_type") or config.get("feature_extractor_type") or "").lower()
    try:
        settings: dict[str, Any] = {
            "layout": "nchw",
            "scale": float(config.get("rescale_factor", 1 / 255)) if config.get("do_rescale", True) else 1.0,
            "interpolation": _FILTERS[int(config.get("resample", 3 if "clip" in processor else 2))],
        }
        if config.get("do_normalize", True) and "image_mean" in config:
            settings |= {"mean": config["image_mean"], "std": config["image_std"]}
        if config.get("do_flip_channel_order"):
            settings["channels"] = "bgr"
        return settings | _sizes(config, processor)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, ZeroDivisionError, OverflowError) as error:
        return {"unsupported": f"has settings that cannot be read: {error}"}


def _sizes(config: Mapping[str, Any], processor: str) -> dict[str, Any]:
    size = _size(config.get("size"), shortest=any(word in processor for word in _SHORTEST_EDGE))
    size = size if config.get("do_resize", True) else {}
    crop = _size(config.get("crop_size"), shortest=False)
    if size.keys() - {"height", "width", "shortest_edge", "longest_edge"} or size.keys() == {"longest_edge"}:
        return {"unsupported": f"resizes by {' and '.join(sorted(size))}"}
    cropped: dict[str, Any] = {}
    if crop and config.get("do_center_crop", True):
        cropped = {"image_size": [crop["height"], crop["width"]], "resize": "crop"}
    if not size:
        return {"unsupported": "crops without resizing"} if cropped else {}
    if (edge := size.get("shortest_edge")) is None:
        sides = [size["height"], size["width"]]
        return {"resize_to": sides, **cropped} if cropped else {"image_size": sides, "resize": "stretch"}
    if cropped or not ("crop_pct" in config or "convnext" in processor):
        return {"resize_to": edge, **cropped} | ({"longest": size["longest_edge"]} if "longest_edge" in size else {})
    # ConvNeXT crops by a share below 384 and stretches from there on.
    if edge >= 384:
        return {"image_size": [edge, edge], "resize": "stretch"}
    before = int(edge / float(config.get("crop_pct", 224 / 256)))
    return {"image_size": [edge, edge], "resize": "crop", "resize_to": before}


def _size(size: Any, *, shortest: bool) -> dict[str, int]:
    if size is None:
        return {}
    if isinstance(size, int):
        return {"shortest_edge": size} if shortest else {"height": size, "width": size}
    if isinstance(size, list | tuple):
        return {"height": int(size[0]), "width": int(size[1])}
    return {key: int(value) for key, value in size.items() if value is not None}
