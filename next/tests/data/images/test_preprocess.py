# SPDX-License-Identifier: Apache-2.0
"""Preprocessing: the same numbers as transformers' PIL processors, the order of sources, contradictions."""

import json

import numpy as np
import pytest

from fewbit.data.images.preprocess import PRESETS, ImagePreprocessing, resolve_preprocessing
from fewbit.data.images.processor_config import from_preprocessor_config
from fewbit.errors import DataError, UsageError
from fewbit.model_info import ModelInfo, TensorInfo

SIZES = [(37, 53), (224, 224), (300, 231), (19, 400), (225, 640)]


def photo(height, width):
    rows, columns = np.mgrid[:height, :width]
    noise = np.random.default_rng(height * width).integers(0, 60, (height, width, 3))
    return ((np.stack([rows * 3, columns * 2, rows + columns], axis=2) + noise) % 256).astype(np.uint8)


def model(*shape, dtype="float32", **settings):
    inputs = (TensorInfo("x", dtype, shape),) if shape else ()
    return ModelInfo("m.onnx", "ONNX", "onnx", inputs=inputs, **settings)


CONFIGS = {
    "vit": ("ViTImageProcessorPil", {"size": {"height": 224, "width": 224}, "resample": 2}),
    "vit not square": ("ViTImageProcessorPil", {"size": {"height": 96, "width": 160}, "resample": 3}),
    "vit without normalizing": ("ViTImageProcessorPil", {"do_normalize": False, "size": {"height": 32, "width": 32}}),
    "vit scaled to -1..1": (
        "ViTImageProcessorPil",
        {"rescale_factor": 1 / 127.5, "image_mean": [1.0, 1.0, 1.0], "image_std": [1.0, 1.0, 1.0]},
    ),
    "clip": ("CLIPImageProcessorPil", {}),
    "clip cropped smaller": (
        "CLIPImageProcessorPil",
        {"size": {"shortest_edge": 256}, "crop_size": {"height": 223, "width": 223}},
    ),
    "clip cropped larger": (
        "CLIPImageProcessorPil",
        {"size": {"shortest_edge": 64}, "crop_size": {"height": 75, "width": 75}},
    ),
    "deit": ("DeiTImageProcessorPil", {}),
    "convnext below 384": ("ConvNextImageProcessorPil", {"size": {"shortest_edge": 224}}),
    "convnext at 384": ("ConvNextImageProcessorPil", {"size": {"shortest_edge": 384}}),
    "only the shorter edge": ("CLIPImageProcessorPil", {"size": {"shortest_edge": 48}, "do_center_crop": False}),
    "with a longest edge": (
        "CLIPImageProcessorPil",
        {"size": {"shortest_edge": 64, "longest_edge": 96}, "do_center_crop": False},
    ),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_the_same_numbers_as_transformers(case):
    import transformers

    name, changes = CONFIGS[case]
    processor = getattr(transformers, name)(**changes)
    config = json.loads(processor.to_json_string())
    preprocessing = ImagePreprocessing.from_dict(from_preprocessor_config(config))
    for height, width in SIZES:
        image = photo(height, width)
        expected = processor(image, return_tensors="np", input_data_format="channels_last")["pixel_values"][0]
        actual = preprocessing(image)
        assert actual.dtype == np.float32
        np.testing.assert_array_equal(actual, expected, err_msg=f"{height} x {width}")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"feature_extractor_type": "WhisperFeatureExtractor", "sampling_rate": 16000, "do_normalize": True}, {}),
        (
            {"feature_extractor_type": "ViTFeatureExtractor", "do_resize": True, "size": 224, "resample": 2},
            {"image_size": [224, 224], "resize": "stretch", "scale": 1 / 255},
        ),
        (
            {"feature_extractor_type": "CLIPFeatureExtractor", "size": 224, "crop_size": 224, "image_mean": [0.5] * 3,
             "image_std": [0.5] * 3},
            {"image_size": [224, 224], "resize_to": 224, "interpolation": "bicubic", "mean": [0.5] * 3},
        ),
    ],
)  # fmt: skip
def test_configs_of_old_feature_extractors_and_of_audio(config, expected):
    settings = from_preprocessor_config(config)
    assert settings.items() >= expected.items() and bool(settings) == bool(expected)


