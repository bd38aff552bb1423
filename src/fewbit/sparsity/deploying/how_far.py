# SPDX-License-Identifier: Apache-2.0
"""How far an ONNX graph of a module with codes goes: integers all through; only what was rounded in training is
rounded; and nothing else either, with products of floats."""

INTEGERS, TRAINED, FLOATS = "integers", "trained", "floats"
LADDER = (INTEGERS, TRAINED, FLOATS)
