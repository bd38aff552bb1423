# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from fewbit import registry
from fewbit.errors import UsageError

BUILT_IN = {"image_folder", "yolo", "rows", "npz", "huggingface", "objects"}


def test_a_file_is_a_member():
    assert set(registry.names("formats")) >= BUILT_IN
    assert registry.get("formats", "npz").__name__ == "fewbit.data.formats.npz"


def test_a_folder_with_a_contract_is_a_kind():
    assert registry.kinds()["formats"] == "fewbit.data.formats"
    assert {"onnx", "torch", "openvino"} <= set(registry.names("signatures"))


def test_machinery_is_not_a_member():
    assert not [name for kind in registry.kinds() for name in registry.names(kind) if name.startswith("_")]


def test_listing_imports_no_member():
    code = "import sys; from fewbit import registry; registry.names('formats'); registry.summary('formats', 'npz');"
    code += "print([m for m in sys.modules if m.startswith('fewbit.data.formats.')])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.mark.parametrize("kind", registry.kinds())
def test_every_member_says_in_a_line_what_it_is(kind):
    for name in registry.names(kind):
        assert 10 < len(registry.summary(kind, name)) < 130


def test_a_miss_lists_near_matches():
    with pytest.raises(UsageError, match="did you mean 'yolo'"):
        registry.get("formats", "yollo")
    with pytest.raises(UsageError, match="did you mean 'formats'"):
        registry.names("format")


def test_entry_points_add_members(monkeypatch):
    point = EntryPoint("tiles", "json:loads", "fewbit.formats")
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == "fewbit.formats" else [])
    assert "tiles" in registry.names("formats")
    assert registry.get("formats", "tiles").__name__ == "loads"
    assert "json:loads" in registry.summary("formats", "tiles")


def test_a_reference_loads_the_users_own_function(tmp_path):
    (tmp_path / "mine.py").write_text("def reader(path):\n    return 41 + 1\n")
    assert registry.load_reference(f"{tmp_path}/mine.py:reader")(None) == 42


def test_an_edited_file_is_read_again(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def reader():\n    return 1\n")
    assert registry.load_reference(f"{file}:reader")() == 1
    file.write_text("def reader():\n    return 22222\n")
    import os

    os.utime(file, ns=(1, 1))
    assert registry.load_reference(f"{file}:reader")() == 22222


def test_the_last_colon_splits_so_that_a_drive_letter_survives():
    assert registry.is_reference("C:\\data\\mine.py:reader")
    assert not registry.is_reference("rows")
    assert not registry.is_reference("file.py")


def test_a_reference_that_is_wrong_says_what_is_there(tmp_path):
    (tmp_path / "mine.py").write_text("def reader(path):\n    pass\n")
    with pytest.raises(UsageError, match="did you mean 'reader'"):
        registry.load_reference(f"{tmp_path}/mine.py:raeder")
    with pytest.raises(UsageError, match="no file"):
        registry.load_reference(f"{tmp_path}/other.py:reader")


def test_an_error_inside_the_users_file_comes_out_as_it_is(tmp_path):
    # Peers turn an AttributeError raised in user code into "method not present".
    (tmp_path / "mine.py").write_text("import math\nmath.no_such_function()\n")
    with pytest.raises(AttributeError, match="no_such_function"):
        registry.load_reference(f"{tmp_path}/mine.py:reader")


@pytest.fixture
def projects(tmp_path, monkeypatch):
    """Two folders whose files import a file and a package beside them, of the same names in both."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    for name in ("a", "b"):
        folder = tmp_path / name
        (folder / "own_parts").mkdir(parents=True)
        (folder / "own_parts" / "__init__.py").write_text("")
        (folder / "own_parts" / "deep.py").write_text(f"NAME = '{name} deep'\n")
        (folder / "own_helper.py").write_text(f"NAME = '{name}'\n\n\ndef fails():\n    raise ValueError(NAME)\n")
        (folder / f"late_{name}.py").write_text(f"NAME = 'late {name}'\n")
        (folder / "mine.py").write_text(
            "import own_helper\nimport own_parts.deep\nfrom own_helper import fails\n\n\n"
            "def names():\n    return own_helper.NAME, own_parts.deep.NAME\n\n\n"
            f"def late():\n    import late_{name}\n\n    return late_{name}.NAME\n"
        )
    return tmp_path


def test_a_file_imports_what_lies_beside_it(projects):
    assert registry.load_reference(f"{projects}/a/mine.py:names")() == ("a", "a deep")
    assert registry.load_reference(f"{projects}/a/mine.py:late")() == "late a"


def test_files_of_two_folders_import_their_own(projects):
    first = registry.load_reference(f"{projects}/a/mine.py:names")
    second = registry.load_reference(f"{projects}/b/mine.py:names")
    assert first() == ("a", "a deep") and second() == ("b", "b deep")


def test_what_the_process_has_imported_stays_its_own(projects):
    sys.path.insert(0, str(projects / "a"))
    import own_helper  # the caller's, by an import of their own
    import own_parts.deep

    before = list(sys.path)
    assert registry.load_reference(f"{projects}/b/mine.py:names")() == ("b", "b deep")
    assert sys.modules["own_helper"] is own_helper and sys.modules["own_parts.deep"] is own_parts.deep
    assert sys.path == [*before, str(projects / "b")]
    assert registry.load_reference(f"{projects}/a/mine.py:own_helper") is own_helper
    assert sys.path == [*before, str(projects / "b")]


def test_a_file_beside_with_the_name_of_a_library_leaves_the_library_alone(projects):
    import numpy

    for name in ("numpy.py", "json.py", "fewbit.py", "__main__.py"):
        (projects / "a" / name).write_text("raise AssertionError('imported')\n")
    (projects / "a" / "mine.py").write_text("import json\nimport numpy\nimport fewbit.errors\n")
    assert registry.load_reference(f"{projects}/a/mine.py:numpy") is numpy


def test_a_file_that_does_not_load_leaves_the_names_as_they_were(projects):
    registry.load_reference(f"{projects}/a/mine.py:names")
    before = dict(sys.modules)
    (projects / "b" / "mine.py").write_text("import own_helper\n1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        registry.load_reference(f"{projects}/b/mine.py:names")
    assert sys.modules == before


def test_whose_a_module_is(projects):
    fails = registry.load_reference(f"{projects}/a/mine.py:fails")
    assert registry.is_users(fails.__module__, fails.__code__.co_filename)
    deep = sys.modules["own_parts.deep"]
    assert registry.is_users(deep.__name__, deep.__file__)
    assert not registry.is_users("own_helper", str(projects / "b" / "own_helper.py"))
    assert not registry.is_users(pytest.__name__, pytest.__file__)
    assert not registry.is_users("fewbit.registry", registry.__file__)
