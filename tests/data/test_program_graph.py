# SPDX-License-Identifier: Apache-2.0
"""Every text in a program's description that torch makes Python of is held to what it has to be."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewbit.data.program import open_program
from fewbit.data.program_graph import is_path, is_size, unsafe_parts
from fewbit.errors import DataError

LEAF = {"type": None, "context": None, "children_spec": []}


def tree(context, kind="builtins.dict", children=(LEAF,)):
    return json.dumps([1, {"type": kind, "context": context, "children_spec": list(children)}])


def called(**names):
    """The tree of a call: positional arguments, and named ones."""
    rows = {"type": "builtins.dict", "context": json.dumps(list(names)), "children_spec": [LEAF] * len(names)}
    return tree("null", "builtins.tuple", [{"type": "builtins.tuple", "context": "null", "children_spec": []}, rows])


def factory(module, name):
    context = {"default_factory_module": module, "default_factory_name": name, "dict_context": ["k"]}
    return tree(context, "collections.defaultdict")


@pytest.mark.parametrize(
    "target",
    [
        "torch.ops.aten.add.Tensor", "torch.ops.aten.__and__.Tensor", "torch.ops.aten.div.Tensor_mode", "_operator.mul",
        "torch.ops.higher_order.cond", "torch.sym_max", "torch._sym_sqrt", "math.trunc", "_operator.getitem",
        "torch.ops.not_here.x.default",
    ],
)  # fmt: skip
def test_operators(target):
    assert not list(unsafe_parts({"target": target, "inputs": []}))
    assert not list(unsafe_parts({"arg": {"as_operator": target}}))


@pytest.mark.parametrize(
    "target",
    [
        "torch.load", "torch.ops.load_library", "torch.os.system", "torch.ops.aten.__class__", "torch.ops.aten.add",
        "torch.ops.aten.add.__class__", "_operator.call", "_operator.attrgetter", "_operator.methodcaller",
        "math.__loader__", "torch.ops.aten.save.default", "torch.ops.aten.from_file.default",
        "torch.ops.debugprims.load_tensor.default", "torch.ops.higher_order.call_torchbind",
        "torch.ops.higher_order.inline_asm_elementwise", "torch.ops.higher_order.aoti_call_delegate",
        "#custom", "os.system", "",
    ],
)  # fmt: skip
def test_what_is_no_operator(target):
    for part in ({"target": target, "inputs": []}, {"arg": {"as_operator": target}}, {"target": target}):
        assert list(unsafe_parts(part)) == [f"{target!r} is no operator"]


@pytest.mark.parametrize("text", ["x=print()", "x: print()", "a, b", "a\nb", "x;y", "*x y", "(x)", "a'b", "a b", "x#"])
@pytest.mark.parametrize(
    "place",
    [
        lambda text: {"inputs": [{"as_tensor": {"name": text}}]},
        lambda text: {"as_sym_int": {"as_name": text}},
        lambda text: {"forward_arg_names": ["x", text]},
        lambda text: {"tensor_values": {text: {}}},
        lambda text: {"in_spec": called(**{text: 0})},
        lambda text: {"metadata": {"name": {"name": text}}},
        lambda text: {"as_string": {"name": text}},
    ],
)
def test_names_are_written_into_source(place, text):
    assert not list(unsafe_parts(place("x_1"))) and "is no name" in next(unsafe_parts(place(text)))


@pytest.mark.parametrize("text", ['a"b', "a'b", "a\\", "a\nb", "\0"])
def test_paths_stand_between_quotes(text):
    assert not is_path(f"conv.{text}.weight") and is_path("parts.as int-4 (é).weight")
    for key in ("parameter_name", "buffer_name", "tensor_constant_name", "fqn"):
        assert list(unsafe_parts({key: text})) and not list(unsafe_parts({key: "as int-4"}))


def test_texts_that_are_only_kept_are_free():
    text = "x = print('hello')\n"
    kept = {"metadata": {"stack_trace": text}, "as_string": text, "as_strings": [text], "guards_code": [text]}
    assert not list(unsafe_parts(kept))
    assert not list(unsafe_parts({"as_string_to_argument": {text: {"as_int": 1}}}))


@pytest.mark.parametrize(
    "spec",
    [
        tree(json.dumps([{"__enum__": True, "fqn": "evil:x", "name": "y"}])),
        tree('[[{"\\u005f_enum__": 1, "fqn": "evil:x", "name": "y"}]]'),
        tree("null", "builtins.tuple", [json.loads(factory("evil", "x"))[1]]),
        factory("builtins", "exit"),
        factory("os", "abort"),
    ],
)
def test_trees_that_import(spec):
    for key in ("in_spec", "out_spec"):
        assert "would be imported" in next(unsafe_parts({key: spec}))


@pytest.mark.parametrize("spec", [factory("builtins", "list"), tree('["a/b c"]'), tree("some.Tuple"), called(x=0)])
def test_trees(spec):
    assert not list(unsafe_parts({"in_spec": spec})) and not list(unsafe_parts({"out_spec": spec}))


@pytest.mark.parametrize("where", ["placeholder", "import"])
def test_none_of_it_is_run(tmp_path, monkeypatch, where):
    """The whole way: the first would run while torch compiles the call, the second while it reads the outputs."""
    import zipfile

    (tmp_path / "evil_module.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.syspath_prepend(tmp_path)
    torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)), tmp_path / "m.pt2")

    def edit(content):
        if where == "placeholder":
            return content.replace(b'"input"', json.dumps("input=__import__('evil_module')").encode())
        value = json.loads(content)
        enum = tree(json.dumps([{"__enum__": True, "fqn": "evil_module:x", "name": "y"}]))
        value["graph_module"]["module_call_graph"][0]["signature"]["out_spec"] = enum
        return json.dumps(value)

    with zipfile.ZipFile(tmp_path / "m.pt2") as old, zipfile.ZipFile(tmp_path / "evil.pt2", "w") as new:
        for name in old.namelist():
            new.writestr(name, edit(old.read(name)) if name.endswith("models/model.json") else old.read(name))
    with pytest.raises(DataError, match="could run code"):
        open_program(tmp_path / "evil.pt2")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "expression",
    [
        "s77", "2*s0 + 1", "Add(Symbol('s77', positive=True, integer=True), Integer(-1))", "Mod(s0, 8)",
        "Max(1, FloorDiv(s0, 2))", "s0 >= 2",
    ],
)  # fmt: skip
def test_sizes(expression):
    assert is_size(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "exit()", "__import__('os')", "().__class__", "eval(chr(95))", "[x for x in y]", "lambda: 0", "open('s1')",
        "Symbol('a b')", "'s1'.x", "f'{s0}'", "s0[0]", "print(s0)", "", "1 if s0 else 2", "(s0 := 1)", "s0.a",
    ],
)  # fmt: skip
def test_what_is_no_size(expression):
    assert not is_size(expression)


@given(st.text(max_size=40))
def test_any_text_is_judged(text):
    assert is_size(text) in (True, False)
