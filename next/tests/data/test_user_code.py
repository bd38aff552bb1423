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
from fewbit.data.user_code import UserCodeError, load_function, parse_reference
from fewbit.errors import DataError, UsageError

SENSORS = """\
import json, random
from units import KELVIN

readings = [{"t": 1 * KELVIN}, {"t": 2 * KELVIN}]

def noisy():
    yield from ({"t": number, "noise": random.random()} for number in range(3))

def logs(folder, factor=1):
    return ({"t": factor * float(log.read_text())} for log in sorted(folder.iterdir()))

def fails_late(folder):
    yield {"t": 0}
    raise RuntimeError("sensor unplugged")

def fails_in_a_library(folder):
    yield json.loads("{")

def yields_numbers(folder):
    yield 20.5

def returns_an_empty_list(folder):
    return []

def returns_nothing(folder):
    pass

def takes_a_split(folder, split=None):
    return [{"split": split}]

def inverse(sample):
    return 1 / sample["t"]
"""


def line_of(text):
    """The number of the line that contains a text."""
    return next(number for number, line in enumerate(SENSORS.splitlines(), 1) if text in line)


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    """A folder with the user's file, one that it imports, and data in `week/`; it is the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sensors.py").write_text(SENSORS)
    (tmp_path / "units.py").write_text("KELVIN = 100\n")
    (tmp_path / "week").mkdir()
    for day in ("mon", "tue"):
        (tmp_path / "week" / f"{day}.log").write_text("20.5")
    yield tmp_path
    sys.modules.pop("units", None)


def read(data, reader=None, **options):
    source, _ = open_source(data, data_format=reader and f"sensors.py:{reader}", **options)
    return [source[index] for index in range(len(source))]


def test_an_object_or_a_function_of_a_file_is_data(project):
    assert read("sensors.py:readings") == read(f"{project}/sensors.py:readings") == [{"t": 100}, {"t": 200}]
    samples = read("sensors.py:noisy")
    assert len({sample["noise"] for sample in samples}) == 3 and samples == read("sensors.py:noisy")  # in every pass


def test_a_function_is_a_format():
    assert read("week", "logs", data_option={"factor": 2}) == [{"t": 41.0}, {"t": 41.0}]
    source, report = open_source("week", data_format="sensors.py:logs")
    assert str(source.location(1)) == "week row 1" and "samples" not in report.facts  # not read to its end
    report = scan_source("week", data_format="sensors.py:logs", depth="full")[1]
    assert report.ok and report.facts["samples"] == 2


def test_options_reach_a_reader_that_takes_them():
    assert read("week", "takes_a_split", split="train") == [{"split": "train"}]
    assert len(read("week", "logs", split="train")) == 2  # a split it cannot know about is not forced on it
    with pytest.raises(UsageError, match="unexpected keyword argument 'color'"):
        read("week", "logs", data_option={"color": 1})
    with pytest.raises(UsageError, match="missing a required argument: 'folder'") as caught:
        read("sensors.py:logs")
    assert "--data-format FILE.py:logs" in caught.value.text("cli")


def test_an_error_shows_file_line_and_source():
    source, _ = open_source("week", data_format="sensors.py:fails_late")
    with pytest.raises(UserCodeError) as caught:
        source[1]
    line = line_of("unplugged")
    assert str(caught.value) == (
        "error in your Python code: fails_late raised RuntimeError: sensor unplugged [user-code]\n"
        f"  where:    sensors.py:{line}, in fails_late, sample 1\n"
        "  try:      correct the line shown\n"
        f'      {line - 1} |     yield {{"t": 0}}\n'
        f'    > {line} |     raise RuntimeError("sensor unplugged")'
    )
    assert caught.value.to_dict()["source"][1].startswith(f"> {line} | ")
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_library_that_raises_counts_for_whoever_called_it():
    with pytest.raises(UserCodeError, match="JSONDecodeError") as caught:
        read("week", "fails_in_a_library")
    assert caught.value.where == f"sensors.py:{line_of('json.loads')}, in fails_in_a_library, sample 0"


@pytest.mark.parametrize(
    ("reader", "code"),
    [
        ("fails_late", "user-code"), ("yields_numbers", "reader-yields"), ("returns_nothing", "reader-yields"),
        ("returns_an_empty_list", "no-samples"),
    ],
)  # fmt: skip
def test_a_reader_that_fails_is_named_by_reading_and_by_checking(reader, code):
    with pytest.raises(DataError) as caught:
        read("week", reader)
    assert caught.value.code == code
    if reader != "returns_nothing":
        assert scan_source("week", data_format=f"sensors.py:{reader}", depth="full")[1].counts[code] == 1


def test_a_transform_names_its_line_and_travels():
    inverse = load_function("sensors.py:inverse", param="transform")
    assert inverse({"t": 4}) == pickle.loads(pickle.dumps(inverse))({"t": 4}) == 0.25
    with pytest.raises(UserCodeError) as caught:
        Dataset([{"t": 0}], inverse)[0]
    assert caught.value.where == f"sensors.py:{line_of('1 / sample')}, in inverse"


@pytest.mark.parametrize(("code", "error"), [("x = 1\ny = x / 0\n", "ZeroDivision"), ("x = 1\ndef f(:\n", "Syntax")])
def test_a_file_that_fails_shows_its_line(project, code, error):
    (project / "late.py").write_text(code)
    with pytest.raises(UserCodeError, match=f"{error}Error") as caught:
        open_source("late.py:x")
    assert caught.value.where == "late.py:2"


def test_a_file_is_loaded_once_until_it_changes_and_leaves_nothing_behind(project):
    path, modules = list(sys.path), set(sys.modules)
    first = load_function("sensors.py:readings", param="data")
    assert load_function("sensors.py:readings", param="data") is first
    (project / "sensors.py").write_text("readings = [1, 2, 3, 4]\n")
    assert load_function("sensors.py:readings", param="data") == [1, 2, 3, 4]
    assert sys.path == path and not list(project.glob("__pycache__"))
    assert {name for name in set(sys.modules) - modules if not name.startswith("fewbit")} <= {"units"}


@pytest.mark.parametrize(
    ("data", "data_format", "message"),
    [
        ("sensors.py:readigns", None, "defines no 'readigns'"), ("gone.py:readings", None, r"no file 'gone\.py'"),
        ("week", "sensors.py:readings", "not a dataset format"), ("weak", "sensors.py:logs", "no file or folder"),
    ],
)  # fmt: skip
def test_names_that_are_not_there(data, data_format, message):
    with pytest.raises((UsageError, DataError), match=message) as caught:
        open_source(data, data_format=data_format)
    assert "readings" in caught.value.expected or "readigns" not in data
    with pytest.raises(UsageError, match="names no Python object"):
        load_function("sensors.py", param="transform")


@pytest.mark.parametrize("text", ["https://host/mine.py:rows", "hf://datasets/a/mine.py:rows", "mine.py", "x:y"])
def test_code_comes_only_from_files_on_this_machine(text):
    assert parse_reference(text) is None


def test_a_package_and_a_file_of_the_user_can_define_a_format(project, monkeypatch):
    from fewbit.data.formats.text import FORMAT

    (project / "a.txt").write_text("text\n")
    (project / "own.py").write_text("from fewbit.data.formats.text import FORMAT\n")
    assert read("a.txt") == [{"text": "text\n"}]
    assert open_source("a.txt", data_format="own.py:FORMAT")[0][0] == {"text": "text\n"}
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
        assert open_source("a.txt", data_format="tiles")[0][0] == {"text": "text\n"}
    finally:
        monkeypatch.undo()
        registry.names.cache_clear()
        registry._load.cache_clear()
