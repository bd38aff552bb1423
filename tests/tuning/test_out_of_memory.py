# SPDX-License-Identifier: Apache-2.0
"""A run without room: which step, how large, what takes less; and with that it goes on where it was."""

import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fewbit.cli._spoken import spoken
from fewbit.errors import DataError
from fewbit.tuning.finetune import finetune
from fewbit.tuning.out_of_memory import OutOfMemory, in_words, is_out_of_memory
from tuning_runs import SETTINGS, language_model, texts

CPU = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 123 bytes. Error code 12"
RAISED = [torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), RuntimeError(CPU), MemoryError()]
RUN = {**SETTINGS, "accumulation": 1, "batch_size": 6, "max_steps": 6}


class Cramped:
    """Raises in the forward of so many samples, from a call on; `training` says in which mode."""

    def __init__(self, samples, error=RAISED[0], after=0, training=True):
        self.samples, self.error, self.left, self.training = samples, error, after, training

    def __call__(self, module, args, kwargs):
        if module.training != self.training or len(kwargs["input_ids"]) < self.samples:
            return
        self.left -= 1
        if self.left < 0:
            raise self.error

    def __deepcopy__(self, memo):
        return self


def cramped(*args, **more):
    model = language_model()
    model.register_forward_pre_hook(Cramped(*args, **more), with_kwargs=True)
    return model


def run(model, output=None, **more):
    return finetune(model, texts(), validation=texts(6, 1), output=output, **{**RUN, **more})


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_it_is_told_and_with_less_in_memory_it_goes_on_to_the_same_end(tmp_path, error):
    model = cramped(6, error, after=3)
    with pytest.raises(
        OutOfMemory, match=r"out of memory in step 4, forward and backward of a batch of 6 samples"
    ) as e:
        run(model, tmp_path / "run")
    told = e.value
    assert "tokens" in told.what and "samples" in told.where and told.where.startswith("cpu")
    assert " GiB" in told.expected and told.__cause__ is error
    for words in ("batch_size=3 with accumulation=2", "gradient_checkpointing=True", "precision='bf16'", "from step 2"):
        assert words in told.try_, told.try_
    tuned = run(model, tmp_path / "run", batch_size=3, accumulation=2)  # as it was advised
    assert any(line["what"] == "resumed" and "step 2" in line["reason"] for line in tuned.fewbit_record.lines)
    whole = run(language_model())
    for name, weight in whole.state_dict().items():
        torch.testing.assert_close(tuned.state_dict()[name], weight, rtol=1e-3, atol=1e-4)


def test_checkpointing_may_be_turned_on_on_the_way(tmp_path):
    model = cramped(6, after=3)
    with pytest.raises(OutOfMemory):
        run(model, tmp_path / "run")
    again = run(language_model(), tmp_path / "run", gradient_checkpointing=True)
    assert any(line["what"] == "resumed" for line in again.fewbit_record.lines)


def test_before_the_first_step_in_an_evaluation_and_in_the_update(monkeypatch):
    with pytest.raises(OutOfMemory, match="step 1, forward and backward") as told:
        run(cramped(1, training=False))
    assert "With an output a run can go on" in told.value.try_
    with pytest.raises(OutOfMemory, match="step 0, an evaluation"):
        run(cramped(1, training=False, after=1))
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda *_, **__: (_ for _ in ()).throw(RAISED[0]))
    with pytest.raises(OutOfMemory, match="step 1, the update of the weights") as told:
        run(language_model())
    assert "batch_size" not in told.value.try_ and "method='lora'" in told.value.try_


def test_batches_that_somebody_else_makes():
    class Full(nn.Linear):
        def forward(self, x):
            if self.training:
                raise torch.OutOfMemoryError("no")
            return super().forward(x)

    loader = DataLoader(TensorDataset(torch.randn(8, 4), torch.zeros(8, dtype=torch.long)), batch_size=4)
    options = {"task": "sequence_classification", "device": "cpu", "tensorboard": False}
    with pytest.raises(OutOfMemory, match="of 4 samples") as told:
        finetune(Full(4, 3), loader, **options)
    assert "smaller batches of the loader with accumulation=2" in told.value.try_
    assert "batch_size=" not in told.value.try_


def test_nothing_of_it_is_kept_in_memory():
    model = cramped(6, after=2)
    with pytest.raises(OutOfMemory) as told:
        run(model)
    frames = told.value.__cause__.__traceback__
    while frames is not None:
        if frames.tb_frame.f_code.co_name == "forward":
            assert not frames.tb_frame.f_locals
        frames = frames.tb_next


def test_other_errors_stay_what_they_are():
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    with pytest.raises((RuntimeError, DataError), match="shapes"):
        run(cramped(6, RuntimeError("shapes"), after=1))


def test_where_nobody_says_how_much_was_in_use_the_number_is_left_out(monkeypatch):
    """As on Windows."""
    monkeypatch.setitem(sys.modules, "resource", None)
    monkeypatch.delattr("os.sysconf")
    with pytest.raises(OutOfMemory, match="step 1, forward and backward") as told:
        run(cramped(1, training=False))
    assert told.value.expected == "room" and told.value.where.startswith("cpu")


def test_pictures_and_the_words_of_a_line():
    assert in_words({"pixel_values": torch.zeros(2, 3, 8, 16)}) == "2 pictures of 16 x 8"
    said = {"batch_size": "--batch-size {}", "accumulation": "--option accumulation={}"}
    assert spoken("batch_size=3 with accumulation=2, the same", said) == (
        "--batch-size 3 with --option accumulation=2, the same"
    )
