# SPDX-License-Identifier: Apache-2.0
"""Numbers: which values a tensor may take, how scales are shared and kept, rounding, packing. Tensors in and out."""
