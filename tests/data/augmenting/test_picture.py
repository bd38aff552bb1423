# SPDX-License-Identifier: Apache-2.0
"""A picture and what is marked in it: boxes, outlines and masks agree after any move."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fewbit.data.augmenting import boxes as box
from fewbit.data.augmenting import geometry, picture
from fewbit.data.augmenting.colour import jitter
from fewbit.data.keys import filled
from fewbit.data.steps.augmentation import KEYS
from fewbit.errors import DataError

ALL = filled({"augment_rotate": 45.0, "augment_flip_vertical": 0.5, "augment_crop": 0.5}, KEYS)
STILL = filled({"augment_flip": 0.0, "augment_crop": 1.0, "augment_colour": 0.0}, KEYS)


def scene(height, width, count, seed):
    """Rectangles on whole pixels, each in all the ways there are to mark it."""
    rng = np.random.default_rng(seed)
    corners = []
    for _ in range(count):
        left, top = rng.integers(0, width), rng.integers(0, height)
        corners.append([left, top, rng.integers(left + 1, width + 1), rng.integers(top + 1, height + 1)])
    corners = np.array(corners, float).reshape(-1, 4)
    masks = np.zeros((count, height, width), bool)
    for mask, (left, top, right, bottom) in zip(masks, corners.astype(int)):
        mask[top:bottom, left:right] = True
    scale = np.array([width, height])
    outlines = [np.array([[a, b], [c, b], [c, d], [a, d]]) / scale for a, b, c, d in corners]
    return {
        "image": rng.integers(0, 256, (height, width, 3)).astype(np.uint8),
        "boxes": box.from_corners(corners, "cxcywh", (height, width)).astype(np.float32),
        "classes": np.arange(count),
        "polygons": outlines,
        "masks": masks,
        "mask": masks.any(axis=0).astype(np.uint8),
    }


scenes = st.builds(scene, st.integers(2, 24), st.integers(2, 24), st.integers(0, 5), st.integers(0, 99))


@given(scenes, st.integers(0, 50))
def test_boxes_masks_and_outlines_agree(sample, seed):
    out = picture.augment(sample, ALL, random.Random(seed))
    height, width = size = sample["image"].shape[:2]
    count = len(out["boxes"])
    assert out["image"].shape == sample["image"].shape and out["image"].dtype == np.uint8
    assert len(out["classes"]) == len(out["polygons"]) == len(out["masks"]) == count
    corners = box.to_corners(out["boxes"], "cxcywh", size)
    assert np.all(corners >= -1e-4) and np.all(corners <= np.array([width, height] * 2) + 1e-4)
    assert np.all(box.area(corners) > 0)
    for (left, top, right, bottom), mask in zip(corners, out["masks"]):
        rows, columns = np.nonzero(mask)
        assert np.all((columns + 0.5 >= left - 1e-3) & (columns + 0.5 <= right + 1e-3))
        assert np.all((rows + 0.5 >= top - 1e-3) & (rows + 0.5 <= bottom + 1e-3))
    # Every object that is marked is one of those there were, and what it marks is where the mask of all has it.
    matrix = picture.draw(ALL, size, random.Random(seed))
    for name, mask in zip(out["classes"], out["masks"]):
        assert np.array_equal(mask, geometry.move_mask(sample["masks"][name], matrix, False))
        assert np.all(out["mask"][mask] == 1)


@given(scenes, st.integers(0, 50))
def test_outlines_alone_hold_their_boxes(sample, seed):
    sample.pop("masks")
    out = picture.augment(sample, ALL, random.Random(seed))
    size = sample["image"].shape[:2]
    for corners, outline in zip(box.to_corners(out["boxes"], "cxcywh", size), out["polygons"]):
        inside = outline * [size[1], size[0]]
        assert np.all(inside >= corners[:2] - 1e-3) and np.all(inside <= corners[2:] + 1e-3)


@given(scenes, st.sampled_from(box.FORMATS))
def test_a_mirror_moves_boxes_exactly_in_every_format(sample, format):
    size = sample["image"].shape[:2]
    width = size[1]
    corners = np.rint(box.to_corners(sample["boxes"], "cxcywh", size))
    given_ = {"image": sample["image"], "boxes": box.from_corners(corners, format, size)}
    out = picture.augment(given_, {**STILL, "augment_flip": 1.0, "box_format": format}, random.Random(0))
    moved = box.to_corners(out["boxes"], format, size)
    assert np.allclose(moved, np.stack([width - corners[:, 2], corners[:, 1], width - corners[:, 0], corners[:, 3]], 1))
    assert np.array_equal(out["image"], sample["image"][:, ::-1])


def test_an_object_that_is_hardly_seen_goes_with_all_it_has():
    sample = scene(10, 10, 0, 0) | {
        "boxes": np.array([[0, 0, 4, 10], [5, 0, 10, 10]], np.float32),
        "classes": [3, 4],
        "polygons": [None, None],
        "masks": np.ones((2, 10, 10), bool),
    }
    options = {**STILL, "box_format": "xyxy", "augment_visible": 0.3}
    sample["masks"][0, :, 4:], sample["masks"][1, :, :5] = False, False
    moved = picture.move(sample, sample["image"], geometry.enlarge((10, 10), 3, 0, 7, 10), options)
    assert moved["classes"] == [4] and moved["polygons"] == [None] and moved["masks"].shape == (1, 10, 10)
    assert moved["boxes"].tolist() == [[pytest.approx(20 / 7), 0, 10, 10]]
    assert len(sample["classes"]) == 2  # the one given stays as it is


def test_pillow_images_stay_pillow_images():
    pixels = scene(6, 8, 0, 1)["image"]
    out = picture.augment({"image": Image.fromarray(pixels)}, {**STILL, "augment_flip": 1.0}, random.Random(0))["image"]
    assert isinstance(out, Image.Image) and np.array_equal(np.asarray(out), pixels[:, ::-1])
    grey = picture.augment({"image": Image.fromarray(pixels[:, :, 0])}, ALL, random.Random(0))["image"]
    assert grey.mode == "L" and grey.size == (8, 6)


def test_what_is_no_picture_is_refused():
    for wrong in (
        np.zeros((3, 32, 32), np.float32),
        np.zeros((3, 32, 32), np.uint8),
        "a.jpg",
        np.zeros((0, 4, 3), np.uint8),
    ):
        with pytest.raises(DataError, match="cannot work on"):
            picture.augment({"image": wrong}, ALL, random.Random(0))
    with pytest.raises(DataError, match="mask is"):
        picture.augment({"image": np.zeros((4, 4), np.uint8), "mask": np.zeros((2, 2), int)}, ALL, random.Random(0))


def test_what_a_turn_brings_in_is_not_learned():
    sample = {"image": np.zeros((9, 9, 3), np.uint8), "mask": np.zeros((9, 9), np.int64)}
    out = picture.move(sample, sample["image"], geometry.turn((9, 9), 45), STILL)
    assert set(np.unique(out["mask"])) == {0, 255} and out["mask"].dtype == np.int64


def test_light_changes_colours_and_nothing_else():
    pixels = scene(5, 5, 0, 2)["image"]
    assert np.array_equal(jitter(pixels, 0.0, random.Random(0)), pixels)
    assert not np.array_equal(jitter(pixels, 0.3, random.Random(0)), pixels)
    clear = np.dstack([pixels, pixels[:, :, 0]])
    assert np.array_equal(jitter(clear, 0.5, random.Random(0))[:, :, 3], clear[:, :, 3])
    grey = np.repeat(pixels[:, :, :1], 3, axis=2)
    lit = jitter(grey, 0.5, random.Random(3)).astype(int)
    assert np.ptp(lit, axis=2).max() <= 1  # grey stays grey
