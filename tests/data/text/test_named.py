# SPDX-License-Identifier: Apache-2.0
"""The usual sets by name, and plain text: from files, from the cache of `datasets`, never from the network."""

import json

import pytest

from fewbit.data.formats import huggingface
from fewbit.data.text import as_inputs, open_text
from fewbit.errors import DataError, UsageError
from word_tokenizer import ids, make_tokenizer, takes

LINES = [
    "",
    " = Cats = \n",
    "",
    " Cats sleep . \n",
    " = = Food = = \n",
    " Fish . \n",
    " = Dogs = \n",
    " Dogs = bark . \n",
]
ARTICLES = [" = Cats = \n Cats sleep . \n = = Food = = \n Fish . \n", " = Dogs = \n Dogs = bark . \n"]


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """No hub, an empty cache, an empty folder."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(huggingface, "_hub_answers", lambda: False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.delenv("FEWBIT_WIKITEXT", raising=False)
    monkeypatch.chdir(tmp_path)


def texts(data):
    return [row["text"] for row in open_text(data)]


def test_lines_become_articles_from_rows_and_from_plain_text(tmp_path, monkeypatch):
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"text": line}) for line in LINES))
    (tmp_path / "wiki.train.raw").write_text("".join(LINES))
    assert texts("wikitext=rows.jsonl") == ARTICLES == texts("wikitext=wiki.train.raw")
    assert texts("wiki.train.raw") == ["".join(ARTICLES)]
    monkeypatch.setenv("FEWBIT_WIKITEXT", str(tmp_path / "rows.jsonl"))
    assert texts("wikitext") == ARTICLES


def test_a_folder_of_that_name_is_the_set(tmp_path):
    (tmp_path / "pileval").mkdir()
    (tmp_path / "pileval" / "val.jsonl").write_text('{"text": "one", "meta": {}}\n{"text": "two", "meta": {}}\n')
    assert texts("pileval") == ["one", "two"]


def test_the_cache_of_the_library_is_enough(tmp_path):
    from datasets import Dataset

    place = tmp_path / "cache" / "Salesforce___wikitext" / "wikitext-2-raw-v1" / "0.0.0" / "abc"
    for part, some in enumerate((LINES[:4], LINES[4:])):
        Dataset.from_dict({"text": some}).save_to_disk(tmp_path / f"part{part}")
        place.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"part{part}" / "data-00000-of-00001.arrow").rename(
            place / f"wikitext-train-0000{part}-of-00002.arrow"
        )
    assert texts("wikitext") == ARTICLES


def test_a_set_that_is_nowhere_says_what_to_do():
    with pytest.raises(DataError) as caught:
        open_text("pileval")
    said = str(caught.value)
    assert "pileval=PATH" in said and "FEWBIT_PILEVAL" in said and "mit-han-lab/pile-val-backup" in said
    with pytest.raises(UsageError, match=r"no file or folder 'gone\.jsonl'"):
        open_text("pileval=gone.jsonl")


def test_plain_text_is_a_dataset(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "b.txt").write_text("w12\nw13\n")
    (tmp_path / "notes" / "a.md").write_text("\ufeffw10 w11\n")
    assert texts("notes") == ["w10 w11\n", "w12\nw13\n"]
    assert ids(as_inputs("notes", make_tokenizer(), takes(), seqlen=3)) == [[10, 11, 2], [12, 13, 2]]
    (tmp_path / "latin.txt").write_bytes("caf\u00e9".encode("latin-1"))
    with pytest.raises(DataError, match="not UTF-8"):
        texts("latin.txt")


def test_long_plain_text_is_cut_into_documents_at_lines(tmp_path):
    (tmp_path / "long.txt").write_text("w10 w11 w12\n" * 50_000)
    found = texts("long.txt")
    assert len(found) > 2 and "".join(found) == "w10 w11 w12\n" * 50_000 and all(each.endswith("\n") for each in found)


@pytest.mark.parametrize("data", [None, ["a"], "gone.jsonl", "wiki=x"])
def test_everything_else_is_left_to_others(data):
    assert open_text(data) is data
