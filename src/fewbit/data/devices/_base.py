# SPDX-License-Identifier: Apache-2.0
"""What a device is.

A member is a file, or a plug-in of the entry-point group `fewbit.devices`, with

- `missing() -> str | None`: why it cannot be used here, in words; none if it can;
- `count() -> int`: how many of it there are;
- `device(index) -> Any`: what `tensor.to` takes for one of them;
- `STREAMS`: whether it copies from pinned memory beside its work, as CUDA does; false if left out.

Its name is what users write: `target_device="cuda:1"` asks the member `cuda` for `device(1)`.
"""