@pytest.mark.parametrize(
    "config",
    [
        {"image_processor_type": "Qwen2VLImageProcessor", "do_resize": True, "patch_size": 14, "merge_size": 2},
        {"image_processor_type": "Idefics3ImageProcessor", "do_resize": True, "do_image_splitting": True},
        {"image_processor_type": "SamImageProcessor", "do_resize": True, "size": {"longest_edge": 1024}},
        {"do_resize": True, "size": "large"},
        {"do_resize": True, "size": {"height": 224}},
    ],
)
def test_processors_that_do_more_are_refused_when_images_are_used(config):
    settings = from_preprocessor_config(config)
    info = model(preprocessing=settings, preprocessing_source="preprocessor_config.json")
    with pytest.raises(UsageError) as caught:
        resolve_preprocessing({}, info)
    assert caught.value.code == "preprocessing-unsupported"
    assert resolve_preprocessing({"preprocess": "imagenet"}, info).source == "preset imagenet"


def test_presets():
    image = photo(300, 400)
    assert PRESETS["imagenet"](image).shape == PRESETS["clip"](image).shape == (3, 224, 224)
    boxed = PRESETS["yolo"](image)
    assert boxed.shape == (3, 640, 640)
    assert np.all(boxed[:, :80] == np.float32(114 / 255)) and np.all(boxed[:, 560:] == np.float32(114 / 255))
    assert boxed[0, 81:559].std() > 0.1
    np.testing.assert_array_equal(PRESETS["none"](image), image.transpose(2, 0, 1).astype(np.float32))


@pytest.mark.parametrize(
    ("size", "resize", "shape"),
    [
        ((48, None), "crop", (48, 64)), ((None, 32), "pad", (24, 32)), ((31, 77), "crop", (31, 77)),
        ((77, 31), "stretch", (77, 31)), ((31, 77), "pad", (31, 77)),
    ],
)  # fmt: skip
def test_every_way_to_a_size(size, resize, shape):
    array = ImagePreprocessing(size, resize, channels="gray")(photo(60, 80))
    assert array.shape == (1, *shape) and array.dtype == np.float32


def test_a_crop_takes_the_center_and_a_stretch_takes_all():
    image = np.zeros((20, 60, 3), np.uint8)
    image[:, :20, 0], image[:, 20:40, 1], image[:, 40:, 2] = 255, 255, 255
    cropped = ImagePreprocessing((20, 20))(image)
    assert cropped[1].min() == 1 and cropped[0].max() == 0 and cropped[2].max() == 0
    stretched = ImagePreprocessing((20, 20), "stretch")(image)
    assert stretched[0].max() == stretched[2].max() == 1


def test_layout_and_channels():
    image = photo(12, 10)
    plain = ImagePreprocessing(scale=1.0)(image)
    np.testing.assert_array_equal(ImagePreprocessing(scale=1.0, layout="nhwc")(image), plain.transpose(1, 2, 0))
    np.testing.assert_array_equal(ImagePreprocessing(scale=1.0, channels="bgr")(image), plain[::-1])
    # Mean and std belong to the channels as the model gets them.
    red = np.full((4, 4, 3), (255, 0, 0), np.uint8)
    bgr = ImagePreprocessing(channels="bgr", mean=(0.0, 0.0, 1.0), std=(1.0, 1.0, 2.0))(red)
    assert bgr[:, 0, 0].tolist() == [0.0, 0.0, 0.0]
    gray = ImagePreprocessing(channels="gray", mean=[0.5] * 3, std=0.5)(np.full((4, 4, 3), 255, np.uint8))
    assert gray.shape == (1, 4, 4) and gray.max() == 1


