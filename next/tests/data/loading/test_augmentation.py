# SPDX-License-Identifier: Apache-2.0
"""Augmentation and rescaling: by seed, epoch and position; never of what is learned; boxes and masks move along."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.data.loading import augmentation, generate_dataset_config
from fewbit.data.loading.augmentation import Rescaling, augment_image, change_case, drop_words, move, slip_letters
from fewbit.data.loading.config import CustomConfig
from fewbit.data.loading.prepare import prepare
from fewbit.errors import DataError, UsageError

PROMPTS = [{"prompt": f"What is the sum of {n} and {n}, and why?\n", "completion": f"It is {2 * n}."} for n in range(8)]
NOISY = {"augment_characters": 0.2, "augment_words": 0.2}


def read(rows, epoch=0, split="train", **custom):
    view = prepare(generate_dataset_config(rows, ["augmentation"], custom), split).view
    return [view.get(index, epoch) for index in range(len(view))]


def test_prompts_change_by_seed_epoch_and_position_and_answers_never():
    first = read(PROMPTS, **NOISY)
    assert first == read(PROMPTS, **NOISY)
    assert first != read(PROMPTS, epoch=1, **NOISY) and first != read(PROMPTS, seed=1, **NOISY)
    assert [sample["completion"] for sample in first] == [row["completion"] for row in PROMPTS]
    assert sum(sample["prompt"] != row["prompt"] for sample, row in zip(first, PROMPTS)) >= 6
    assert all(sample["prompt"].endswith("\n") for sample in read(PROMPTS, augment_words=0.9))


def test_validation_rows_stay_as_they_are():
    rows = read(PROMPTS, split="validation", validation_ratio=0.3, **NOISY)
    assert rows and all(row in PROMPTS for row in rows)


def test_which_texts_change():
    strong = {"augment_characters": 0.5}
    labeled = {"text": "a rather good film, all in all", "label": 1}
    assert read([labeled], **strong)[0]["text"] != labeled["text"]
    learned = {"text": "every word of this is learned"}
    with pytest.raises(UsageError, match="nothing to change"):
        read([learned])
    assert read([learned], augment_columns=["text"], **strong)[0] != learned
    chat = [{"role": "user", "content": "hello there, my friend"}, {"role": "assistant", "content": "good day"}]
    user, assistant = read([{"messages": chat}], **strong)[0]["messages"]
    assert user["content"] != chat[0]["content"] and assistant == chat[1]


@given(st.text(max_size=40), st.floats(0, 1), st.integers(0, 9))
def test_digits_and_signs_never_change_and_a_word_remains(text, share, seed):
    random = np.random.default_rng(seed)
    signs = [letter for letter in text if not letter.isalpha()]
    assert [letter for letter in slip_letters(text, share, random) if not letter.isalpha()] == signs
    assert bool(drop_words(text, share, random).strip()) == bool(text.strip())
    assert change_case("Ab", 0.0, random) == "Ab" and change_case("Ab", 1.0, random) in ("ab", "AB", "aB")


def test_texts_that_grow_are_still_truncated():
    rows = [{"text": "letters to double", "label": 1}] * 4
    custom = {"tokenizer": "bytes", "max_length": len("letters to double"), "augment_characters": 1.0, "seed": 1}
    view = prepare(generate_dataset_config(rows, ["augmentation", "tokenization", "truncation"], custom)).view
    lengths = [len(view.get(index, epoch)["input_ids"]) for index in range(4) for epoch in range(20)]
    assert max(lengths) == custom["max_length"]


def scene(height, width, count, seed):
    """Rectangles on whole pixels, as boxes and as masks."""
    random = np.random.default_rng(seed)
    masks = np.zeros((count, height, width), bool)
    boxes = np.zeros((count, 4), np.float32)
    for box, mask in zip(boxes, masks):
        (left, right), (top, bottom) = (np.sort(random.choice(size + 1, 2, replace=False)) for size in (width, height))
        mask[top:bottom, left:right] = True
        box[:] = (
            (left + right) / 2 / width,
            (top + bottom) / 2 / height,
            (right - left) / width,
            (bottom - top) / height,
        )
    image = random.integers(0, 256, (height, width, 3)).astype(np.uint8)
    mask = masks.any(axis=0).astype(np.uint8)
    return {"image": image, "boxes": boxes, "classes": np.arange(count), "masks": masks, "mask": mask}


scenes = st.builds(scene, st.integers(2, 24), st.integers(2, 24), st.integers(0, 5), st.integers(0, 99))


@settings(max_examples=60, deadline=None)
@given(scenes, st.integers(0, 50))
def test_boxes_and_masks_agree_after_any_move(sample, seed):
    custom = CustomConfig(augment_flip_vertical=0.5, augment_crop=0.5)
    moved = augment_image(sample, custom, np.random.default_rng(seed))
    height, width = sample["image"].shape[:2]
    assert moved["image"].shape == sample["image"].shape and moved["image"].dtype == np.uint8
    assert len(moved["classes"]) == len(moved["masks"]) == len(moved["boxes"]) and moved["boxes"].dtype == np.float32
    for (x, y, box_width, box_height), mask in zip(moved["boxes"], moved["masks"]):
        rows, columns = np.nonzero(mask)
        assert np.all(np.abs((columns + 0.5) / width - x) <= box_width / 2 + 1e-5)
        assert np.all(np.abs((rows + 0.5) / height - y) <= box_height / 2 + 1e-5)
        assert np.all(moved["mask"][mask] == 1)


@given(scenes)
def test_a_flip_is_exact(sample):
    height, width = sample["image"].shape[:2]
    flipped = move(sample, (0, 0, height, width), (1, -1))
    assert np.array_equal(flipped["image"], sample["image"][:, ::-1])
    assert np.array_equal(flipped["mask"], sample["mask"][:, ::-1])
    assert np.allclose(flipped["boxes"], sample["boxes"] * [-1, 1, 1, 1] + [1, 0, 0, 0], atol=1e-6)


def test_a_window_is_enlarged_and_hidden_objects_go_with_all_their_fields():
    sample = scene(4, 4, 0, 0) | {"mask": np.arange(16).reshape(4, 4), "masks": np.zeros((2, 4, 4), bool)}
    sample |= {"boxes": np.array([[0.25, 0.75, 0.5, 0.5], [0.75, 0.25, 0.5, 0.5]]), "classes": [3, 4]}
    moved = move(sample, (2, 0, 2, 2), (1, 1))
    assert np.array_equal(moved["mask"], np.kron(sample["mask"][2:, :2], np.ones((2, 2), int)))
    assert moved["classes"].tolist() == [3] and moved["boxes"].tolist() == [[0.5, 0.5, 1, 1]]
    assert len(moved["masks"]) == 1 and len(sample["classes"]) == 2


def test_other_kinds_of_images_and_masks_of_other_sizes_are_errors():
    with pytest.raises(DataError, match="float32"):
        augment_image({"image": np.zeros((3, 4, 4), np.float32)}, CustomConfig(), np.random.default_rng(0))
    with pytest.raises(DataError, match=r"mask is \[2, 2\]"):
        move({"image": np.zeros((4, 4, 3), np.uint8), "mask": np.zeros((2, 2))}, (0, 0, 4, 4), (1, 1))


@pytest.mark.parametrize("shape", [(4, 4), (4, 4, 1), (4, 4, 3), (4, 4, 4)])
def test_recoloring_leaves_transparency_alone(shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    changed = augmentation.recolor(pixels, 0.5, np.random.default_rng(1))
    assert changed.shape == shape and not np.array_equal(changed, pixels)
    assert len(shape) == 2 or np.array_equal(changed[..., 3:], pixels[..., 3:])


def test_rescaling_resizes_images_and_masks_and_normalizes():
    image = np.random.default_rng(0).integers(0, 256, (4, 6, 3)).astype(np.uint8)
    row = {"image": image, "mask": np.eye(4, 6, dtype=np.int64), "boxes": [[0.5] * 4]}
    custom = {"image_size": [2, 3], "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2]}
    sample = prepare(generate_dataset_config([row], ["rescaling"], custom)).view.get(0)
    assert sample["pixel_values"].shape == (3, 2, 3) and sample["mask"].shape == (2, 3)
    assert np.array_equal(sample["boxes"], row["boxes"])
    same = Rescaling(None, (0.5,), (0.5,))({"image": image})["pixel_values"]
    assert np.allclose(same, (image.transpose(2, 0, 1) / 255 - 0.5) / 0.5, atol=1e-6)
    with pytest.raises(DataError, match="2 values for 3 channels"):
        Rescaling(None, (0.5, 0.5), (1.0,))({"image": image})
