# SPDX-License-Identifier: Apache-2.0
"""The commands in a deployment's README, each of which runs in its folder."""

from __future__ import annotations

ONNX_SAMPLE = """```python
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
sample = dict(np.load("sample-inputs/000.npz"))
wanted = np.load("sample-outputs/000.npz")
for name, found in zip(wanted.files, session.run(None, sample)):
    print(name, found.shape, "differs by", np.abs(found - wanted[name]).max())
```"""

ONNX_ALONE = """```python
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
print([each.name for each in session.get_inputs()])
```"""

RESTORE = """```bash
python -m fewbit.sparsity.compact model.compact.safetensors restored
```"""

FEWBIT = """import fewbit

model = fewbit.load("."{build})
"""

FACTORY = """import fewbit

factory = {factory!r}  # the code that builds the model; change it if it lies elsewhere
model = fewbit.load(".", factory=factory{build})
"""

PROGRAM = """import torch

model = torch.export.load("model.pt2").module()
"""

_SAMPLE = """
import numpy as np
import torch

sample = {name: torch.from_numpy(value) for name, value in np.load("sample-inputs/000.npz").items()}
"""

_BFLOAT16 = """# The model takes bfloat16, which NumPy does not have.
sample = {name: value.bfloat16() if value.is_floating_point() else value for name, value in sample.items()}
"""

_ANSWER = """wanted = np.load("sample-outputs/000.npz")
with torch.no_grad():
    found = model(**sample)
"""

_NAMED = {
    "output": 'if torch.is_tensor(found):\n    found = {"output": found}\n',
    "output_0": 'if isinstance(found, (tuple, list)):\n    found = {f"output_{n}": x for n, x in enumerate(found)}\n',
}
"""Answers that have no names, by the name that the first of them got."""

_COMPARE = """for name in wanted.files:
    print(name, "differs by", np.abs(found[name].float().numpy() - wanted[name]).max())
"""


def in_torch(load: str, first_output: str | None, *, bfloat16: bool = False) -> str:
    """A block that loads a model and, where there are samples, holds its answer against the one that was kept.

    Args:
        load: lines that make `model`.
        first_output: the name of the first output of the samples; none if there are no samples.
        bfloat16: whether the model takes such inputs.
    """
    if first_output is None:
        return f"```python\n{load}```"
    cast = _BFLOAT16 if bfloat16 else ""
    return f"```python\n{load}{_SAMPLE}{cast}{_ANSWER}{_NAMED.get(first_output, '')}{_COMPARE}```"


HUGGINGFACE = """```python
import transformers

kind = transformers.AutoConfig.from_pretrained(".").architectures[0]
model = getattr(transformers, kind).from_pretrained(".")
```"""
