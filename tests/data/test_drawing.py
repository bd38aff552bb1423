# SPDX-License-Identifier: Apache-2.0
"""Classes that sources know without reading, and text that is drawn by rows."""

import datasets
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import fewbit
from fewbit.data.drawing import draw
from fewbit.data.text import as_inputs, open_text
from fewbit.record import Record
from word_tokenizer import make_tokenizer

LABELS = [0] * 30 + [1] * 10


class Targeted(Dataset):
    """As those of torchvision are."""

    def __init__(self):
        self.targets = torch.tensor(LABELS)

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.full((2,), float(index)), LABELS[index]


def of_the_hub():
    features = datasets.Features({"x": datasets.Value("int64"), "label": datasets.ClassLabel(names=["cat", "dog"])})
    return datasets.Dataset.from_dict({"x": list(range(40)), "label": LABELS}, features=features)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        pytest.param(Targeted, ("0", "1"), id="targets"),
        pytest.param(of_the_hub, ("cat", "dog"), id="huggingface"),
        pytest.param(lambda: {"x": np.arange(40), "label": np.array(LABELS)}, ("0", "1"), id="columns"),
    ],
)
def test_classes_are_in_proportion_where_they_are_known(source, names):
    drawn, record = draw(fewbit.Dataset(source()), 12), Record("test")
    assert len(list(drawn)) == 12
    drawn.source.report(record)
    assert record.facts["subset"]["classes"] == {names[0]: 9, names[1]: 3}


def test_held_out_samples_are_counted_by_class():
    drawn, record = draw(fewbit.Dataset(of_the_hub()), 20), Record("test")
    list(drawn)
    drawn.source.report(record)
    assert record.facts["subset"]["classes"] == {"cat": 15, "dog": 5}
    assert record.facts["subset"]["held_out_classes"] == {"cat": 3, "dog": 1}


def test_held_out_batches_are_counted_by_class():
    drawn, record = draw(fewbit.Dataset(of_the_hub()), 40, batch_size=4), Record("test")
    list(drawn)  # ten batches, of which two are held out
    drawn.source.report(record)
    assert record.facts["subset"]["held_out_classes"] == {"cat": 6, "dog": 2}


@pytest.mark.parametrize("batch_size", [None, 1, 4])
def test_classes_of_a_loader_are_in_proportion_too(batch_size):
    drawn = draw(fewbit.Dataset(DataLoader(Targeted(), batch_size=batch_size)), 20 // (batch_size or 1), by_item=True)
    drawn = [torch.as_tensor(label).reshape(-1) for _, label in drawn]
    held_out = [label for number, label in enumerate(drawn) if number % 5 == 4]
    assert torch.cat(drawn).sum() == 5 and torch.cat(held_out).sum() == 1


def test_targets_of_a_loader_that_are_no_classes_are_left_alone():
    data = Targeted()
    plain = [int(x[0, 0]) for x, _ in draw(fewbit.Dataset(DataLoader(TensorDataset(*tensors()))), 20)]
    data.targets = torch.arange(40)
    assert [int(x[0, 0]) for x, _ in draw(fewbit.Dataset(DataLoader(data)), 20)] == plain


def tensors():
    return torch.arange(40.0)[:, None].repeat(1, 2), torch.tensor(LABELS)


def test_all_samples_come_in_random_order_where_they_can_be_indexed():
    drawn = draw(fewbit.Dataset(Targeted()), None)
    order = [int(x[0]) for x, _ in drawn]
    assert sorted(order) == list(range(40)) and order != sorted(order)
    assert [LABELS[each] for each in order[4::5]].count(1) == 2
    again = [int(x[0]) for x, _ in draw(drawn, 20)]  # of all of them a subset is drawn as if from the source
    assert again == [int(x[0]) for x, _ in draw(fewbit.Dataset(Targeted()), 20)]


@pytest.mark.filterwarnings("ignore:a generator can be read once")
def test_all_of_a_generator_can_be_drawn_from_again():
    drawn = draw(draw(fewbit.Dataset(torch.full((1, 2), float(i)) for i in range(10)), None), None)
    assert [int(x[0, 0]) for x in drawn] == list(range(10))


def test_numbers_that_hardly_repeat_are_no_classes():
    drawn, record = draw(fewbit.Dataset({"x": np.arange(40), "label": np.arange(40)}), 12), Record("test")
    assert len(list(drawn)) == 12
    drawn.source.report(record)
    assert "classes" not in record.facts["subset"] and not record.lines


def test_articles_of_plain_text_are_drawn_from_the_whole_file(tmp_path):
    lines = [line for number in range(200) for line in (f" = w{number % 90} = \n", " w5 w6 w7 w8 \n")]
    (tmp_path / "wiki.txt").write_text("".join(lines))
    takes = type("Takes", (torch.nn.Module,), {"forward": lambda self, input_ids: input_ids})()
    rows = open_text(f"wikitext={tmp_path / 'wiki.txt'}")
    drawn = draw(as_inputs(rows, make_tokenizer(), takes, seqlen=16, pack="concatenate"), 8)
    places = [sample.place.line for sample in drawn]
    assert len(places) == 8 and max(places) > 200 and places != sorted(places)


def test_a_loader_keeps_its_own_way_of_choosing():
    values = TensorDataset(torch.arange(40.0)[:, None])
    own = [[3, 1], [4, 1], [5, 9]]
    drawn = draw(fewbit.Dataset(DataLoader(values, batch_sampler=own)), 3, by_item=True)
    assert [[int(x) for x in batch[0]] for batch in drawn] == own


def test_batches_that_cannot_be_put_together_are_explained():
    values = [torch.zeros(1 + number // 4) for number in range(40)]  # of one size only as they lie
    drawn = draw(fewbit.Dataset(DataLoader(values, batch_size=4)), 3, by_item=True)
    with pytest.raises(fewbit.errors.DataError, match="drawn at random") as caught:
        list(drawn)
    assert "collate_fn that pads" in str(caught.value)
