# SPDX-License-Identifier: Apache-2.0
"""Memory follows the largest block and the budget for activations, and neither the model nor the samples."""

import os
import subprocess
import sys

import pytest
import torch
from tests.tiny_models import transformer

import fewbit
from fewbit.errors import UsageError

JOB = """
import sys, threading, time, torch, transformers, fewbit
from fewbit.modules.opening import open_model

def memory():
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024

def watch():
    while True:
        peak[0] = max(peak[0], memory())
        time.sleep(0.005)

torch.set_num_threads(1)
what, count, batch, budget = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), eval(sys.argv[4])
draw = torch.Generator().manual_seed(0)
items = [{"input_ids": torch.randint(3, 100, (batch, 512), generator=draw)} for _ in range(count)]
scope = fewbit.IgnoredScope(patterns=[".*mlp.*", ".*q_proj", ".*o_proj", ".*embed_tokens", ".*lm_head"])
job = dict(mode="int4_sym", group_size=32, algorithm="gptq", ignored_scope=scope,
           advanced_parameters={"activation_budget": budget})
config = transformers.LlamaConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
                                  num_key_value_heads=2, vocab_size=100, tie_word_embeddings=False)
fewbit.compress_weights(transformers.LlamaForCausalLM(config), **job, dataset=items[:2])  # all that is imported
peak, base = [0], memory()
threading.Thread(target=watch, daemon=True).start()
fewbit.compress_weights(open_model(what), **job, dataset=items)
print(peak[0] - base)
"""


def grown(*args):
    """Megabytes that a run took beyond what a small one takes."""
    # What was freed goes back to the system at once: how much the allocator keeps depends on the machine.
    allocator = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
    command = [sys.executable, "-c", JOB, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | allocator)
    assert done.returncode == 0, done.stderr
    return float(done.stdout.split()[-1])


def folder(place, layers, wide):
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=256, intermediate_size=wide, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=1, vocab_size=100, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(place)
    return place, sum(p.nbytes for p in model.parameters()) / 2**20


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks the system what is not mapped from files")


@pytest.mark.slow
def test_a_longer_model_takes_no_more_memory(tmp_path):
    short, small = folder(tmp_path / "short", 2, 8192)
    long, large = folder(tmp_path / "long", 20, 8192)
    assert large - small > 200
    assert grown(long, 3, 1, None) - grown(short, 3, 1, None) < 0.25 * (large - small)


@pytest.mark.slow
def test_more_samples_take_no_more_memory_than_the_budget(tmp_path):
    place, _ = folder(tmp_path / "model", 2, 1024)
    free, tight = grown(place, 40, 4, None), grown(place, 40, 4, 10 << 20)
    assert free > 150 and tight < 0.4 * free, (free, tight)


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_the_budget_changes_no_byte(name):
    draw = torch.Generator().manual_seed(0)
    items = [{"input_ids": torch.randint(3, 40, (2, 24), generator=draw)} for _ in range(6)]
    made = []
    for budget in (None, 0, 30_000):
        job = {"advanced_parameters": {"activation_budget": budget}, "dataset": items, "algorithm": "gptq"}
        model = transformer(name).eval()
        made.append(fewbit.compress_weights(model, mode="int4_sym", group_size=8, **job).state_dict())
    assert all(torch.equal(value, other[key]) for other in made[1:] for key, value in made[0].items())


@pytest.mark.parametrize("budget", [-1, "8 GB"])
def test_a_budget_that_is_none(budget):
    with pytest.raises(UsageError, match="activation_budget"):
        fewbit.compress_weights(
            transformer("llama"), mode="int4_sym", advanced_parameters={"activation_budget": budget}, dataset=[]
        )
