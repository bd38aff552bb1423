# SPDX-License-Identifier: Apache-2.0
"""What is read of a dataset: a random sample of the whole, classes in proportion, held-out samples included."""

import json
import re
import runpy
import warnings
from collections import Counter
from typing import ClassVar

import numpy as np
import onnx
import pytest
import torch
from onnx.helper import make_node as node
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import fewbit
from fewbit import cli
from fewbit.data.drawing import draw, items_in_order, seeded_order
from fewbit.data.text import as_inputs
from fewbit.engine.collect import is_held_out
from fewbit.engine.measuring import SAMPLES
from fewbit.engine.options import Options
from fewbit.engine.planning import make_plan
from fewbit.engine.quantizer import ModelQuantizer
from fewbit.engine.run import probe, view_of
from fewbit.engine.static import calibrate
from fewbit.errors import CalibrationWarning
from fewbit.record import Record
from onnx_graphs import model as graph
from word_tokenizer import make_tokenizer

SPY = """
from pathlib import Path
import numpy as np
LOG = Path(__file__).with_name("read.txt")

def item(sample):
    with LOG.open("a") as log:
        print(sample.place.path.split("/")[0], file=log)
    return {"x": sample["image"].astype(np.float32).reshape(1, -1) / 255}

def tensor(sample):
    import torch
    return torch.from_numpy(item(sample)["x"])
"""
NET = """
import torch
def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(48, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
"""


