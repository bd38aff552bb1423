# SPDX-License-Identifier: Apache-2.0
"""Rules of image folders, and defects of other readers, asked through the public verbs alone."""

import shutil

import numpy as np
import pytest
from PIL import Image

import fewbit


@pytest.fixture
def put(tmp_path):
    """Writes noise as a picture under a relative name; every picture differs from every other."""
    noise = np.random.default_rng(0)

    def write(name, **options):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.integers(0, 256, (24, 16, 3), np.uint8)).save(path, **options)
        return path

    return write


def test_defect_timm_957_an_empty_folder_in_val_shifts_no_index(tmp_path, put):
    for name in ("train/a/1.png", "train/b/2.png", "train/c/3.png", "val/a/4.png", "val/c/5.png"):
        put(name)
    (tmp_path / "val/b").mkdir()
    assert [sample["label"] for sample in fewbit.open_dataset(tmp_path, split="val")] == [0, 2]


def test_defect_a_split_opened_alone_counts_its_classes_like_train(tmp_path, put):
    for name in ("train/a/1.png", "train/b/2.png", "train/c/3.png", "val/c/4.png"):
        put(name)
    dataset = fewbit.open_dataset(tmp_path, split="val")
    assert dataset.classes == ["a", "b", "c"] and dataset[0]["label"] == 2


def test_defect_torchvision_makes_classes_of_system_folders(tmp_path, put):
    for name in ("a/1.png", "b/2.png", ".ipynb_checkpoints/3.png", "__MACOSX/4.png", "a/.ipynb_checkpoints/5.png"):
        put(name)
    for name in (".DS_Store", "a/._1.png", "b/Thumbs.db"):
        (tmp_path / name).write_bytes(b"x")
    report = fewbit.check_dataset(tmp_path)
    assert report.understood["classes"] == ["a", "b"] and report.understood["images"] == 2 and not report.findings


def test_defect_torchvision_refuses_an_empty_class(tmp_path, put):
    put("a/1.png")
    put("c/2.png")
    (tmp_path / "b").mkdir()
    assert [sample["label"] for sample in fewbit.open_dataset(tmp_path)] == [0, 2]


def test_defect_pillow_and_torchvision_leave_a_photo_on_its_side(tmp_path, put):
    exif = Image.Exif()
    exif[0x0112] = 6
    put("a/1.jpg", exif=exif)
    put("b/2.png")
    lying, upright = fewbit.open_dataset(tmp_path)
    assert lying["image"].shape == (16, 24, 3) and upright["image"].shape == (24, 16, 3)


def test_defect_pillow_clips_sixteen_bits_to_two_levels(tmp_path, put):
    put("b/1.png")
    (tmp_path / "a").mkdir()
    grey = np.linspace(0, 65535, 400).astype(np.uint16).reshape(20, 20)
    Image.fromarray(grey).save(tmp_path / "a/1.png")
    image = fewbit.open_dataset(tmp_path)[0]["image"]
    assert len(np.unique(image)) == 256
    assert np.abs(image[..., 0].astype(float) - grey / 257).max() <= 1


def test_defect_dropping_alpha_shows_the_hidden_colour(tmp_path, put):
    put("b/1.png")
    (tmp_path / "a").mkdir()
    Image.new("RGBA", (16, 16), (200, 10, 10, 0)).save(tmp_path / "a/1.png")
    assert np.unique(fewbit.open_dataset(tmp_path)[0]["image"]).tolist() == [255]
    assert np.unique(fewbit.open_dataset(tmp_path, background=(0, 0, 0))[0]["image"]).tolist() == [0]


def test_defect_verify_passes_a_truncated_jpeg(tmp_path, put):
    put("b/1.png")
    path = put("a/1.jpg", quality=95)
    path.write_bytes(path.read_bytes()[:-200])
    with Image.open(path) as image:
        image.verify()
    assert [str(finding.place) for finding in fewbit.check_dataset(tmp_path).errors] == ["a/1.jpg"]


def test_rule_a_class_that_val_has_and_train_has_not_is_an_error(tmp_path, put):
    for name in ("train/a/1.png", "train/b/2.png", "val/a/3.png", "val/d/4.png"):
        put(name)
    assert [str(finding.place) for finding in fewbit.check_dataset(tmp_path).errors] == ["val/d"]
    assert len(fewbit.open_dataset(tmp_path, split="train")) == 2  # nothing of val is read
    for split in ("val", None):
        with pytest.raises(fewbit.errors.DataError, match="'d'"):
            fewbit.open_dataset(tmp_path, split=split)


def test_rule_images_without_classes_are_opened_and_said_to_be(tmp_path, put):
    for index in range(8):
        put(f"{index}.jpg")
    dataset = fewbit.open_dataset(tmp_path)
    assert len(dataset) == 8 and set(dataset[0]) == {"image"} and not dataset.classes
    assert [finding.code for finding in fewbit.check_dataset(tmp_path).findings] == ["no-classes"]


def test_rule_numeric_names_are_warned_about_among_others(tmp_path, put):
    for name in ("10/1.png", "2/1.png", "Zebra/1.png", "apple/1.png"):
        put(name)
    assert [finding.code for finding in fewbit.check_dataset(tmp_path).warnings] == ["class-numeric"]


def test_rule_leakage_across_splits_and_classes_at_once_is_a_warning(tmp_path, put):
    for name in ("train/a/1.png", "train/b/2.png", "val/a/3.png", "val/b/4.png"):
        put(name)
    shutil.copy(tmp_path / "train/a/1.png", tmp_path / "val/b/copy.png")
    report = fewbit.check_dataset(tmp_path)
    assert report.ok and {str(finding.place) for finding in report.warnings} == {"val/b/copy.png"}
