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
