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

FEWBIT = """```python
import fewbit

model = fewbit.load("."{build})
"""

SAMPLE = """
import numpy as np
import torch

sample = {name: torch.from_numpy(value) for name, value in np.load("sample-inputs/000.npz").items()}
wanted = np.load("sample-outputs/000.npz")
with torch.no_grad():
    found = model(**sample)
for name in wanted.files:
    print(name, "differs by", np.abs(found[name].float().numpy() - wanted[name]).max())
"""

PROGRAM = """```python
import numpy as np
import torch

model = torch.export.load("model.pt2").module()
sample = {name: torch.from_numpy(value) for name, value in np.load("sample-inputs/000.npz").items()}
found = model(**sample)
```"""

HUGGINGFACE = """```python
import transformers

kind = transformers.AutoConfig.from_pretrained(".").architectures[0]
model = getattr(transformers, kind).from_pretrained(".")
```"""
