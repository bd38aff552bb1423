# SPDX-License-Identifier: Apache-2.0
"""What a `data.yaml` says: where the splits lie and what the classes are called.

The file is read as a tree of plain text and nothing in it is ever constructed or run: a class called `no`
stays "no", `007` stays "007", and a `download:` key or a `!!python/…` tag is told about and left alone. Bytes
that are not UTF-8, a reference from one place of the file to another, or nesting without end make it invalid.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fewbit.data.boxes.fault import Fault
from fewbit.data.boxes.small_text import Unreadable, read_text
from fewbit.data.findings import Code, Severity
from fewbit.data.sample import Place
from fewbit.data.split_names import SPLITS, split_word

CODES = {
    "yaml-invalid": Code(
        Severity.ERROR, "the data.yaml cannot be read", "correct it; it is a short YAML file in UTF-8", "raise"
    ),
    "yaml-nc": Code(
        Severity.ERROR,
        "`nc` is not the number of names",
        "correct `nc` or `names`, or delete `nc`; `--fix` does it",
        "raise",
        ("keep",),
    ),
    "yaml-download": Code(
        Severity.INFO, "the data.yaml asks to download or run something", "nothing: fewbit never does what it asks"
    ),
    "yaml-tag": Code(
        Severity.WARN,
        "a value of the data.yaml has a tag that asks for an object to be built",
        "delete the tag; fewbit takes the value as text and never builds or runs anything",
        "keep",
        ("raise",),
    ),
    "yaml-keypoints": Code(
        Severity.ERROR, "the dataset is one of key points", "fewbit reads boxes and polygons only", "raise", ("keep",)
    ),
    "names-invalid": Code(
        Severity.ERROR,
        "the class names are not a list, or have gaps",
        "write names as a list, or as 0: first, 1: second, …; `--fix` fills gaps",
        "raise",
        ("keep",),
    ),
}

_BYTES = 1 << 20
_DEPTH = 32
_YAML = "tag:yaml.org,2002:"
_PLAIN = frozenset({"!", *(f"{_YAML}{kind}" for kind in ("str", "int", "float", "bool", "null", "seq", "map"))})


@dataclass
class Description:
    """What a data.yaml says.

    Args:
        file: the data.yaml.
        name: its name for messages.
        path: the `path:` key as written, where the splits are looked for.
        splits: the folders and list files of each split, as written.
        names: the class names in order; gaps are filled with `class_N`.
        nc: the `nc:` key.
        faults: what is wrong with it.
    """

    file: Path
    name: str
    path: str = ""
    splits: dict[str, list[str]] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    nc: int | None = None
    faults: list[Fault] = field(default_factory=list)
    valid: bool = True

    def fault(self, code: str, message: str, node: Any = None) -> None:
        """Note a fault, at a node's line when there is one."""
        line = None if node is None else node.start_mark.line + 1
        self.faults.append(Fault(code, message, Place(self.name, line=line)))


def describe(file: Path, name: str) -> Description:
    """Read a data.yaml; whatever is wrong with it is in `faults`, and `valid` says whether the rest can be used."""
    told = Description(file, name)
    root = _tree(told)
    if root is None:
        told.valid = False
        return told
    keys = dict(_pairs(root, told))
    told.path = _text(keys.get("path"))
    for key, node in keys.items():
        if split := split_word(key):
            told.splits.setdefault(split, []).extend(_texts(node, told))
    told.splits = {split: told.splits[split] for split in SPLITS if told.splits.get(split)}
    told.names = _names(keys.get("names"), told)
    _count(keys.get("nc"), told)
    if "download" in keys:
        told.fault("yaml-download", "the key `download` was not followed", keys["download"])
    if "kpt_shape" in keys:
        told.fault("yaml-keypoints", "the key `kpt_shape` says that the rows hold key points", keys["kpt_shape"])
    return told