def test_a_thin_strip_does_not_fill_the_memory():
    strip = np.zeros((1, 60_000, 3), np.uint8)
    assert ImagePreprocessing((640, 640))(strip).shape == (3, 640, 640)
    for settings in ({"image_size": (640, None)}, {"resize_to": 640}):
        with pytest.raises(DataError) as caught:
            ImagePreprocessing(**settings)(strip)
        assert caught.value.code == "image-aspect"


def test_other_arrays_are_refused():
    for wrong in (np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3), np.float32), np.zeros((3, 4, 4), np.uint8)):
        with pytest.raises(UsageError):
            ImagePreprocessing()(wrong)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "original size; RGB 0..1, NCHW (defaults)"),
        ({"image_size": (None, 320), "scale": 1.0}, "width 320, height follows; RGB 0..255, NCHW (defaults)"),
        ({"image_size": (480, 640), "resize": "pad"}, "height 480, width 640 (padded); RGB 0..1, NCHW (defaults)"),
        ({"resize_to": 800, "longest": 1333}, "shorter edge 800, longer edge at most 1333; RGB 0..1, NCHW (defaults)"),
        (
            {"image_size": 224, "resize_to": 256, "mean": (0.485, 0.456, 0.406), "channels": "bgr", "layout": "nhwc"},
            "224 x 224 (center crop of shorter edge 256); BGR 0..1, mean 0.485 0.456 0.406, NHWC (defaults)",
        ),
    ],
)
def test_describe(settings, text):
    assert ImagePreprocessing(**settings).describe() == text


@pytest.mark.parametrize("name", PRESETS)
def test_settings_survive_json(name):
    text = json.dumps(PRESETS[name].to_dict())
    assert ImagePreprocessing.from_dict(json.loads(text)) == PRESETS[name]


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"mena": [0.5]}, "did you mean"), ({"version": 99}, "version 1"), ({"image_size": (0, 5)}, "image_size"),
        ({"image_size": "large"}, "image_size"), ({"image_size": True}, "image_size"), ({"mean": (0.1, 0.2)}, "1 or 3"),
        ({"std": 0.0}, "std"), ({"layout": "chw"}, "'nchw' or 'nhwc'"), ({"scale": float("nan")}, "scale"),
        ({"mean": ("a",)}, "mean"), ({"image_size": (48, None), "resize_to": 50}, "resize_to"),
        ({"mean": (0.1, 0.2, 0.3), "channels": "gray"}, "gray"),
    ],
)  # fmt: skip
def test_wrong_settings_are_named(settings, word):
    with pytest.raises(UsageError) as caught:
        ImagePreprocessing.from_dict(settings)
    assert word in str(caught.value)


# Where the settings come from


def test_options_then_files_next_to_the_model_then_the_input_shape():
    found = {"image_size": [48, 48], "resize": "stretch", "mean": [0.4], "std": [0.2]}
    info = model("N", 3, "H", "W", preprocessing=found, preprocessing_source="preprocessing.json")
    assert resolve_preprocessing({}, info).describe() == (
        "48 x 48 (stretched); RGB 0..1, mean 0.4, std 0.2, NCHW (preprocessing.json)"
    )
    changed = resolve_preprocessing({"mean": (0.5,), "std": (0.5,)}, info)
    assert changed.describe() == "48 x 48 (stretched); RGB 0..1, mean 0.5, std 0.5, NCHW (options, preprocessing.json)"
    shape = resolve_preprocessing({}, model("N", 3, 48, "W"))
    assert shape.describe() == "height 48, width follows; RGB 0..1, NCHW (model input shape)"
    assert resolve_preprocessing(
        {"image_size": (48, None), "mean": 0.5, "std": 0.5}, model("N", 3, 48, "W")
    ).describe() == ("height 48, width follows; RGB 0..1, mean 0.5, std 0.5, NCHW (options)")
    assert resolve_preprocessing({}, model()).describe() == "original size; RGB 0..1, NCHW (defaults)"


