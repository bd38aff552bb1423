# SPDX-License-Identifier: Apache-2.0
"""What pytest does not look into on this machine."""

from importlib.util import find_spec

# A kernel for GPUs imports its compiler, which comes with PyTorch for CUDA only.
collect_ignore = [] if find_spec("triton") else ["src/fewbit/algorithms/_columns_cuda.py"]
