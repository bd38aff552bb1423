# SPDX-License-Identifier: Apache-2.0
"""Mixed precision: bits go where the answers need them, the budget holds, and what is fused has one format."""

import numpy as np
import pytest
import torch
from torch import nn

import onnx_graphs
from fewbit import compare, compress_weights
from fewbit.engine.mix import Mix
from fewbit.engine.mixture import mixture
from fewbit.engine.quantizer import ModelQuantizer
from fewbit.engine.run import view_of
from fewbit.errors import UsageError
from fewbit.modules.quantized import get_weight, is_quantized
from fewbit.record import Record
from small_models import opt, token_ids
from tiny_models import shaken, transformer


def llama(layers=3, seed=0):
    """A random Llama that is sure of its answers, to which its layers contribute very differently."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    model = shaken(LlamaForCausalLM(LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=96, tie_word_embeddings=False,
    )))  # fmt: skip
    with torch.no_grad():
        model.lm_head.weight *= 3
        model.model.layers[1].mlp.down_proj.weight *= 5
        model.model.layers[2].self_attn.o_proj.weight *= 0.1
    return model


def texts(count, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return [{"input_ids": torch.randint(3, 96, (1, 24), generator=draw)} for _ in range(count)]


def widths(model):
    found = {name: layer for name, layer in model.named_modules() if is_quantized(layer)}
    return {name: get_weight(layer, "weight").grid.dtype.bits for name, layer in found.items()}


def kl(model, made):
    return compare(model, made, texts(12, seed=9)).facts["kl"]["mean"]["value"]


def spent(model, made, names):
    """Bits a weight of some layers, counted from the tensors themselves."""
    codes = {name: get_weight(made.get_submodule(name), "weight") for name in names}
    held = sum(q.packed.numel() * q.packed.element_size() + q.scale.numel() * 2 for q in codes.values())
    return 8 * held / sum(model.get_submodule(name).weight.numel() for name in names)


class Planted(nn.Module):
    """Two layers of the same weights, of which one counts a hundred times as much as the other."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.quiet, self.loud = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(0.05 * self.quiet(x.tanh()) + 5 * self.loud(x.sin()))


def test_the_layer_that_counts_gets_the_bits():
    model, data = Planted().eval(), [torch.randn(4, 64, generator=torch.Generator().manual_seed(i)) for i in range(8)]
    made = compress_weights(model, bits=6.6, group_size=32, dataset=data)
    assert widths(made)["loud"] == 8 and widths(made)["quiet"] == 4
    facts = made.fewbit_record.facts["mix"]
    assert facts["sensitivity"] == "answers" and facts["items"] == 4  # of four samples each
    assert facts["bits"] == pytest.approx(6.5) and facts["shares"] == {"int4_sym": 0.5, "int8_sym": 0.5}
    lines = {line["where"]: line for line in made.fewbit_record.lines if line["what"] == "format"}
    assert lines["loud"]["format"] == "int8_sym"
    assert lines["loud"]["harm"]["int4_sym"] > 1000 * lines["quiet"]["harm"]["int4_sym"]
    # With the same weights nothing but data can tell the two apart.
    assert lines["quiet"]["bits"] == 4.5 and lines["loud"]["bits"] == 8.5


@pytest.mark.parametrize("bits", [4.6, 6.0, 7.9])
def test_the_budget_holds_is_used_and_what_is_fused_is_one(bits):
    model = llama()
    made = compress_weights(model, bits=bits, group_size=32, dataset=texts(4), algorithm="rtn")
    found = widths(made)
    names = [name for name in found if name.startswith("model.layers")]
    assert spent(model, made, names) == pytest.approx(made.fewbit_record.facts["mix"]["bits"])
    smallest = 4 * 64 * 64 / sum(model.get_submodule(name).weight.numel() for name in names)
    assert bits - smallest < spent(model, made, names) <= bits
    for layer in range(3):
        of = {name.rpartition(".")[2]: width for name, width in found.items() if f".{layer}." in name}
        assert of["q_proj"] == of["k_proj"] == of["v_proj"] and of["gate_proj"] == of["up_proj"]
    assert found["lm_head"] == found["model.embed_tokens"] == 8


def test_it_is_nearer_to_the_original_than_any_shuffling_of_the_same_formats():
    model = llama()
    made = compress_weights(model, bits=5.4, group_size=32, dataset=texts(8), algorithm="rtn")
    best, config = kl(model, made), made.fewbit_config
    facts = made.fewbit_record.facts["mix"]
    assert 0.4 < facts["harm"] / best < 2.5 and facts["harm"] < 0.7 * facts["harm_alone"]["int4_sym"]
    draw = np.random.default_rng(0)
    kinds = ("self_attn.{q,k,v}_proj", "self_attn.o_proj", "mlp.{gate,up}_proj", "mlp.down_proj")
    members = {kind: _spelled(kind) for kind in kinds}
    tried = 0
    while tried < 3:
        order = {kind: draw.permutation(3) for kind in kinds}
        entries = {
            f"model.layers.{layer}.{name}": config.layer_quant_config[f"model.layers.{order[kind][layer]}.{name}"]
            for kind in kinds
            for name in members[kind]
            for layer in range(3)
        }
        if all(entries[name] == config.layer_quant_config[name] for name in entries):
            continue
        other = ModelQuantizer(config.with_layers(entries)).quantize_model(model)
        assert best < kl(model, other)
        tried += 1


