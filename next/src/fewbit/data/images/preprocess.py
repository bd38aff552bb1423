# SPDX-License-Identifier: Apache-2.0
"""Image preprocessing without code: size, channels, scale, mean and std, layout; the same for every command.

    resolve_preprocessing(options, info)     options, then files next to the model, then the model's input shape
    preprocessing(image)                     uint8 [H, W, 3] -> float32 in the model's layout
    preprocessing.describe()                 "height 48, width follows; RGB 0..1, mean 0.5, std 0.5, NCHW (options)"

Sizes are (height, width). The arithmetic is that of transformers' PIL image processors, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from fewbit.data.images import IMAGE_OPTIONS, TEXT_SETTINGS
from fewbit.data.images import PREPROCESSING_VERSION as VERSION
from fewbit.data.images.decode import MOST_PIXELS
from fewbit.data.images.processor_config import from_preprocessor_config, is_preprocessor_config
from fewbit.errors import DataError, UsageError, nearest
from fewbit.model_info import ModelInfo, TensorInfo
from fewbit.settings import Settings

if TYPE_CHECKING:
    from PIL import Image

_OTHER_SETTINGS = {"version", "labels", "inputs", *TEXT_SETTINGS}
"""What else `preprocessing.json` may hold."""
_MOST_BYTES = 1 << 20


def _as_size(value: Any) -> Any:
    value = (value, value) if type(value) is int else tuple(value) if isinstance(value, list) else value
    return None if value == (None, None) else value


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else (value,) if isinstance(value, int | float) else value


Side = Annotated[int, Field(gt=0, le=65_535)]
Size = tuple[Side | None, Side | None]
Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ImagePreprocessing(Settings):  # type: ignore[metaclass]
    """Maps an image to what a model takes.

    Args:
        image_size: height and width; one `None` follows the aspect ratio; `None` keeps the size.
        resize: how to reach the size: crop the center, stretch, or pad.
        resize_to: before the center crop: the shorter edge, or height and width. By default the image just covers
            `image_size`.
        longest: with `resize_to` as an edge: at most this long is the other edge.
        mean: per channel or for all, after scaling.
        std: per channel or for all.
        scale: what pixel values are multiplied by.
        layout: order of the axes.
        channels: rgb, bgr or gray.
        interpolation: Pillow's filter.
        pad_value: pixel value of the border if `resize` is pad.
        source: where these settings come from.

    >>> ImagePreprocessing((48, None), mean=(0.5,), std=(0.5,), source="options").describe()
    'height 48, width follows; RGB 0..1, mean 0.5, std 0.5, NCHW (options)'
    """

    image_size: Annotated[Size | None, BeforeValidator(_as_size)] = None
    resize: Literal["crop", "stretch", "pad"] = "crop"
    resize_to: Side | Annotated[tuple[Side, Side], BeforeValidator(_as_tuple)] | None = None
    longest: Side | None = None
    mean: Annotated[tuple[Number, ...] | None, BeforeValidator(_as_tuple)] = None
    std: Annotated[tuple[Positive, ...] | None, BeforeValidator(_as_tuple)] = None
    scale: Positive = 1 / 255
    layout: Literal["nchw", "nhwc"] = "nchw"
    channels: Literal["rgb", "bgr", "gray"] = "rgb"
    interpolation: Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"] = "bilinear"
    pad_value: Annotated[int, Field(ge=0, le=255)] = 0
    source: str = "defaults"

    def contradictions(self) -> list[tuple[str, str]]:
        """Numbers that do not fit the channels, and a crop without a size."""
        wrong = []
        for name, numbers in (("mean", self.mean or ()), ("std", self.std or ())):
            if len(numbers) not in (0, 1, 3):
                wrong.append((name, f"expected 1 or 3 numbers, got {len(numbers)}"))
            elif self.channels == "gray" and len(set(numbers)) > 1:
                wrong.append((name, "expected one number, since the images are gray"))
        if self.resize_to is not None and None in (self.image_size or ()):
            wrong.append(("resize_to", "expected a full image_size to crop to"))
        return wrong

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """uint8 [H, W, 3] RGB as float32 [C, H, W] or [H, W, C]."""
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            raise UsageError(
                f"an image of type {image.dtype} and shape {list(image.shape)}", code="image-array",
                expected="uint8 [H, W, 3]", hint="{transform=FILE.py:FN} prepares other arrays",
            )  # fmt: skip
        from PIL import Image

        original = Image.fromarray(image)
        pixels = np.asarray(self._resized(original.convert("L") if self.channels == "gray" else original))
        pixels = pixels.reshape(*pixels.shape[:2], -1)[:, :, :: -1 if self.channels == "bgr" else 1]
        # float64, float32, and the order of operations as in transformers.
        values = (pixels.astype(np.float64) * self.scale).astype(np.float32)
        count = pixels.shape[2]
        mean, std = (np.array(numbers[:count], np.float32) for numbers in (self.mean or (0.0,), self.std or (1.0,)))
        values = (values - mean) / std
        return values if self.layout == "nhwc" else np.ascontiguousarray(values.transpose(2, 0, 1))

    def _resized(self, image: Image.Image) -> Image.Image:
        from PIL import Image, ImageOps

        method = Image.Resampling[self.interpolation.upper()]
        height, width = self.image_size or (None, None)
        if self.resize_to is not None:
            edge = self.resize_to
            before = _edge_size(image.height, image.width, edge, self.longest) if isinstance(edge, int) else edge
            image = _resize(image, before, method)
            if height is None or width is None:
                return image
            # An image that is smaller than the crop gets a black border, rounded as in transformers.
            x, y = (image.width - width) // 2, (image.height - height) // 2
            return image.crop((x, y, x + width, y + height))
        if height is None or width is None:
            ratio = height / image.height if height else width / image.width if width else 1
            return _resize(image, (max(1, round(image.height * ratio)), max(1, round(image.width * ratio))), method)
        if self.resize == "stretch":
            return image.resize((width, height), method)
        if self.resize == "crop":
            return ImageOps.fit(image, (width, height), method)
        return ImageOps.pad(image, (width, height), method, (self.pad_value,) * len(image.getbands()))

    def describe(self) -> str:
        """One line: size; channels, range, mean, std, layout (source)."""
        high = "1" if self.scale == 1 / 255 else f"{255 * self.scale:.6g}"
        details = [f"{self.channels.upper() if self.channels != 'gray' else 'gray'} 0..{high}"]
        for name, numbers in (("mean", self.mean), ("std", self.std)):
            if numbers:
                texts = [f"{number:.4g}" for number in numbers]
                details.append(f"{name} {texts[0] if len(set(texts)) == 1 else ' '.join(texts)}")
        return f"{self._describe_size()}; {', '.join([*details, self.layout.upper()])} ({self.source})"

    def _describe_size(self) -> str:
        edge = self.resize_to
        before = f"shorter edge {edge}" if isinstance(edge, int) else f"{edge[0]} x {edge[1]}" if edge else ""
        if self.image_size is None:
            return before + (f", longer edge at most {self.longest}" if self.longest else "") or "original size"
        height, width = self.image_size
        if height is None or width is None:
            return f"height {height}, width follows" if height else f"width {width}, height follows"
        size = f"{height} x {width}" if height == width else f"height {height}, width {width}"
        method = {"crop": "center crop", "stretch": "stretched", "pad": "padded"}[self.resize]
        return f"{size} ({method}{f' of {before}' if before else ''})"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for `preprocessing.json`; `from_dict` reads it back."""
        return {"version": VERSION, **self.model_dump(exclude_none=True)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, source: str | None = None) -> ImagePreprocessing:
        """Read what `to_dict` wrote, or settings by option name; `preprocess` may name a preset that they change."""
        if values.get("version", VERSION) != VERSION:
            raise UsageError(
                f"preprocessing of version {values['version']!r}", code="preprocessing-version",
                where=source, expected=f"version {VERSION}", hint="write it again with this fewbit, or update fewbit",
            )  # fmt: skip
        if reason := values.get("unsupported"):
            raise UsageError(
                f"the image processor of this model {reason}", code="preprocessing-unsupported", where=source,
                expected="resize, center crop, rescale and normalize", hint="{transform=FILE.py:FN}",
            )  # fmt: skip
        settings = {name: value for name, value in values.items() if name not in _OTHER_SETTINGS}
        preset = str(settings.pop("preprocess", "auto"))
        base = cls() if preset == "auto" else _preset(preset)
        return base.changed(**settings | ({"source": source} if source else {}))

    def changed(self, **settings: Any) -> ImagePreprocessing:
        """The same with other settings."""
        return ImagePreprocessing(**(dict(self) | settings))


