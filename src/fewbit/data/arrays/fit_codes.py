# SPDX-License-Identifier: Apache-2.0
"""Every way in which a sample can fail to fit a model, declared once."""

from __future__ import annotations

from fewbit.data.findings import Code, Severity

FIT_CODES = {
    "input-missing": Code(
        Severity.ERROR,
        "the model needs an input that the sample does not have",
        "save an array under that name, or say which one it is: rename={'array': 'input'}",
        "raise",
        ("drop",),
    ),
    "input-name": Code(
        Severity.ERROR,
        "an array's name resembles an input's name but is not it",
        "rename={'array': 'input'}, or `--fix` for a renamed copy",
        "raise",
        ("repair", "drop"),
    ),
    "input-renamed": Code(
        Severity.WARN,
        "an array was taken for an input because its shape and dtype leave no other choice",
        "save it under the input's name, or confirm with rename={'array': 'input'}",
        "repair",
        ("raise", "drop"),
    ),
    "input-extra": Code(
        Severity.WARN,
        "the model has no input of an array's name; the array is left out",
        "remove the array, or name it in targets= if it is an answer",
        "drop",
        ("raise",),
    ),
    "rename-unknown": Code(
        Severity.ERROR,
        "rename= cannot be followed: a name is not there, or comes out twice",
        "rename={'name of the array': 'name of the input'}",
        "raise",
    ),
    "batch-dimension": Code(
        Severity.WARN,
        "a sample carries a batch axis; a 1 is squeezed away, N entries become N samples",
        "save one sample a file, without the batch axis; `--fix` does it",
        "repair",
        ("raise", "drop"),
    ),
    "batch-mixed": Code(
        Severity.ERROR,
        "the inputs of one sample disagree about the batch axis",
        "save every array in the whole shape of its input, or each without the batch axis; or a transform_fn "
        "(--transform file.py:function), or in Python a list of dicts, one model input each",
        "raise",
        ("drop",),
    ),
    "batch-missing": Code(
        Severity.ERROR,
        "an item has no batch axis, though items are model inputs as they are",
        "DataLoader(..., batch_size=1), array[None], or batched=False if these are samples",
        "raise",
    ),
    "batch-fixed": Code(
        Severity.ERROR,
        "an item's batch size is not the one the model is fixed to",
        "set the loader's batch_size to the model's, or export the model with a dynamic batch axis",
        "raise",
    ),
    "input-shape": Code(
        Severity.ERROR,
        "an array's shape is not the input's",
        "resize, pad or cut the array as the model's preprocessing does",
        "raise",
        ("drop",),
    ),
    "input-layout": Code(
        Severity.ERROR,
        "an image has its channels on the other side (NHWC and NCHW)",
        "array.transpose(2, 0, 1) for channels first, (1, 2, 0) for channels last; `--fix` does it",
        "raise",
        ("repair", "drop"),
    ),
    "axis-inconsistent": Code(
        Severity.ERROR,
        "one dynamic axis has two sizes in one sample",
        "pad or cut the arrays to the same length",
        "raise",
        ("drop",),
    ),
    "dtype-narrowed": Code(
        Severity.INFO, "floats are narrowed to the model's width", "save in the input's dtype", "repair", ("raise",)
    ),
    "dtype-checked": Code(
        Severity.WARN,
        "integers are stored in a narrower type, each value checked",
        "save in the input's dtype",
        "repair",
        ("raise", "drop"),
    ),
    "dtype-integers": Code(
        Severity.WARN, "integers go to a floating input", "save in the input's dtype", "repair", ("raise", "drop")
    ),
    "dtype-unscaled": Code(
        Severity.WARN,
        "uint8 pixels go to a floating input, probably unscaled",
        "apply the training's preprocessing before saving: (array / 255 - mean) / std",
        "repair",
        ("raise", "drop"),
    ),
    "dtype-refused": Code(
        Severity.ERROR,
        "an array's dtype cannot become the input's without loss",
        "save the array in the dtype of the model's input",
        "raise",
        ("drop",),
    ),
    "bfloat16-bits": Code(
        Severity.WARN,
        "uint16 values are read as the bits of bfloat16",
        "save bfloat16 tensors as float32: tensor.float().numpy()",
        "repair",
        ("raise", "drop"),
    ),
}
"""What `fit` can find."""
