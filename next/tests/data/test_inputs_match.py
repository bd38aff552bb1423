# SPDX-License-Identifier: Apache-2.0
"""Samples against models: names, shapes, batch axes, layouts, dtypes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.backends._headers import with_batch_axes
from fewbit.data.inputs import ISSUES
from fewbit.data.inputs.match import match_inputs
from fewbit.model_info import ModelInfo, TensorInfo


def model(**inputs):
    tensors = [TensorInfo(name, dtype, shape) for name, (dtype, shape) in inputs.items()]
    return ModelInfo("m", "ONNX", "onnx", inputs=with_batch_axes(tensors))


def floats(**shapes):
    return model(**{name: ("float32", shape) for name, shape in shapes.items()})


def zeros(dtype=np.float32, **sizes):
    return {name: np.zeros(shape, dtype) for name, shape in sizes.items()}


IMAGE = floats(x=("batch", 3, 8, 8))
IDS = ("input_ids", "attention_mask", "token_type_ids")
BERT = model(**dict.fromkeys(IDS, ("int64", ("batch", "seq"))))


def codes(match):
    return [problem.type.code for problem in match.problems]


def errors(match):
    return [problem for problem in match.problems if problem.is_error]


def shapes_of(match):
    return {name: array.shape for name, array in match.inputs.items()}


def test_every_problem_at_once():
    arrays = {"input_ids": np.zeros((4, 4, 4), np.int64), "attention_mask": np.zeros(4, np.float32), "z": np.zeros(7)}
    match = match_inputs(arrays, BERT)
    assert set(codes(match)) == {"input-shape", "dtype-refused", "input-missing", "input-extra"}
    assert all(problem.message and problem.input for problem in match.problems)


@pytest.mark.parametrize(
    "name", ["Input_IDs", "input_ids:0", "serving_default_input_ids:0", "bert/input_ids", "input_id"]
)
def test_similar_names_are_suggested(name):
    arrays = zeros(np.int64, **dict.fromkeys((name, *IDS[1:], "position"), (4,)))
    match = match_inputs(arrays, BERT)
    assert codes(match)[0] == "input-name" and repr(name) in match.problems[0].message
    assert list(match.inputs) == list(IDS)


@pytest.mark.parametrize("first", [0, 1])
def test_numbered_names_are_suggested_in_order(first):
    arrays = {f"input_{number}": np.full(4, number) for number in range(first, first + 3)}
    match = match_inputs(arrays, BERT)
    assert [int(match.inputs[name][0, 0]) - first for name in IDS] == [0, 1, 2]


def test_the_only_fitting_shape_is_taken_with_a_warning():
    two = model(image=("float32", (1, 3, 8, 8)), size=("int64", (1, 2)))
    match = match_inputs({"arr_0": np.zeros(2, np.int64), "arr_1": np.zeros((3, 8, 8), np.float32)}, two)
    assert codes(match) == ["input-renamed"] * 2
    assert shapes_of(match) == {"image": (1, 3, 8, 8), "size": (1, 2)}
    ambiguous = match_inputs(dict.fromkeys("abc", np.zeros(4, np.int64)), BERT)
    assert codes(ambiguous).count("input-missing") == 3


def test_missing_and_extra():
    match = match_inputs({"input_ids": np.zeros(4, np.int64), "more": np.zeros((2, 2, 2))}, BERT)
    assert codes(match) == ["input-missing", "input-missing", "input-extra"]
    optional = ModelInfo(
        "m",
        "Net",
        "torch",
        takes_tensors=True,
        takes_objects=True,
        inputs=(TensorInfo("x"), TensorInfo("mask", required=False)),
    )
    assert not match_inputs({"x": np.zeros(3)}, optional).problems
    assert not match_inputs(zeros(x=(3, 8, 8)) | {"label": 3}, IMAGE, targets={"label"}).problems
    open_ended = ModelInfo(
        "m",
        "Net",
        "torch",
        takes_tensors=True,
        takes_objects=True,
        inputs=(TensorInfo("x"),),
        facts={"open_ended": True},
    )
    assert list(match_inputs({"x": np.zeros(2), "extra": np.ones(2)}, open_ended).inputs) == ["x", "extra"]


@pytest.mark.parametrize(
    ("shape", "result", "rows", "expected"),
    [
        ((3, 8, 8), (1, 3, 8, 8), 1, []),
        ((1, 3, 8, 8), (1, 3, 8, 8), 1, []),
        ((1, 5, 3, 8, 8), (5, 3, 8, 8), 5, ["batch-dimension"]),
        ((5, 3, 8, 8), (5, 3, 8, 8), 5, ["batch-dimension"]),
        ((8, 8, 3), (1, 3, 8, 8), 1, ["input-layout"]),
        ((2, 8, 8, 3), (2, 3, 8, 8), 2, ["input-layout", "batch-dimension"]),
    ],
)
def test_a_batch_axis_is_added_or_read_as_rows(shape, result, rows, expected):
    match = match_inputs(zeros(x=shape), IMAGE)
    assert shapes_of(match) == {"x": result} and match.rows == rows and codes(match) == expected


def test_three_channels_are_no_stack_of_three():
    match = match_inputs(zeros(x=(3, 5, 6)), floats(x=("batch", 3, "h", "w")))
    assert match.rows == 1 and not match.problems


def test_inputs_that_disagree_about_the_batch():
    arrays = zeros(np.int64, input_ids=(4, 8), attention_mask=(8,), token_type_ids=(2, 8))
    assert "batch-mixed" in codes(match_inputs(arrays, BERT))
    free = floats(x=(None, 6), state=(None, 8))
    assert "batch-mixed" in codes(match_inputs(zeros(x=(4, 6), state=(2, 8)), free))


@pytest.mark.parametrize(
    ("expected", "sizes"),
    [
        ({"x": (1, 6), "state": (2, 1, 8)}, {"x": (1, 6), "state": (2, 1, 8)}),
        ({"x": ("batch", 3, "frames"), "state": (4, 1, 8)}, {"x": (1, 3, 5), "state": (4, 1, 8)}),
        ({"x": ("frames", 6), "state": (1, 1, 8)}, {"x": (7, 6), "state": (1, 1, 8)}),
    ],
)
def test_whole_inputs_of_models_with_an_unknown_batch_axis_pass_as_they_are(expected, sizes):
    match = match_inputs(zeros(**sizes), floats(**expected))
    assert match.complete and not match.problems and shapes_of(match) == sizes


@pytest.mark.parametrize(("x", "state", "rows"), [((1, 6), (2, 1, 8), 1), ((2, 6), (2, 2, 8), 2), ((6,), (2, 8), 1)])
def test_a_batch_axis_that_is_not_the_first(x, state, rows):
    """`[batch, 576]` with `[2, batch, 128]`: only the axis called batch is ever cut or added."""
    match = match_inputs(zeros(x=x, state=state), floats(x=("batch", "sequence"), state=(2, "batch", 8)))
    assert match.rows == rows and not errors(match) and not match.complete
    assert match.inputs["state"].shape == (2, rows, 8) and match.axes == {"x": 0, "state": 1}


def test_samples_without_a_batch_axis_for_an_unknown_one():
    (problem,) = errors(match_inputs(zeros(x=(6,), state=(2, 1, 8)), floats(x=(1, 6), state=(2, 1, 8))))
    assert problem.type.code == "batch-mixed" and "state: float32 [2, 1, 8]" in problem.message


def test_a_fixed_batch_takes_whole_inputs_and_single_samples():
    fixed = floats(x=(4, 6))
    assert match_inputs(zeros(x=(4, 6)), fixed).rows == 4 and match_inputs(zeros(x=(6,)), fixed).rows == 1


def test_an_image_with_its_channels_on_the_other_side():
    image = np.arange(192, dtype=np.float32).reshape(8, 8, 3)
    match = match_inputs({"x": image}, IMAGE)
    assert "transpose(2, 0, 1)" in match.problems[0].message
    np.testing.assert_array_equal(match.inputs["x"][0], image.transpose(2, 0, 1))
    assert shapes_of(match_inputs(zeros(x=(1, 8, 9)), floats(x=(None, 8, 9, 1)))) == {"x": (1, 8, 9, 1)}


def test_a_named_axis_with_two_sizes():
    match = match_inputs(zeros(np.int64, input_ids=(4,), attention_mask=(5,), token_type_ids=(4,)), BERT)
    assert codes(match) == ["input-shape"] and "'seq' is 4" in match.problems[0].message


def test_an_input_without_axes():
    info = model(x=("float32", ("batch", 2)), rate=("int64", ()))
    arrays = {"x": np.zeros(2, np.float32), "rate": np.ones((1, 1), np.int64)}
    assert match_inputs(arrays, info).inputs["rate"].shape == ()
    assert codes(match_inputs(arrays | {"rate": np.ones(2, np.int64)}, info)) == ["input-shape"]


def test_batches_of_a_loader_carry_their_batch_axis():
    assert match_inputs(zeros(x=(5, 3, 8, 8)), IMAGE, batched=True).rows == 5
    assert match_inputs(zeros(x=(1, 5, 3, 8, 8)), IMAGE, batched=True).rows == 5
    assert codes(match_inputs(zeros(x=(3, 8, 8)), IMAGE, batched=True)) == ["batch-fixed"]
    layout = match_inputs(zeros(x=(5, 8, 8, 3)), IMAGE, batched=True)
    assert codes(layout) == ["input-layout"] and shapes_of(layout) == {"x": (5, 3, 8, 8)}
    fixed = floats(x=(1, 3, 8, 8))
    assert codes(match_inputs(zeros(x=(4, 3, 8, 8)), fixed, batched=True)) == ["batch-fixed"]


@pytest.mark.parametrize(
    ("dtype", "wanted", "code"),
    [
        ("float32", "float32", None), ("float16", "float32", None), ("int32", "int64", None), ("bool", "int64", None),
        ("bool", "float32", None), ("float64", "float32", "dtype-narrowed"), ("float32", "bfloat16", "dtype-narrowed"),
        ("int64", "int32", "dtype-checked"), ("int64", "uint64", "dtype-checked"), ("int64", "bool", "dtype-checked"),
        ("int64", "float32", "dtype-checked"), ("uint8", "float32", "dtype-unscaled"),
        ("uint16", "bfloat16", "bfloat16-bits"), ("float32", "int64", "dtype-refused"),
        ("float32", "bool", "dtype-refused"), ("str", "int64", "dtype-refused"), ("object", "float32", "dtype-refused"),
        ("int8", "int4", "dtype-refused"),
    ],
)  # fmt: skip
def test_casts(dtype, wanted, code):
    match = match_inputs({"x": np.zeros((2, 2), dtype)}, model(x=(wanted, (None, 2, 2))))
    assert codes(match) == ([code] if code else [])


@pytest.mark.parametrize(
    ("value", "dtype", "wanted"),
    [
        (1 << 40, "int64", "int32"), (-1, "int64", "uint64"), (1 << 63, "uint64", "int64"),
        (1e6, "float32", "float16"), (70_000, "int64", "float16"), (3e38 * 1.2, "float64", "float32"),
        (3.4028234e38, "float32", "bfloat16"), (2, "int64", "bool"),
    ],
)  # fmt: skip
def test_a_value_that_does_not_survive_a_cast_is_named(value, dtype, wanted):
    match = match_inputs({"x": np.array([1, value], dtype)}, model(x=(wanted, (None, 2))))
    (problem,) = errors(match)
    assert problem.type.code == "dtype-refused" and "at [0, 1] does not fit" in problem.message


def test_values_that_casts_keep():
    infinite = match_inputs({"x": np.array([np.inf, np.nan])}, floats(x=(None, 2)))
    assert np.isinf(infinite.inputs["x"][0, 0]) and not errors(infinite)
    bits = match_inputs({"x": np.array([0x3F80, 0xC000], np.uint16)}, model(x=("bfloat16", (None, 2)))).inputs["x"]
    assert bits.astype(np.float32).tolist() == [[1.0, -2.0]] and bits.dtype.name == "bfloat16"
    text = model(x=("str", (None, 1)))
    assert match_inputs({"x": np.array(["naïve".encode()])}, text).inputs["x"].tolist() == [["naïve"]]
    assert codes(match_inputs({"x": np.array([b"\xff"])}, text)) == ["dtype-refused"]


def test_uint8_pixels_ask_about_255():
    assert "255" in match_inputs(zeros(np.uint8, x=(3, 8, 8)), IMAGE).problems[0].message
    assert codes(match_inputs(zeros(np.uint8, x=(2,)), floats(x=(None, 2)))) == ["dtype-checked"]


AXES = st.one_of(st.integers(0, 4), st.sampled_from(["batch", "a", "b"]), st.none())
ARRAYS = st.builds(
    np.zeros,
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
    if errors(match):
        return
    for tensor in info.inputs:
        assert tensor.name in match.inputs or not tensor.required
        if tensor.name not in match.inputs:
            continue
        array = match.inputs[tensor.name]
        assert tensor.dtype is None or array.dtype == tensor.dtype
        if tensor.shape is None:
            continue
        assert array.ndim == len(tensor.shape)
        for axis, (dim, size) in enumerate(zip(tensor.shape, array.shape)):
            assert not isinstance(dim, int) or dim == size or (axis == tensor.batch_axis and not batched)