def _edge_size(height: int, width: int, edge: int, longest: int | None) -> tuple[int, int]:
    """Height and width with a shorter edge of this length; rounds as transformers does."""
    short, long = min(height, width), max(height, width)
    exact = float(edge)
    if longest is not None and long / short * edge > longest:
        exact = longest * short / long
        edge = round(exact)
    if longest is not None and edge == short:
        return height, width
    sides = max(edge, 1), max(int(exact * long / short), 1)
    return sides if height <= width else sides[::-1]


def _resize(image: Image.Image, size: tuple[int, int], method: Image.Resampling) -> Image.Image:
    height, width = size
    if height * width > MOST_PIXELS:  # a thin strip whose shorter edge grows
        raise DataError(
            f"an image of {image.width:,} x {image.height:,} would become {width:,} x {height:,}", code="image-aspect",
            expected=f"at most {MOST_PIXELS:,} pixels", hint="{resize=pad} or {resize=stretch}",
        )  # fmt: skip
    return image.resize((width, height), method)


PRESETS = {
    "imagenet": ImagePreprocessing(
        image_size=(224, 224), resize_to=256, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225),
        source="preset imagenet",
    ),
    "clip": ImagePreprocessing(
        image_size=(224, 224), resize_to=224, mean=(0.48145466, 0.4578275, 0.40821073),
        std=(0.26862954, 0.26130258, 0.27577711), interpolation="bicubic", source="preset clip",
    ),
    "yolo": ImagePreprocessing(image_size=(640, 640), resize="pad", pad_value=114, source="preset yolo"),
    "none": ImagePreprocessing(scale=1.0, source="preset none"),
}  # fmt: skip
"""Named settings for `--preprocess`."""


