# SPDX-License-Identifier: Apache-2.0
"""Augmentation: by seed, epoch and position; never of what is learned; boxes and masks move with the pixels."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.data.loading import augment_images as images
from fewbit.data.loading import generate_dataset_config
from fewbit.data.loading.augment_text import change_case, drop_words, slip_letters
from fewbit.data.loading.config import CustomConfig
from fewbit.data.loading.image_steps import Rescaling
from fewbit.data.loading.prepare import prepare
from fewbit.data.types import Location
from fewbit.errors import DataError, UsageError

QUESTIONS = [
    {"prompt": f"What is the sum of {n} and {n}, and why is that so?\n", "completion": f"It is {2 * n}."}
    for n in range(8)
]
NOISY = {"augment_characters": 0.2, "augment_words": 0.2}
MOVING = CustomConfig(augment_rotate=45.0, augment_flip_vertical=0.5, augment_crop=0.5)
STILL = CustomConfig(augment_flip=0.0, augment_crop=1.0, augment_color=0.0)


def view(rows, split="train", **custom):
    return prepare(generate_dataset_config(rows, ["augmentation"], custom), split).view


def read(rows, epoch=0, **custom):
    samples = view(rows, **custom)
    return [samples.get(index, epoch) for index in range(len(samples))]


def test_prompts_change_answers_and_the_separator_never_do():
    changed = read(QUESTIONS, **NOISY)
    assert [sample["completion"] for sample in changed] == [row["completion"] for row in QUESTIONS]
    assert sum(a["prompt"] != b["prompt"] for a, b in zip(changed, QUESTIONS)) >= 6
    assert all(sample["prompt"].endswith("\n") for sample in read(QUESTIONS, augment_words=0.9))


def test_the_same_for_seed_epoch_and_position_and_other_in_every_epoch():
    first = read(QUESTIONS, **NOISY)
    assert first == read(QUESTIONS, **NOISY) != read(QUESTIONS, epoch=1, **NOISY)
    assert first != read(QUESTIONS, seed=1, **NOISY)


def test_what_is_not_trained_on_stays():
    held_out = view(QUESTIONS * 4, "validation", validation_ratio=0.2, **NOISY)
    assert {held_out.get(index)["prompt"] for index in range(len(held_out))} <= {row["prompt"] for row in QUESTIONS}


def test_texts_with_a_label_change_and_users_turns_but_not_what_is_learned():
    labeled = [{"text": "a rather good film, all in all", "label": 1}]
    assert read(labeled, augment_characters=0.5)[0]["text"] != labeled[0]["text"]
    with pytest.raises(UsageError, match="nothing to change"):
        view([{"text": "every word of this is learned"}])
    assert (
        read([{"text": "every word of this"}], augment_columns=["text"], augment_characters=0.5)[0]["text"]
        != "every word of this"
    )
    chat = [{"role": "user", "content": "hello there, my friend"}, {"role": "assistant", "content": "good day"}]
    turns = read([{"messages": chat}], augment_characters=0.5)[0]["messages"]
    assert turns[0]["content"] != chat[0]["content"] and turns[1] == chat[1]


@given(st.text(max_size=40), st.floats(0, 1), st.integers(0, 9))
def test_digits_signs_and_ends_never_change(text, share, seed):
    random = np.random.default_rng(seed)
    kept = [letter for letter in slip_letters(text, share, random) if not letter.isalpha()]
    assert kept == [letter for letter in text if not letter.isalpha()]
    shorter = drop_words(text, share, random)
    assert bool(shorter.strip()) == bool(text.strip())
    assert change_case("Ab", 0.0, random) == "Ab" and change_case("Ab", 1.0, random) in ("ab", "AB", "aB")


def scene(height, width, count, seed):
    """Rectangles on whole pixels, marked in every way there is."""
    random = np.random.default_rng(seed)
    corners = np.zeros((count, 4))
    masks = np.zeros((count, height, width), bool)
    for corner, mask in zip(corners, masks):
        left, top = random.integers(0, width), random.integers(0, height)
        right, bottom = random.integers(left + 1, width + 1), random.integers(top + 1, height + 1)
        corner[:] = left, top, right, bottom
        mask[top:bottom, left:right] = True
    return {
        "image": random.integers(0, 256, (height, width, 3)).astype(np.uint8),
        "boxes": images.from_corners(corners, (height, width)).astype(np.float32),
        "classes": np.arange(count),
        "masks": masks,
        "mask": masks.any(axis=0).astype(np.uint8),
    }


scenes = st.builds(scene, st.integers(2, 24), st.integers(2, 24), st.integers(0, 5), st.integers(0, 99))


@settings(max_examples=60, deadline=None)
@given(scenes, st.integers(0, 50))
def test_boxes_and_masks_agree_after_any_move(sample, seed):
    moved = images.augment_image(sample, MOVING, np.random.default_rng(seed), Location())
    height, width = size = sample["image"].shape[:2]
    assert moved["image"].shape == sample["image"].shape and moved["image"].dtype == np.uint8
    assert len(moved["classes"]) == len(moved["masks"]) == len(moved["boxes"]) and moved["boxes"].dtype == np.float32
    corners = images.to_corners(moved["boxes"].astype(np.float64), size)
    assert np.all(corners >= -1e-4) and np.all(corners <= np.array([width, height] * 2) + 1e-4)
    matrix = images.draw_matrix(MOVING, size, np.random.default_rng(seed))
    for (left, top, right, bottom), mask, name in zip(corners, moved["masks"], moved["classes"]):
        rows, columns = np.nonzero(mask)
        assert np.all((columns + 0.5 >= left - 1e-3) & (columns + 0.5 <= right + 1e-3))
        assert np.all((rows + 0.5 >= top - 1e-3) & (rows + 0.5 <= bottom + 1e-3))
        assert np.array_equal(mask, images.move_mask(sample["masks"][name], matrix, False))
        assert np.all(moved["mask"][mask] == 1)


@given(scenes)
def test_a_flip_is_exact(sample):
    flipped = images.augment_image(
        sample, STILL.model_copy(update={"augment_flip": 1.0}), np.random.default_rng(0), Location()
    )
    assert np.array_equal(flipped["image"], sample["image"][:, ::-1]) and np.array_equal(
        flipped["mask"], sample["mask"][:, ::-1]
    )
    assert np.allclose(flipped["boxes"][:, 0], 1 - sample["boxes"][:, 0], atol=1e-6)
    assert np.allclose(flipped["boxes"][:, 1:], sample["boxes"][:, 1:], atol=1e-6)


@pytest.mark.parametrize("quarter", [1, 2, 3])
def test_quarter_turns_of_a_square_are_exact(quarter):
    mask = np.random.default_rng(0).integers(0, 256, (7, 7)).astype(np.uint8)
    turned = images.move_mask(mask, images.rotation_matrix((7, 7), 90 * quarter), 0)
    assert np.array_equal(turned, np.rot90(mask, quarter))


def test_a_crop_of_half_the_size_shows_every_pixel_four_times():
    mask = np.arange(16).reshape(4, 4)
    moved = images.move_mask(mask, images.crop_matrix((4, 4), 1, 2, 2, 2), -1)
    assert np.array_equal(moved, np.kron(mask[2:4, 1:3], np.ones((2, 2), int)))


def test_what_comes_from_outside_is_filled():
    turned = images.move_mask(np.ones((9, 9), np.uint8), images.rotation_matrix((9, 9), 45), 7)
    assert turned[0, 0] == 7 and turned[4, 4] == 1
    assert (
        images.move_pixels(np.ones((9, 9, 3), np.uint8), images.rotation_matrix((9, 9), 45), 9)[0, 0].tolist()
        == [9] * 3
    )


def test_an_object_that_is_hardly_visible_goes_with_all_it_has():
    sample = scene(10, 10, 2, 0) | {"classes": [3, 4], "masks": np.zeros((2, 10, 10), bool)}
    sample["boxes"] = images.from_corners(np.array([[0, 0, 4, 10], [5, 0, 10, 10.0]]), (10, 10)).astype(np.float32)
    sample["masks"][0, :, :4], sample["masks"][1, :, 5:] = True, True
    custom = STILL.model_copy(update={"augment_visible": 0.3})
    moved = images.move(sample, sample["image"], images.crop_matrix((10, 10), 3, 0, 7, 10), custom, Location())
    assert moved["classes"] == [4] and moved["masks"].shape == (1, 10, 10) and len(sample["classes"]) == 2


def test_images_of_other_kinds_and_masks_of_other_sizes_are_errors():
    with pytest.raises(DataError, match="float32"):
        images.augment_image({"image": np.zeros((3, 4, 4), np.float32)}, STILL, np.random.default_rng(0), Location())
    with pytest.raises(DataError, match=r"mask is \[2, 2\]"):
        sample = {"image": np.zeros((4, 4, 3), np.uint8), "mask": np.zeros((2, 2), np.uint8)}
        images.augment_image(sample, MOVING, np.random.default_rng(0), Location())


def test_recoloring_leaves_transparency_alone():
    pixels = np.random.default_rng(0).integers(0, 256, (4, 4, 4)).astype(np.uint8)
    changed = images.recolor(pixels, 0.5, np.random.default_rng(1))
    assert np.array_equal(changed[:, :, 3], pixels[:, :, 3]) and not np.array_equal(changed[:, :, :3], pixels[:, :, :3])


def test_rescaling_resizes_images_and_masks_and_normalizes():
    image = np.random.default_rng(0).integers(0, 256, (4, 6, 3)).astype(np.uint8)
    sample = Rescaling((2, 3), (0.5, 0.4, 0.3), (0.2,))(
        {"image": image, "mask": np.eye(4, 6, dtype=np.int64), "boxes": [[0.5] * 4]}
    )
    assert (
        sample["pixel_values"].shape == (3, 2, 3) and sample["mask"].shape == (2, 3) and sample["boxes"] == [[0.5] * 4]
    )
    same = Rescaling(None, (0.5,), (0.5,))({"image": image})["pixel_values"]
    assert np.allclose(same, (image.transpose(2, 0, 1) / 255 - 0.5) / 0.5, atol=1e-6)
    with pytest.raises(DataError, match="2 values for 3 channels"):
        Rescaling(None, (0.5, 0.5), (1.0,))({"image": image})
