# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fewbit.data.config import generate_dataset_config
from fewbit.data.steps.rescaling import Rescaling
from fewbit.errors import DataError, UsageError


def picture(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def test_bytes_become_numbers_around_zero_with_the_channels_first():
    image, mean, std = picture(5, 4), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    made = Rescaling(None, mean, std)({"image": image, "label": 2})
    expected = (image.astype(np.float64) / 255 - mean) / std
    assert "image" not in made and made["label"] == 2 and made["pixel_values"].dtype == np.float32
    assert np.allclose(made["pixel_values"], expected.transpose(2, 0, 1), atol=1e-6)


def test_the_size_is_that_of_pillow():
    image = picture(9, 14)
    made = Rescaling((6, 7), (0.0,), (1.0,))({"image": image})["pixel_values"]
    expected = np.asarray(Image.fromarray(image).resize((7, 6), Image.Resampling.BILINEAR)) / 255
    assert made.shape == (3, 6, 7) and np.allclose(made, expected.transpose(2, 0, 1), atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(old=st.tuples(st.integers(1, 20), st.integers(1, 20)), new=st.tuples(st.integers(1, 20), st.integers(1, 20)))
def test_of_each_pixel_of_a_mask_the_nearest_old_one_stays(old, new):
    mask = np.arange(old[0] * old[1]).reshape(old)
    sample = {"image": picture(*old), "mask": mask, "masks": mask[None] % 2 == 0, "boxes": np.ones((1, 4))}
    made = Rescaling(new, (0.0,), (1.0,))(sample)
    for row in range(new[0]):
        for column in range(new[1]):
            y, x = int((row + 0.5) * old[0] / new[0]), int((column + 0.5) * old[1] / new[1])
            assert made["mask"][row, column] == mask[y, x]
            assert made["masks"][0, row, column] == (mask[y, x] % 2 == 0)
    assert np.array_equal(made["boxes"], sample["boxes"]) and made["pixel_values"].shape == (3, *new)


def test_a_sample_without_a_picture_stays_as_it_is_and_what_is_no_picture_is_refused():
    assert Rescaling(None, (0.0,), (1.0,))({"x": 1}) == {"x": 1}
    with pytest.raises(DataError, match="float64"):
        Rescaling(None, (0.0,), (1.0,))({"image": np.zeros((2, 2, 3))})
    with pytest.raises(DataError, match="2 numbers"):
        Rescaling(None, (0.0, 0.0), (1.0,))({"image": picture(2, 2)})


def test_its_keys_are_checked_and_it_comes_after_augmentation():
    rows = [{"image": picture(4, 4), "label": 0}]
    with pytest.raises(UsageError) as error:
        generate_dataset_config(rows, ["rescaling"], {"image_size": 0, "image_std": [0.0], "image_maen": [0.5]})
    for said in ("image_size=0", "image_std=[0.0]", "'image_mean'"):
        assert said in str(error.value)
    with pytest.raises(UsageError, match="'augmentation', which has to come first"):
        generate_dataset_config(rows, ["rescaling", "augmentation"])


def test_so_many_samples_of_each_split():
    rows = [{"text": f"row {number}"} for number in range(40)]
    counts = {"train": 7, "validation": 3}
    config = generate_dataset_config(rows, ["sampling"], {"sampling_counts": counts, "validation_ratio": 0.25})
    assert len(config.open("train")) == 7 and len(config.open("validation")) == 3 and len(config.open(None)) == 40
    chosen = [row["text"] for row in config.open("train")]
    assert chosen == [row["text"] for row in config.open("train")] and chosen != [row["text"] for row in rows[:7]]
    with pytest.raises(UsageError, match="another number"):
        generate_dataset_config(rows, ["sampling"], {"sampling_counts": counts, "sampling_count": 3})