def resolve_preprocessing(options: Mapping[str, Any], info: ModelInfo) -> ImagePreprocessing:
    """The preprocessing of a run: from options, then what was found next to the model, then the input shape.

    Args:
        options: `IMAGE_OPTIONS` and `transform`; `None` is not given.
        info: the model.

    Raises:
        UsageError: options contradict each other or the model.
    """
    explicit = {name: options[name] for name in IMAGE_OPTIONS if options.get(name) is not None}
    preprocess = str(explicit.pop("preprocess", "auto"))
    tensor = _image_input(info)
    if preprocess != "auto":
        base = _from_file(Path(preprocess)) if preprocess.lower().endswith(".json") else _preset(preprocess)
    elif info.preprocessing.keys() - _OTHER_SETTINGS:  # there may be settings for text only
        base = ImagePreprocessing.from_dict(info.preprocessing, source=info.preprocessing_source or "model")
    else:
        # Nothing says how values are scaled: a uint8 input takes pixels as they are, a float input 0..1.
        scale = 1.0 if tensor is not None and tensor.dtype == "uint8" else 1 / 255
        base = ImagePreprocessing(scale=scale, source="defaults" if tensor is None else "model input shape")
    return _fit_shape(_override(base, explicit) if explicit else base, tensor, explicit)


def _image_input(info: ModelInfo) -> TensorInfo | None:
    """The first input that can be an image: four axes, one of them 1 or 3 channels."""
    images = (t for t in info.inputs if t.shape is not None and len(t.shape) == 4 and {t.shape[1], t.shape[3]} & {1, 3})
    return next(images, None)


