# SPDX-License-Identifier: Apache-2.0
"""What a PyTorch module is called with."""

import numpy as np
import pytest

from fewbit.data.inputs import InputAdapter
from fewbit.data.inputs.items import named_values, take_labels
from fewbit.data.inputs.modules import module_info
from fewbit.errors import DataError
from fewbit.model_info import ModelInfo, TensorInfo
from item_source import item_dataset

torch = pytest.importorskip("torch")


def samples(*items, **facts):
    return item_dataset(items, **facts)


def batches(*items):
    return samples(*items, batched=True)


class Net(torch.nn.Module):
    def forward(self, pixels, mask=None):
        return pixels.sum()


class Whole(torch.nn.Module):
    def forward(self, batch):
        return batch["a"] + batch["b"]


class Optional(torch.nn.Module):
    def forward(self, input_ids=None, attention_mask=None, **kwargs):
        return input_ids


class Listed(torch.nn.Module):
    def forward(self, *tensors):
        return tensors[0]


def call(model, inputs):
    args, kwargs = inputs
    return model(*args, **kwargs)


def test_samples_are_joined_and_batches_pass():
    model = Net()
    assert [
        call(model, each).item()
        for each in samples({"pixels": np.ones(3)}, {"pixels": np.ones(3)}).inputs(model, batch_size=2)
    ] == [6]
    assert [call(model, each).item() for each in batches(torch.ones(2, 3), torch.ones(1, 3)).inputs(model)] == [6, 3]


def test_pairs_of_a_loader():
    for item in ((torch.ones(2, 3), torch.arange(2)), [torch.ones(2, 3), [0, 1]]):
        assert [call(Net(), each).item() for each in batches(item).inputs(Net())] == [6]


ONE = ModelInfo("m", "Net", "torch", takes_tensors=True, takes_objects=True, inputs=(TensorInfo("x"),))


def test_labels_only_if_they_look_like_labels():
    ids, mask, labels = torch.ones(2, 5), torch.ones(2, 5), torch.tensor([0, 1])
    optional, bert = module_info(Optional()), module_info(Net())
    for info in (ONE, optional, bert):
        assert take_labels((ids, labels), info)[1] is labels
    for item, info in (
        ((ids, mask), optional),
        ((ids, mask), bert),
        ({"pixels": ids}, bert),
        (ids, ONE),
        ((ids, labels), module_info(Listed())),
        ([1.0, 2.0], ONE),
        ([[1, 2], [3, 4]], ONE),
    ):
        assert take_labels(item, info) == (item, None)


def test_a_list_of_images_is_one_input_of_a_detector():
    images = [torch.ones(3, 4, 4), torch.ones(3, 5, 5)]
    values, labels = named_values(images, ONE)
    assert values == {"x": images} and labels is None
    ((args, kwargs),) = batches(images).inputs(Net())
    assert len(kwargs["pixels"]) == 2 and kwargs["pixels"][1].shape == (3, 5, 5) and not args


def test_labels_never_become_an_attention_mask():
    for args, kwargs in batches((torch.ones(2, 5, dtype=torch.long), torch.arange(2))).inputs(Optional()):
        assert len(args) + len(kwargs) == 1


def test_a_model_that_takes_a_dict_gets_the_dict():
    (inputs,) = batches({"a": torch.ones(1), "b": torch.ones(1)}).inputs(Whole())
    assert call(Whole(), inputs).item() == 2


@pytest.mark.parametrize("names", [["pixelss"], ["piexls"], ["Pixels"], ["pixels", "size"], ["mask", "x"]])
def test_a_dict_with_a_known_or_misspelled_name_goes_by_name(names):
    values, _ = named_values({name: torch.ones(2) for name in names}, module_info(Net()))
    assert list(values) == names


def test_a_slip_in_a_name_is_an_error():
    with pytest.raises(DataError) as caught:
        list(batches({"pixelss": torch.ones(2, 3)}).inputs(Net()))
    assert caught.value.code == "input-name" and "'pixels'" in caught.value.what


def test_none_for_an_optional_input_is_left_out():
    ((args, kwargs),) = samples({"pixels": np.ones(3, np.float32), "mask": None}).inputs(Net())
    assert not args and list(kwargs) == ["pixels"]


