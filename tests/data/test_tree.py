# SPDX-License-Identifier: Apache-2.0
import dataclasses
import subprocess
import sys
from collections import OrderedDict, UserDict
from typing import Any, NamedTuple

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.data.tree import classes_of, flatten, is_tensor, map_leaves, rebuild, structure_of
from fewbit.errors import UsageError


class Pair(NamedTuple):
    key: Any
    value: Any


@dataclasses.dataclass(frozen=True)
class Output:
    logits: Any
    past: Any = None


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.builds(Pair, inner, inner)
        | st.builds(Output, inner, inner)
    ),
    max_leaves=20,
)


@settings(deadline=None, max_examples=150)
@given(TREES)
def test_flatten_and_rebuild_are_inverse(value):
    leaves = [leaf for _, leaf in flatten(value)]
    structure = orjson.loads(orjson.dumps(structure_of(value)))
    again = rebuild(structure, leaves, classes_of(value))
    assert again == value and type(again) is type(value)


@settings(deadline=None, max_examples=50)
@given(TREES)
def test_without_classes_every_leaf_still_has_its_place(value):
    leaves = [leaf for _, leaf in flatten(value)]
    assert [leaf for _, leaf in flatten(rebuild(structure_of(value), leaves))] == leaves


def test_paths_are_dotted():
    value = {"past": [Pair(1, 2)], "out": Output(3), "x": 4}
    assert [path for path, _ in flatten(value)] == ["past.0.key", "past.0.value", "out.logits", "out.past", "x"]
    assert flatten(7) == [("", 7)]


def test_arrays_text_and_unknown_objects_are_leaves():
    leaves = [np.zeros((2, 2)), np.float32(1), "text", b"bytes", {1, 2}, object(), range(3), int]
    assert [leaf for _, leaf in flatten(leaves)] == leaves
    assert is_tensor(leaves[0]) and is_tensor(leaves[1]) and not is_tensor("text") and not is_tensor(np.ndarray)


def test_mappings_of_other_classes_come_back_as_they_were():
    for value in (OrderedDict(a=1), UserDict({"a": 1})):
        again = map_leaves(lambda leaf: leaf + 1, value)
        assert type(again) is type(value) and again["a"] == 2


def test_a_class_is_named_but_never_made_unless_handed_over():
    structure = {"kind": "dict", "keys": ["args"], "items": [None], "class": "subprocess:Popen"}
    assert rebuild(structure, ["true"]) == {"args": "true"}


def test_the_number_of_leaves_must_fit():
    with pytest.raises(UsageError, match="too few"):
        rebuild(structure_of([1, 2]), [1])
    with pytest.raises(UsageError, match="no place"):
        rebuild(structure_of([1, 2]), [1, 2, 3])


def test_a_value_that_contains_itself_is_an_error_not_a_hang():
    value: list[Any] = []
    value.append(value)
    for function in (flatten, structure_of, lambda value: map_leaves(str, value)):
        with pytest.raises(UsageError, match="contains itself"):
            function(value)


def test_keys_that_json_cannot_keep_are_named():
    with pytest.raises(UsageError, match=r"\(1, 2\)"):
        structure_of({(1, 2): 3})
    assert map_leaves(str, {(1, 2): 3}) == {(1, 2): "3"}  # nothing is written here, so any key will do


def test_transformers_containers():
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    from transformers.modeling_outputs import BaseModelOutput

    batch = transformers.BatchEncoding({"input_ids": torch.zeros(2, 3), "inner": BaseModelOutput(torch.ones(1))})
    assert [path for path, _ in flatten(batch)] == ["input_ids", "inner.last_hidden_state"]
    again = map_leaves(lambda leaf: leaf + 1, batch)
    assert isinstance(again, transformers.BatchEncoding) and isinstance(again["inner"], BaseModelOutput)
    cache = transformers.DynamicCache()
    cache.update(torch.zeros(1, 2, 3, 4), torch.ones(1, 2, 3, 4), 0)
    assert [path for path, _ in flatten({"past": cache})] == ["past.0.key", "past.0.value"]
    again = map_leaves(lambda leaf: leaf + 1, cache)
    assert isinstance(again, transformers.DynamicCache) and again.layers[0].values.max() == 2
    assert rebuild(structure_of(cache), [1, 2]) == [{"key": 1, "value": 2}]
    both = transformers.EncoderDecoderCache(cache, transformers.DynamicCache())
    assert isinstance(map_leaves(lambda leaf: leaf, both), transformers.EncoderDecoderCache)
    assert [path for path, _ in flatten(both)] == ["self_attention_cache.0.key", "self_attention_cache.0.value"]


def test_no_framework_is_imported():
    code = "import sys, fewbit.data.tree; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
