# SPDX-License-Identifier: Apache-2.0
"""What a kernel is: another way to compute what a quantized module computes, faster.

A member is a file with

- `SPEED`: an integer; of the kernels that accept a layer the one with the highest is taken;
- `refuses(layer, device) -> str | None`: why it cannot run this layer there, in words; `None` if it can;
- `Kernel(layer)`: an `nn.Module` that is prepared once, from the layer, and then
  `run(layer, x) -> Tensor`; `restore(layer) -> QTensor` gives the codes back bit by bit if preparing moved them into
  another layout, so that nothing is ever kept twice.

A layer that no kernel accepts keeps its own forward on dequantized weights, and the record says why.
"""
