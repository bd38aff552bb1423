# SPDX-License-Identifier: Apache-2.0
"""Language models block by block: what is captured, what is summed, and that nothing but the data decides the bytes."""

import copy
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM, Gemma2Config, GPT2Config, LlamaConfig

from fewbit.algorithms.gptq import ALGORITHM
from fewbit.backends.torch import blockwise
from fewbit.backends.torch.block_model import BlockModel, linear_layers
from fewbit.backends.torch.blockwise import BlockStream, capture
from fewbit.backends.torch.processes import Node, Processes, TreeSum
from fewbit.backends.torch.weight_files import open_language_model
from fewbit.errors import ModelError, UsageError
from fewbit.evaluation.tokens import TokenComparison
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.scales import ScaleType
from fewbit.progress import Run, make_progress
from fewbit.quantization.blockwise import quantize_blocks
from fewbit.quantization.journal import Journal

CPU = torch.device("cpu")
GRID = QuantizationGrid(
    Dtype.int4, QSchemeType.per_group, group_size=16, full_range=True, scale_type=ScaleType.bfloat16
)
LLAMA = LlamaConfig(
    hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=64, max_position_embeddings=64, initializer_range=0.2,
)  # fmt: skip


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return make_model(LLAMA)


def make_model(config) -> nn.Module:
    torch.manual_seed(0)
    with torch.random.fork_rng():
        return AutoModelForCausalLM.from_config(config).eval()


