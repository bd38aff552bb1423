# SPDX-License-Identifier: Apache-2.0
"""ONNX graphs: what the `onnx` backend is made of."""
