# SPDX-License-Identifier: Apache-2.0
"""Results are measured on held-out samples, and broken ones are said to be broken."""

import warnings

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import fewbit
from fewbit import cli
from fewbit.engine.collect import is_held_out
from fewbit.engine.measuring import SAMPLES, is_broken, measure, reference_on, reference_outputs
from fewbit.engine.run import view_of
from fewbit.errors import BrokenResultWarning
from fewbit.record import Record
from quantized_models import mlp, numbers
from small_models import opt, token_ids


class Templates(nn.Module):
    """A classifier whose sixteen classes differ in the small weights alone; so few bits see the large ones only."""

    def __init__(self):
        super().__init__()
        drawn = torch.randn(16, 64, generator=torch.Generator().manual_seed(0))
        drawn[:, :32] = 20.0
        self.layer = nn.Linear(64, 16, bias=False)
        with torch.no_grad():
            self.layer.weight.copy_(drawn)

    def forward(self, x):
        return self.layer(x)


def samples(count=50):
    drawn = torch.randn(count, 1, 64, generator=torch.Generator().manual_seed(1))
    drawn[..., :32] = 0.001 * drawn[..., :32]
    return list(drawn)


def broken_lines(record):
    return [line for line in record.lines if line["what"] == "broken"]


def test_a_module_is_measured():
    made = fewbit.compress_weights(mlp(), mode="int8_sym", dataset=[numbers(1, 40) + i for i in range(20)])
    answers = made.fewbit_record.facts["answers"]
    assert answers["samples"] == 4 and answers["kept_aside"] and answers["agreement"] == 1.0
    assert 0 < answers["error"] < 1e-3 and is_held_out(answers["worst_item"])


def test_without_data_nothing_is_measured():
    assert "answers" not in fewbit.compress_weights(mlp(), mode="int8_sym").fewbit_record.facts


def test_few_items_are_measured_on_what_they_calibrated():
    made = fewbit.compress_weights(mlp(), mode="int8_sym", dataset=[numbers(1, 40) + i for i in range(3)])
    answers = made.fewbit_record.facts["answers"]
    assert answers["samples"] == 3 and not answers["kept_aside"]


def test_a_broken_module_is_warned_of():
    with pytest.warns(BrokenResultWarning, match=r"agreement with the original .*% on 10 held-out samples") as caught:
        made = fewbit.compress_weights(Templates(), mode="int2_sym", all_layers=True, dataset=samples())
    assert "int8_asym" in str(caught[0].message) and "names=['layer']" in str(caught[0].message)
    (line,) = broken_lines(made.fewbit_record)
    assert line["worst"] == ["layer"] and made.fewbit_record.facts["answers"]["agreement"] < 0.8


def test_quantize_model_warns_too():
    with pytest.warns(BrokenResultWarning):
        fewbit.ModelQuantizer("w2a16").quantize_model(Templates(), samples())


def test_a_working_model_is_not_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error", BrokenResultWarning)
        fewbit.quantize(mlp(), [numbers(1, 40) + i for i in range(10)])


def test_the_model_the_data_and_the_random_state_stay_as_they_are():
    model, items = Templates(), samples()
    weight, first, state = model.layer.weight.clone(), [item.clone() for item in items], torch.get_rng_state()
    fewbit.compress_weights(model, mode="int4_sym", dataset=items)
    assert torch.equal(model.layer.weight, weight) and torch.equal(torch.get_rng_state(), state)
    assert all(map(torch.equal, items, first))


def test_a_language_model_is_measured_on_few_positions():
    ids = [{"input_ids": row[None]} for row in token_ids(60, 40)]
    made = fewbit.compress_weights(opt(), mode="int8_sym", dataset=ids)
    answers = made.fewbit_record.facts["answers"]
    assert answers["samples"] == 8 and answers["positions"] == 8 * 32 and answers["agreement"] > 0.9


def test_padding_is_not_measured():
    ids = token_ids(10, 9)
    mask = torch.ones_like(ids)
    mask[:, 4:] = 0
    items = [{"input_ids": a[None], "attention_mask": b[None]} for a, b in zip(ids, mask)]
    made = fewbit.compress_weights(opt(), mode="int8_sym", dataset=items)
    assert made.fewbit_record.facts["answers"]["positions"] == 2 * 4


