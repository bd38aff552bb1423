# SPDX-License-Identifier: Apache-2.0
"""Low-bit kernels for quantized modules, one file each."""
