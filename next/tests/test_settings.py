# SPDX-License-Identifier: Apache-2.0
import os
from collections.abc import Mapping
from enum import Enum

import pytest

from fewbit.errors import UsageError
from fewbit.settings import Settings, SettingsError, named, read_file, read_mapping, set_by_path


class Kind(Enum):
    int4 = 1
    int8 = 2


class Spec(Settings):
    dtype: named(Kind, i8="int8") | None = None
    group_size: int | None = None
    symmetric: bool = True

    def contradictions(self):
        if self.group_size is not None and self.dtype is Kind.int8:
            return [("group_size", "int8 has no groups")]
        return []


class Layers(Settings):
    weight: Spec | None = None
    layers: Mapping[str, Spec] = {}


def test_all_errors_at_once_with_paths_and_near_names():
    with pytest.raises(SettingsError) as caught:
        Layers.from_dict(
            {
                "weigth": {},
                "weight": {"dtype": "int44", "group_size": "x", "symmetric": "yes", "group_sise": 1},
                "layers": {"*.fc1": {"dtype": "int8", "group_size": 32}},
            }
        )
    problems = dict(caught.value.problems)
    assert problems["weigth"] == "unknown setting; did you mean 'weight'?"
    assert problems["weight.dtype"] == "unknown Kind 'int44'; did you mean 'int4' or 'int8'?"
    assert problems["weight.group_size"] == "expected a valid integer, got 'x'"
    assert problems["weight.symmetric"] == "expected a valid boolean, got 'yes'"
    assert problems["weight.group_sise"] == "unknown setting; did you mean 'group_size'?"
    assert problems['layers["*.fc1"].group_size'] == "int8 has no groups"
    assert len(problems) == 6


def test_round_trip_and_fingerprint():
    config = Layers(weight=Spec(dtype="int4", group_size=32), layers={"a": Spec(dtype=Kind.int8)})
    again = Layers.from_yaml(config.to_yaml())
    assert again == config and again.fingerprint() == config.fingerprint()
    assert config.to_dict() == {"weight": {"dtype": "int4", "group_size": 32}, "layers": {"a": {"dtype": "int8"}}}
    assert Layers(weight=Spec(dtype="i8")).fingerprint() != config.fingerprint()


def test_settings_cannot_be_changed():
    with pytest.raises(Exception, match="frozen"):
        Spec().group_size = 3


def test_files(tmp_path):
    (tmp_path / "a.yaml").write_text("weight:\n  dtype: int4\n")
    (tmp_path / "a.json").write_text('{"weight": {"dtype": "int4"}}')
    assert Layers.read(tmp_path / "a.yaml") == Layers.read(tmp_path / "a.json") == Layers(weight=Spec(dtype="int4"))
    with pytest.raises(UsageError, match="cannot be read"):
        read_file(tmp_path / "missing.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"a: \xff")
    with pytest.raises(SettingsError, match="not UTF-8 at byte 3"):
        read_file(tmp_path / "latin.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "line"),
        ("- 1", "expected names and values"),
        ("a: &x 1\nb: *x", "aliases"),
        ("[" * 20_000, "deep|expected"),
        ("a: 1\nb: {c: 1, c: 2}", "line 2: 'c' is there twice"),
    ],
)
def test_hostile_texts_are_typed_errors(text, message):
    with pytest.raises(SettingsError, match=message):
        read_mapping(text, "test")


def test_set_by_path_refuses_to_go_through_a_value():
    values = {"a": 1}
    with pytest.raises(UsageError, match="no settings inside"):
        set_by_path(values, "a.b", 2)


def test_a_fifo_or_device_is_refused_instead_of_read(tmp_path):
    os.mkfifo(tmp_path / "settings.yaml")
    for path in (tmp_path / "settings.yaml", "/dev/zero"):
        with pytest.raises(UsageError, match="not a regular file"):
            read_file(path)
