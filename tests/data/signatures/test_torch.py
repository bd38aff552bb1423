# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

import numpy as np
import pytest

from fewbit.data.signature import InputSpec, Signature, read_signature
from fewbit.data.signatures import torch as member
from fewbit.data.signatures._items import take_labels
from fewbit.errors import DataError

torch = pytest.importorskip("torch")


class Bert(torch.nn.Module):
    def forward(self, input_ids, attention_mask=None, *, labels=None):
        return input_ids


class Open(torch.nn.Module):
    def forward(self, x, **more):
        return x


class Listed(torch.nn.Module):
    def forward(self, *tensors):
        return tensors[0]


class HuggingFace(torch.nn.Module):
    def forward(self, input_ids=None, attention_mask=None, labels=None, **kwargs):
        return input_ids


class Whole(torch.nn.Module):
    def forward(self, batch):
        return batch["pixels"]


def test_accepts_without_importing_torch():
    code = (
        "import sys; from fewbit.data.signatures import torch as t; "
        "assert not t.accepts(3) and t.accepts('a.pt2') and 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert member.accepts(Bert()) and not member.accepts("a.onnx") and not member.accepts({})


def test_names_and_required_come_from_forward():
    found = read_signature(Bert())
    assert found.inputs == (
        InputSpec("input_ids"),
        InputSpec("attention_mask", required=False),
        InputSpec("labels", required=False),
    )
    assert not found.open_ended and found.framework == "torch"
    assert read_signature(torch.nn.Linear(2, 2)).names == ("input",)


def test_kwargs_make_a_model_open_ended():
    assert read_signature(Open()).open_ended
    listed = read_signature(Listed())
    assert listed.open_ended and listed.inputs == ()
    args, kwargs = member.feed({"a": np.ones(1), "b": np.zeros(1)}, listed)
    assert len(args) == 2 and not kwargs


def test_wrappers_are_looked_through():
    assert read_signature(torch.nn.DataParallel(Bert())).names[0] == "input_ids"
    assert read_signature(torch.compile(Bert(), backend="eager")).names[0] == "input_ids"


def test_scripted_modules():
    assert read_signature(torch.jit.script(torch.nn.Linear(2, 2))).inputs == (InputSpec("input"),)


@pytest.fixture(scope="module")
def program():
    class Two(torch.nn.Module):
        def forward(self, x, *, ids):
            return x.sum() + ids.sum()

    batch = torch.export.Dim("batch", min=2, max=64)
    return torch.export.export(
        Two(),
        (torch.ones(2, 3),),
        {"ids": torch.ones(2, 5, dtype=torch.int64)},
        dynamic_shapes={"x": {0: batch}, "ids": {0: batch}},
    )


def test_an_exported_program_has_shapes_and_dtypes(program, tmp_path):
    found = read_signature(program)
    assert found.names == ("x", "ids") and found.positional == 1
    x, ids = found.inputs
    assert x.dtype == "float32" and x.shape[1] == 3 and isinstance(x.shape[0], str)
    assert ids.dtype == "int64" and ids.shape == (x.shape[0], 5)
    args, kwargs = member.feed({"ids": np.ones((4, 5), np.int64), "x": np.ones((4, 3), np.float32)}, found)
    assert program.module()(*args, **kwargs) == 32
    torch.export.save(program, tmp_path / "m.pt2")
    assert read_signature(tmp_path / "m.pt2").inputs == found.inputs


def test_a_damaged_pt2_is_named(tmp_path):
    (tmp_path / "bad.pt2").write_bytes(b"PK nonsense")
    with pytest.raises(DataError) as caught:
        read_signature(tmp_path / "bad.pt2")
    assert "bad.pt2" in caught.value.where


BERT = member.read(Bert())
ONE = Signature("torch", (InputSpec("x"),))


def test_a_batch_goes_by_name_and_shares_memory():
    array = np.zeros((2, 3), np.float32)
    args, kwargs = member.feed({"x": array, "label": np.ones(2)}, ONE)
    assert args == () and list(kwargs) == ["x"]
    kwargs["x"][0, 0] = 5
    assert array[0, 0] == 5


def test_awkward_arrays_become_tensors():
    readonly = np.ones(3)
    readonly.flags.writeable = False
    for array in (readonly, np.ones(3)[::-1], np.ones(3, ">f4"), np.float32(1), np.ones((), np.int64)):
        (tensor,), _ = member.feed_item(array, ONE)
        assert isinstance(tensor, torch.Tensor) and tensor.sum() in (1, 3)
    bf16 = Signature("torch", (InputSpec("x", (None,), "bfloat16"),))
    assert member.feed({"x": np.ones(2, np.float32)}, bf16)[1]["x"].dtype == torch.bfloat16
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert member.feed({"x": np.ones(2, ml_dtypes.bfloat16)}, ONE)[1]["x"].tolist() == [1.0, 1.0]


def test_every_form_of_item_reaches_a_model_of_one_input():
    x = torch.ones(2, 3)
    for item in (
        x,
        x.numpy(),
        (x,),
        [x],
        (x, torch.tensor([0, 1])),
        [x, torch.tensor([0, 1])],
        (x, [0, 1]),
        ((x,), {}),
    ):
        args, kwargs = member.feed_item(take_labels(item, ONE)[0], ONE)
        assert len(args) == 1 and torch.equal(args[0], x) and not kwargs
    assert torch.equal(member.feed_item({"x": x}, ONE)[1]["x"], x)


def test_labels_are_taken_only_when_they_look_like_labels():
    ids, mask, labels = torch.ones(2, 5), torch.ones(2, 5), torch.tensor([0, 1])
    all_optional = member.read(HuggingFace())
    for signature in (BERT, ONE, all_optional):
        assert take_labels((ids, labels), signature)[1] is labels
    for item, signature in (
        ((ids, mask), BERT),
        ((ids, mask), all_optional),
        ({"input_ids": ids}, BERT),
        (ids, ONE),
        ((ids, labels), member.read(Listed())),
    ):
        assert take_labels(item, signature) == (item, None)
    assert len(member.feed_item((ids, mask), BERT)[0]) == 2


def test_a_list_of_numbers_or_texts_is_no_pair():
    for item in ([1.0, 2.0], ["a", "b"], [[1, 2], [3, 4]]):
        assert take_labels(item, ONE) == (item, None)


def test_a_list_of_images_is_one_input():
    images = [torch.ones(3, 4, 4), torch.ones(3, 5, 5)]
    args, _ = member.feed_item(images, ONE)
    assert len(args) == 1 and len(args[0]) == 2


def test_mappings_go_by_name_or_whole():
    ids = np.ones((1, 4), np.int64)
    args, kwargs = member.feed_item({"input_ids": ids, "labels": np.ones(1)}, BERT)
    assert not args and set(kwargs) == {"input_ids", "labels"} and isinstance(kwargs["input_ids"], torch.Tensor)
    whole = member.read(Whole())
    args, kwargs = member.feed_item({"pixels": ids}, whole)
    assert torch.equal(Whole()(*args, **kwargs), torch.from_numpy(ids))
    assert set(member.feed_item({"x": ids, "new": ids}, member.read(Open()))[1]) == {"x", "new"}


class Picture(torch.nn.Module):
    def forward(self, image, meta=None):
        return image


@pytest.mark.parametrize("names", [["imagee"], ["iamge"], ["Image"], ["image", "size"], ["meta", "x"], ["imge", "x"]])
def test_a_mapping_with_a_known_name_or_a_slip_of_one_never_goes_whole(names):
    item, signature = {name: torch.ones(2) for name in names}, member.read(Picture())
    with pytest.raises(DataError) as caught:
        member.feed_item(item, signature)
    assert repr(names[-1]) in caught.value.what and "Known: image, meta" in caught.value.expected
    (whole,), _ = member.feed_item((item,), signature)
    assert whole.keys() == item.keys() and "tuple" in caught.value.try_


def test_a_slip_has_its_near_match():
    with pytest.raises(DataError, match="no input called 'imagee'") as caught:
        member.feed_item({"imagee": torch.ones(2)}, member.read(Picture()))
    assert "did you mean 'image'" in caught.value.expected


@pytest.mark.parametrize("names", [["pixels"], ["input_ids"], ["input_ids", "attention_mask"], ["a", "b"]])
def test_a_mapping_of_other_names_is_the_one_thing_a_model_takes(names):
    class Inputs(torch.nn.Module):
        def forward(self, inputs, training=False):
            return inputs

    item = {name: torch.ones(2) for name in names}
    for model in (Inputs(), Whole()):
        (whole,), kwargs = member.feed_item(item, member.read(model))
        assert whole.keys() == item.keys() and not kwargs


def test_batch_encodings_go_by_name():
    transformers = pytest.importorskip("transformers")
    item = transformers.BatchEncoding({"input_ids": torch.ones(1, 4), "attention_mask": torch.ones(1, 4)})
    assert set(member.feed_item(item, BERT)[1]) == {"input_ids", "attention_mask"}


def test_too_many_values_and_unknown_names_are_errors():
    two = Signature("torch", (InputSpec("a"), InputSpec("b")))
    with pytest.raises(DataError, match="3 values"):
        member.feed_item((1, 2, 3), two)
    with pytest.raises(DataError, match="'c'"):
        member.feed_item({"a": 1, "c": 2}, two)


class Layer(torch.nn.Module):
    def __init__(self, *dtypes):
        super().__init__()
        kinds = [torch.zeros(2).to(dtype) for dtype in dtypes]
        self.weights = torch.nn.ParameterList([torch.nn.Parameter(kind, requires_grad=False) for kind in kinds])

    def forward(self, x, **more):
        return x


@pytest.mark.parametrize(
    ("dtypes", "floating"),
    [
        ((), None),
        ((torch.int8,), None),
        ((torch.float32, torch.bfloat16), "float32"),
        ((torch.int8, torch.bfloat16), "bfloat16"),
        ((torch.float8_e4m3fn, torch.float16), "float16"),
    ],
)
def test_the_dtype_of_the_parameters_is_known(dtypes, floating):
    assert read_signature(Layer(*dtypes)).floating == floating
    assert read_signature(torch.nn.DataParallel(Layer(*dtypes))).floating == floating


def test_floats_are_given_in_the_parameters_dtype_and_integers_as_they_are():
    found = read_signature(Layer(torch.bfloat16))
    ids = torch.ones(2, dtype=torch.int64)
    (x, nested), _ = member.feed_item((np.ones(2), {"a": [torch.ones(2)], "ids": ids}), found)
    assert x.dtype == nested["a"][0].dtype == torch.bfloat16 and nested["ids"] is ids
    same = torch.ones(2, dtype=torch.bfloat16)
    assert member.feed_item(same, found)[0][0] is same
    _, kwargs = member.feed({"x": np.ones(2, np.float32), "more": np.ones(2), "ids": np.ones(2, np.int64)}, found)
    assert [kwargs[name].dtype for name in ("x", "more", "ids")] == [torch.bfloat16, torch.bfloat16, torch.int64]
