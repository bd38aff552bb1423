# SPDX-License-Identifier: Apache-2.0
"""Algorithms that turn a float weight and statistics of its inputs into a quantized one: pure functions of arrays."""