def test_text_settings_next_to_the_model_do_not_matter():
    info = model(1, 3, 8, 8, preprocessing={"version": 1, "max_length": 128}, preprocessing_source="preprocessing.json")
    assert resolve_preprocessing({}, info).source == "model input shape"


@pytest.mark.parametrize(
    ("shape", "layout", "channels", "size"),
    [
        ((1, 3, 224, 320), "nchw", "rgb", (224, 320)),
        (("N", 224, 320, 3), "nhwc", "rgb", (224, 320)),
        (("N", 1, 28, 28), "nchw", "gray", (28, 28)),
        (("N", None, None, 3), "nhwc", "rgb", None),
        ((None, 3, "h", 32), "nchw", "rgb", (None, 32)),
    ],
)
def test_the_input_shape_decides_layout_channels_and_fixed_sides(shape, layout, channels, size):
    settings = resolve_preprocessing({}, model(*shape))
    assert (settings.layout, settings.channels, settings.image_size) == (layout, channels, size)


def test_a_uint8_input_takes_pixels_as_they_are():
    assert resolve_preprocessing({}, model(1, 8, 8, 3, dtype="uint8")).scale == 1.0
    assert resolve_preprocessing({"mean": 0.5}, model(1, 8, 8, 3, dtype="uint8")).scale == 1 / 255


def test_presets_follow_the_model_and_keep_the_ratio_of_the_crop():
    settings = resolve_preprocessing({"preprocess": "imagenet"}, model(1, 3, 448, 448))
    assert (settings.image_size, settings.resize_to) == ((448, 448), 512)
    given = resolve_preprocessing({"preprocess": "ImageNet", "image_size": (112, 112)}, model("N", 3, "H", "W"))
    assert (given.image_size, given.resize_to, given.source) == ((112, 112), 128, "options, preset imagenet")
    padded = resolve_preprocessing({"preprocess": "imagenet", "resize": "pad"}, model())
    assert (padded.image_size, padded.resize_to, padded.resize) == ((224, 224), None, "pad")


def test_a_resize_that_is_given_changes_what_was_found():
    info = model(preprocessing={"image_size": [8, 8], "resize": "stretch"}, preprocessing_source="preprocessing.json")
    assert resolve_preprocessing({"resize": None}, info).resize == "stretch"
    assert resolve_preprocessing({"resize": "crop"}, info).resize == "crop"


def test_options_that_the_model_cannot_take_are_errors():
    with pytest.raises(UsageError) as caught:
        resolve_preprocessing({"image_size": (224, 224)}, model("N", 3, 48, "W"))
    assert "--image-size 48x" in caught.value.text("cli") and "[N, 3, 48, W]" in str(caught.value)
    with pytest.raises(UsageError):
        resolve_preprocessing({"layout": "nhwc"}, model(1, 3, 8, 8))
    assert resolve_preprocessing({"image_size": (48, 320)}, model("N", 3, 48, "W")).image_size == (48, 320)


def test_a_file_of_settings(tmp_path):
    own = tmp_path / "preprocessing.json"
    own.write_text(json.dumps(PRESETS["clip"].to_dict() | {"labels": ["cat", "dog"]}))
    settings = resolve_preprocessing({"preprocess": str(own)}, model())
    assert settings.mean == PRESETS["clip"].mean and settings.source == "preprocessing.json"
    own.write_text(json.dumps({"do_resize": True, "size": {"height": 32, "width": 32}}))
    assert resolve_preprocessing({"preprocess": str(own)}, model()).image_size == (32, 32)
    for content, code in (("{", "preprocessing-file"), ("[]", "preprocessing-file"), ('{"rate": 16000}', "settings")):
        own.write_text(content)
        with pytest.raises(UsageError) as caught:
            resolve_preprocessing({"preprocess": str(own)}, model())
        assert caught.value.code == code
    for missing in (str(tmp_path / "none.json"), "imagnet"):
        with pytest.raises(UsageError):
            resolve_preprocessing({"preprocess": missing}, model())
