# SPDX-License-Identifier: Apache-2.0
"""`ModelQuantizer`: a configuration, ready to be applied to models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fewbit.data.dataset import Dataset
from fewbit.data.findings import Progress
from fewbit.data.text import as_inputs
from fewbit.engine.evidence import Evidence
from fewbit.engine.fitting import without_input
from fewbit.engine.joining import by_the_first
from fewbit.engine.measuring import warn_of_result
from fewbit.engine.mix import Mix
from fewbit.engine.mixing import settle_mix
from fewbit.engine.nothing_quantized import require_something_planned
from fewbit.engine.options import Options
from fewbit.engine.plan import Plan
from fewbit.engine.planning import make_plan
from fewbit.engine.reporting import warn_of_calibration
from fewbit.engine.run import calibration_subset, execute, probe, refuse_weights, require_data, view_of
from fewbit.errors import UsageError
from fewbit.model.view import ModelView
from fewbit.modules.freezing import freeze as freeze_modules
from fewbit.record import Record
from fewbit.schemes.config import Config
from fewbit.schemes.presets import preset


class ModelQuantizer:
    """Quantizes models as one configuration says: weight-only, static or dynamic.

    Args:
        config: a `Config`, the name of a preset, or a `Mix`, of which each model is given the formats that suit it.

    Attributes:
        record: what the last call did and found, layer by layer.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 8)).eval()
    >>> quantizer = ModelQuantizer("w4a16")
    >>> frozen = quantizer.freeze(quantizer.quantize_model(model))
    >>> frozen(torch.zeros(1, 64)).shape
    torch.Size([1, 8])
    """

    def __init__(self, config: Config | Mix | str):
        self._mix = config if isinstance(config, Mix) else None
        if isinstance(config, Mix):
            config = config.config
        if isinstance(config, str):
            config = preset(config)
        if not isinstance(config, Config):
            raise UsageError(f"a configuration of type {type(config).__name__}", expected="a Config or a preset's name")
        self.config = config
        self.record = Record("quantize")

    def plan(self, model: Any) -> Plan:
        """What would become of each layer, without reading data or changing anything."""
        return make_plan(view_of(model), self.config)

    def quantize_model(
        self,
        model: Any,
        dataloader: Any = None,
        *,
        inplace: bool = False,
        samples: int | None = None,
        batch_size: int = 1,
        progress: Progress | None = None,
    ) -> Any:
        """The model with quantized weights and activations.

        Its weights are kept as codes at once; forward computes on their values, so what it returns is exactly what the
        scheme means. `freeze` then chooses fast kernels. Matrices that stay in float are shared with the model that was
        given, not copied: training one of the two trains the other; `copy.deepcopy` sets them apart.

        Args:
            model: an `nn.Module`; it and its tensors stay as they are unless `inplace`.
            dataloader: calibration inputs: a loader, a list, a `Dataset`, a path. Needed for static activations; for
                weights it is optional, and weighs errors by what each input feature really carries.
            inplace: change the caller's model, which saves holding both.
            samples: read at most so many samples, a random sample of the data by a fixed seed; of a list of batches
                whole ones until there are so many samples in them.
            batch_size: of samples that have no batch axis yet; loaders keep theirs.
            progress: shows how far it is.

        Raises:
            UsageError: a static activation without data, a name in the configuration that matches nothing.
            DataError: an empty loader, inputs the model does not take, a value that is not finite.
        """
        result = self.quantize_view(
            view_of(model),
            dataloader,
            model=model,
            inplace=inplace,
            samples=samples,
            progress=progress,
            options=Options(batch_size=batch_size),
            checked=True,
        ).native()
        warn_of_calibration(self.record)
        warn_of_result(self.record)
        return result

    @torch.inference_mode(False)  # blocks are tuned by gradients, and what is made is to be used outside of that mode
    def quantize_view(
        self,
        view: ModelView,
        dataloader: Any = None,
        *,
        model: Any = None,
        inplace: bool = False,
        samples: int | None = None,
        by_item: bool = False,
        progress: Progress | None = None,
        options: Options | None = None,
        work: Path | None = None,
        statistics: Path | None = None,
        refuse: Callable[[Plan], None] | None = None,
        checked: bool = False,
    ) -> ModelView:
        """The same for a model that is open already, and with everything a run can be told; see `run.execute`.

        `refuse` is asked about what a mix may become, before the model is run to find that out. `checked` is for the
        results that users get; one stage of several may leave every layer in float, and need not work yet.
        """
        options = options or Options()
        if "place" in view.can:
            graph: Any = view
            graph.aim(options.target, options.accuracy_level)
        dataset: Dataset | None = None
        if dataloader is not None:
            dataset = as_inputs(
                dataloader,
                model,  # whose tokenizer it is; not looked at unless there is text
                view.signature(),
                seqlen=options.seqlen,
                pack=options.pack,
                column=options.text_column,
            )
            probe(view, dataset, options.batch_size)
            dataset = calibration_subset(view, dataset, samples, by_item=by_item, batch_size=options.batch_size)
        self.record = Record("quantize")
        if self._mix is not None:
            planned = make_plan(view, self._mix.config)
            require_something_planned(view, planned)
            refuse_weights(view, planned)
            evidence = Evidence(dataset, samples, options.batch_size, statistics, progress or Progress())
            # Of several workers one chooses: a GPU may add up gradients in another order, and all must plan the same.
            settled = by_the_first(settle_mix)(view, self._mix, evidence, refuse or (lambda plan: None))
            settled.tell(self.record)
            self.config = settled.config
        plan = make_plan(view, self.config)
        if "place" in view.can and not plan.static:
            plan = without_input(plan, view)
        require_data(plan, dataset)
        if not inplace:
            view = view.copy()
        view = execute(
            view,
            plan,
            dataset,
            record=self.record,
            progress=progress or Progress(),
            samples=samples,
            by_item=by_item,
            options=options,
            work=work,
            statistics=statistics,
            checked=checked,
        )
        view.sign(self.config, self.record)
        return view

    def freeze(self, model: Any, *, inplace: bool = False, exact: bool = False) -> Any:
        """The model with the fastest kernel for each quantized layer, its weights in that kernel's own packing.

        A graph is left as it is: its runtime chooses kernels when it loads it.

        Args:
            model: what `quantize_model` returned; it stays as it is unless `inplace`.
            inplace: change it instead.
            exact: let no kernel compute less precisely than the model itself. Without it int4 layers of float32 models
                compute in bfloat16, which is several times faster and adds little to the error that int4 has; so do fp8
                layers, and layers of float64 models compute in float32.
        """
        if "place" in (view := view_of(model)).can:
            return model
        native = model if inplace else view.copy().native()
        for line in freeze_modules(native, exact=exact):
            self.record.note("kernel", line.pop("why") or "", where=line.pop("layer"), **line)
        return native
