# SPDX-License-Identifier: Apache-2.0
"""Where the tools that went before break, by the letters of the guide; what others own has its tests beside it."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from drawn_shapes import write_folder, write_yolo
from fewbit.data.dataset import Dataset, open_dataset
from fewbit.errors import DataError, UsageError
from fewbit.record import Record
from fewbit.sparsity.choosing import find_use_case
from fewbit.sparsity.material import gather
from fewbit.sparsity.opening import Network
from fewbit.sparsity.recipe import Recipe
from fewbit.sparsity.said import Said
from fewbit.sparsity.verb import sparsify
from sparse_examples import classifier, digest, encoder, rated, with_zeros

pytest.importorskip("accelerate")


def gathered(model, data, use_case=None, mode="one-shot", validation=None, **options):
    """What a call works with, without carrying anything out."""
    from fewbit.data.findings import Progress

    case = None if use_case is None else find_use_case(use_case)
    told = Record("sparsify")
    said = Said.read(options, mode)
    found = gather(Network(model), data, validation, case, said, samples=8, record=told, progress=Progress())
    return found, told


def feeds(found, **options):
    """What a run would learn from and judge by, as the numbers of samples."""
    from fewbit.tuning.opening import open_data
    from fewbit.tuning.options import Options

    given = {"shuffle": False, **options}
    opened = open_data(found.data, found.validation, Options.read(given), given=set(given), device=torch.device("cpu"))

    def count(feed):
        return 0 if feed is None else sum(len(part.items) for part in feed.epoch(0))

    return count(opened.train), count(opened.validation)


# (b): every documented name of a use case is one: tests/sparsity/use_cases/test_members.py


def test_c_json_lines_are_read(tmp_path):
    folder = tmp_path / "rows"
    folder.mkdir()
    rated(folder / "train.jsonl", 12)
    rated(folder / "val.jsonl", 6)
    model = _encoder(tmp_path)
    found, _ = gathered(model, folder, "sentiment_analysis")
    assert feeds(found) == (12, 6)


@pytest.mark.parametrize(
    ("name", "split"),
    [("constraints_val.csv", "val"), ("interval_test.csv", "test"), ("latest.csv", None), ("training_dev.csv", "val")],
)
def test_c_splits_are_told_by_whole_words(tmp_path, name, split):
    (tmp_path / name).write_text("text,label\na,b\n")
    (tmp_path / "train.csv").write_text("text,label\nc,d\n")
    found = open_dataset(tmp_path).facts["splits"]
    assert set(found) == {"train", split or "unsplit"} or (split is None and set(found) <= {"train", "unsplit", "all"})


def test_d_an_arbitrary_yaml_is_not_taken_for_the_description_and_nothing_is_written(tmp_path):
    folder = write_yolo(tmp_path / "shapes", train=4, val=2)
    (folder / "a_hyperparameters.yaml").write_text("lr: 0.1\nmosaic: 1.0\n")
    before = digest(folder)
    found, _ = gathered(_Detects(), folder, "detection")
    assert found.classes == ["disc", "square", "triangle"]
    assert feeds(found) == (4, 2) and digest(folder) == before


def test_d_outlines_lie_where_yolo_puts_them_and_become_masks(tmp_path):
    folder = write_yolo(tmp_path / "shapes", train=3, val=1, outlines=True)
    found, _ = gathered(_Detects(), folder, "segmentation", image_size=16)
    sample = next(iter(found.data.open("train")))
    assert sample["pixel_values"].shape == (3, 16, 16) and sample["masks"].shape[1:] == (16, 16)
    inside = sample["masks"].any(axis=0)
    assert 0.02 < inside.mean() < 0.5  # a disc of a seventh to a quarter of the side


def test_e_numbers_of_samples_hold_for_learning_judging_and_looking(tmp_path):
    folder = write_folder(tmp_path / "shapes", train=30, val=12)
    for mode in ("one-shot", "training-aware"):
        found, _ = gathered(classifier(), folder, "ic", mode, train_samples=10, val_samples=5)
        assert feeds(found) == (10, 5)
    assert len(found.calibration) == 8  # of the ten
    found, _ = gathered(classifier(), folder, "ic", validation=str(folder / "val"), val_samples=4)
    assert feeds(found)[1] == 4


def test_e_the_number_to_judge_by_reaches_the_recipe_and_the_record(tmp_path):
    folder = write_folder(tmp_path / "shapes", train=12, val=6)
    small = {"max_steps": 2, "batch_size": 6, "device": "cpu", "tensorboard": False}
    given = with_zeros(classifier())
    result = sparsify(given, folder, mode="sparse-transfer", optim_level=0, eval_metric="loss", **small)
    facts = result.fewbit_record.facts
    assert facts["recipe"]["stages"][0]["train"]["options"]["judge_by"] == "loss"
    assert facts["train"]["runs"][0]["options"]["judge_by"] == "loss"
    assert facts["metric"] == "loss" and facts["after"]["metric"]["name"] == "loss"
    with pytest.raises(UsageError, match="mAP"):
        sparsify(classifier(), folder, use_case="ic", eval_metric="mAP")


def test_f_data_is_checked_whole_before_anything_is_done(tmp_path):
    folder = write_folder(tmp_path / "shapes", train=12, val=6)
    broken = next((folder / "train" / "disc").glob("*.png"))
    broken.write_bytes(broken.read_bytes()[:60])
    for mode in ("one-shot", "training-aware", "sparse-transfer"):
        with pytest.raises(DataError) as error:
            sparsify(classifier(), folder, mode=mode, use_case="ic")
        assert broken.name in str(error.value) and "fewbit check" in error.value.try_
    found, told = gathered(classifier(), folder, "ic", policy="drop")
    assert any(line["what"].startswith("data-image") for line in told.lines)
    assert feeds(found)[0] == 11


def test_f_rows_that_are_no_json_are_named_with_their_line(tmp_path):
    path = rated(tmp_path / "rows.jsonl", 6)
    path.write_text(path.read_text() + '{"text": "w10", "label": \n')
    with pytest.raises(DataError, match=r"rows\.jsonl:7"):
        sparsify(_encoder(tmp_path), path, use_case="sentiment_analysis")


def test_k_a_schedule_is_a_value_and_never_an_expression():
    with pytest.raises(UsageError, match="is an expression"):
        Recipe.from_yaml("stages: [{train: {final: 'calc(0.5 * steps)'}}]")


def test_p_classes_have_the_same_numbers_in_every_split_whatever_the_seed(tmp_path):
    for split, names in (("train", ("bird", "cat", "dog")), ("val", ("dog",))):
        for number, name in enumerate(names):
            place = tmp_path / split / name
            place.mkdir(parents=True)
            for each in range(3):
                pixels = np.full((8, 8, 3), 40 * number + each, np.uint8)
                Image.fromarray(pixels).save(place / f"{each}.png")
    for split, expected in (("train", [0, 0, 0, 1, 1, 1, 2, 2, 2]), ("val", [2, 2, 2])):
        assert [sample["label"] for sample in open_dataset(tmp_path, split=split)] == expected
    found, _ = gathered(classifier(), tmp_path, "ic", seed=7)
    labels = [sample["label"] for sample in found.data.open("train")]
    assert labels == [0, 0, 0, 1, 1, 1, 2, 2, 2] and found.classes == ["bird", "cat", "dog"]
    assert [sample["label"] for sample in found.validation.open("validation")] == [2, 2, 2]


def test_p_what_one_shot_looks_at_is_of_all_classes(tmp_path):
    """The first files are all of one class; those that are looked at are not, and are the same in every run."""
    for number, name in enumerate(("a", "b", "c")):
        (tmp_path / name).mkdir()
        for each in range(12):
            shade = np.full((8, 8, 3), 100 * number + each, np.uint8)
            Image.fromarray(shade).save(tmp_path / name / f"{each}.png")
    shades = []
    for _ in range(2):
        looked = gathered(classifier(), tmp_path)[0].calibration
        shades.append(sorted({round(float(sample["input"].mean() * 2.55)) for sample in looked}))
    assert shades[0] == shades[1] == [0, 1, 2]


def test_r_labels_are_numbered_in_the_order_of_the_data_and_follow_what_the_user_says(tmp_path):
    path = rated(tmp_path / "rows.csv", 12)
    found, _ = gathered(_encoder(tmp_path), path, "sentiment_analysis")
    assert found.classes == ["negative", "neutral", "positive"]
    order = ["positive", "neutral", "negative"]
    found, _ = gathered(_encoder(tmp_path), path, "sentiment_analysis", classes=order)
    assert found.classes == order
    numbers = tmp_path / "numbers.jsonl"
    numbers.write_text("".join(json.dumps({"text": f"w{20 + n}", "label": n}) + "\n" for n in (10, 9, 2, 0, 1)))
    found, _ = gathered(_encoder(tmp_path, 11), numbers, "sentiment_analysis", validation_ratio=0.0)
    assert found.classes == ["0", "1", "2", "9", "10"]  # and not "10" before "2"
    assert [sample["labels"] for sample in found.data.open("train")] == [4, 3, 2, 0, 1]


class _Detects(torch.nn.Module):
    """Something that takes pictures."""

    def forward(self, pixel_values):
        return pixel_values


def _encoder(folder, classes=3):
    from fewbit.modules.opening import open_model

    place = folder / f"model{classes}"
    return open_model(place if place.exists() else encoder(place, num_labels=classes))


def test_a_dataset_that_is_open_is_taken_as_it_is(tmp_path):
    folder = write_folder(tmp_path / "shapes", train=12, val=0)
    found, _ = gathered(classifier(), Dataset(str(folder)), "ic", image_size=[16, 24])
    assert next(iter(found.calibration))["input"].shape == (3, 16, 24)
    assert found.preprocessing["size"] == [16, 24]


def test_a_few_samples_of_objects_are_drawn_and_of_streams_the_first():
    batches = [{"x": torch.zeros(1, 3, 8, 8), "labels": torch.tensor([number // 20])} for number in range(60)]

    def labels(data, **more):
        found, told = gathered(classifier(), data, "ic", train_samples=12, **more)
        return [int(each["labels"]) for each in Dataset(found.data)], [line["what"] for line in told.lines]

    drawn, told = labels(batches)
    assert len(drawn) == 12 and set(drawn) == {0, 1, 2} and "first-samples" not in told
    assert labels(batches)[0] == drawn != labels(batches, seed=1)[0]

    class Stream:
        def __iter__(self):
            return iter(batches)

    first, told = labels(Stream())
    assert first == [0] * 12 and "first-samples" in told


def test_texts_that_a_function_of_the_users_makes_numbers_of_need_no_tokenizer(tmp_path):
    """As the refusal of texts itself proposes: what it names is not refused again."""
    (tmp_path / "own.py").write_text(
        "def counted(row):\n    return {'x': [float(len(row['text']))], 'labels': 0}\n\n\ncounted.KIND = 'texts'\n"
    )
    rows = [{"text": f"word {number}", "label": "a"} for number in range(8)]
    with pytest.raises(UsageError, match="no tokenizer") as told:
        gathered(classifier(), rows, "text_classification")
    assert "'file.py:function'" in told.value.try_
    found, _ = gathered(classifier(), rows, f"{tmp_path / 'own.py'}:counted")
    assert len(found.calibration) == 7 and next(iter(found.calibration))["x"] == [6.0]  # one is kept aside
