# SPDX-License-Identifier: Apache-2.0
"""Samples against models: names, shapes, batch axes, layouts, dtypes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.backends._headers import with_batch_axes
from fewbit.data.inputs import ISSUES
from fewbit.data.inputs.casts import plan_cast
from fewbit.data.inputs.match import ArraySpec, describe_value, match_inputs
from fewbit.model_info import ModelInfo, TensorInfo


def model(**inputs):
    tensors = [TensorInfo(name, dtype, shape) for name, (dtype, shape) in inputs.items()]
    return ModelInfo("m", "ONNX", "onnx", inputs=with_batch_axes(tensors))


IMAGE = model(x=("float32", ("batch", 3, 8, 8)))
BERT = model(**dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), ("int64", ("batch", "seq"))))


def meet(arrays, info, **options):
    return match_inputs({name: describe_value(array) for name, array in arrays.items()}, info, **options)


def apply(match, arrays):
    return {step.name: step.apply(np.asarray(arrays[step.array])) for step in match.steps}


def codes(match):
    return [problem.type.code for problem in match.problems]


def taken_for(match):
    return {step.array: step.name for step in match.steps}


def test_what_fits_is_silent():
    match = meet({"x": np.zeros((3, 8, 8), np.float32)}, IMAGE)
    assert not match.problems and match.rows == 1
    assert apply(match, {"x": np.zeros((3, 8, 8), np.float32)})["x"].shape == (1, 3, 8, 8)


def test_every_problem_at_once():
    arrays = {
        "input_ids": np.zeros((4, 4, 4), np.int64),
        "attention_mask": np.zeros(4, np.float32),
        "nonsense": np.zeros((7, 7)),
    }
    match = meet(arrays, BERT)
    assert set(codes(match)) == {"input-shape", "dtype-refused", "input-missing", "input-extra"}
    assert all(problem.message and problem.input for problem in match.problems)


@pytest.mark.parametrize(
    "name", ["Input_IDs", "input_ids:0", "serving_default_input_ids:0", "bert/input_ids", "input_id"]
)
def test_similar_names_are_suggested(name):
    arrays = {name: np.zeros(4, np.int64)} | dict.fromkeys(
        ("attention_mask", "token_type_ids", "position"), np.zeros(4, np.int64)
    )
    match = meet(arrays, BERT)
    assert taken_for(match)[name] == "input_ids" and "input-name" in codes(match)
    assert repr(name) in next(problem.message for problem in match.errors)


@pytest.mark.parametrize("first", [0, 1])
def test_numbered_names_are_suggested_in_order(first):
    arrays = {f"input_{number}": np.zeros(4, np.int64) for number in range(first, first + 3)}
    assert taken_for(meet(arrays, BERT)) == dict(zip(arrays, ("input_ids", "attention_mask", "token_type_ids")))


def test_a_rename_is_followed():
    rename = {"a": "input_ids", "b": "attention_mask", "c": "token_type_ids"}
    arrays = {name: np.full(4, number) for number, name in enumerate("abc")}
    match = meet(arrays, BERT, rename=rename)
    assert not match.problems and apply(match, arrays)["attention_mask"].tolist() == [[1] * 4]


def test_a_rename_of_unknown_names_is_an_error():
    match = meet({"x": np.zeros((3, 8, 8), np.float32)}, IMAGE, rename={"z": "x", "x": "q"})
    assert codes(match).count("rename-unknown") == 2


def test_the_only_fitting_shape_is_taken_with_a_warning():
    two = model(image=("float32", (1, 3, 8, 8)), size=("int64", (1, 2)))
    match = meet({"arr_0": np.zeros(2, np.int64), "arr_1": np.zeros((3, 8, 8), np.float32)}, two)
    assert codes(match) == ["input-renamed"] * 2 and taken_for(match) == {"arr_0": "size", "arr_1": "image"}
    ambiguous = meet(dict.fromkeys("abc", np.zeros(4, np.int64)), BERT)
    assert codes(ambiguous).count("input-missing") == 3


def test_missing_and_extra():
    match = meet({"input_ids": np.zeros(4, np.int64), "more": np.zeros((2, 2, 2))}, BERT)
    assert codes(match) == ["input-missing", "input-missing", "input-extra"]
    optional = ModelInfo("m", "Net", "torch", inputs=(TensorInfo("x"), TensorInfo("mask", required=False)))
    assert not meet({"x": np.zeros(3)}, optional).problems
    assert not meet({"x": np.zeros((3, 8, 8), np.float32), "label": 3}, IMAGE, targets={"label"}).problems


def test_open_ended_models_take_other_names():
    info = ModelInfo("m", "Net", "torch", inputs=(TensorInfo("x"),), facts={"open_ended": True})
    assert set(taken_for(meet({"x": np.zeros(2), "extra": np.ones(2)}, info)).values()) == {"x", "extra"}


def test_a_batch_axis_of_one_is_kept_and_of_several_is_rows():
    one, five = np.ones((1, 3, 8, 8), np.float32), np.ones((5, 3, 8, 8), np.float32)
    assert not meet({"x": one}, IMAGE).problems and apply(meet({"x": one}, IMAGE), {"x": one})["x"].shape == one.shape
    match = meet({"x": five}, IMAGE)
    assert match.rows == 5 and codes(match) == ["batch-dimension"] and not match.errors


def test_three_channels_are_no_stack_of_three():
    free = model(x=("float32", ("batch", 3, "h", "w")))
    match = meet({"x": np.zeros((3, 5, 6), np.float32)}, free)
    assert match.rows == 1 and not match.problems


def test_inputs_that_disagree_about_the_batch():
    arrays = {"input_ids": np.zeros((4, 8), np.int64), "attention_mask": np.zeros(8, np.int64)}
    assert "batch-mixed" in codes(meet(arrays | {"token_type_ids": np.zeros((2, 8), np.int64)}, BERT))
    free = model(x=("float32", (None, 6)), state=("float32", (None, 8)))
    assert "batch-mixed" in codes(meet(shapes(x=(4, 6), state=(2, 8)), free))


def shapes(**sizes):
    return {name: np.zeros(shape, np.float32) for name, shape in sizes.items()}


def recurrent(x=("batch", "sequence"), state=(2, "batch", 8)):
    return model(x=("float32", x), state=("float32", state))


@pytest.mark.parametrize(
    ("info", "arrays"),
    [
        (recurrent(x=(1, 6), state=(2, 1, 8)), shapes(x=(1, 6), state=(2, 1, 8))),
        (recurrent(x=("batch", 3, "frames"), state=(4, 1, 8)), shapes(x=(1, 3, 5), state=(4, 1, 8))),
        (recurrent(x=("frames", 6), state=(1, 1, 8)), shapes(x=(7, 6), state=(1, 1, 8))),
    ],
)
def test_whole_inputs_of_models_with_an_unknown_batch_axis_pass_as_they_are(info, arrays):
    match = meet(arrays, info)
    assert match.complete and not match.problems
    assert {name: array.shape for name, array in apply(match, arrays).items()} == {
        name: array.shape for name, array in arrays.items()
    }


@pytest.mark.parametrize(("x", "state", "rows"), [((1, 6), (2, 1, 8), 1), ((2, 6), (2, 2, 8), 2), ((6,), (2, 8), 1)])
def test_a_batch_axis_that_is_not_the_first(x, state, rows):
    """`[batch, 576]` with `[2, batch, 128]`: only the axis called batch is ever cut or added."""
    arrays = shapes(x=x, state=state)
    match = meet(arrays, recurrent())
    assert match.rows == rows and not match.errors and not match.complete
    assert apply(match, arrays)["state"].shape == (2, rows, 8)


def test_samples_without_a_batch_axis_for_an_unknown_one():
    (problem,) = meet(shapes(x=(6,), state=(2, 1, 8)), recurrent(x=(1, 6), state=(2, 1, 8))).errors
    assert problem.type.code == "batch-mixed" and "state: float32 [2, 1, 8]" in problem.message


def test_a_fixed_batch_takes_whole_inputs_and_single_samples():
    fixed = model(x=("float32", (4, 6)))
    assert meet(shapes(x=(4, 6)), fixed).rows == 4 and meet(shapes(x=(6,)), fixed).rows == 1


def test_an_image_with_its_channels_on_the_other_side():
    arrays = {"x": np.arange(192, dtype=np.float32).reshape(8, 8, 3)}
    match = meet(arrays, IMAGE)
    assert codes(match) == ["input-layout"] and "transpose(2, 0, 1)" in match.problems[0].message
    np.testing.assert_array_equal(apply(match, arrays)["x"][0], arrays["x"].transpose(2, 0, 1))
    stacked = {"x": np.stack([arrays["x"]] * 2)}
    match = meet(stacked, IMAGE)
    assert match.rows == 2 and apply(match, stacked)["x"].shape == (2, 3, 8, 8)
    last = model(x=("float32", (None, 8, 9, 1)))
    assert apply(meet(shapes(x=(1, 8, 9)), last), shapes(x=(1, 8, 9)))["x"].shape == (1, 8, 9, 1)


def test_a_named_axis_with_two_sizes():
    arrays = {"input_ids": np.zeros(4, np.int64), "attention_mask": np.zeros(5, np.int64)}
    match = meet(arrays | {"token_type_ids": np.zeros(4, np.int64)}, BERT)
    assert codes(match) == ["axis-inconsistent"] and "'seq' is 4" in match.problems[0].message


def test_an_input_without_axes():
    info = model(x=("float32", ("batch", 2)), rate=("int64", ()))
    arrays = {"x": np.zeros(2, np.float32), "rate": np.ones((1, 1), np.int64)}
    assert apply(meet(arrays, info), arrays)["rate"].shape == ()
    assert codes(meet(arrays | {"rate": np.ones(2, np.int64)}, info)) == ["input-shape"]


def test_batches_of_a_loader_carry_their_batch_axis():
    assert meet(shapes(x=(5, 3, 8, 8)), IMAGE, batched=True).rows == 5
    assert codes(meet(shapes(x=(3, 8, 8)), IMAGE, batched=True)) == ["batch-missing"]
    assert meet(shapes(x=(1, 5, 3, 8, 8)), IMAGE, batched=True).rows == 5
    layout = meet(shapes(x=(5, 8, 8, 3)), IMAGE, batched=True)
    assert codes(layout) == ["input-layout"] and apply(layout, shapes(x=(5, 8, 8, 3)))["x"].shape == (5, 3, 8, 8)
    fixed = model(x=("float32", (1, 3, 8, 8)))
    assert codes(meet(shapes(x=(4, 3, 8, 8)), fixed, batched=True)) == ["batch-fixed"]


@pytest.mark.parametrize(
    ("dtype", "wanted", "code"),
    [
        ("float32", "float32", None),
        ("float16", "float32", None),
        ("float64", "float32", "dtype-narrowed"),
        ("float32", "bfloat16", "dtype-narrowed"),
        ("int32", "int64", None),
        ("int64", "int32", "dtype-checked"),
        ("int64", "uint64", "dtype-checked"),
        ("bool", "int64", None),
        ("bool", "float32", None),
        ("int64", "bool", "dtype-checked"),
        ("int64", "float32", "dtype-integers"),
        ("uint8", "float32", "dtype-unscaled"),
        ("uint16", "bfloat16", "bfloat16-bits"),
        ("float32", "int64", "dtype-refused"),
        ("float32", "bool", "dtype-refused"),
        ("str", "int64", "dtype-refused"),
        ("object", "float32", "dtype-refused"),
        ("int8", "int4", "dtype-refused"),
    ],
)
def test_casts(dtype, wanted, code):
    match = match_inputs({"x": ArraySpec((2, 2), dtype)}, model(x=(wanted, (None, 2, 2))))
    assert codes(match) == ([code] if code else [])


@pytest.mark.parametrize(
    ("value", "dtype", "wanted"),
    [
        (1 << 40, "int64", "int32"),
        (-1, "int64", "uint64"),
        (1 << 63, "uint64", "int64"),
        (1e6, "float32", "float16"),
        (70_000, "int64", "float16"),
        (3e38 * 1.2, "float64", "float32"),
        (3.4028234e38, "float32", "bfloat16"),
        (2, "int64", "bool"),
    ],
)
def test_a_value_that_does_not_survive_a_cast_is_named(value, dtype, wanted):
    arrays = {"x": np.array([1, value], dtype)}
    match = meet(arrays, model(x=(wanted, (None, 2))))
    assert not match.errors
    with pytest.raises(ValueError, match=r"at \[0, 1\] does not fit"):
        apply(match, arrays)


def test_infinity_that_was_there_stays():
    arrays = {"x": np.array([np.inf, np.nan])}
    assert np.isinf(apply(meet(arrays, model(x=("float32", (None, 2)))), arrays)["x"][0, 0])


def test_bfloat16_bits():
    bits = {"x": np.array([0x3F80, 0xC000], np.uint16)}
    result = apply(meet(bits, model(x=("bfloat16", (None, 2)))), bits)["x"]
    assert result.astype(np.float32).tolist() == [[1.0, -2.0]] and result.dtype.name == "bfloat16"


def test_bytes_are_read_as_utf8():
    arrays = {"x": np.array(["naïve".encode()])}
    match = meet(arrays, model(x=("str", (None, 1))))
    assert apply(match, arrays)["x"].tolist() == [["naïve"]]
    with pytest.raises(UnicodeError):
        apply(match, {"x": np.array([b"\xff"])})


def test_uint8_pixels_ask_about_255():
    assert "255" in meet({"x": np.zeros((3, 8, 8), np.uint8)}, IMAGE).problems[0].message
    assert plan_cast("uint8", "float32").issue.code == "dtype-integers"


AXES = st.one_of(st.integers(0, 4), st.sampled_from(["batch", "a", "b"]), st.none())
ARRAYS = st.builds(
    ArraySpec,
    st.lists(st.integers(0, 4), max_size=4).map(tuple),
    st.sampled_from(["float32", "float64", "int64", "int32", "uint8", "bool", "str"]),
)
TENSORS = st.builds(
    TensorInfo,
    st.sampled_from(["x", "y", "input_ids"]),
    st.sampled_from([None, "float32", "int64", "float16", "bool"]),
    st.one_of(st.none(), st.lists(AXES, max_size=4).map(tuple)),
    st.just(0),
    st.booleans(),
)


@settings(deadline=None, max_examples=300)
@given(
    st.dictionaries(st.sampled_from(["x", "X", "y", "input_0", "label", "zz"]), ARRAYS, max_size=4),
    st.lists(TENSORS, max_size=3, unique_by=lambda tensor: tensor.name),
    st.booleans(),
    st.booleans(),
)
def test_whatever_fits_becomes_what_the_model_takes(arrays, tensors, batched, open_ended):
    info = ModelInfo("m", "ONNX", "onnx", inputs=with_batch_axes(tensors), facts={"open_ended": open_ended})
    match = match_inputs(arrays, info, batched=batched, targets={"label"})
    assert all(problem.type in ISSUES for problem in match.problems)
    if match.errors:
        return
    result = apply(match, {name: np.zeros(array.shape, array.dtype) for name, array in arrays.items()})
    for tensor in info.inputs:
        assert tensor.name in result or not tensor.required
        if tensor.name not in result:
            continue
        array = result[tensor.name]
        assert tensor.dtype is None or array.dtype == tensor.dtype
        if tensor.shape is None:
            continue
        assert array.ndim == len(tensor.shape)
        for axis, (dim, size) in enumerate(zip(tensor.shape, array.shape)):
            assert not isinstance(dim, int) or dim == size or (axis == tensor.batch_axis and not batched)
