# SPDX-License-Identifier: Apache-2.0
import dataclasses

import pytest

from fewbit import IgnoredScope
from fewbit.errors import UsageError
from fewbit.schemes.scope import Subgraph

LAYERS = {
    "embed": ["Embedding", "Module"],
    "layers.0.fc1": ["MyLinear", "Linear", "Module"],
    "layers.0.fc2": ["Linear", "Module"],
    "layers.0.norm": ["LayerNorm", "Module"],
    "layers.1.fc1": ["Linear", "Module"],
    "head.out": ["Linear", "Module"],
}


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        ({}, ()),
        ({"names": ["embed"]}, ("embed",)),
        ({"names": ["layers.0"]}, ("layers.0.fc1", "layers.0.fc2", "layers.0.norm")),
        ({"names": "head"}, ("head.out",)),
        ({"patterns": [r"layers\.\d+\.fc1"]}, ("layers.0.fc1", "layers.1.fc1")),
        ({"patterns": ["layers"]}, ("layers.0.fc1", "layers.0.fc2", "layers.0.norm", "layers.1.fc1")),
        ({"patterns": [".*norm"]}, ("layers.0.norm",)),
        ({"types": ["MyLinear", "LayerNorm"]}, ("layers.0.fc1", "layers.0.norm")),
        ({"types": [type("Linear", (), {})]}, ("layers.0.fc1", "layers.0.fc2", "layers.1.fc1", "head.out")),
        ({"names": ["embed"], "types": ["LayerNorm"]}, ("embed", "layers.0.norm")),
    ],
)
def test_what_is_ignored_in_the_models_order(scope, expected):
    made = IgnoredScope(**scope)
    assert made.select(LAYERS) == expected
    assert tuple(name for name, types in LAYERS.items() if made.matches(name, types)) == expected


def test_what_matches_nothing_is_an_error_with_the_nearest():
    scope = IgnoredScope(names=["embd", "embed"], types=["Lnear"], patterns=[r"block\.\d"])
    with pytest.raises(UsageError) as error:
        scope.select(LAYERS)
    text = str(error.value)
    assert text.startswith("3 faults in the ignored scope")
    assert "'embd' matches nothing in the model" in text and "expected: 'embed'" in text
    assert "'Linear'" in text and "validate=False" in text
    assert dataclasses.replace(scope, validate=False).select(LAYERS) == ("embed",)


EDGES = [("a", "b"), ("b", "c"), ("c", "d"), ("b", "x"), ("y", "c")]


def test_subgraphs_are_all_that_lies_on_a_path():
    layers = {name: ["Linear"] for name in "abcdxy"}
    scope = IgnoredScope(subgraphs=[{"inputs": ["b"], "outputs": ["d"]}])
    assert scope.select(layers, EDGES) == ("b", "c", "d")
    assert scope.subgraphs == (Subgraph(("b",), ("d",)),)
    assert IgnoredScope(subgraphs=scope.subgraphs) == scope
    both = IgnoredScope(names=["x"], subgraphs=[Subgraph(("a", "y"), ("c",))])
    assert both.select(layers, EDGES) == ("a", "b", "c", "x", "y")


@pytest.mark.parametrize(("inputs", "outputs"), [(["d"], ["a"]), (["a"], ["nowhere"]), (["nowhere"], ["d"])])
def test_a_subgraph_that_is_not_there_is_an_error(inputs, outputs):
    scope = IgnoredScope(subgraphs=[{"inputs": inputs, "outputs": outputs}])
    layers = {name: ["Linear"] for name in "abcdxy"}
    with pytest.raises(UsageError, match="matches nothing"):
        scope.select(layers, EDGES)
    assert dataclasses.replace(scope, validate=False).select(layers, EDGES) == ()


@pytest.mark.parametrize("validate", [True, False])
def test_subgraphs_need_a_graph(validate):
    """Not the path is at fault, and leaving the layers between out of the scope would be silent."""
    scope = IgnoredScope(names=["a"], subgraphs=[{"inputs": ["b"], "outputs": ["d"]}], validate=validate)
    with pytest.raises(UsageError, match="no graph") as error:
        scope.select({name: ["Linear"] for name in "abcd"})
    assert error.value.where == "IgnoredScope.subgraphs" and "names" in error.value.expected
    assert scope.select({name: ["Linear"] for name in "abcd"}, EDGES) == ("a", "b", "c", "d")


def test_nothing_and_one_thing_alone():
    assert IgnoredScope(names=None, patterns=None, types=None, subgraphs=None) == IgnoredScope()
    part = {"inputs": ["b"], "outputs": ["d"]}
    assert IgnoredScope(subgraphs=part) == IgnoredScope(subgraphs=Subgraph(("b",), ("d",)))
    assert IgnoredScope(subgraphs=part) == IgnoredScope(subgraphs=[part])


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"patterns": ["("]}, "patterns[0]"),
        ({"names": [3]}, "names"),
        ({"names": 3}, "names"),
        ({"types": {"Linear": True}}, "types"),
        ({"subgraphs": 3}, "subgraphs[0]"),
        ({"subgraphs": [{"inputs": ["a"]}]}, "subgraphs[0]"),
        ({"subgraphs": ["a"]}, "subgraphs[0]"),
        ({"nmes": ["a"]}, "nmes"),
    ],
)
def test_faults(fields, where):
    with pytest.raises(UsageError) as error:
        IgnoredScope(**fields)
    assert error.value.where == f"IgnoredScope.{where}"


def test_it_cannot_be_changed():
    given = ["a"]
    scope = IgnoredScope(given)
    given.append("b")
    assert scope.names == ("a",) and hash(scope) == hash(IgnoredScope(["a"]))
    with pytest.raises(dataclasses.FrozenInstanceError):
        scope.names = ()
