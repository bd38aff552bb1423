# SPDX-License-Identifier: Apache-2.0
"""`FILE.py:NAME` as data, as a format, as a function; errors show the user's line."""

from __future__ import annotations

import pickle
import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

from fewbit import registry
from fewbit.data.dataset import Dataset
from fewbit.data.opening import open_source, scan_source
from fewbit.data.types import SampleError
from fewbit.data.user_code import UserCodeError, load_function, parse_reference
from fewbit.errors import DataError, UsageError

CODE = """\
import json
import random
from helper import SCALE

rows = [{"x": 1}, {"x": 2}]

def samples():
    for number in range(3):
        yield {"x": number * SCALE, "r": random.random()}

def tiles(path, scale=1):
    for number, file in enumerate(sorted(path.glob("*.tile"))):
        yield {"pixels": int(file.read_text()) * scale, "label": number}

def broken(path):
    yield {"x": 1}
    raise RuntimeError("bad tile")

def library(path):
    yield {"x": 1}
    yield json.loads("{")  # the library raises, the user called it

def wrong(path):
    yield 5

def nothing(path):
    return []

def none(path):
    pass

def half(sample):
    return 1 / sample["x"]

def only_train(path, split=None):
    return [{"split": split}]
"""


@pytest.fixture
def tiles_folder(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "helper.py").write_text("SCALE = 10\n")
    folder = tmp_path / "tiles"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.tile").write_text(str(number + 10))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "helper", raising=False)
    yield folder
    sys.modules.pop("helper", None)


def elements(source):
    return [source[index] for index in range(len(source))]


def test_an_object_of_a_file_is_data(tiles_folder):
    assert elements(open_source("mine.py:rows")[0]) == [{"x": 1}, {"x": 2}]
    assert elements(open_source(f"{tiles_folder.parent}/mine.py:rows")[0]) == [{"x": 1}, {"x": 2}]


def test_a_function_without_a_parameter_is_data_the_same_in_every_pass(tiles_folder):
    first, second = (elements(open_source("mine.py:samples")[0]) for _ in range(2))
    assert [sample["x"] for sample in first] == [0, 10, 20] and first == second
    assert len({sample["r"] for sample in first}) == 3


def test_a_function_that_needs_a_path_says_how_to_give_it(tiles_folder):
    with pytest.raises(UsageError, match="missing a required argument: 'path'") as caught:
        open_source("mine.py:tiles")
    assert "--data-format FILE.py:tiles" in caught.value.text("cli")


def test_a_function_is_a_format(tiles_folder):
    source, report = open_source(tiles_folder, data_format="mine.py:tiles", data_option={"scale": 2})
    assert elements(source) == [{"pixels": 2 * (number + 10), "label": number} for number in range(3)]
    assert str(source.location(1)).endswith("tiles row 1") and "samples" not in report.facts  # not read to its end
    report = scan_source(tiles_folder, data_format="mine.py:tiles", depth="full")[1]
    assert report.ok and report.facts["samples"] == 3


def test_split_reaches_a_reader_that_takes_it_and_no_other(tiles_folder):
    assert open_source(tiles_folder, data_format="mine.py:only_train", split="train")[0][0] == {"split": "train"}
    assert len(open_source(tiles_folder, data_format="mine.py:tiles", split="train")[0]) == 3


def test_an_unknown_option_of_a_reader_is_an_error(tiles_folder):
    with pytest.raises(UsageError, match="unexpected keyword argument 'color'"):
        open_source(tiles_folder, data_format="mine.py:tiles", data_option={"color": 1})


def test_an_error_shows_file_line_and_source(tiles_folder):
    source, _ = open_source(tiles_folder, data_format="mine.py:broken")
    with pytest.raises(UserCodeError) as caught:
        source[1]
    assert str(caught.value) == (
        "error in your Python code: broken raised RuntimeError: bad tile [user-code]\n"
        "  where:    mine.py:17, in broken, sample 1\n"
        "  try:      correct the line shown\n"
        '      16 |     yield {"x": 1}\n'
        '    > 17 |     raise RuntimeError("bad tile")'
    )
    assert caught.value.to_dict()["source"][1] == '> 17 |     raise RuntimeError("bad tile")'
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_library_that_raises_counts_for_whoever_called_it(tiles_folder):
    source, _ = open_source(tiles_folder, data_format="mine.py:library")
    with pytest.raises(UserCodeError, match="JSONDecodeError") as caught:
        source[1]
    assert caught.value.where == "mine.py:21, in library, sample 1"


