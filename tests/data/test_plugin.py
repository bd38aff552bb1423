# SPDX-License-Identifier: Apache-2.0
from importlib.metadata import EntryPoint

import pytest

import fewbit
from fewbit import registry
from fewbit.errors import DataError, UsageError

READER = """
def tiles(path, scale=1):
    for number, line in enumerate(sorted(path.glob("*.tile"))):
        yield {"pixels": int(line.read_text()) * scale, "label": number}

def broken(path):
    yield {"x": 1}
    raise RuntimeError("bad tile")

def wrong(path):
    yield 5

def nothing(path):
    return []

def none(path):
    pass
"""


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "mine.py").write_text(READER)
    folder = tmp_path / "tiles"
    folder.mkdir()
    for i in range(3):
        (folder / f"{i}.tile").write_text(str(i + 10))
    return lambda function: {"path": folder, "format": f"{tmp_path}/mine.py:{function}"}


def test_a_function_is_a_format(mine):
    dataset = fewbit.open_dataset(**mine("tiles"), scale=2)
    assert [dict(s) for s in dataset] == [{"pixels": 2 * (i + 10), "label": i} for i in range(3)]
    assert list(dataset) == list(dataset)
    report = fewbit.check_dataset(**mine("tiles"))
    assert report.ok and report.understood["samples"] == 3


@pytest.mark.parametrize(
    ("function", "code"), [("broken", "reader-failed"), ("wrong", "reader-yields"), ("nothing", "no-samples")]
)
def test_a_function_that_fails_is_a_finding(mine, function, code):
    assert fewbit.check_dataset(**mine(function)).counts == {code: 1}


def test_a_failing_reader_names_the_sample(mine):
    with pytest.raises(DataError, match="broken raised RuntimeError: bad tile") as caught:
        list(fewbit.open_dataset(**mine("broken")))
    assert caught.value.where.startswith("sample 1, ") and caught.value.where.endswith("mine.py:8")


def test_a_function_that_is_called_wrongly_is_not_blamed_on_our_files(mine):
    for function, options in (("none", {}), ("tiles", {"colour": 1})):
        with pytest.raises(DataError) as caught:
            list(fewbit.open_dataset(**mine(function), **options))
        assert caught.value.where == "sample 0, when it was called"


def test_an_entry_point_adds_a_format(mine, monkeypatch):
    import sys
    from types import ModuleType

    module = ModuleType("their_package")
    exec(READER, vars(module))  # noqa: S102
    monkeypatch.setitem(sys.modules, "their_package", module)
    point = EntryPoint("tiles", "their_package:tiles", "fewbit.formats")
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == "fewbit.formats" else [])
    assert len(list(fewbit.open_dataset(mine("tiles")["path"], format="tiles"))) == 3


def test_a_plugin_that_cannot_be_loaded_stops_only_those_who_name_it(tmp_path, monkeypatch):
    point = EntryPoint("tiles", "no_such_package:tiles", "fewbit.formats")
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == "fewbit.formats" else [])
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n')
    with pytest.warns(UserWarning, match="'tiles' cannot be loaded"):
        assert len(fewbit.open_dataset(tmp_path / "a.jsonl")) == 1
    with pytest.raises(ModuleNotFoundError):
        fewbit.open_dataset(tmp_path / "a.jsonl", format="tiles")


def test_something_else_is_not_a_format(mine):
    with pytest.raises(UsageError, match="defines no 'READER'"):
        fewbit.open_dataset(**mine("READER"))