class Fake:
    """A view with given outputs."""

    can = frozenset()

    def __init__(self, *outputs):
        self.outputs = outputs

    def signature(self):
        return mlp()

    def answers(self, items):
        for _, outputs in zip(items, self.outputs):
            yield [torch.as_tensor(output) for output in outputs]


def measured(wanted, found):
    record = Record("quantize")
    items = [(i, ((torch.zeros(1, 40),), {})) for i in range(len(wanted))]
    reference = reference_on(Fake(*wanted), items, record, held_out=True)
    if reference is not None:
        measure(Fake(*found), reference, record)
    return record


def scores(*choices, classes=4, of=1.0):
    return [[of * nn.functional.one_hot(torch.tensor([choice]), classes).float()] for choice in choices]


def test_below_four_fifths_is_broken():
    assert is_broken(measured(scores(0, 1, 2, 3, 0), scores(0, 1, 2, 0, 1)))  # 60 %
    assert not is_broken(measured(scores(0, 1, 2, 3, 0), scores(0, 1, 2, 3, 1)))  # 80 %


def test_near_ties_are_not_broken():
    wanted = [[torch.tensor([[10.0, 0.0, 10.001, 5.0]])]] * 5
    record = measured(wanted, [[torch.tensor([[10.001, 0.0, 10.0, 5.0]])]] * 5)
    assert record.facts["answers"]["agreement"] == 0.0 and not is_broken(record)


def test_boxes_of_a_detector_are_no_classes():
    """The largest entry of a row of coordinates means little: a small error does not break the model."""
    wanted = [[torch.randn(1, 8, 500, generator=torch.Generator().manual_seed(i))] for i in range(5)]
    found = [[a + 0.15 * torch.randn(a.shape, generator=torch.Generator().manual_seed(9))] for (a,) in wanted]
    record = measured(wanted, found)
    assert record.facts["answers"]["agreement"] < 0.8 and not is_broken(record)
    assert is_broken(measured(wanted, [[-a] for (a,) in wanted]))


def test_outputs_without_a_choice_are_judged_by_their_error():
    wanted = [[torch.tensor([[float(i + 1)]])] for i in range(5)]
    assert not is_broken(measured(wanted, [[1.1 * a] for (a,) in wanted]))
    wanted[0] = [torch.tensor([[0.001]])]  # far off in relation to itself, not to the others
    assert not is_broken(measured(wanted, [[a + 0.1] for (a,) in wanted]))
    assert is_broken(measured(wanted, [[0 * a] for (a,) in wanted]))


def test_a_constant_offset_is_no_signal():
    wanted = [[torch.tensor([[100.0 + i]])] for i in range(5)]
    record = measured(wanted, [[torch.tensor([[102.0]])]] * 5)
    assert "SQNR about the mean" in broken_lines(record)[0]["reason"]
    assert not is_broken(measured(wanted, [[a + 0.1] for (a,) in wanted]))
    constant = [[torch.tensor([[5.0]])] for _ in range(5)]
    assert not is_broken(measured(constant, [[a + 0.01] for (a,) in constant]))


def characters(seed, blanks=0.88):
    """Logits of a CTC model `[1, 100, 8]`: most positions are blank (class 0)."""
    drawn = torch.Generator().manual_seed(seed)
    chosen = torch.randint(1, 8, (100,), generator=drawn)
    chosen[torch.rand(100, generator=drawn) < blanks] = 0
    return nn.functional.one_hot(chosen, 8).float()[None]


def blank(logits, share):
    """The same, but of the characters a share is lost to the blank."""
    lost = logits.clone()
    at = (logits[0].argmax(-1) > 0).nonzero().flatten()
    at = at[: round(share * len(at))]
    lost[0, at] = nn.functional.one_hot(torch.tensor(0), 8).float()
    return lost


def test_characters_that_become_blanks_are_broken():
    wanted = [[characters(seed)] for seed in range(5)]
    record = measured(wanted, [[blank(a, 0.69)] for (a,) in wanted])
    answers = record.facts["answers"]
    assert answers["agreement"] > 0.9 and answers["agreement_on_other_choices"] < 0.4
    assert "most frequent" in broken_lines(record)[0]["reason"]
    assert not is_broken(measured(wanted, [[blank(a, 0.1)] for (a,) in wanted]))
    near = [[a + 0.05 * torch.randn(a.shape, generator=torch.Generator().manual_seed(9))] for (a,) in wanted]
    assert not is_broken(measured(wanted, near))


