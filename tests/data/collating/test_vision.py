# SPDX-License-Identifier: Apache-2.0
"""Pictures in batches: on one canvas, boxes and masks where they belong."""

import numpy as np
import pytest
import torch
from PIL import Image

from fewbit.data.collate import Collator
from fewbit.data.collating.padding import Padding
from fewbit.errors import DataError


def picture(height, width, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)


def test_pictures_of_one_size_are_stacked_with_their_labels():
    first, second = picture(4, 6), picture(4, 6, seed=1)
    batch = Collator()([{"image": first, "label": 2}, {"image": second, "label": 0}])
    assert set(batch) == {"pixel_values", "labels"}
    assert batch["pixel_values"].dtype is torch.float32
    assert torch.equal(batch["pixel_values"][1], torch.from_numpy(second / np.float32(255)).permute(2, 0, 1))
    assert batch["labels"].tolist() == [2, 0]


def test_what_a_picture_may_come_as():
    array = picture(4, 6)
    expected = Collator()([{"image": array}])["pixel_values"]
    assert torch.equal(Collator()([{"image": Image.fromarray(array)}])["pixel_values"], expected)
    ready = torch.from_numpy(array / np.float32(255)).permute(2, 0, 1)
    assert torch.equal(Collator()([{"image": ready}])["pixel_values"], expected)
    assert torch.equal(Collator()([{"pixel_values": ready}])["pixel_values"], expected)
    assert Collator()([{"image": array[:, :, 0]}])["pixel_values"].shape == (1, 1, 4, 6)


def test_pictures_of_different_sizes_share_a_canvas():
    batch = Collator(padding=Padding(multiple=4))([{"image": picture(3, 6)}, {"image": picture(5, 2)}])
    assert batch["pixel_values"].shape == (2, 3, 8, 8)
    assert batch["pixel_mask"].sum(1).tolist() == [[3] * 6 + [0, 0], [5, 5, 0, 0, 0, 0, 0, 0]]
    assert batch["pixel_values"][0, :, 3:].abs().sum() == 0 == batch["pixel_values"][0, :, :, 6:].abs().sum()


def test_boxes_stay_on_their_objects_when_the_canvas_grows():
    box = np.array([[0.5, 0.5, 0.5, 1.0]], np.float32)  # the middle half of a picture of 4 x 2
    small = {"image": picture(2, 4), "boxes": box, "classes": [3]}
    large = {"image": picture(4, 8), "boxes": np.zeros((0, 4), np.float32), "classes": []}
    batch = Collator()([small, large])
    left, right = (batch["boxes"][0][0, 0] + sign * batch["boxes"][0][0, 2] / 2 for sign in (-1, 1))
    assert float(left) * 8 == pytest.approx(1) and float(right) * 8 == pytest.approx(3)
    assert float(batch["boxes"][0][0, 3]) * 4 == pytest.approx(2)
    assert [each.shape for each in batch["boxes"]] == [(1, 4), (0, 4)]
    assert [each.tolist() for each in batch["classes"]] == [[3], []]


def test_boxes_in_pixels_are_not_scaled():
    pixels = np.array([[2.0, 1.0, 2.0, 2.0]], np.float32)
    batch = Collator()([{"image": picture(2, 4), "boxes": pixels}, {"image": picture(4, 8), "boxes": pixels}])
    assert batch["boxes"][0].tolist() == pixels.tolist()


def test_objects_can_be_filled_up():
    samples = [
        {"image": picture(2, 4), "boxes": np.full((2, 4), 0.5), "classes": [1, 2], "masks": np.ones((2, 2, 4), bool)},
        {"image": picture(2, 4), "boxes": np.zeros((0, 4)), "classes": [], "masks": np.ones((0, 2, 4), bool)},
    ]
    batch = Collator(targets="padded")(samples)
    assert batch["object_mask"].tolist() == [[True, True], [False, False]]
    assert batch["boxes"].shape == (2, 2, 4) and batch["masks"].shape == (2, 2, 2, 4)
    assert batch["classes"].tolist() == [[1, 2], [-100, -100]]


def test_masks_of_objects_and_of_pictures():
    samples = [
        {"image": picture(2, 3), "masks": np.ones((2, 2, 3), bool)},
        {"image": picture(4, 4), "masks": np.ones((1, 4, 4), bool)},
    ]
    batch = Collator()(samples)
    assert [tuple(each.shape) for each in batch["masks"]] == [(2, 4, 4), (1, 4, 4)]
    assert int(batch["masks"][0].sum()) == 12
    whole = Collator()(
        [{"image": picture(2, 3), "mask": np.ones((2, 3), np.uint8)}, {"image": picture(2, 2), "mask": np.ones((2, 2))}]
    )
    assert whole["masks"].tolist() == [[[1, 1, 1]] * 2, [[1, 1, -100]] * 2]


FAULTS = {
    "channels": ([{"image": picture(2, 2)}, {"image": picture(2, 2, 4)}], "sample 1.*'image'.*4 channels"),
    "mask": ([{"image": picture(2, 2), "mask": np.ones((3, 2))}], "sample 0.*'mask'"),
    "boxes": ([{"image": picture(2, 2), "boxes": np.ones((2, 5))}], "sample 0.*'boxes'"),
    "counts": ([{"image": picture(2, 2), "boxes": np.ones((2, 4)), "classes": [1]}], "sample 0.*'classes'.*1 objects"),
    "axes": ([{"image": np.ones((2, 2, 3, 3))}], "sample 0.*'image'"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_sample_that_does_not_fit_is_named(fault):
    samples, message = FAULTS[fault]
    with pytest.raises(DataError, match=message):
        Collator()(samples)


def test_without_padding_sizes_have_to_be_one():
    with pytest.raises(DataError, match=r"sample 1.*'image'.*3 x 2 pixels"):
        Collator(padding=Padding("none"))([{"image": picture(2, 2)}, {"image": picture(2, 3)}])
