# SPDX-License-Identifier: Apache-2.0
"""`ModelQuantizer`: PyTorch modules by a configuration, with the names of AMD Quark."""

from __future__ import annotations

from typing import Any

from fewbit.api._modules import ModuleRequest, kernel_facts, plan_request, run_module
from fewbit.backends import find_backend
from fewbit.progress import Run, make_progress
from fewbit.quantization.module_plan import ModulePlan
from fewbit.record.schema import Record


class ModelQuantizer:
    """Quantizes PyTorch modules; a copy comes back, the module given is never changed.

    Args:
        config: a `Config`, a `QuantizationConfig`, the name of a preset such as `"w8a8"`, or a `.yaml` file.
        progress: None (automatic), True, False, or an object.

    Attributes:
        record: of the last run; the module it returned carries it as `fewbit_record`.

    >>> import torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    >>> small = ModelQuantizer("w8a16").quantize_model(net)
    >>> type(small[0]).__name__, type(net[0]).__name__
    ('QuantizedLinear', 'Linear')
    """

    def __init__(self, config: Any, *, progress: Any = None):
        self.config = config
        self.record: Record | None = None
        self._progress = progress

    def quantize_model(self, model: Any, dataloader: Any = None) -> Any:
        """A quantized copy of a model; Quark quantizes in place, here the model given stays as it is.

        Args:
            model: an `nn.Module`.
            dataloader: samples to calibrate and measure with: a DataLoader, a list, a tensor, a folder. Static
                activations need it; weight-only and dynamic quantization only measure with it.

        Raises:
            UsageError: the configuration does not suit the model, or static activations have no data.
            ModelError: nothing would be quantized.
            DataError: samples that the model does not take.
        """
        run, record = Run(make_progress(self._progress)), Record("quantize")
        try:
            quantized = run_module(model, dataloader, ModuleRequest(self.config), run, record)
        finally:
            run.close()
        self.record = record
        return quantized

    def freeze(self, model: Any, *, exact: bool = False) -> Any:
        """A copy with the fastest kernel for each quantized layer; the record says which.

        Args:
            model: what `quantize_model` returned, on the device where it shall run.
            exact: let no kernel compute less precisely than the model. Without it 4-bit layers of float32 models
                compute in bfloat16.
        """
        frozen: Any = find_backend(model).load(model)
        facts = kernel_facts(frozen.freeze(exact=exact))
        if self.record is not None:
            self.record.kernels = facts
        return frozen.for_user()

    def plan(self, model: Any) -> ModulePlan:
        """What would become of each layer; nothing is run or changed."""
        original: Any = find_backend(model).load(model)
        return plan_request(original.layers(), ModuleRequest(self.config))[0]