@pytest.fixture
def night_and_day(tmp_path):
    """Two class folders that differ strongly: 60 dark images, then 180 bright ones."""
    rng = np.random.default_rng(0)
    for name, count, most in (("a_night", 60, 25), ("b_day", 180, 256)):
        (tmp_path / "nd" / name).mkdir(parents=True)
        for number in range(count):
            pixels = rng.integers(0, most, (4, 4, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "nd" / name / f"{number:03}.png")
    (tmp_path / "spy.py").write_text(SPY)
    (tmp_path / "net.py").write_text(NET)
    rng = np.random.default_rng(1)
    weights = {"w": rng.normal(size=(48, 512)).astype(np.float32), "v": rng.normal(size=(512, 64)).astype(np.float32)}
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Relu", ["h"], ["r"]), node("MatMul", ["r", "v"], ["y"])]
    onnx.save(graph(nodes, {"x": ["n", 48]}, {"y": None}, weights), tmp_path / "net.onnx")
    return tmp_path


@pytest.fixture
def run(night_and_day, capsys, monkeypatch):
    """A command line, run in the folder of the data; what it prints."""
    monkeypatch.chdir(night_and_day)
    monkeypatch.setenv("COLUMNS", "200")

    def call(line):
        assert cli.run(line.split()) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return call


def read(folder):
    """The classes that were read, in order: those of the last 40 reads are those of the last pass."""
    return (folder / "read.txt").read_text().split()[-40:]


def spy(folder, name):
    return runpy.run_path(str(folder / "spy.py"))[name]


def build(folder):
    return runpy.run_path(str(folder / "net.py"))["build"]()


def assert_in_proportion(classes):
    """40 of 240 samples, a quarter of them dark; and so are the 8 that are held out."""
    assert Counter(classes) == {"a_night": 10, "b_day": 30}
    held_out = Counter(name for number, name in enumerate(classes) if is_held_out(number))
    assert held_out == {"a_night": 2, "b_day": 6}


@pytest.mark.parametrize("model", ["net.onnx", "net.py:build"])
@pytest.mark.parametrize("verb", ["quantize", "compress --mode int4_sym --algorithm gptq --group-size 16 --all-layers"])
def test_the_command_line_reads_classes_in_proportion(run, night_and_day, model, verb):
    made = "item" if model == "net.onnx" else "tensor"
    out = "out.onnx" if model == "net.onnx" else "out"
    printed = run(f"{verb} {model} --data nd --transform spy.py:{made} --samples 40 -o {out}")
    assert_in_proportion(read(night_and_day))
    assert "calibrated on 40 of 240 samples (random, seed 0), 2 of 2 classes" in printed


@pytest.mark.parametrize("kind", ["onnx", "module"])
@pytest.mark.parametrize("verb", ["quantize", "compress_weights", "ModelQuantizer"])
def test_python_reads_classes_in_proportion(night_and_day, kind, verb):
    model = onnx.load(night_and_day / "net.onnx") if kind == "onnx" else build(night_and_day)
    data = fewbit.Dataset(night_and_day / "nd", spy(night_and_day, "item" if kind == "onnx" else "tensor"))
    if verb == "quantize":
        fewbit.quantize(model, data, subset_size=40)
    elif verb == "compress_weights":
        fewbit.compress_weights(
            model, mode="int4_sym", group_size=16, all_layers=True, algorithm="gptq", dataset=data, subset_size=40
        )
    else:
        quantizer = ModelQuantizer("w8a8")
        quantizer.quantize_model(model, data, samples=40)
        facts = quantizer.record.facts["subset"]
        assert facts["classes"] == {"a_night": 10, "b_day": 30} and facts["classes_in_source"] == 2
        assert facts["held_out_classes"] == {"a_night": 2, "b_day": 6}
        assert (facts["samples"], facts["items_in_source"], facts["seed"]) == (40, 240, 0)
    assert_in_proportion(read(night_and_day))


def test_accuracy_control_reads_classes_in_proportion(night_and_day):
    data = fewbit.Dataset(night_and_day / "nd", spy(night_and_day, "item"))
    held = [{"x": np.ones((1, 48), np.float32)}]
    fewbit.quantize_with_accuracy_control(onnx.load(night_and_day / "net.onnx"), data, held, subset_size=40)
    assert_in_proportion(read(night_and_day))


def test_compare_asks_classes_in_proportion(run, night_and_day):
    data = fewbit.Dataset(night_and_day / "nd", spy(night_and_day, "tensor"))
    record = fewbit.compare(build(night_and_day), build(night_and_day), data, samples=40)
    assert Counter(read(night_and_day)) == {"a_night": 10, "b_day": 30}
    assert record.facts["subset"]["classes"] == {"a_night": 10, "b_day": 30}
    shown = run("compare net.py:build net.py:build --data nd --transform spy.py:tensor --samples 40")
    assert Counter(read(night_and_day)) == {"a_night": 10, "b_day": 30}
    assert "40 of 240 samples (random, seed 0), 2 of 2 classes" in shown


def test_compare_names_the_worst_sample_by_its_place_in_the_data(run, night_and_day):
    own = "\ndef other():\n    net = build()\n    net[2].weight.data[0] += 0.1\n    return net\n"
    (night_and_day / "net.py").write_text(NET + own)
    line = "compare net.py:build net.py:other --data nd --transform spy.py:tensor --samples 40"
    shown = next(each for each in run(line).splitlines() if "KL, worst" in each)
    number, name = re.search(r" at sample (\d+) \((\S+\.png), ", shown).groups()
    paths = sorted(path.relative_to(night_and_day / "nd") for path in (night_and_day / "nd").rglob("*.png"))
    assert int(number) >= 40 and name == str(paths[int(number)])


def test_sparsify_with_a_function_reads_the_whole_source(run, night_and_day):
    own = "\ndef row(sample):\n    return {'input': tensor(sample)[0]}\n"
    (night_and_day / "spy.py").write_text(SPY + own)
    run("sparsify one-shot --model net.py:build --data nd --use-case spy.py:row --samples 40 -o out")
    subset = json.loads((night_and_day / "out" / "record.json").read_text())["facts"]["prune"]["subset"]
    assert subset["samples"] == 40 and subset["seed"] == 0
    assert 8 <= subset["classes"]["a_night"] <= 12  # a quarter of what is left when a tenth is held out


def test_the_sample_is_the_same_each_time_and_leaves_random_state_alone():
    dataset = fewbit.Dataset([torch.full((1, 2), float(i)) for i in range(100)])
    torch.manual_seed(3)
    state = torch.get_rng_state()
    once, again = ([int(x[0, 0]) for x in draw(dataset, 10)] for _ in range(2))
    assert once == again and len(set(once)) == 10 and max(once) > 50 and once != sorted(once)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("classes", [2, 5, 7])
def test_held_out_samples_are_spread_over_the_classes(classes):
    labels = [number // 100 for number in range(100 * classes)]
    order = seeded_order(len(labels), 50 * classes, labels, seed=0)
    assert Counter(labels[index] for index in order) == dict.fromkeys(range(classes), 50)
    held_out = Counter(labels[index] for number, index in enumerate(order) if is_held_out(number))
    assert held_out == dict.fromkeys(range(classes), 10)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("n", "batch_size", "rare"), [(40, 1, (2,)), (300, 1, (12,)), (400, 1, (16,)), (40, 4, (2,))])
def test_held_out_samples_are_in_class_proportion(seed, n, batch_size, rare):
    labels = [0] * 320 + [1] * 80
    order = seeded_order(400, n, labels, seed, batch_size)
    assert len(set(order)) == n and sum(labels[index] for index in order) == n // 5
    held_out = [labels[index] for number, index in enumerate(order) if is_held_out(number // batch_size)]
    assert sum(held_out) in rare
    for most in range(len(held_out)):  # only the first are measured
        assert abs(sum(held_out[:most]) - most / 5) <= 1.5


def test_a_class_with_one_sample_is_not_held_out_before_others():
    labels = [0] * 30 + [1] * 9 + [2]
    order = seeded_order(40, 40, labels, seed=0)
    assert {labels[index] for index in order[4::5]} == {0, 1}


# What a result is measured on


class Spy(torch.nn.Module):
    """Notes the first number of each sample that it, or a copy of it, is called with."""

    seen: ClassVar[list[int]] = []

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        self.seen += x[:, 0].int().tolist()
        return self.layer(x)


def measured(data, **options):
    """The numbers of the samples that the float model was measured on: it is called with them first."""
    torch.manual_seed(0)
    net, quantizer = Spy().eval(), ModelQuantizer("w8a8")
    net.seen.clear()
    quantizer.quantize_model(net, data, **options)
    return net.seen[: quantizer.record.facts["answers"]["samples"]]


def test_all_samples_of_a_dataset_stand_a_chance_to_be_measured():
    rows = torch.arange(1000.0)[:, None].repeat(1, 4)
    found = measured(fewbit.Dataset(TensorDataset(rows), lambda item: item[0][None]))
    assert len(set(found)) == SAMPLES and min(found) < 200 and max(found) > 800


@pytest.mark.parametrize("samples", [None, 5000])
def test_what_is_measured_is_spread_over_a_loader_that_keeps_its_order(samples):
    own = OwnLoader(1000)  # batches of two
    found = measured(fewbit.Dataset(own), samples=samples)
    batches = found[::2]
    parts = SAMPLES // 2
    assert len(set(batches)) == parts and batches == sorted(batches) and all(is_held_out(each) for each in batches)
    assert [each * parts // 1000 for each in batches] == list(range(parts))


def test_what_a_graph_is_measured_on_is_spread_over_a_loader(night_and_day):
    class Dicts(OwnLoader):
        def __iter__(self):
            rng = np.random.default_rng(0)
            return ({"x": rng.normal(size=(2, 48)).astype(np.float32)} for _ in range(self.count))

    view = view_of(onnx.load(night_and_day / "net.onnx"))
    dataset, quantizer = fewbit.Dataset(Dicts(400)), ModelQuantizer("w8a8")
    probe(view, dataset, 1)
    plan = make_plan(view, quantizer.config)
    run = calibrate(
        view, plan, lambda label: dataset.inputs(view.signature()), record=Record("test"), options=Options(),
        in_order=items_in_order(draw(dataset, None), 1),
    )  # fmt: skip
    parts = SAMPLES // 2
    assert [number * parts // 400 for number in run._numbers] == list(range(parts))
    wanted = [item["x"] for item in dataset]
    assert all(np.array_equal(wanted[number], item["x"]) for number, item in zip(run._numbers, run._judges))


def test_more_classes_than_samples_are_not_the_first_classes():
    labels = [number // 2 for number in range(2000)]
    chosen = [labels[index] for index in seeded_order(2000, 300, labels, seed=0)]
    assert len(set(chosen)) == 300 and max(chosen) > 900


def test_few_of_the_classes_are_warned_of(tmp_path):
    for name in "abcdefgh":
        (tmp_path / name).mkdir()
        for number in range(4):
            Image.fromarray(np.full((4, 4, 3), number, np.uint8)).save(tmp_path / name / f"{number}.png")
    data = fewbit.Dataset(tmp_path, lambda sample: torch.from_numpy(sample["image"]).float().reshape(1, -1))
    with pytest.warns(CalibrationWarning, match="of 3 of 8 classes"):
        fewbit.quantize(torch.nn.Sequential(torch.nn.Linear(48, 4)).eval(), data, subset_size=3)


class Stream(IterableDataset):
    def __iter__(self):
        return (torch.full((4,), float(number)) for number in range(500))


def test_of_a_stream_the_first_samples_are_read_with_a_warning():
    net = torch.nn.Sequential(torch.nn.Linear(4, 4)).eval()
    said = "stream: the first 40 samples were read, not a sample of the whole"
    with pytest.warns(CalibrationWarning, match=said):
        made = fewbit.quantize(net, Stream(), subset_size=40)
    assert "head-only" in {line["what"] for line in made.fewbit_record.lines}
    with warnings.catch_warnings():
        warnings.simplefilter("error", CalibrationWarning)
        fewbit.quantize(net, Stream(), subset_size=1000)


# Loaders


def loader(count=1000, batch_size=128, **more):
    values = torch.arange(count, dtype=torch.float32)[:, None].repeat(1, 4)
    return DataLoader(TensorDataset(values), batch_size=batch_size, **more)


def numbers(dataset):
    return [[int(x) for x in item[0][:, 0]] for item in dataset]


def test_of_a_loader_in_order_samples_are_drawn_from_its_whole_dataset():
    drawn = numbers(draw(fewbit.Dataset(loader()), 2, by_item=True))
    assert [len(batch) for batch in drawn] == [128, 128]
    for batch in drawn:
        assert len(set(batch)) == 128 and min(batch) < 100 and max(batch) > 900


def test_samples_of_a_loader_are_counted_exactly_and_nothing_is_cut():
    assert [len(batch) for batch in numbers(draw(fewbit.Dataset(loader()), 300))] == [128, 128, 44]
    cut = [torch.zeros(10, 8, 32) for _ in range(40)]  # sequences first, as recurrent layers take them
    assert [tuple(item.shape) for item in draw(fewbit.Dataset(cut), 25)] == [(10, 8, 32)] * 3


def test_a_loader_that_shuffles_is_read_as_it_is():
    data = fewbit.Dataset(loader(shuffle=True))
    assert numbers(draw(data, 3, by_item=True)) == numbers(data)[:3]


def test_a_loader_that_is_read_whole_keeps_its_batches():
    assert numbers(draw(fewbit.Dataset(loader(300, 100)), 300, by_item=True)) == numbers(loader(300, 100))


class OwnLoader:
    """A loader that can only be iterated over."""

    def __init__(self, count):
        self.count, self.read = count, 0

    def __len__(self):
        return self.count

    def __iter__(self):
        for number in range(self.count):
            self.read = max(self.read, number + 1)
            yield torch.full((2, 4), float(number))


@pytest.mark.parametrize(("count", "most"), [(30, 30), (1000, 40)])
def test_of_a_loader_without_an_index_items_are_skipped_up_to_a_limit(count, most):
    own, record = OwnLoader(count), Record("test")
    drawn = draw(fewbit.Dataset(own), 10, by_item=True)
    found = [int(item[0, 0]) for item in drawn]
    assert len(found) == 10 and max(found) > 20 and own.read <= most
    drawn.source.report(record)
    assert bool(record.lines) == (count > most)


def test_samples_of_a_loader_without_an_index_are_not_its_first():
    found = [int(item[0, 0]) for item in draw(fewbit.Dataset(OwnLoader(60)), 40)]
    assert len(found) == 20 and max(found) > 40


@pytest.mark.parametrize("verb", ["quantize", "compress_weights"])
def test_subset_size_counts_the_batches_of_a_loader(verb):
    net = torch.nn.Sequential(torch.nn.Linear(4, 4)).eval()
    data = fewbit.Dataset(loader(), lambda item: item[0])
    if verb == "quantize":
        made = fewbit.quantize(net, data, subset_size=300 // 128)
    else:
        made = fewbit.compress_weights(
            net, mode="int4_sym", group_size=-1, all_layers=True, algorithm="gptq", dataset=data, subset_size=300 // 128
        )
    facts = made.fewbit_record.facts["subset"]
    assert (facts["samples"], facts["items"], facts["items_in_source"]) == (256, 2, 8)


# Text


def test_rows_of_text_are_drawn_before_they_are_joined(tmp_path):
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"text": f"w{i % 9} " * 10}) for i in range(800)))
    takes = type("Takes", (torch.nn.Module,), {"forward": lambda self, input_ids: input_ids})()
    made = as_inputs(tmp_path / "rows.jsonl", make_tokenizer(), takes, seqlen=32, pack="concatenate")
    drawn = draw(made, 8)
    lines = [sample.place.line for sample in drawn]
    assert len(lines) == 8 and max(lines) > 400 and lines == [sample.place.line for sample in drawn]
    assert [line["samples"] for line in drawn.record.lines if line["what"] == "tokenized"] == [8]
    record = Record("test")
    drawn.source.report(record)
    assert record.facts["subset"]["rows_in_source"] == 800 and not record.lines


# Few samples


@pytest.mark.parametrize(("count", "warned"), [(31, True), (32, False)])
@pytest.mark.parametrize("batch", [1, 4])
def test_a_calibration_on_few_samples_is_warned_of(count, warned, batch):
    net = torch.nn.Sequential(torch.nn.Linear(16, 4)).eval()
    items = list(torch.randn(count, 16).split(batch))
    for call in (
        lambda: fewbit.quantize(net, items),
        lambda: fewbit.compress_weights(net, mode="int4_sym", all_layers=True, algorithm="gptq", dataset=items),
        lambda: ModelQuantizer("w8a8").quantize_model(net, items),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        found = [str(each.message) for each in caught if each.category is CalibrationWarning]
        assert bool(found) == warned and all("calibrated on 31 samples only" in text for text in found)
        assert all(each.filename == __file__ for each in caught if each.category is CalibrationWarning)


def test_without_data_nothing_is_warned_of():
    net = torch.nn.Sequential(torch.nn.Linear(16, 4)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error", CalibrationWarning)
        fewbit.compress_weights(net, mode="int8_asym")


def test_the_command_line_begins_with_the_warning(run):
    shown = run("quantize net.onnx --data nd --transform spy.py:item --samples 10 -o out.onnx")
    lines = shown.splitlines()
    first = next(number for number, line in enumerate(lines) if not line.startswith("warning: "))
    # without VNNI saturating sums are warned of too
    assert "warning: calibrated on 10 samples only: use 32 or more, a few hundred are usual" in lines[:first]
