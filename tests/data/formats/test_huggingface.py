# SPDX-License-Identifier: Apache-2.0
import datasets
import numpy as np
import pytest
from PIL import Image

import fewbit
from fewbit.data.formats import huggingface
from fewbit.errors import DataError, UsageError


def table(n=4, **columns):
    return datasets.Dataset.from_dict({"text": [f"t{i}" for i in range(n)], "label": list(range(n)), **columns})


def test_a_dataset_is_samples_with_random_access():
    dataset = fewbit.Dataset(table())
    assert (len(dataset), dict(dataset[2]), dataset.batched) == (4, {"text": "t2", "label": 2}, False)
    assert dataset.facts["format"] == "huggingface"


def test_a_dataset_dict_has_splits():
    both = datasets.DatasetDict({"train": table(3), "test": table(2)})
    assert len(fewbit.Dataset(both)) == 5
    test = fewbit.open_dataset(both, split="test")
    assert len(test) == 2 and str(test[1].place) == "test, sample 1"
    assert test.facts["splits"] == {"train": 3, "test": 2}
    with pytest.raises(UsageError, match="did you mean 'test'"):
        fewbit.open_dataset(both, split="tset")


def test_an_iterable_dataset_is_a_stream_that_can_be_read_again():
    dataset = fewbit.Dataset(table().to_iterable_dataset())
    assert [s["label"] for s in dataset] == [s["label"] for s in dataset] == [0, 1, 2, 3]
    assert [s["label"] for s in dataset.subset(2)] == [0, 1]
    with pytest.raises(TypeError, match="length"):
        len(dataset)


def test_a_saved_folder_is_recognised(tmp_path):
    table().save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"train": table(2)}).save_to_disk(str(tmp_path / "dict"))
    assert [len(fewbit.open_dataset(tmp_path / name)) for name in ("one", "dict")] == [4, 2]
    report = fewbit.check_dataset(tmp_path / "one")
    assert report.ok and report.understood["samples"] == 4


def test_a_broken_saved_folder_is_a_finding(tmp_path):
    table().save_to_disk(str(tmp_path / "one"))
    for arrow in (tmp_path / "one").glob("*.arrow"):
        arrow.write_bytes(b"garbage")
    report = fewbit.check_dataset(tmp_path / "one")
    assert report.counts == {"folder-broken": 1}
    with pytest.raises(DataError, match="cannot load this folder"):
        fewbit.open_dataset(tmp_path / "one")


def test_class_names_and_pictures():
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    picture = Image.fromarray(np.full((2, 3), 7, np.uint8))
    rows = datasets.Dataset.from_list([{"image": picture, "label": 1}], features=features)
    dataset = fewbit.Dataset(rows)
    assert dataset.classes == ["cat", "dog"]
    assert dataset[0]["image"].shape == (2, 3, 3) and dataset[0]["image"].dtype == np.uint8


def test_splits_with_different_columns_are_told():
    both = datasets.DatasetDict({"train": table(3), "test": table(2, extra=[1, 2])})
    assert fewbit.check_dataset(both).counts == {"columns-differ": 1}


def test_an_empty_dataset_is_an_error():
    assert fewbit.check_dataset(table(0)).counts == {"no-samples": 1}


@pytest.fixture
def no_hub(monkeypatch):
    monkeypatch.setattr(huggingface, "_hub_answers", lambda: True)
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: (_ for _ in ()).throw(ConnectionError("offline")))


def test_a_hub_name_offline_is_a_clear_error(no_hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="no file or folder 'openai/gsm8k' here, and the hub") as caught:
        fewbit.open_dataset("openai/gsm8k")
    assert caught.value.code == "hub-unreachable" and "save_to_disk" in caught.value.try_
    with pytest.raises(DataError, match="the hub gave no such dataset"):
        fewbit.open_dataset("imdb", format="huggingface")


def test_a_hub_name_works_where_the_library_reaches_it(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    asked = {}

    def load_dataset(name, **options):
        asked.update(name=name, **options)
        return datasets.DatasetDict({"train": table(2)})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(huggingface, "_hub_answers", lambda: True)
    dataset = fewbit.open_dataset("openai/gsm8k", split="train", revision="main")
    assert len(dataset) == 2 and asked == {"name": "openai/gsm8k", "revision": "main"}


def test_without_a_network_it_is_said_at_once(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "https://127.0.0.1:9")
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: pytest.fail("asked the library"))
    with pytest.raises(DataError, match="no network to look for it"):
        fewbit.open_dataset("openai/gsm8k")


def test_a_misspelt_folder_is_never_taken_for_a_hub_name(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "train").mkdir(parents=True)
    with pytest.raises(UsageError, match="there is no file or folder 'data/trian'") as caught:
        fewbit.open_dataset("data/trian")
    assert "train" in caught.value.expected