def _tree(told: Description) -> Any:
    """The mapping at the top of the file, or `None` with a fault."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        text = read_text(str(told.file), _BYTES)
        _look_over(yaml, yaml.parse(text, Loader=loader), told)
        root = yaml.compose(text, Loader=loader)
    except Unreadable as error:
        told.faults.append(Fault("yaml-invalid", f"the file {error}", Place(told.name, offset=error.offset)))
        return None
    except (ValueError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        message = " ".join(str(getattr(error, "problem", None) or error).split())
        told.faults.append(Fault("yaml-invalid", message, Place(told.name, line=mark and mark.line + 1)))
        return None
    if not isinstance(root, yaml.MappingNode):
        told.fault("yaml-invalid", "the file holds no keys such as `train:` and `names:`", root)
        return None
    return root


def _look_over(yaml: Any, events: Iterator[Any], told: Description) -> None:
    # Before anything is composed: a few aliases of aliases stand for gigabytes, deep nesting for a stack.
    depth = 0
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            raise Unreadable(f"refers to another of its places (*{event.anchor}), which a data.yaml never needs")
        tag = getattr(event, "tag", None)
        if tag is not None and tag not in _PLAIN:
            shown = tag.replace(_YAML, "!!")[:80]
            told.fault("yaml-tag", f"the tag {shown!r} was not followed: its value is taken as it is written", event)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEPTH:
            raise Unreadable(f"is nested more than {_DEPTH} deep")


def _pairs(node: Any, told: Description) -> Iterator[tuple[str, Any]]:
    seen = set()
    for key, value in node.value:
        if isinstance(key.value, str):
            if key.value in seen:
                told.fault("yaml-invalid", f"the key {key.value!r} stands twice", key)
            seen.add(key.value)
            yield key.value, value


def _text(node: Any) -> str:
    """A scalar as it is written; nothing, `null` and whatever is not a scalar are the empty text."""
    if node is None or not isinstance(node.value, str) or node.tag.endswith(":null"):
        return ""
    return node.value.strip()


def _texts(node: Any, told: Description) -> list[str]:
    if isinstance(node.value, str):
        return [_text(node)] if _text(node) else []
    texts = [_text(item) for item in node.value if not isinstance(item, tuple)]
    if not all(texts) or not isinstance(node.value, list) or len(texts) != len(node.value):
        told.fault("yaml-invalid", "a split is a folder, a list file, or a list of those", node)
    return [text for text in texts if text]


def _names(node: Any, told: Description) -> tuple[str, ...]:
    if node is None or node.tag.endswith(":null"):
        return ()
    if isinstance(node.value, str):
        told.fault("names-invalid", f"`names` is the text {node.value[:60]!r}", node)
        return ()
    if node.value and isinstance(node.value[0], tuple):
        found = _numbered(node, told)
    else:
        found = dict(enumerate(map(_text, node.value)))
    count = max(found, default=-1) + 1
    if count > max(1000, 10 * len(found)):
        told.fault("names-invalid", f"{len(found)} names are numbered up to {count - 1}", node)
        return tuple(found[key] for key in sorted(found))
    gaps = [number for number in range(count) if not found.get(number)]
    if gaps:
        shown = ", ".join(map(str, gaps[:5]))
        told.fault(
            "names-invalid", f"no name for class {shown}{' …' if len(gaps) > 5 else ''} of 0 to {count - 1}", node
        )
    return tuple(found.get(number) or f"class_{number}" for number in range(count))


def _numbered(node: Any, told: Description) -> dict[int, str]:
    found = {}
    for key, value in _pairs(node, told):
        if key.isascii() and key.isdigit() and len(key) < 10:
            found[int(key)] = _text(value)
        else:
            told.fault("names-invalid", f"the class number {key[:60]!r} is not a whole number from 0", value)
    return found


def _count(node: Any, told: Description) -> None:
    text = _text(node)
    if not text:
        return
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 10):
        told.fault("yaml-nc", f"`nc` is {text[:60]!r}, not a whole number", node)
        return
    told.nc = int(text)
    if told.names and told.nc != len(told.names):
        told.fault("yaml-nc", f"`nc` is {told.nc}, but there are {len(told.names)} names", node)