@pytest.mark.parametrize("name", ["broken", "wrong", "nothing"])
def test_a_full_check_reports_a_reader_that_fails(tiles_folder, name):
    report = scan_source(tiles_folder, data_format=f"mine.py:{name}", depth="full")[1]
    expected = {"broken": "user-code", "nothing": "no-samples"}.get(name)
    if expected:
        assert report.counts[expected] == 1
    else:
        with pytest.raises(SampleError, match="yields a int") as caught:
            open_source(tiles_folder, data_format="mine.py:wrong")[0][0]
        assert caught.value.code == "reader-yields"


def test_a_reader_that_returns_nothing(tiles_folder):
    with pytest.raises(SampleError, match="none returns nothing"):
        open_source(tiles_folder, data_format="mine.py:none")


def test_a_transform_is_a_function_that_names_its_line_and_travels(tiles_folder):
    half = load_function("mine.py:half", param="transform")
    again = pickle.loads(pickle.dumps(half))
    assert half({"x": 4}) == again({"x": 4}) == 0.25
    with pytest.raises(UserCodeError) as caught:
        Dataset([{"x": 0}], half)[0]
    assert caught.value.where == "mine.py:33, in half"


def test_a_file_that_fails_shows_its_line(tiles_folder):
    (tiles_folder.parent / "late.py").write_text("x = 1\ny = x / 0\n")
    (tiles_folder.parent / "syntax.py").write_text("x = 1\ndef f(:\n")
    with pytest.raises(UserCodeError, match="ZeroDivisionError") as caught:
        open_source("late.py:x")
    assert caught.value.where == "late.py:2"
    with pytest.raises(UserCodeError, match="SyntaxError") as caught:
        open_source("syntax.py:f")
    assert caught.value.where == "syntax.py:2"


def test_a_file_is_loaded_once_until_it_changes_and_leaves_nothing_behind(tiles_folder):
    path, modules = list(sys.path), set(sys.modules)
    first = load_function("mine.py:rows", param="data")
    assert load_function("mine.py:rows", param="data") is first
    (tiles_folder.parent / "mine.py").write_text("rows = [1, 2, 3, 4]\n")
    assert load_function("mine.py:rows", param="data") == [1, 2, 3, 4]
    assert sys.path == path and not list(tiles_folder.parent.glob("__pycache__"))
    assert {name for name in set(sys.modules) - modules if not name.startswith("fewbit")} <= {"helper"}


def test_names_that_are_not_there(tiles_folder):
    with pytest.raises(UsageError, match="defines no 'samplse'") as caught:
        open_source("mine.py:samplse")
    assert "samples" in caught.value.expected
    with pytest.raises(UsageError, match=r"no file 'gone\.py'"):
        open_source("gone.py:samples")
    with pytest.raises(UsageError, match="names no Python object"):
        load_function("mine.py", param="transform")
    with pytest.raises(UsageError, match="not a dataset format"):
        open_source(tiles_folder, data_format="mine.py:rows")
    with pytest.raises(DataError, match="no file or folder"):
        open_source("tilse", data_format="mine.py:tiles")


@pytest.mark.parametrize(
    "text", ["https://host/mine.py:rows", "hf://datasets/a/mine.py:rows", "mine.py", "a.csv", "x:y"]
)
def test_code_comes_only_from_files_on_this_machine(text):
    assert parse_reference(text) is None


def test_an_entry_point_adds_a_format(tiles_folder, monkeypatch):
    from fewbit.data.formats.text import FORMAT

    module = ModuleType("their_package")
    module.FORMAT = FORMAT
    monkeypatch.setitem(sys.modules, "their_package", module)
    point = EntryPoint("tiles", "their_package:FORMAT", "fewbit.data_formats")

    def entry_points(group, name=None):
        return [point] if group == "fewbit.data_formats" and name in (None, "tiles") else []

    monkeypatch.setattr(registry, "entry_points", entry_points)
    registry.names.cache_clear()
    try:
        assert registry.get("data_formats", "tiles") is FORMAT
        (tiles_folder.parent / "a.txt").write_text("text\n")
        assert open_source(tiles_folder.parent / "a.txt", data_format="tiles")[0][0] == {"text": "text\n"}
    finally:
        monkeypatch.undo()
        registry.names.cache_clear()
        registry._load.cache_clear()


def test_a_format_object_of_a_file_is_a_format(tiles_folder):
    (tiles_folder.parent / "own.py").write_text("from fewbit.data.formats.text import FORMAT\n")
    (tiles_folder.parent / "a.txt").write_text("text\n")
    assert open_source("a.txt", data_format="own.py:FORMAT")[0][0] == {"text": "text\n"}