def _spelled(kind):
    head, _, tail = kind.partition("{")
    inner, _, end = tail.partition("}")
    return [f"{head}{each}{end}" for each in inner.split(",")]


def test_the_same_choice_in_every_run_and_nothing_of_the_callers_is_changed():
    model, data = llama(), texts(4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    first, second = (compress_weights(model, bits=5, group_size=32, dataset=data, algorithm="rtn") for _ in range(2))
    assert first.fewbit_config == second.fewbit_config
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


def test_below_four_bits_there_are_narrower_modes():
    made = compress_weights(llama(), bits=3.8, group_size=32, dataset=texts(4), algorithm="rtn")
    facts = made.fewbit_record.facts["mix"]
    assert set(facts["shares"]) == {"int3_sym", "int4_sym", "int8_sym"} and 3.6 < facts["bits"] <= 3.8
    facts = compress_weights(llama(), bits=2.7, group_size=32).fewbit_record.facts["mix"]
    assert "int2_sym" in facts["shares"] and facts["bits"] <= 2.7


def test_what_no_choice_can_reach_is_told_with_what_it_could():
    with pytest.raises(UsageError, match=r"int4_asym alone has 4\.75") as caught:
        compress_weights(llama(), mode="int4_asym", bits=4.6, group_size=32)
    assert "4.750 or more" in str(caught.value)
    with pytest.raises(UsageError, match="one of the two"):
        compress_weights(llama(), mode="int4_sym", bits=4.5, ratio=0.5)
    with pytest.raises(UsageError, match="ratio"):
        compress_weights(llama(), mode="int4_sym", ratio=1.5)


def test_whole_bits_are_a_mode_and_many_bits_eight():
    assert {w for name, w in widths(compress_weights(llama(), bits=4)).items() if "layers" in name} == {4}
    assert set(widths(compress_weights(llama(), bits=12)).values()) == {8}


def test_modes_to_choose_from_are_the_callers():
    made = compress_weights(llama(), mode=["nf4", "mxfp8"], bits=5.5, dataset=texts(2), algorithm="rtn")
    facts = made.fewbit_record.facts["mix"]
    assert set(facts["shares"]) == {"nf4", "mxfp8"} and 0 < facts["shares"]["mxfp8"] < 1 and facts["bits"] <= 5.5


def test_all_layers_have_a_choice_if_asked_for():
    model = opt(layers=1)  # whose head is its table
    made = compress_weights(model, bits=5.5, group_size=32, dataset=[token_ids(2)], all_layers=True)
    facts = made.fewbit_record.facts["mix"]
    where = [line["where"] for line in made.fewbit_record.lines if line["what"] == "format"]
    assert any("embed_tokens" in each for each in where) and facts["bits"] <= 5.5


def test_without_data_the_weights_say_it_and_the_record_how():
    record = compress_weights(llama(), bits=5, group_size=32).fewbit_record
    assert record.facts["mix"]["sensitivity"] == "weights"
    assert any(line["what"] == "mixed" and "neither data nor" in line["reason"] for line in record.lines)
    alone = compress_weights(Planted().eval(), bits=6.6, group_size=32).fewbit_record
    assert any("no sample to see" in line["reason"] for line in alone.lines)


def test_a_store_says_it_without_data(tmp_path):
    model = llama()
    compress_weights(model, bits=4, group_size=32, dataset=texts(6), statistics=tmp_path / "sums")
    made = compress_weights(model, bits=5.4, group_size=32, statistics=tmp_path / "sums")
    facts = made.fewbit_record.facts["mix"]
    assert facts["sensitivity"] == "outputs" and facts["items"] == 6 and facts["bits"] <= 5.4
    # The share of the output that is lost, from inputs that were kept on their way through the float model's layer.
    line = next(line for line in made.fewbit_record.lines if line["where"] == "model.layers.0.self_attn.o_proj")
    free = compress_weights(model, bits=5.4, group_size=32).fewbit_record
    other = next(each for each in free.lines if each["where"] == line["where"])
    assert 0 < line["harm"]["int4_sym"] < 1 and line["harm"] != other["harm"]


def test_a_store_says_it_of_experts_in_one_tensor_too(tmp_path):
    model, item = transformer("qwen3_moe").eval(), {"input_ids": token_ids(2, 12) % 40}
    some = {"statistics": tmp_path / "sums"}
    compress_weights(model, mode="int4_sym", group_size=8, dataset=[item], algorithm="gptq", **some)
    lines = [compress_weights(model, bits=7, group_size=8, **more).fewbit_record.lines for more in ({}, some)]
    weights, outputs = (
        next(line["harm"] for line in each if line["what"] == "format" and line["where"].endswith("mlp.experts"))
        for each in lines
    )
    assert weights.keys() == outputs.keys() and all(weights[name] != outputs[name] for name in weights)
    assert all(0 < harm < 1 for harm in outputs.values())


class Stepped(nn.Module):
    """A model that cannot be differentiated, but asked."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.head = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 5)

    def forward(self, x):
        return self.head(self.second(self.first(x).tanh())).detach()


def test_where_there_are_no_gradients_layers_are_judged_by_their_outputs():
    data = [torch.randn(2, 64, generator=torch.Generator().manual_seed(i)) for i in range(6)]
    record = compress_weights(Stepped().eval(), bits=6.6, group_size=32, dataset=data).fewbit_record
    assert record.facts["mix"]["sensitivity"] == "outputs"
    assert any("cannot be differentiated" in line["reason"] for line in record.lines)


def test_ratio_is_a_share_at_the_least_and_uses_data():
    model = llama()
    for ratio in (0.0, 0.5, 0.8, 1.0):
        made = compress_weights(model, mode="int4_sym", group_size=32, ratio=ratio, dataset=texts(2), algorithm="rtn")
        facts = made.fewbit_record.facts["mix"]
        assert facts["sensitivity"] == "answers" and ratio <= facts["shares"]["int4_sym"] <= ratio + 0.1
    assert set(facts["shares"]) == {"int4_sym", "int8_asym"}
    assert "mix" not in compress_weights(model, mode="int8_sym", ratio=0.5).fewbit_record.facts


def test_a_mix_is_a_mix_until_it_meets_a_model():
    view = view_of(llama())
    assert isinstance(mixture(view, None, bits=4.5, group_size=64), Mix)
    assert not isinstance(mixture(view, None, bits=4, group_size=64), Mix)


def test_experts_of_a_layer_are_one_group():
    data = [{"input_ids": torch.randint(4, 40, (2, 6), generator=torch.Generator().manual_seed(i))} for i in range(3)]
    record = compress_weights(transformer("mixtral"), bits=6, group_size=8, dataset=data).fewbit_record
    where = [line["where"] for line in record.lines if line["what"] == "format"]
    assert any(each.endswith("mlp.experts") for each in where)


def graph():
    """Two layers that read the same value, and one that reads what they make of it."""
    from onnx import helper

    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["l"], "left"),
        helper.make_node("MatMul", ["x", "b"], ["r"], "right"),
        helper.make_node("Mul", ["l", "r"], ["m"], "gate"),
        helper.make_node("MatMul", ["m", "c"], ["d"], "down"),
        helper.make_node("Relu", ["d"], ["e"], "relu"),
        helper.make_node("MatMul", ["e", "h"], ["y"], "head"),
    ]
    sizes = {"a": (64, 64), "b": (64, 64), "c": (64, 64), "h": (64, 8)}
    weights = {name: onnx_graphs.random(*size, seed=n) for n, (name, size) in enumerate(sizes.items())}
    weights["a"][0] *= 50  # of a feature that is nearly always zero
    return onnx_graphs.model(nodes, {"x": ["n", 64]}, {"y": ["n", 8]}, weights)


@pytest.mark.parametrize("with_data", [True, False])
def test_a_graph_is_mixed_by_what_its_layers_give(with_data):
    data = [{"x": onnx_graphs.random(4, 64, seed=i)} for i in range(6)]
    for each in data:
        each["x"][:, 0] *= 1e-3
    view = view_of(graph())
    quantizer = ModelQuantizer(mixture(view, None, bits=6, group_size=32))
    quantizer.quantize_view(view, data if with_data else None)
    facts = quantizer.record.facts["mix"]
    lines = {line["where"]: line for line in quantizer.record.lines if line["what"] == "format"}
    assert facts["sensitivity"] == ("outputs" if with_data else "weights") and facts["bits"] <= 6
    assert set(lines) == {"left, right", "down"} and lines["down"]["format"] == "int8_sym"
    assert lines["left, right"]["harm"]["int4_sym"] > (0.05 if with_data else 0.005)


def test_experts_of_all_layers_are_one_where_the_output_holds_no_two(tmp_path):
    data = [{"input_ids": torch.randint(4, 40, (2, 6), generator=torch.Generator().manual_seed(i))} for i in range(3)]
    model = transformer("mixtral", num_hidden_layers=2, hidden_size=64, intermediate_size=64)
    more = {"mode": ["int4_sym", "int8_sym"], "bits": 6.3, "group_size": 32, "dataset": data, "algorithm": "rtn"}
    apart = compress_weights(model, **more).fewbit_record
    held = compress_weights(model, **more, output=tmp_path / "out", format="compressed-tensors")
    record = Record.from_json((held / "record.json").read_bytes())
    counts = [
        sum("experts" in line["where"] for line in each.lines if line["what"] == "format") for each in (apart, record)
    ]
    assert counts == [2, 1] and record.facts["mix"]["bits"] <= 6.3
    assert any("one format only" in line["reason"] for line in record.lines)
