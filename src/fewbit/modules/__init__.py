# SPDX-License-Identifier: Apache-2.0
"""PyTorch modules whose weights are kept as codes."""
