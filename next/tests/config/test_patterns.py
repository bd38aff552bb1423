# SPDX-License-Identifier: Apache-2.0
import dataclasses
from types import SimpleNamespace

import pytest

from fewbit import IgnoredScope, Subgraph
from fewbit.config.patterns import covers, most_specific
from fewbit.errors import UsageError

LAYERS = {
    "embed": ["Embedding", "Module"],
    "layers.0.fc1": ["Linear", "Module"],
    "layers.0.fc2": ["Linear", "Module"],
    "layers.0.norm": ["LayerNorm", "Module"],
    "layers.1.fc1": ["MyLinear", "Linear", "Module"],
    "head.out": ["Linear", "Module"],
}
LINEAR = ("layers.0.fc1", "layers.0.fc2", "layers.1.fc1", "head.out")


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        ({"names": ["head"]}, ("head.out",)),
        ({"names": "layers.0"}, ("layers.0.fc1", "layers.0.fc2", "layers.0.norm")),
        ({"names": ["*.fc1"]}, ("layers.0.fc1", "layers.1.fc1")),
        ({"names": [r"re:.*\.fc\d", "embed"]}, ("embed", "layers.0.fc1", "layers.0.fc2", "layers.1.fc1")),
        ({"names": ["type:LayerNorm"]}, ("layers.0.norm",)),
        ({"patterns": [r"layers\.\d+\.fc"]}, ("layers.0.fc1", "layers.0.fc2", "layers.1.fc1")),
        ({"types": ["Linear"]}, LINEAR),
        ({"names": ["embed"], "types": ["LayerNorm"]}, ("embed", "layers.0.norm")),
    ],
)
def test_what_is_ignored_in_the_order_of_the_model(scope, expected):
    ignored = IgnoredScope(**scope)
    assert ignored.select(LAYERS) == expected
    assert tuple(name for name, types in LAYERS.items() if ignored.matches(name, types)) == expected
    assert IgnoredScope.of(scope) == ignored and bool(ignored)


def test_other_ways_to_write_it():
    assert IgnoredScope.of("embed, type:Linear").names == ("embed", "type:Linear")
    assert IgnoredScope.of("re:a{1,2}").names == ("re:a{1,2}",), "a comma of an expression does not divide"
    assert IgnoredScope.of(["a", "b"]).names == ("a", "b") and not IgnoredScope.of(()) and not IgnoredScope.of(None)
    theirs = SimpleNamespace(names=["a"], patterns=[], types=["Conv"], subgraphs=[], validate=False)
    assert IgnoredScope.of(theirs) == IgnoredScope(["a"], types=["Conv"], validate=False)

    class Conv2d:
        pass

    assert IgnoredScope(types=Conv2d).types == ("Conv2d",)
    assert IgnoredScope(names=None, patterns=None, types=None, subgraphs=None) == IgnoredScope()


def test_entries_that_match_nothing_are_errors_with_near_names():
    scope = IgnoredScope(names=["embd", "embed", "type:Lnear"], types=["LayrNorm"], patterns=[r"block\.\d"])
    with pytest.raises(UsageError) as caught:
        scope.select(LAYERS)
    text = str(caught.value)
    assert text.count("no layer matches") == 4 and "expected: embed" in text
    assert "Linear" in text and "LayerNorm" in text and caught.value.parts[0].code == "layer-unknown"
    assert dataclasses.replace(scope, validate=False).select(LAYERS) == ("embed",)


EDGES = [("a", "b"), ("b", "c"), ("c", "d"), ("b", "x"), ("y", "c")]
LETTERS = {name: ["Linear"] for name in "abcdxy"}


def test_subgraphs_are_everything_on_a_path():
    scope = IgnoredScope(subgraphs=[{"inputs": ["b"], "outputs": ["d"]}])
    assert scope.select(LETTERS, EDGES) == ("b", "c", "d") and scope.subgraphs == (Subgraph(["b"], ["d"]),)
    theirs = SimpleNamespace(inputs=["b"], outputs=["d"])
    assert IgnoredScope(subgraphs=[theirs]) == IgnoredScope(subgraphs=theirs) == scope
    both = IgnoredScope(names=["x"], subgraphs=[Subgraph(("a", "y"), ("c",))])
    assert both.select(LETTERS, EDGES) == ("a", "b", "c", "x", "y")


@pytest.mark.parametrize(("inputs", "outputs"), [(["d"], ["a"]), (["a"], ["nowhere"]), (["nowhere"], ["d"])])
def test_a_subgraph_that_does_not_exist_is_an_error(inputs, outputs):
    scope = IgnoredScope(subgraphs=[{"inputs": inputs, "outputs": outputs}])
    with pytest.raises(UsageError, match="no layer matches"):
        scope.select(LETTERS, EDGES)
    assert dataclasses.replace(scope, validate=False).select(LETTERS, EDGES) == ()


@pytest.mark.parametrize("validate", [True, False])
def test_subgraphs_need_a_graph(validate):
    scope = IgnoredScope(names=["a"], subgraphs=[{"inputs": ["b"], "outputs": ["d"]}], validate=validate)
    with pytest.raises(UsageError, match="no graph"):
        scope.select(LETTERS)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"patterns": ["("]}, "patterns"),
        ({"names": [3]}, "names"),
        ({"names": 3}, "names"),
        ({"types": {"Linear": True}}, "types"),
        ({"subgraphs": 3}, "subgraphs"),
        ({"subgraphs": [{"inputs": ["a"]}]}, "subgraphs"),
        ({"nmes": ["a"]}, "nmes"),
    ],
)
def test_wrong_scopes(fields, text):
    with pytest.raises(UsageError, match=text):
        IgnoredScope.of(fields)


def test_the_most_specific_entry():
    patterns = ["*", "layers.*", "*.fc1", r"re:.*\.fc1", "layers.0.fc1"]
    assert most_specific(patterns, "layers.0.fc1") == "layers.0.fc1"
    assert most_specific(patterns[:-1], "layers.0.fc1") == r"re:.*\.fc1"
    assert most_specific(["*", "*.fc1", "layers.*"], "layers.0.fc1") == "layers.*"
    assert most_specific(["a[0]"], "a[0]") == "a[0]" and most_specific(["b"], "a") is None
    assert covers("layers", "layers.0.fc1") and not covers("layer", "layers.0.fc1")


def test_it_cannot_be_changed():
    given = ["a"]
    scope = IgnoredScope(given)
    given.append("b")
    assert scope.names == ("a",) and hash(scope) == hash(IgnoredScope(["a"]))
    with pytest.raises(dataclasses.FrozenInstanceError):
        scope.names = ()
