# SPDX-License-Identifier: Apache-2.0
"""Pictures as the model's own processor makes them, its masks with them; torchvision is not asked for."""

import pickle
import sys

import numpy as np
import pytest
import transformers
from PIL import Image

from fewbit.data.sample import Sample
from fewbit.data.steps import processing
from fewbit.data.steps._base import NOTHING
from fewbit.data.steps._image_processor import has_image_processor
from fewbit.data.steps.processing import Processing, faults, make
from fewbit.errors import DataError
from step_context import context

EDGE = {"size": {"shortest_edge": 24}}
KINDS = {
    "squash": ("ViTImageProcessorPil", {"size": {"height": 16, "width": 24}}),
    "crop": ("CLIPImageProcessorPil", EDGE | {"crop_size": {"height": 20, "width": 20}}),
    "share": ("ConvNextImageProcessorPil", EDGE),
    "edges": ("DetrImageProcessorPil", {"size": {"shortest_edge": 24, "longest_edge": 30}}),
    "swapped": ("MobileViTImageProcessorPil", EDGE | {"crop_size": {"height": 20, "width": 28}}),
}
PICTURE = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)


@pytest.fixture(params=KINDS)
def processor(request, tmp_path):
    name, options = KINDS[request.param]
    made = getattr(transformers, name)(**options)
    made.save_pretrained(tmp_path)
    return made, Processing(str(tmp_path))


def test_numbers_are_those_of_the_processor(processor):
    wanted, step = processor
    sample = Sample({"image": PICTURE, "label": 3})
    found = step(sample)
    expected = wanted(images=Image.fromarray(PICTURE), return_tensors="np")["pixel_values"][0]
    assert found["label"] == 3 and "image" not in found and "image" in sample
    np.testing.assert_array_equal(found["pixel_values"], expected)
    again = pickle.loads(pickle.dumps(step))(sample)
    np.testing.assert_array_equal(again["pixel_values"], expected)
    assert "torchvision" not in sys.modules


def test_masks_go_where_their_picture_goes(processor):
    """Painted with the number of their class: read back from the processed picture itself."""
    _, step = processor
    mask = np.zeros((30, 40), np.uint8)
    mask[:15, :20], mask[15:, 20:] = 200, 3
    bright = np.where(mask == 200, 255, 0).astype(np.uint8)
    found = step({"image": np.stack([bright] * 3, 2), "mask": mask, "masks": np.stack([mask == 200, mask == 3])})
    values = found["pixel_values"]
    assert found["mask"].shape == values.shape[1:] == found["masks"].shape[1:]
    assert set(np.unique(found["mask"])) <= {0, 3, 200, NOTHING}
    inside, outside = values[0] >= values[0].max() - 1e-3, values[0] <= values[0].min() + 1e-3
    assert (found["mask"][inside] == 200).mean() > 0.95 and not (found["mask"][outside] == 200).any()
    assert ((found["mask"] == 200) == found["masks"][0]).all() and found["masks"].dtype == bool


def test_what_a_crop_adds_is_not_learned(tmp_path):
    made = transformers.CLIPImageProcessorPil(do_resize=False, crop_size={"height": 6, "width": 6})
    made.save_pretrained(tmp_path)
    found = Processing(str(tmp_path))({"image": np.zeros((4, 4, 3), np.uint8), "mask": np.ones((4, 4), np.int64)})
    assert (found["mask"] == 1).sum() == 16 and (found["mask"] == NOTHING).sum() == 20


@pytest.mark.parametrize("values", [(40_000, 0), (-70_000, 200), (16_000_000, -1), (2**40, 2**40 - 5)])
def test_large_numbers_of_classes_stay_what_they_are(processor, values):
    _, step = processor
    mask = np.full((30, 40), values[0], np.int64)
    mask[:15] = values[1]
    found = step({"image": PICTURE, "mask": mask})["mask"]
    assert set(np.unique(found)) == set(values)


def test_numbers_that_lie_too_far_apart_are_told(processor):
    mask = np.zeros((30, 40), np.int64)
    mask[3, 3] = 1 << 24
    with pytest.raises(DataError, match="'mask' has numbers from 0 to 16777216"):
        processor[1]({"image": PICTURE, "mask": mask})


def test_boxes_stay_and_are_not_cut(processor):
    made, step = processor
    sample = {"image": PICTURE, "boxes": np.array([[0.5, 0.5, 0.2, 0.2]]), "classes": np.array([1])}
    if getattr(made, "do_center_crop", False) or getattr(made, "crop_pct", None):
        with pytest.raises(DataError, match="cuts off the sides of pictures, and of their boxes"):
            step(sample)
    else:
        assert step(sample)["boxes"] is sample["boxes"]


def test_a_sample_without_objects_and_one_without_a_picture(processor):
    _, step = processor
    found = step({"image": PICTURE, "masks": np.zeros((0, 30, 40), bool)})
    assert found["masks"].shape == (0, *found["pixel_values"].shape[1:])
    assert step({"text": "a"}) == {"text": "a"}


def test_it_says_what_it_does(tmp_path):
    transformers.ViTImageProcessorPil(size={"height": 16, "width": 24}).save_pretrained(tmp_path)
    at = context(processing, processor=str(tmp_path))
    make(at)
    (line,) = at.record.lines
    assert line["what"] == "picture-step" and "24 x 16, mean" in line["reason"]


def test_what_it_leaves_out_is_told_too(tmp_path):
    transformers.SegformerImageProcessorPil(do_reduce_labels=True).save_pretrained(tmp_path)
    at = context(processing, processor=str(tmp_path))
    make(at)
    assert [line["what"] for line in at.record.lines] == ["picture-step"] * 2
    assert "taken as they are" in at.record.lines[1]["reason"]


def test_what_is_an_input_already_is_no_picture(tmp_path):
    transformers.ViTImageProcessorPil().save_pretrained(tmp_path)
    with pytest.raises(DataError, match="a picture is float32") as told:
        Processing(str(tmp_path))({"image": np.zeros((4, 4, 3), np.float32)})
    assert "'pixel_values'" in told.value.try_


def test_a_folder_without_one_and_one_that_is_damaged(tmp_path):
    assert not has_image_processor(tmp_path)
    (fault,) = faults({"processor": str(tmp_path)})
    assert "no preprocessor_config.json" in fault
    (tmp_path / "preprocessor_config.json").write_text('{"feature_extractor_type": "Wav2Vec2FeatureExtractor"}')
    assert not has_image_processor(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"image_processor_type": "Nobodys", "image_mean": [0.5]}')
    with pytest.raises(DataError, match="no image processor that opens") as told:
        Processing(str(tmp_path))({"image": PICTURE})
    assert "'rescaling'" in told.value.try_