def batches(count: int = 4, size: int = 2, length: int = 12, seed: int = 0) -> list[dict[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    return [{"input_ids": torch.randint(0, 64, (size, length), generator=draw)} for _ in range(count)]


def run_blocks(stream: BlockStream, folder: Path, stop_after: int | None = None) -> dict:
    """Quantize all blocks; `stop_after` ends the run as a kill would."""
    blocks = zip(stream.model.block_names, stream.model.blocks)
    names = {f"{name}.{layer}" for name, block in blocks for layer, _ in linear_layers(block)}
    journal = Journal(folder, {"job": 1})
    if stop_after is not None:
        write = journal.write

        def killed(block, tensors, facts):
            write(block, tensors, facts)
            if block + 1 == stop_after:
                raise KeyboardInterrupt

        journal.write = killed
    run = Run(make_progress(False))
    run.begin([("quantize", 1)])
    try:
        with run.phase("quantize", len(stream), "block") as bar:
            return quantize_blocks(stream, dict.fromkeys(names, GRID), ALGORITHM, journal, bar)
    finally:
        stream.close()
        run.close()


def digest(folder: Path) -> str:
    files = sorted(folder.glob("block-*.safetensors"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def test_blocks_give_what_the_model_gives(model):
    stream = BlockStream(BlockModel(model, device=CPU, dtype=torch.float32), batches(1), batches(2, seed=1))
    for index in range(len(stream)):
        stream.open(index).advance()
    for original, result, batch in stream.outputs():
        expected = model(batch["input_ids"]).logits
        assert torch.equal(original, expected)
        assert torch.equal(result, expected)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LLAMA, [("q_proj k_proj v_proj", None), ("o_proj", "input_layernorm"), ("gate_proj up_proj", None),
                 ("down_proj", "post_attention_layernorm")]),
        (GPT2Config(n_embd=32, n_layer=1, n_head=4, vocab_size=64, n_positions=64),
         [("c_attn", None), ("c_proj", "ln_1"), ("c_fc", None), ("c_proj", "ln_2")]),
        # Gemma 2 normalizes outputs before they are added, so there is nothing to make up for by one layer alone
        (Gemma2Config(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4, head_dim=8,
                      num_key_value_heads=2, vocab_size=64, max_position_embeddings=64),
         [("q_proj k_proj v_proj", None), ("o_proj", None), ("gate_proj up_proj", None), ("down_proj", None)]),
    ],
    ids=["llama", "gpt2", "gemma2"],
)  # fmt: skip
def test_groups_and_residuals(config, expected):
    stream = BlockStream(BlockModel(make_model(config), device=CPU, dtype=torch.float32), batches(1))
    groups = stream.open(0).groups()
    stream.close()
    assert [(" ".join(n.rpartition(".")[2] for n in group.layers), group.residual) for group in groups] == expected


def test_moments_are_means_over_tokens(model):
    """Against the inputs captured at once, with padding left out."""
    data = batches(3)
    for batch in data:
        batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    data[1]["attention_mask"][0, :5] = 0
    stream = BlockStream(BlockModel(model, device=CPU, dtype=torch.float32), data)
    block = stream.open(0)
    for group in block.groups():
        expected, tokens = 0, 0
        for number, batch in enumerate(data):
            values, _ = capture(block._block, [group.layers[0]], stream.quantized[number], stream._calls[0][number])
            rows = values[group.layers[0]][batch["attention_mask"].bool()].double()
            expected, tokens = expected + rows.T @ rows, tokens + len(rows)
        moments = block.moments(group)
        assert moments.tokens == tokens == 3 * 24 - 5
        assert torch.allclose(moments.hessian.double(), expected / tokens, rtol=1e-5, atol=1e-6)
        gap = moments.output_gap if group.residual else moments.input_gap
        assert not gap.any()  # nothing is quantized yet
    stream.close()


def test_gaps_say_what_the_float_model_has_more(model):
    """With a changed first layer, the residual of a later one is what the definition says."""
    data = batches(2)
    stream = BlockStream(BlockModel(model, device=CPU, dtype=torch.float32), data)
    block = stream.open(0)
    block.set_weight("self_attn.v_proj", block.weight("self_attn.v_proj") * 0.5)
    group = next(group for group in block.groups() if group.layers == ("mlp.down_proj",))
    names = ["mlp.down_proj", group.residual]
    expected, tokens = 0, 0
    for number in range(2):
        changed, _ = capture(block._block, names, stream.quantized[number], stream._calls[0][number])
        wanted, _ = capture(block._float, names, stream.quantized[number], stream._calls[0][number])
        x, lacking = changed[names[0]].flatten(0, 1).double(), (wanted[names[1]] - changed[names[1]]).flatten(0, 1)
        difference = (wanted[names[0]] - changed[names[0]]).flatten(0, 1).double()
        expected = expected + (difference @ block.weight("mlp.down_proj").double().T + lacking.double()).T @ x
        tokens += len(x)
    moments = block.moments(group)
    stream.close()
    assert torch.allclose(moments.output_gap.double(), expected / tokens, rtol=1e-4, atol=1e-6)
    assert expected.abs().max() > 0.01


def test_weights_on_disk_or_in_memory_give_the_same_bytes(model, tmp_path):
    before = copy.deepcopy(model.state_dict())
    run_blocks(BlockStream(BlockModel(model, device=CPU, dtype=torch.float32), batches()), tmp_path / "memory")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model.save_pretrained(tmp_path / "model")
    from_disk = open_language_model(tmp_path / "model", device=CPU)
    facts = run_blocks(BlockStream(from_disk, batches()), tmp_path / "disk")
    assert digest(tmp_path / "memory") == digest(tmp_path / "disk")
    assert len(facts) == 21
    assert all(entry["error"] < entry["rounding_error"] for entry in facts.values())


def test_recomputed_activations_give_the_same_bytes(model, tmp_path, monkeypatch):
    blocks = BlockModel(model, device=CPU, dtype=torch.float32)
    run_blocks(BlockStream(blocks, batches()), tmp_path / "kept")
    monkeypatch.setattr(blockwise, "_MOST_KEPT", 0)
    run_blocks(BlockStream(blocks, batches(), memory={"in_memory": 0, "folder": tmp_path}), tmp_path / "again")
    assert digest(tmp_path / "kept") == digest(tmp_path / "again")


@pytest.mark.parametrize("stop_after", [1, 2, 3])
def test_an_interrupted_run_continues_to_the_same_bytes(model, tmp_path, stop_after):
    blocks = BlockModel(model, device=CPU, dtype=torch.float32)
    whole = run_blocks(BlockStream(blocks, batches()), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run_blocks(BlockStream(blocks, batches()), tmp_path / "parts", stop_after)
    (tmp_path / "parts" / "block-00009.safetensors.tmp").write_bytes(b"half")
    facts = run_blocks(BlockStream(blocks, batches()), tmp_path / "parts")
    assert digest(tmp_path / "whole") == digest(tmp_path / "parts")
    assert facts == whole


def test_another_job_does_not_continue(tmp_path):
    Journal(tmp_path, {"samples": 300, "seed": 0})
    with pytest.raises(UsageError, match="samples: 300, now 64"):
        Journal(tmp_path, {"samples": 64, "seed": 0})


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 64])
def test_the_tree_does_not_depend_on_who_adds_what(count):
    """Up to 64 processes with any share of 64 leaves, in float32 where order matters."""
    leaves = torch.randn(64, 3, 3, generator=torch.Generator().manual_seed(0)) * 1e3
    alone = TreeSum()
    for index, leaf in enumerate(leaves):
        alone.add_node(Node(0, index, leaf.clone()))
    merged = TreeSum()
    for rank in range(count):
        own = TreeSum()
        for index in Processes(rank, count).owned(64):
            own.add_node(Node(0, index, leaves[index].clone()))
        for node in own.nodes:
            merged.add_node(node)
    assert torch.equal(merged.result(), alone.result())