@pytest.mark.parametrize(("count", "lost", "broken"), [(60, 4, True), (60, 3, False), (20, 2, False), (300, 15, True)])
def test_a_class_that_is_rare_must_not_vanish(count, lost, broken):
    """One of ten samples is positive: few positions are judged with more care, and fewer than five not at all."""
    labels = [int(i % 10 == 0) for i in range(count)]
    found = list(labels)
    for i in [i for i in range(count) if labels[i]][:lost]:
        found[i] = 0
    record = measured(scores(*labels, classes=2), scores(*found, classes=2))
    assert record.facts["answers"]["agreement"] >= 0.9 and is_broken(record) is broken


class Rare(nn.Module):
    """A binary classifier that says yes to one of ten samples, for the sake of a small weight."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 2)
        with torch.no_grad():
            self.layer.weight.zero_()
            self.layer.weight[1, 0] = 1.0
            self.layer.weight[:, 1::2] = 20.0  # alike in both rows; they take all of the range
            self.layer.bias.copy_(torch.tensor([0.5, 0.0]))

    def forward(self, x):
        return self.layer(x)


def test_a_rare_class_is_looked_for_in_a_whole_run():
    items = list(0.005 * torch.randn(50, 10, 64, generator=torch.Generator().manual_seed(1)))
    for item in items:
        item[:, 0] = 0.0
        item[0, 0] = 1.0  # one of ten
    record = fewbit.compress_weights(Rare(), mode="int2_sym", all_layers=True, dataset=items).fewbit_record
    answers = record.facts["answers"]
    assert answers["agreement"] >= 0.88 and answers["agreement_on_other_choices"] == 0.0 and is_broken(record)
    record = fewbit.compress_weights(Rare(), mode="int8_sym", all_layers=True, dataset=items).fewbit_record
    assert record.facts["answers"]["agreement_on_other_choices"] == 1.0 and not is_broken(record)


def test_integer_outputs_are_choices():
    """The model ends in ArgMax."""
    wanted = [[torch.arange(100) % 4] for _ in range(5)]
    record = measured(wanted, [[torch.where(a == 3, 0, a)] for (a,) in wanted])
    assert record.facts["answers"]["agreement"] == 0.75 and is_broken(record)
    assert not is_broken(measured(wanted, [[torch.where(torch.arange(100) < 10, 0, a)] for (a,) in wanted]))
    background = [[(torch.arange(1000) < 30).long()] for _ in range(5)]
    assert is_broken(measured(background, [[0 * a] for (a,) in background]))


def test_class_numbers_beside_boxes_are_not_compared():
    """A detector sorts its boxes: near ties change places."""
    boxes = torch.arange(40.0).reshape(1, 10, 4)
    record = measured([[boxes, torch.arange(10)[None]]] * 5, [[boxes, torch.arange(10).flip(0)[None]]] * 5)
    assert not is_broken(record)


def test_pixels_have_their_classes_on_axis_1():
    drawn = [torch.Generator().manual_seed(i) for i in range(5)]
    wanted = [
        [nn.functional.one_hot(torch.randint(0, 3, (1, 8, 8), generator=g), 3).movedim(-1, 1).float()] for g in drawn
    ]
    near = [[a + 0.2 * torch.randn(a.shape, generator=torch.Generator().manual_seed(9))] for (a,) in wanted]
    record = measured(wanted, near)
    assert record.facts["answers"]["agreement"] > 0.95 and not is_broken(record)
    assert is_broken(measured(wanted, [[a.roll(1, 1)] for (a,) in wanted]))
    # along the last axis nothing changes here, and every pixel is another class
    rows = [[torch.stack([torch.arange(8.0), torch.arange(8.0) + 1]).reshape(1, 2, 1, 8)]] * 5
    assert measured(rows, [[a.flip(1)] for (a,) in rows]).facts["answers"]["agreement"] == 0.0


@pytest.mark.parametrize(("noise", "broken"), [(0.35, False), (0.7, True)])
def test_embeddings_are_judged_by_their_error_too(noise, broken):
    wanted = [[torch.randn(1, 384, generator=torch.Generator().manual_seed(i))] for i in range(32)]
    near = [[a + noise * torch.randn(a.shape, generator=torch.Generator().manual_seed(99))] for (a,) in wanted]
    record = measured(wanted, near)
    assert record.facts["answers"]["agreement"] < 0.8 and is_broken(record) is broken


def test_outputs_that_are_not_finite():
    nan = [[torch.tensor([[float("nan"), 1.0]])]] * 5
    assert "not finite" in broken_lines(measured(scores(0, 1, 0, 1, 0, classes=2), nan))[0]["reason"]
    record = measured(nan, scores(0, 1, 0, 1, 0, classes=2))
    assert [line["what"] for line in record.lines] == ["not-measured"] and "answers" not in record.facts


def test_other_shapes_are_not_compared():
    """A detector with its own suppression finds another number of boxes."""
    record = measured([[torch.ones(7, 4)]] * 5, [[torch.ones(6, 4)]] * 5)
    assert [line["what"] for line in record.lines] == ["output-shapes-differ"]


def test_a_result_that_fails_is_broken_and_a_run_goes_on():
    class Failing(Fake):
        def answers(self, items):
            raise RuntimeError("no such kernel")

    record = Record("quantize")
    items = [(0, ((torch.zeros(1, 40),), {}))]
    measure(Failing(), reference_on(Fake(*scores(0)), items, record, held_out=True), record)
    assert "no such kernel" in broken_lines(record)[0]["reason"]
    assert reference_on(Failing(), items, record, held_out=True) is None
    assert record.lines[-1]["what"] == "not-measured"


def test_batches_and_large_sets_are_bounded():
    read = []

    def items(batch):
        for number in range(1000):
            read.append(number)
            yield (torch.zeros(batch, 40),), {}

    found = reference_outputs(view_of(mlp()), items(1), Record("quantize"))
    assert found.samples == SAMPLES and len(read) == 5 * SAMPLES
    assert reference_outputs(view_of(mlp()), items(20), Record("quantize")).samples == 80


# the command line


def write_templates(path):
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["input", "w"], ["out"], name="layer")],
        "graph",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["n", 64])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["n", 16])],
        [numpy_helper.from_array(Templates().layer.weight.detach().numpy().T.copy(), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    path.write_bytes(model.SerializeToString())


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    write_templates(tmp_path / "m.onnx")
    (tmp_path / "samples").mkdir()
    for i, row in enumerate(samples()):
        np.savez(tmp_path / "samples" / f"{i:02}.npz", input=row[0].numpy())
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.layer = nn.Linear(64, 16, bias=False)\n\n"
        "    def forward(self, input):\n        return self.layer(input)\n\n\ndef build():\n    net = Net()\n"
        "    net.load_state_dict(torch.load('net.pt'))\n    return net.eval()\n"
    )
    torch.save(Templates().state_dict(), tmp_path / "net.pt")

    def run(*arguments):
        capsys.readouterr()
        code = cli.run([str(a) for a in arguments])
        return code, capsys.readouterr().out

    return run


@pytest.mark.parametrize("model", ["m.onnx", "net.py:build"])
def test_a_broken_result_is_said_first_and_ends_with_1(run, model):
    arguments = ["compress", model, "--data", "samples", "--all-layers"]
    code, out = run(*arguments, "--mode", "int2_sym", "-o", "out.onnx")
    assert code == 1, out
    first, second = out.splitlines()[:2]
    assert first.startswith("BROKEN: the result does not work: agreement with the original ")
    assert "on 10 held-out samples" in first
    assert "--preset w8a16" in second and "--mode int8_asym" in second and "--ignore layer" in second
    assert run(*arguments, "--mode", "int2_sym", "-o", "again.onnx", "--json")[0] == 1
    code, out = run(*arguments, "--mode", "int8_asym", "-o", "good.onnx")
    assert code == 0 and "BROKEN" not in out, out
    assert "  measured on 10 held-out samples: agreement 100.0%, relative error " in out


def test_the_line_is_red(run, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    _, out = run("compress", "m.onnx", "--data", "samples", "--all-layers", "--mode", "int2_sym", "-o", "out.onnx")
    assert out.startswith("\x1b[1;31mBROKEN: ")
