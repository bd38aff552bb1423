# SPDX-License-Identifier: Apache-2.0
import copy
import pickle

import pytest

from fewbit.schemes.frozen import FrozenMapping, freeze, thaw


def test_it_is_a_mapping_that_cannot_change():
    held = {"a": 1}
    mapping = FrozenMapping(held)
    held["a"] = 2
    assert mapping == {"a": 1} and mapping["a"] == 1 and list(mapping) == ["a"] and len(mapping) == 1
    with pytest.raises(TypeError):
        mapping["a"] = 2
    with pytest.raises(TypeError):
        del mapping["a"]
    with pytest.raises(AttributeError):
        mapping.x = 1
    assert hash(FrozenMapping({"a": 1, "b": 2})) == hash(FrozenMapping({"b": 2, "a": 1}))
    assert copy.deepcopy(mapping) == pickle.loads(pickle.dumps(mapping)) == mapping


def test_freezing_and_thawing():
    value = {"a": [1, {"b": [2]}], "c": None}
    frozen = freeze(value)
    assert hash(frozen) and frozen["a"][1] == {"b": (2,)} and thaw(frozen) == value
