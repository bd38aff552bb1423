# SPDX-License-Identifier: Apache-2.0
"""Every option, declared once as plain data: command line, help, Python signatures and their tests are made from it.

`COMMANDS` lists the commands, `OPTIONS` the options; `parse` reads one value from a command line and `check` one from a
Python call, both to the same plain value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fewbit.errors import UsageError, nearest

Kind = Literal[
    "text", "name", "choice", "integer", "number", "flag", "count", "path", "function", "size", "numbers", "drop",
    "pairs", "list", "actions", "data", "model",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Command:
    """One command of `fewbit`; `arguments` are its positional parameters, `examples` run after `fewbit demo`."""

    name: str
    group: str
    help: str
    arguments: tuple[str, ...]
    examples: tuple[str, ...]
    function: str | None = None
    """The Python function behind it, if its name differs."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Args:
        name: of the Python parameter; the flag is `--` and `-` for `_`.
        group: the heading it stands under in `--help`.
        kind: how its value is read.
        value: what stands for the value in help.
        help: one line of at most 80 characters.
        commands: which take it.
        default: in Python and on the command line.
        defaults: where a command has another one.
        choices: the values of a `choice`, or the names of a `text` that may also be a `.json` file.
        short: a one-letter flag.
        repeatable: may be given several times.
        common: shown by `-h`.
        python: whether the Python functions have it.
        minimum: of a number.
    """

    name: str
    group: str
    kind: Kind
    value: str
    help: str
    commands: tuple[str, ...]
    default: Any = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    choices: tuple[str, ...] = ()
    short: str | None = None
    repeatable: bool = False
    common: bool = False
    python: bool = True
    minimum: float | None = None

    @property
    def flag(self) -> str:
        """`--image-size`."""
        return f"--{self.name.replace('_', '-')}"

    def default_for(self, command: str) -> Any:
        """The default of one command."""
        return self.defaults.get(command, self.default)


_DEMO = "fewbit-demo"
COMMANDS = (
    Command(
        "check", "Prepare data", "Check a dataset and list every problem in it", ("DATA",),
        (f"fewbit check {_DEMO}/yolo", f"fewbit check {_DEMO}/npz --model {_DEMO}/model.onnx",
         f"fewbit check {_DEMO}/damaged --fix -o repaired"), "check_dataset",
    ),
    Command(
        "capture", "Prepare data", "Record a model's real inputs as calibration data", ("MODEL",),
        (f"fewbit capture {_DEMO}/model.py:build --data {_DEMO}/npz -o captured",
         f"fewbit capture {_DEMO}/model.py:build --data {_DEMO}/npz --samples 20 -o captured20",
         f"fewbit capture {_DEMO}/model.py:build --data {_DEMO}/npz --names pixels -o captured-named"),
    ),
    Command(
        "quantize", "Compress", "Store weights, or weights and activations, in fewer bits", ("MODEL",),
        (f"fewbit quantize {_DEMO}/model.onnx --data {_DEMO}/npz --preset w8a16",
         f"fewbit quantize {_DEMO}/model.onnx --preset w8a16 -o small.onnx",
         f"fewbit quantize {_DEMO}/model.onnx --data {_DEMO}/npz --preset w8a16 --samples 64 -o small64.onnx"),
    ),
    Command("sparsify", "Compress", "Set weights to zero or remove channels", ("MODEL",), ()),
    Command("finetune", "Train", "Train a model on your data: full, LoRA, QAT, distillation", ("MODEL",), ()),
    Command(
        "plan", "Inspect", "Show what would happen to each layer, without running anything", ("MODEL",),
        (f"fewbit plan {_DEMO}/model.onnx --preset w8a16",
         f"fewbit plan {_DEMO}/model.onnx --preset w8a16 --ignore second",
         f"fewbit plan {_DEMO}/model.onnx --preset w8a16 -o plan.yaml"),
    ),
    Command(
        "compare", "Inspect", "Compare the outputs of two models, with confidence intervals", ("MODEL",) * 2,
        (f"fewbit compare {_DEMO}/model.onnx {_DEMO}/model.onnx --data {_DEMO}/npz",
         f"fewbit compare {_DEMO}/model.onnx {_DEMO}/model.py:build --data {_DEMO}/image_folder --metric accuracy",
         f"fewbit compare {_DEMO}/model.onnx {_DEMO}/model.onnx --data {_DEMO}/npz --runs 10 -o comparison.json"),
    ),
    Command("statistics", "Inspect", "Show or merge saved calibration statistics", ("DIR...",), (), "merge_statistics"),
    Command(
        "export", "Deliver", "Write or convert a model for a runtime", ("MODEL",),
        (f"fewbit export {_DEMO}/model-llama --format gguf", f"fewbit export {_DEMO}/model-llama -o llama.gguf",
         f"fewbit export {_DEMO}/model-llama --target pytorch -o llama-folder"),
    ),
    Command(
        "list", "Learn", "List presets, targets, formats, tasks, issues and more", ("[KIND]",),
        ("fewbit list", "fewbit list data-formats", "fewbit list issues --data-format yolo"),
    ),
    Command(
        "demo", "Learn", "Try every command on small data that is generated for you", (),
        ("fewbit demo", "fewbit demo -o other-folder", "fewbit demo -o third-folder -q"),
    ),
)  # fmt: skip
"""Commands in the order of `fewbit --help`. A command without a file in `cli/` is not built yet and not shown."""

GROUPS = ("Model", "Data", "Images", "Text", "Quantization", "Quality", "Training", "Output", "General")

_DATA = ("check", "capture", "quantize", "sparsify", "finetune", "compare", "export")
_COMPRESS = ("quantize", "sparsify")
_QUANTIZE = ("quantize", "plan")
_TRAIN = ("sparsify", "finetune")
_CONFIG = ("quantize", "sparsify", "finetune", "plan")
_ALL = tuple(command.name for command in COMMANDS)
_WORK = tuple(name for name in _ALL if name not in ("statistics", "list", "demo"))
_MODEL = tuple(name for name in _WORK if name != "check")
_COMPUTE = tuple(name for name in _MODEL if name not in ("plan", "export"))

OPTIONS = (
    # Model
    Option("model", "Model", "model", "MODEL", "Compare every sample with the inputs of this model.", ("check",)),
    Option("factory", "Model", "function", "FILE.py:FN",
           "Python function that builds the model, for a file that holds only weights.", _MODEL),
    Option("input_shape", "Model", "pairs", "NAME=SHAPE", "Shape of an input with free dimensions. Repeatable.",
           ("plan", "export"), repeatable=True),
    Option("names", "Model", "list", "NAMES", "Input names: comma-separated, or an ONNX file to take them from.",
           ("capture",)),
    # Data
    Option("data", "Data", "data", "DATA", "Dataset: file, folder, URL, hub name, or FILE.py:NAME.",
           tuple(name for name in _DATA if name != "check"), common=True),
    Option("data_format", "Data", "name", "NAME",
           "Dataset format; detected by default (see: fewbit list data-formats).", (*_DATA, "list")),
    Option("data_option", "Data", "pairs", "KEY=VALUE",
           "Setting of the dataset format, for example delimiter=';'. Repeatable.", _DATA, repeatable=True),
    Option("task", "Data", "name", "NAME", "Task, for example image-classification; inferred by default.", _DATA),
    Option("split", "Data", "name", "NAME", "Split to read: train, val or test.", _DATA),
    Option("samples", "Data", "integer", "N", "Samples to draw, spread over the whole dataset.", _DATA, default=300,
           defaults={"check": None, "finetune": None}, common=True, minimum=1),
    Option("seed", "Data", "integer", "N", "Random seed of sampling and training.", _DATA, default=0, minimum=0),
    Option("validation", "Data", "data", "DATA",
           "Separate data for measuring quality; a held-out part of --data by default.", (*_COMPRESS, "finetune")),
    Option("batch_size", "Data", "integer", "N", "Samples per forward pass.",
           tuple(name for name in _DATA if name != "check"), default=1, defaults={"finetune": "auto"}, minimum=1),
    Option("transform", "Data", "function", "FILE.py:FN",
           "Python function that maps a sample to the model's inputs.", _DATA, common=True),
    Option("on_error", "Data", "actions", "ACTION",
           "Damaged samples: raise, drop, repair, keep, or CODE=ACTION. Repeatable.", _DATA, default="raise",
           repeatable=True),
    Option("workers", "Data", "integer", "N", "Data-loading processes; 0 reads in the main process.", _DATA, default=0,
           minimum=0),
    Option("quick", "Data", "flag", "", "Read names, sizes and headers only.", ("check",), default=False),
    Option("purpose", "Data", "choice", "", "Also judge whether the data suits this use.", ("check",),
           choices=("calibration", "training")),
    # Images
    Option("preprocess", "Images", "text", "NAME",
           "Image preprocessing: auto, imagenet, clip, yolo, none, or a .json file.", _DATA, default="auto",
           choices=("auto", "imagenet", "clip", "yolo", "none"), common=True),
    Option("image_size", "Images", "size", "SIZE", "Height and width: 224 or 480x640.", _DATA, common=True),
    Option("resize", "Images", "choice", "", "How to reach the image size; crop by default.", _DATA,
           choices=("crop", "stretch", "pad")),
    Option("mean", "Images", "numbers", "R,G,B", "Mean per channel, on the 0..1 scale.", _DATA),
    Option("std", "Images", "numbers", "R,G,B", "Standard deviation per channel, on the 0..1 scale.", _DATA),
    Option("layout", "Images", "choice", "", "Order of the axes; taken from the model by default.", _DATA,
           choices=("nchw", "nhwc")),
    # Text
    Option("text_column", "Text", "text", "NAME", "Column that holds the text.", _DATA),
    Option("label_column", "Text", "text", "NAME", "Column that holds the label.", _DATA),
    Option("max_length", "Text", "integer", "N", "Maximum tokens per sample.", _DATA, default=512,
           defaults={"finetune": 2048}, common=True, minimum=1),
    Option("pack", "Text", "choice", "", "How texts become samples: joined and cut, or one each.", _DATA,
           default="auto", choices=("auto", "concatenate", "pad")),
    # Quantization
    Option("preset", "Quantization", "text", "NAME",
           "Number format: int8, int4, fp8, nvfp4, w4a8 ... (see: fewbit list presets).", _CONFIG, default="int8",
           defaults={"finetune": None}, common=True),
    Option("bits", "Quantization", "number", "N", "Average bits per weight; precision is assigned layer by layer.",
           _QUANTIZE, minimum=1),
    Option("group_size", "Quantization", "integer", "N", "Weights that share one scale; -1 for a whole channel.",
           _QUANTIZE, minimum=-1),
    Option("algorithm", "Quantization", "name", "NAME",
           "Weight algorithm: auto, rtn, gptq, awq ... (see: fewbit list algorithms).", _QUANTIZE, default="auto"),
    Option("backup_precision", "Quantization", "choice", "",
           "Embeddings, output layer, and layers the preset does not fit.", _QUANTIZE, default="int8",
           choices=("int8", "none", "same")),
    Option("kv_cache", "Quantization", "choice", "", "Quantize the key/value cache of a language model.", _QUANTIZE,
           default="none", choices=("none", "fp8", "int8")),
    Option("ignore", "Quantization", "list", "LAYER",
           "Layers to leave in float: name, glob, re:REGEX or type:OP. Repeatable.", (*_COMPRESS, "plan"), default=(),
           repeatable=True, common=True),
    Option("target", "Quantization", "name", "RUNTIME",
           "Runtime that will run the result (see: fewbit list targets).",
           (*_COMPRESS, "plan", "compare", "export", "list"), common=True),
    Option("favor", "Quantization", "choice", "", "Which layers stay in float: trade accuracy for speed.", _QUANTIZE,
           default="balanced", choices=("accuracy", "balanced", "speed")),
    Option("statistics", "Quantization", "path", "DIR",
           "Folder of calibration statistics: written with --data, read without.", ("quantize",)),
    Option("requantize", "Quantization", "flag", "",
           "Allow a conversion that loses precision; it is measured and recorded.", ("export",), default=False),
    # Quality
    Option("max_drop", "Quality", "drop", "DROP", "Largest drop allowed: 1% (relative) or 0.01 (absolute).",
           ("quantize",), common=True),
    Option("metric", "Quality", "text", "NAME", "Quality metric; chosen from the task by default, or FILE.py:FN.",
           (*_COMPRESS, "finetune", "compare")),
    Option("runs", "Quality", "integer", "N", "Timed runs per model.", ("compare",), default=50, minimum=1),
    # Training
    Option("method", "Training", "name", "NAME", "How to prune or train (see: fewbit list methods).",
           (*_TRAIN, "plan"), defaults={"sparsify": "one-shot", "finetune": "full"}, common=True),
    Option("optim_level", "Training", "number", "LEVEL", "How far to go: 0 (unchanged) to 1.", ("sparsify", "plan"),
           default=0.5, minimum=0),
    Option("sparsity", "Training", "number", "SHARE", "Exact share of weights set to zero, instead of a level.",
           ("sparsify", "plan"), minimum=0),
    Option("pattern", "Training", "text", "NAME", "Pattern of zeros: unstructured, 2:4, 4:8, block:4, channels.",
           ("sparsify", "plan")),
    Option("teacher", "Training", "model", "MODEL", "Model to distill from.", _TRAIN),
    Option("epochs", "Training", "number", "N", "Passes over the training data.", _TRAIN, default=3.0, minimum=0),
    Option("max_steps", "Training", "integer", "N", "Optimizer steps, instead of epochs.", _TRAIN, minimum=1),
    Option("lr", "Training", "number", "RATE", "Peak learning rate; depends on the method by default.", _TRAIN,
           minimum=0),
    Option("precision", "Training", "choice", "", "Arithmetic used in training.", _TRAIN, default="auto",
           choices=("auto", "fp32", "bf16", "fp16")),
    # Output
    Option("output", "Output", "path", "PATH",
           "File or folder to write; NAME-PRESET in the current folder by default.",
           (*_WORK, "statistics", "demo"), short="o", common=True),
    Option("format", "Output", "list", "NAME", "File format to write (see: fewbit list formats). Repeatable.",
           (*_COMPRESS, "finetune", "export"), default=(), repeatable=True, common=True),
    Option("overwrite", "Output", "flag", "", "Replace an earlier result at the output path.",
           (*_WORK, "statistics"), default=False),
    Option("fix", "Output", "flag", "", "Write a repaired copy to --output.", ("check",), default=False, python=False),
    Option("show", "Output", "integer", "N", "Locations to print per issue; 0 for all.", ("check",), default=5,
           python=False, minimum=0),
    Option("json", "Output", "flag", "", "Print one JSON document on standard output.", _ALL, default=False,
           python=False),
    # General
    Option("config", "General", "path", "FILE",
           "Settings from a .yaml or .json file; options on the command line win.", _CONFIG),
    Option("set", "General", "pairs", "KEY=VALUE", "One setting by its path in the configuration. Repeatable.", _CONFIG,
           repeatable=True, python=False),
    Option("device", "General", "name", "NAME", "Where to compute: auto, cpu, cuda, cuda:1, mps, qaic.", _COMPUTE,
           default="auto", common=True),
    Option("threads", "General", "integer", "N", "CPU threads for computing; all cores by default.", _COMPUTE,
           minimum=1),
    Option("resume", "General", "flag", "", "Continue an interrupted run (the default); --no-resume starts anew.",
           (*_COMPRESS, "finetune"), default=True),
    Option("verbose", "General", "count", "", "More detail; -vv for debug output.", _ALL, default=0, short="v",
           python=False),
    Option("quiet", "General", "flag", "", "Print only the result and errors.", _ALL, default=False, short="q",
           python=False),
    Option("traceback", "General", "flag", "", "Show the Python traceback of an error.", _ALL, default=False,
           python=False),
)  # fmt: skip

REMOVED = {
    "mode": "preset", "ratio": "bits", "all_layers": "backup_precision", "price": "favor", "out": "output",
    "option": "data_option", "policy": "on_error", "seqlen": "max_length", "kind": "metric", "use_case": "task",
    "recipe": "config", "show_recipe": "output", "eval_metric": "metric", "train_samples": "samples",
    "val_samples": "validation", "max_samples": "samples", "places": "show", "freeze": "target", "step": "set",
    "scheme": "preset", "nsamples": "samples", "num_samples": "samples", "subset_size": "samples",
    "imgsz": "image_size", "weight_format": "preset", "within": "max_drop",
}  # fmt: skip
"""Flags of the old version and of other tools, with the option that does the same."""

FOREIGN_COMMANDS = {
    "compress": "fewbit quantize MODEL --preset w4a16", "convert": "fewbit export MODEL",
    "val": "fewbit compare MODEL MODEL",
    "run": "fewbit quantize MODEL", "eval": "fewbit compare MODEL MODEL", "inspect": "fewbit plan MODEL",
    "info": "fewbit plan MODEL",
}  # fmt: skip
"""Commands that are none, with what to type instead."""


def options_of(command: str) -> list[Option]:
    """The options of one command, in the order of the table."""
    return [option for option in OPTIONS if command in option.commands]


def option(name: str) -> Option:
    """One option by its Python name."""
    return next(option for option in OPTIONS if option.name == name)


def parse(option: Option, texts: Sequence[str]) -> Any:
    """Read the value of an option from a command line; `texts` has several entries if it was repeated.

    >>> parse(option("image_size"), ["480x640"]), parse(option("mean"), ["0.5"]), parse(option("ignore"), ["a,b", "c"])
    ((480, 640), (0.5,), ('a', 'b', 'c'))
    """
    if option.kind == "pairs":
        return dict(_pair(option, text) for text in texts)
    if option.kind == "actions":
        return _actions(option, texts)
    if option.kind == "list":
        items = [item.strip() for text in texts for item in text.split(",")]
        return () if items == ["none"] else tuple(item for item in items if item)
    return _one(option, texts[-1])


def check(option: Option, value: Any) -> Any:
    """Read the value of an option from a Python call: text as on the command line, or the natural object.

    >>> check(option("image_size"), 224), check(option("mean"), [0.5, 0.5, 0.5]), check(option("samples"), 64)
    ((224, 224), (0.5, 0.5, 0.5), 64)
    """
    if value is None or option.kind in ("data", "model", "flag", "count"):
        return value
    if isinstance(value, str):
        return parse(option, [value])
    if option.kind == "size" and isinstance(value, int) and not isinstance(value, bool):
        return _one(option, str(value))
    if option.kind == "size" and isinstance(value, tuple | list) and len(value) == 2:
        if tuple(value) == (None, None) or not all(side is None or _is_pixels(side) for side in value):
            raise _wrong(option, value, _expected(option))
        return tuple(value)
    if option.kind == "numbers":
        return _numbers(option, value if isinstance(value, Iterable) else [value], value)
    if option.kind in ("integer", "number") and isinstance(value, int | float) and not isinstance(value, bool):
        return _bounded(option, value, str(value))
    if option.kind in ("integer", "number", "choice", "size"):
        raise _wrong(option, value, _expected(option))
    return value


def _is_pixels(side: Any) -> bool:
    return isinstance(side, int) and not isinstance(side, bool) and side > 0


def _one(option: Option, text: str) -> Any:
    if option.kind in ("integer", "number"):
        if text == "auto" and "auto" in (option.default, *option.defaults.values()):
            return text
        try:
            number = int(text) if option.kind == "integer" else float(text)
        except ValueError:
            raise _wrong(option, text, _expected(option)) from None
        return _bounded(option, number, text)
    if option.choices and not (option.kind == "text" and text.lower().endswith(".json")):
        if text.lower() not in option.choices:
            raise _wrong(option, text, _expected(option))
        return text.lower()
    if option.kind == "size":
        match = re.fullmatch(r"(\d+)|(\d*)x(\d*)", text.lower())
        if match is None or text.lower() == "x" or any(side and not int(side) for side in match.groups()):
            raise _wrong(option, text, _expected(option))
        if match[1]:
            return int(match[1]), int(match[1])
        return int(match[2]) if match[2] else None, int(match[3]) if match[3] else None
    if option.kind == "numbers":
        return _numbers(option, text.split(","), text)
    if option.kind == "name":
        return text if ".py:" in text else text.lower()
    if option.kind == "function" and not re.fullmatch(r".+\.py:\w+", text):
        raise _wrong(option, text, "FILE.py:FN, a Python file and a function in it")
    if option.kind == "drop" and not re.fullmatch(r"\d+(\.\d+)?%?", text):
        raise _wrong(option, text, "1% (relative) or 0.01 (absolute)")
    return text


def _bounded(option: Option, number: Any, text: str) -> Any:
    below = option.minimum is not None and not number >= option.minimum
    if not math.isfinite(number) or below or (option.kind == "integer" and number != int(number)):
        raise _wrong(option, text, _expected(option))
    return int(number) if option.kind == "integer" else number


def _numbers(option: Option, items: Iterable[Any], value: Any) -> tuple[float, ...]:
    try:
        numbers = tuple(float(item) for item in items)
    except (TypeError, ValueError):
        raise _wrong(option, value, "numbers separated by commas") from None
    positive = option.name != "std" or min(numbers, default=0) > 0
    if len(numbers) not in (1, 3) or not positive or not all(math.isfinite(number) for number in numbers):
        raise _wrong(option, value, "one number, or three: red, green, blue" + "; above 0" * (option.name == "std"))
    return numbers


def _pair(option: Option, text: str) -> tuple[str, Any]:
    import yaml

    key, equals, value = text.partition("=")
    if not equals or not key:
        raise _wrong(option, text, option.value)
    try:
        return key.strip(), yaml.safe_load(value) if value.strip() else value
    except yaml.YAMLError:
        return key.strip(), value


def _actions(option: Option, texts: Sequence[str]) -> Any:
    actions = ("raise", "drop", "repair", "keep")
    read: dict[str, str] = {}
    for item in (part.strip() for text in texts for part in text.split(",")):
        code, equals, action = item.rpartition("=")
        if action not in actions:
            raise _wrong(option, item, ", ".join(actions) + ", or CODE=ACTION")
        read[code if equals else "*"] = action
    return read["*"] if set(read) == {"*"} else read


def _expected(option: Option) -> str:
    if option.choices:
        return ", ".join(option.choices) + (", or a .json file" if option.kind == "text" else "")
    if option.kind == "size":
        return "a size in pixels: 224, 480x640 (height x width), 48x or x320"
    noun = {"integer": "a whole number", "number": "a number"}[option.kind]
    return noun if option.minimum is None else f"{noun} from {option.minimum:g} up"


_EXAMPLES = {"size": "224", "numbers": "0.5", "number": "1", "drop": "1%", "function": "FILE.py:FN", "actions": "drop"}


def _wrong(option: Option, value: Any, expected: str) -> UsageError:
    """A value that cannot be read, with one that can."""
    example = _EXAMPLES.get(option.kind, option.value)
    if option.choices:
        example = (nearest(str(value), option.choices) or option.choices)[0]
    elif option.kind == "integer":
        example = str(option.default or max(int(option.minimum or 1), 1))
    return UsageError(
        f"{value!r} is not a value of {{{option.name}}}", code="option-value", param=option.name, expected=expected,
        hint=f"{{{option.name}={example}}}",
    )  # fmt: skip