def _from_file(path: Path) -> ImagePreprocessing:
    import orjson

    try:
        with path.open("rb") as stream:
            settings = orjson.loads(stream.read(_MOST_BYTES))
        if not isinstance(settings, dict):
            raise ValueError("no settings by name")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"{path} cannot be read: {reason.lower()}", code="preprocessing-file", param="preprocess",
            expected="preprocessing.json or preprocessor_config.json", hint="check the path, or {preprocess=imagenet}",
        ) from error  # fmt: skip
    settings = from_preprocessor_config(settings) if is_preprocessor_config(settings) else settings
    return ImagePreprocessing.from_dict(settings, source=path.name)


def _preset(name: str) -> ImagePreprocessing:
    if name.lower() not in PRESETS:
        raise UsageError(
            f"no image preprocessing is called {name!r}", code="preprocess-unknown", param="preprocess",
            expected=", ".join([*PRESETS, "auto", "a .json file"]),
            hint=f"{{preprocess={(nearest(name, PRESETS) or ['imagenet'])[0]}}}",
        )  # fmt: skip
    return PRESETS[name.lower()]


def _override(base: ImagePreprocessing, explicit: Mapping[str, Any]) -> ImagePreprocessing:
    """Options on top of what was found; a size before the crop keeps its ratio to the crop."""
    changes = dict(explicit)
    if explicit.get("resize", base.resize) != base.resize:
        changes["resize_to"] = None
    elif "image_size" in explicit:
        changes["resize_to"] = _scaled_edge(base, _as_size(explicit["image_size"]))
    if "mean" in explicit or "std" in explicit:
        changes["scale"] = 1 / 255  # they are given on the 0..1 scale
    source = "options" if base.source in ("defaults", "model input shape") else f"options, {base.source}"
    return base.changed(**changes, source=source)


def _scaled_edge(base: ImagePreprocessing, size: Size | None) -> int | tuple[int, int] | None:
    if base.resize_to is None or base.image_size is None or size is None or None in size:
        return None
    ratio = min(filter(None, size)) / min(filter(None, base.image_size))
    if isinstance(base.resize_to, int):
        return round(base.resize_to * ratio)
    return round(base.resize_to[0] * ratio), round(base.resize_to[1] * ratio)


def _fit_shape(
    settings: ImagePreprocessing, tensor: TensorInfo | None, explicit: Mapping[str, Any]
) -> ImagePreprocessing:
    """What the input shape decides: layout, gray, and every fixed side."""
    if tensor is None or tensor.shape is None:
        return settings
    shape = tensor.shape
    likely = "nchw" if shape[1] in (1, 3) else "nhwc"
    layout = settings.layout if "layout" in explicit else likely
    channels = shape[1 if layout == "nchw" else 3]
    if channels not in (1, 3):
        raise _contradiction("layout", layout, tensor, f"{{layout={likely}}}")
    settings = settings.changed(layout=layout, channels="gray" if channels == 1 else settings.channels)
    sides = shape[2:4] if layout == "nchw" else shape[1:3]
    height, width = (side if isinstance(side, int) and side > 0 else None for side in sides)
    current = settings.image_size or (None, None)
    if height in (None, current[0]) and width in (None, current[1]):
        return settings
    size = height, width
    if "image_size" in explicit:
        if any(want and side and want != side for want, side in zip(current, size)):
            requested = " x ".join(str(side) for side in current if side)
            raise _contradiction("image_size", requested, tensor, f"{{image_size={height or ''}x{width or ''}}}")
        size = height or current[0], width or current[1]
    return settings.changed(image_size=size, resize_to=_scaled_edge(settings, size))


def _contradiction(param: str, value: str, tensor: TensorInfo, hint: str) -> UsageError:
    return UsageError(
        f"{{{param}}} is {value}, which the model does not take", code="preprocessing-conflict", param=param,
        expected=str(tensor), hint=hint,
    )  # fmt: skip
