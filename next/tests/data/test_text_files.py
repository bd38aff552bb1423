# SPDX-License-Identifier: Apache-2.0
"""Plain text and Markdown as documents."""

from __future__ import annotations

import gzip
import pickle
import zipfile

import pytest

from fewbit.data.formats import text
from fewbit.data.opening import open_source, scan_source
from fewbit.errors import DataError, UsageError

WIKI = ["", " = Cats = \n", "", " Cats sleep . \n", " = = Food = = \n", " Fish . \n", " = Dogs = \n"]
WIKI.append(" Dogs = bark . \n")
ARTICLES = [" = Cats = \n Cats sleep . \n = = Food = = \n Fish . \n", " = Dogs = \n Dogs = bark . \n"]


def texts(path, **options):
    source, _ = open_source(path, **options)
    return [source[index]["text"] for index in range(len(source))]


def test_a_file_is_a_document_and_a_folder_is_its_files(tmp_path):
    (tmp_path / "b.txt").write_text("w12\nw13\n")
    (tmp_path / "a.md").write_text("\ufeff# w10 w11\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c.rst").write_text("w14")
    assert texts(tmp_path) == ["# w10 w11\n", "w12\nw13\n", "w14"]
    source, report = open_source(tmp_path)
    assert report.data_format == "text" and str(source.location(1)) == "b.txt:1"
    assert source.strata() == ["a.md", "b.txt", "sub/c.rst"]
    assert texts(tmp_path / "b.txt") == ["w12\nw13\n"]


def test_check_and_use_read_the_same_corpus(tmp_path):
    (tmp_path / "corpus.txt").write_text("one line\n\nanother one\n")
    used = texts(tmp_path / "corpus.txt")
    source, report = scan_source(tmp_path / "corpus.txt", depth="full")
    assert report.ok and report.facts["samples"] == 1 and [source[0]["text"]] == used


def test_lines_of_wikitext_become_articles(tmp_path):
    (tmp_path / "wiki.train.raw").write_text("".join(WIKI))
    assert texts(tmp_path / "wiki.train.raw") == ARTICLES
    assert texts(tmp_path / "wiki.train.raw", data_option={"documents": "file"}) == ["".join(ARTICLES)]
    source, _ = open_source(tmp_path / "wiki.train.raw")
    assert source.location(1).line == 5


def test_paragraphs_and_lines(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n\n\n  \nthree\n")
    assert texts(tmp_path / "a.txt", data_option={"documents": "paragraph"}) == ["one\ntwo\n", "three\n"]
    assert texts(tmp_path / "a.txt", data_option={"documents": "line"}) == ["one\n", "two\n", "three\n"]
    source, _ = open_source(tmp_path / "a.txt", data_option={"documents": "line"})
    assert [source.location(index).line for index in range(3)] == [1, 2, 6]
    with pytest.raises(UsageError, match="cannot be a 'paragrph'") as caught:
        texts(tmp_path / "a.txt", data_option={"documents": "paragrph"})
    assert caught.value.expected == "paragraph"


def test_long_text_is_cut_at_lines_and_a_long_line_at_spaces(tmp_path):
    content = "w10 w11 é12\n" * 50_000
    (tmp_path / "long.txt").write_text(content)
    documents = texts(tmp_path / "long.txt")
    assert len(documents) == 3 and "".join(documents) == content
    assert all(document.endswith("\n") for document in documents)
    assert all(len(document) <= text.LONGEST + 12 for document in documents)
    (tmp_path / "line.txt").write_text("日本 " * 300_000)
    documents = texts(tmp_path / "line.txt")
    assert "".join(documents) == "日本 " * 300_000 and len(documents) > 3
    assert all(document.endswith(" ") for document in documents)


def test_splits_by_file_name(tmp_path):
    for name in ("validation.txt", "train.txt", "other.txt"):
        (tmp_path / name).write_text(name)
    assert texts(tmp_path) == ["train.txt", "validation.txt", "other.txt"]
    assert open_source(tmp_path)[0].facts["splits"] == {"train": 1, "val": 1}
    assert texts(tmp_path, split="val") == ["validation.txt"]


def test_text_that_is_not_utf8(tmp_path):
    (tmp_path / "latin.txt").write_bytes("ok\ncaf\u00e9\n".encode("latin-1"))
    with pytest.raises(DataError, match="not in the text's encoding") as caught:
        texts(tmp_path / "latin.txt")
    assert "latin.txt:2" in caught.value.where
    assert texts(tmp_path / "latin.txt", data_option={"encoding": "latin-1"}) == ["ok\ncafé\n"]
    (tmp_path / "good.txt").write_text("fine")
    assert texts(tmp_path, on_error="drop") == ["fine"]


def test_utf16_nul_bytes_and_packed_files(tmp_path):
    (tmp_path / "a.txt").write_text("one é", encoding="utf-16")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"two\n"))
    assert texts(tmp_path) == ["one é", "two\n"]
    (tmp_path / "c.txt").write_bytes(b"a\0b\n")
    assert scan_source(tmp_path)[1].counts == {"nul-byte": 1}


def test_empty_files_are_told(tmp_path):
    (tmp_path / "a.txt").write_text("\n \n")
    assert scan_source(tmp_path / "a.txt")[1].counts == {"empty-file": 1, "no-samples": 1}


def test_inside_a_zip_and_in_another_process(tmp_path):
    with zipfile.ZipFile(tmp_path / "notes.zip", "w") as archive:
        archive.writestr("notes/a.txt", "one\n")
        archive.writestr("notes/b.md", "two\n")
    assert texts(tmp_path / "notes.zip") == ["one\n", "two\n"]
    source, _ = open_source(tmp_path / "notes.zip")
    assert pickle.loads(pickle.dumps(source))[1] == {"text": "two\n"}


def test_label_files_and_readmes_are_no_documents(tmp_path):
    from fewbit.data.files import Folder

    (tmp_path / "README.md").write_text("x")
    (tmp_path / "data.csv").write_text("x")
    assert text.detect(Folder(tmp_path)).confidence < 0.5
    (tmp_path / "1.jpg").write_bytes(b"")
    (tmp_path / "1.txt").write_text("0 0.5 0.5 1 1")
    assert text.detect(Folder(tmp_path)).confidence < 0.5
