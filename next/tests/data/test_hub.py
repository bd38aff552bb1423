# SPDX-License-Identifier: Apache-2.0
"""Hub names and named corpora: from files, from the cache of `datasets`, never from the network."""

from __future__ import annotations

import json
import socket

import pytest

from fewbit.data import hub
from fewbit.data.opening import open_source, scan_source
from fewbit.errors import DataError, UsageError

datasets = pytest.importorskip("datasets")
datasets.disable_progress_bars()
LINES = [
    "", " = Cats = \n", "", " Cats sleep . \n", " = = Food = = \n", " Fish . \n", " = Dogs = \n", " Dogs = bark . \n",
]  # fmt: skip
ARTICLES = [" = Cats = \n Cats sleep . \n = = Food = = \n Fish . \n", " = Dogs = \n Dogs = bark . \n"]


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    """No hub, an empty cache, an empty folder."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "https://127.0.0.1:9")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: pytest.fail("asked the library"))
    monkeypatch.chdir(tmp_path)


def table(count=2):
    return datasets.Dataset.from_dict({"text": [f"t{number}" for number in range(count)]})


def texts(data, **options):
    source, _ = open_source(data, **options)
    return [source[index]["text"] for index in range(len(source))]


@pytest.mark.parametrize("name", ["openai/gsm8k", "hf:openai/gsm8k", "hf:imdb@main"])
def test_without_a_network_it_is_said_at_once_with_the_ways_out(name):
    with pytest.raises(DataError, match="cannot be reached") as caught:
        open_source(name)
    message = str(caught.value)
    assert caught.value.code == "hub-unreachable" and "save_to_disk" in message and "HF_HUB_OFFLINE" in message
    assert ("no file or folder" in message) == (not name.startswith("hf:"))


def test_the_hub_is_tried_once_for_three_seconds(monkeypatch):
    tried = []

    def connect(address, timeout):
        tried.append((address, timeout))
        raise OSError

    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.delenv("HF_ENDPOINT")
    assert not hub.hub_reachable() and tried == [(("huggingface.co", 443), 3)]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # the library looks into its own cache
    assert hub.hub_reachable() and len(tried) == 1


@pytest.fixture
def requests(monkeypatch):
    """A hub that answers with two splits; what it was asked for."""
    asked = []

    def load_dataset(*names, **options):
        asked.append((*names, options["revision"]))
        if names[0] == "openai/broken":
            raise ConnectionError("no such dataset\nand more")
        rows = datasets.Dataset.from_dict({"text": LINES}) if names[0] == "Salesforce/wikitext" else table(3)
        return datasets.DatasetDict({"train": rows, "test": table(1)})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(hub, "hub_reachable", lambda: True)
    return asked


def test_a_name_is_loaded_where_the_hub_answers(requests):
    assert len(open_source("openai/gsm8k", split="train", data_option={"config": "main"})[0]) == 3
    source, report = open_source("hf:imdb@v1.0")
    assert source.facts["splits"] == {"train": 3, "test": 1} and report.source == "hf:imdb@v1.0"
    assert len(open_source("imdb", data_format="huggingface")[0]) == 4
    assert texts("wikitext") == ARTICLES  # the last resort of a corpus
    assert requests == [
        ("openai/gsm8k", "main", None), ("imdb", None, "v1.0"), ("imdb", None, None),
        ("Salesforce/wikitext", "wikitext-2-raw-v1", None),
    ]  # fmt: skip
    with pytest.raises(DataError, match="no such dataset") as caught:
        open_source("openai/broken")
    assert isinstance(caught.value.__cause__, ConnectionError)
    with pytest.raises(UsageError, match="no option 'colour'"):
        open_source("openai/gsm8k", data_option={"colour": 1})


def test_code_of_the_hub_is_refused_and_not_left_to_a_default(monkeypatch):
    asked = {}

    def load_dataset(path, name=None, revision=None, trust_remote_code=None):  # as before version 4
        asked.update(trust_remote_code=trust_remote_code)
        return table(3)

    monkeypatch.setattr(hub, "hub_reachable", lambda: True)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    open_source("openai/gsm8k")
    assert asked == {"trust_remote_code": False}


@pytest.mark.parametrize("name", ["data/trian", "new/train.csv", "rows.jsonl", "./org/name", "a/b/c", "wiki=x"])
def test_a_misspelt_path_is_never_taken_for_a_hub_name(tmp_path, name):
    (tmp_path / "data" / "train").mkdir(parents=True)
    with pytest.raises(DataError, match="there is no file or folder") as caught:
        open_source(name)
    assert caught.value.code == "data-missing"


def test_a_folder_of_that_name_wins(tmp_path):
    (tmp_path / "openai" / "gsm8k").mkdir(parents=True)
    (tmp_path / "openai" / "gsm8k" / "a.txt").write_text("here\n")
    assert texts("openai/gsm8k") == ["here\n"]


# Named corpora (claim 0.8, B112).


def test_lines_become_articles_from_rows_and_from_plain_text(tmp_path):
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"text": line}) for line in LINES))
    (tmp_path / "wiki.train.raw").write_text("".join(LINES))
    assert texts("wikitext=rows.jsonl") == ARTICLES == texts("wikitext=wiki.train.raw")
    source, report = scan_source("wikitext=rows.jsonl", depth="full")
    assert report.ok and report.source == "wikitext=rows.jsonl"  # blank lines belong to the corpus
    assert source.location(1).line == 7


def test_a_folder_of_that_name_is_the_corpus(tmp_path):
    (tmp_path / "pileval").mkdir()
    (tmp_path / "pileval" / "val.jsonl").write_text('{"text": "one", "meta": {}}\n{"text": "two", "meta": {}}\n')
    assert texts("pileval") == ["one", "two"] == texts("pileval=pileval/val.jsonl")


def test_the_cache_of_the_library_is_enough(tmp_path):
    folder = tmp_path / "cache" / "Salesforce___wikitext" / "wikitext-2-raw-v1" / "0.0.0" / "abc"
    folder.mkdir(parents=True)
    for number, lines in enumerate((LINES[:4], LINES[4:])):
        datasets.Dataset.from_dict({"text": lines}).save_to_disk(str(tmp_path / f"part{number}"))
        saved = tmp_path / f"part{number}" / "data-00000-of-00001.arrow"
        saved.rename(folder / f"wikitext-train-0000{number}-of-00002.arrow")
    datasets.Dataset.from_dict({"text": ["other"]}).save_to_disk(str(tmp_path / "test"))
    (tmp_path / "test" / "data-00000-of-00001.arrow").rename(folder / "wikitext-test.arrow")
    (folder / "dataset_info.json").write_text("{}")
    assert texts("wikitext") == ARTICLES


def test_a_corpus_that_is_nowhere_has_three_ways_out():
    with pytest.raises(DataError) as caught:
        open_source("pileval")
    message = caught.value.text("cli")
    assert "--data pileval=PATH" in message and "a file or folder called pileval" in message
    assert "load_dataset('mit-han-lab/pile-val-backup'" in message
    with pytest.raises(DataError, match=r"no file or folder 'gone\.jsonl'"):
        open_source("pileval=gone.jsonl")