def test_samples_with_other_inputs_make_no_batch():
    one, two = {"pixels": np.ones(3)}, {"pixels": np.ones(3), "mask": np.ones(3)}
    with pytest.raises(DataError) as caught:
        list(samples(one, two).inputs(Net(), batch_size=2))
    assert caught.value.code == "batch-ragged"
    assert len(list(samples(one, two).inputs(Net()))) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
@pytest.mark.parametrize("batched", [True, False])
def test_floats_come_in_the_dtype_of_the_parameters(dtype, kind, batched):
    model = torch.nn.Linear(3, 2).to(dtype)
    item = kind(np.ones((4, 3) if batched else 3, np.float32))
    for inputs in samples(item, batched=batched).inputs(model):
        assert call(model, inputs).dtype == dtype


class Gather(torch.nn.Module):
    """Takes a dict: integer rows of a float32 table, plus floats."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.eye(6))

    def forward(self, batch):
        return self.table[batch["rows"]] + batch["shift"]


def test_integers_stay_and_nested_floats_are_cast():
    item = {"rows": torch.tensor([5, 0]), "shift": torch.full((2, 6), 0.5, dtype=torch.float64)}
    (inputs,) = batches(item).inputs(Gather())
    result = call(Gather(), inputs)
    assert result.dtype == torch.float32 and result[0, 5] == 1.5 and item["shift"].dtype == torch.float64


def test_awkward_arrays_become_tensors():
    readonly = np.ones(3, np.float32)
    readonly.flags.writeable = False
    for array in (readonly, np.ones(3)[::-1], np.ones(3, ">f4")):
        ((_, kwargs),) = samples({"pixels": array}).inputs(Net())
        assert kwargs["pixels"].shape == (1, 3) and kwargs["pixels"].sum() == 3


def test_the_main_input_of_a_hugging_face_model_must_be_there():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = transformers.ViTForImageClassification(transformers.ViTConfig(image_size=32, patch_size=8, **sizes)).eval()
    pixels = torch.ones(1, 3, 32, 32)
    with pytest.raises(DataError, match="pixel_values"):
        list(batches({"photo": pixels, "labels": torch.zeros(1, dtype=torch.long)}).inputs(model))
    for item in ({"pixel_values": pixels}, pixels):
        (inputs,) = batches(item).inputs(model)
        assert call(model, inputs).logits.shape == (1, 2)
    bert = transformers.BertModel(transformers.BertConfig(vocab_size=20, **sizes))
    (inputs,) = batches({"inputs_embeds": torch.ones(1, 4, 8)}).inputs(bert)
    assert call(bert, inputs).last_hidden_state.shape == (1, 4, 8)


def test_images_for_a_module_are_scaled_with_a_warning():
    conv = torch.nn.Conv2d(3, 4, 3)
    adapter = InputAdapter(module_info(conv))
    (batch,) = adapter.batches(samples({"image": np.full((8, 9, 3), 255, np.uint8)}))
    assert batch.inputs["input"].shape == (1, 3, 8, 9) and batch.inputs["input"].max() == 1
    assert adapter.report.counts == {"image-raw": 1}


def test_a_transform_of_a_module_returns_a_batch():
    inputs = list(samples({"image": 3}, transform=lambda sample: torch.ones(1, 3)).inputs(Net(), batch_size=4))
    assert [call(Net(), each).item() for each in inputs] == [3]


def test_tensors_without_an_array_form_are_data_errors():
    with pytest.raises(DataError):
        list(samples({"pixels": [[1.0, 2.0], [3.0]]}).inputs(Net()))
    with pytest.raises(DataError):
        list(samples({"pixels": torch.ones(3, device="meta")}).inputs(Net()))


def test_an_exported_program_is_called_by_place_and_name():
    from fewbit.backends.torch_export import BACKEND

    class Two(torch.nn.Module):
        def forward(self, x, *, ids):
            return x.sum() + ids.sum()

    program = torch.export.export(Two(), (torch.ones(2, 3),), {"ids": torch.ones(2, 5, dtype=torch.int64)})
    item = ((torch.ones(2, 3).double(),), {"ids": torch.ones(2, 5, dtype=torch.int32)})
    (inputs,) = batches(item).inputs(BACKEND.inspect(program))
    assert call(program.module(), inputs) == 16