def test_more_processes_than_batches_is_an_error(model):
    with pytest.raises(UsageError, match="5 processes share 4 batches"):
        BlockStream(BlockModel(model, device=CPU, dtype=torch.float32), batches(4), processes=Processes(0, 5))


def test_configuration_and_weights_that_do_not_fit(model, tmp_path):
    model.save_pretrained(tmp_path)
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace('"num_hidden_layers": 3', '"num_hidden_layers": 1000000'))
    with pytest.raises(ModelError, match="declares 1,000,000 layers, the weight files hold 3"):
        open_language_model(tmp_path, device=CPU)
    (tmp_path / "config.json").write_text(config.replace('"intermediate_size": 48', '"intermediate_size": 64'))
    with pytest.raises(ModelError, match=r"mlp\.gate_proj\.weight has the shape"):
        open_language_model(tmp_path, device=CPU).load_block(0)
    (tmp_path / "config.json").write_text(config)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"weights are missing: model\.layers\.1\.mlp\.up_proj\.weight"):
        open_language_model(tmp_path, device=CPU).load_block(1)


def test_token_comparison_is_perplexity():
    draw = torch.Generator().manual_seed(0)
    original, tokens = torch.randn(3, 9, 11, generator=draw), torch.randint(0, 11, (3, 9), generator=draw)
    result = original + 0.1 * torch.randn(3, 9, 11, generator=draw)
    comparison = TokenComparison()
    comparison.add(original, result, tokens)
    facts = comparison.facts()
    loss = nn.functional.cross_entropy(result[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    assert facts["perplexity"][1] == pytest.approx(float(loss.exp()), rel=1e-5)
    divergence = nn.functional.kl_div(
        result[:, :-1].log_softmax(-1), original[:, :-1].log_softmax(-1), reduction="sum", log_target=True
    )
    assert facts["divergence"] == pytest.approx(float(divergence) / 24, rel=1e-4)
    low, high = facts["perplexity_ratio_interval"]
    assert low < facts["perplexity_ratio"] < high
    assert 0 <= facts["agreement_interval"][0] <= facts["agreement"] <= facts["agreement_interval"][1] <= 1


WORKER = """
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import test_blockwise as t
import torch

torch.set_num_threads(1)
processes = t.Processes.from_environment()
model = t.BlockModel(t.make_model(t.LLAMA), device=t.CPU, dtype=torch.float32)
stop = int(sys.argv[3]) or None
try:
    t.run_blocks(t.BlockStream(model, t.batches(7), processes=processes), Path(sys.argv[2]), stop)
except KeyboardInterrupt:
    sys.exit(9)
"""


def start_processes(count: int, folder: Path, stop_after: int = 0) -> int:
    """Run the worker under torchrun."""
    script = folder.parent / "worker.py"
    script.write_text(WORKER)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}", str(script)]
    arguments = [str(Path(__file__).parent), str(folder), str(stop_after)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*command, *arguments], env=environment, capture_output=True, timeout=300).returncode


@pytest.mark.slow
def test_any_number_of_processes_gives_the_same_bytes(tmp_path):
    """1 to 4 processes, and runs that are killed and continued with another number of them."""
    assert start_processes(1, tmp_path / "alone") == 0
    expected = digest(tmp_path / "alone")
    for count in (2, 3, 4):
        assert start_processes(count, tmp_path / f"by-{count}") == 0
        assert digest(tmp_path / f"by-{count}") == expected
    assert start_processes(3, tmp_path / "killed", stop_after=1) != 0
    assert start_processes(2, tmp_path / "killed", stop_after=2) != 0
    assert start_processes(4, tmp_path / "killed") == 0
    assert digest(tmp_path / "killed") == expected
