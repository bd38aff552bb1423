# SPDX-License-Identifier: Apache-2.0
"""Errors that name an item say which file and sample it is."""

import numpy as np
import pytest
import torch
from onnx import helper

import fewbit
from fewbit.data.dataset import Dataset
from fewbit.engine.item_places import ItemPlaces
from fewbit.errors import DataError
from onnx_graphs import model, random


def folder_of(path, count=8, spoil=None, shape=(16,)):
    path.mkdir()
    for i in range(count):
        array = random(*shape, seed=i)
        if i == spoil:
            array.flat[3] = np.nan
        np.savez(path / f"{i}.npz", x=array)
    return path


def dense():
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="fc")]
    return model(nodes, {"x": ["n", 16]}, {"y": None}, {"w": random(16, 16)})


@pytest.mark.parametrize("spoil", [0, 5])
def test_a_value_that_is_not_finite_in_a_file(tmp_path, spoil):
    data = folder_of(tmp_path / "data", spoil=spoil)
    for quantize in (fewbit.quantize, lambda m, d: fewbit.quantize_with_accuracy_control(m, d, d)):
        with pytest.raises(DataError) as caught:
            quantize(dense(), data)
        assert caught.value.code == "not-finite" and f"sample {spoil} ({spoil}.npz" in caught.value.where


def test_in_the_data_that_judge(tmp_path):
    data = folder_of(tmp_path / "data", spoil=3)
    with pytest.raises(DataError) as caught:
        fewbit.quantize_with_accuracy_control(dense(), [{"x": random(1, 16)}] * 4, data)
    assert "sample 3 (3.npz" in caught.value.where


def test_a_file_of_a_batch(tmp_path):
    data = folder_of(tmp_path / "data", spoil=5)
    with pytest.raises(DataError) as caught:
        fewbit.quantize(dense(), data, advanced_parameters={"batch_size": 2})
    assert "; sample 5 (5.npz, sample 5)" in caught.value.where  # and the other one of its batch, drawn at random


def test_an_activation_of_a_module(tmp_path):
    data = folder_of(tmp_path / "data", spoil=5)
    net = torch.nn.Sequential(torch.nn.Linear(16, 4)).eval()
    with pytest.raises(DataError) as caught:
        fewbit.quantize(net, data)
    assert "0:input from sample 5 (5.npz, sample 5) on" in caught.value.where


def test_a_module_that_fails_on_an_item(tmp_path):
    class Choosy(torch.nn.Linear):
        def forward(self, x):
            if x[0, 0] > 1e6:
                raise ValueError("too large")
            return super().forward(x)

    data = folder_of(tmp_path / "data")
    np.savez(data / "6.npz", x=np.full(16, 1e7, np.float32))
    with pytest.raises(DataError, match=r"failed on sample 6 \(6\.npz, sample 6\): ValueError: too large"):
        fewbit.quantize(torch.nn.Sequential(Choosy(16, 4)).eval(), data)


def test_what_names_no_item_is_raised_as_it_is():
    places = ItemPlaces()
    next(places.inputs(Dataset([{"x": random(1, 16)}]), dense(), 1))
    for where in ("a.npz", "item 7", None):
        fault = DataError("wrong", where=where)
        with pytest.raises(DataError) as caught, places.told():
            raise fault
        assert caught.value is fault
