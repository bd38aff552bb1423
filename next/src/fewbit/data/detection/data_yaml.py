# SPDX-License-Identifier: Apache-2.0
"""The data.yaml of a YOLO dataset, read as text: nothing is constructed, followed or run.

A class called `no` stays "no", `007` stays "007"; a `download:` key or a `!!python/…` tag is reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fewbit.data.detection import issues
from fewbit.data.splits import SPLITS, split_of_folder
from fewbit.data.types import Issue, IssueType, Location
from fewbit.errors import plural

YAML_BYTES = 1 << 20
_DEEPEST = 32
_STANDARD = "tag:yaml.org,2002:"
_PLAIN_TAGS = ("!", *(f"{_STANDARD}{kind}" for kind in ("str", "int", "float", "bool", "null", "seq", "map")))
_MOST_GAPS = 1000


@dataclass
class DataYaml:
    """The content of a data.yaml: paths as written, by split; class names, of which gaps are `class_N`."""

    name: str
    path: str = ""
    splits: dict[str, list[str]] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    class_count: int | None = None
    issues: list[Issue] = field(default_factory=list)

    def add(self, kind: IssueType, message: str, mark: Any = None, byte: int | None = None) -> None:
        """Note an issue, at the line of a mark."""
        self.issues.append(Issue(kind, message, Location(self.name, line=mark and mark.line + 1, byte=byte)))


def read_data_yaml(content: bytes, name: str) -> DataYaml:
    """Parse a data.yaml of at most `YAML_BYTES`.

    >>> data = read_data_yaml(b"train: images/train\\nnames: [cat, no]", "data.yaml")
    >>> data.splits, data.names
    ({'train': ['images/train']}, ('cat', 'no'))
    """
    data = DataYaml(name)
    keys = dict(_top_level(content, data))
    data.path = _text(keys.get("path"))
    for split in SPLITS:
        paths = [path for key, node in keys.items() if split_of_folder(key) == split for path in _paths(node, data)]
        data.splits |= {split: paths} if paths else {}
    data.names = _names(keys["names"], data) if "names" in keys else ()
    if count := _text(keys.get("nc")):
        data.class_count = len(data.names) or (int(count) if _is_number(count) else None)
        if count != str(data.class_count):
            data.add(
                issues.YAML_COUNT, f"`nc` is {count[:60]!r}; {plural(len(data.names), 'name')}", keys["nc"].start_mark
            )
    if "download" in keys:
        data.add(issues.YAML_DOWNLOAD, "`download` was not followed", keys["download"].start_mark)
    if "kpt_shape" in keys:
        data.add(issues.YAML_KEYPOINTS, "`kpt_shape` says that rows hold keypoints", keys["kpt_shape"].start_mark)
    return data


def _top_level(content: bytes, data: DataYaml) -> Iterator[tuple[str, Any]]:
    """Keys and nodes of the mapping at the top; none after noting why the file cannot be read."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        if len(content) > YAML_BYTES:
            raise ValueError(f"more than {YAML_BYTES:,} bytes")
        text = content.decode("utf-8-sig")
        _check_events(yaml, yaml.parse(text, Loader=loader), data)
        root = yaml.compose(text, Loader=loader)
        if not isinstance(root, yaml.MappingNode):
            raise ValueError("there are no keys such as `train:` and `names:`")
    except UnicodeDecodeError as error:
        data.add(issues.YAML_INVALID, f"byte {content[error.start]:#04x} is not UTF-8", byte=error.start)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        message = " ".join(str(getattr(error, "problem", None) or error).split())[:200]
        data.add(issues.YAML_INVALID, message, getattr(error, "problem_mark", None))
    else:
        yield from _pairs(root, data)


def _check_events(yaml: Any, events: Iterator[Any], data: DataYaml) -> None:
    # Before anything is composed: aliases of aliases stand for gigabytes, and composing nested nodes is recursive.
    depth = 0
    for event in events:
        match event:
            case yaml.AliasEvent():
                raise ValueError(f"the alias *{event.anchor}, which a data.yaml never needs")
            case yaml.CollectionStartEvent():
                depth += 1
            case yaml.CollectionEndEvent():
                depth -= 1
        if depth > _DEEPEST:
            raise ValueError(f"nested deeper than {_DEEPEST}")
        if (tag := getattr(event, "tag", None)) and tag not in _PLAIN_TAGS:
            data.add(issues.YAML_TAG, f"{tag.replace(_STANDARD, '!!')[:80]!r} was not followed", event.start_mark)


def _pairs(node: Any, data: DataYaml) -> Iterator[tuple[str, Any]]:
    first: dict[str, Any] = {}
    for key, value in node.value:
        if not isinstance(key.value, str):
            continue
        if first.setdefault(key.value, key) is not key:
            data.add(issues.YAML_INVALID, f"the key {key.value[:60]!r} is given twice", key.start_mark)
        yield key.value, value


def _text(node: Any) -> str:
    """A scalar as written; nothing for `null`, lists and mappings."""
    if node is None or not isinstance(getattr(node, "value", None), str) or node.tag.endswith(":null"):
        return ""
    return str(node.value).strip()


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _paths(node: Any, data: DataYaml) -> list[str]:
    if isinstance(node.value, str):
        return [_text(node)] if _text(node) else []
    paths = [path for path in map(_text, node.value) if path]  # the items of a mapping are pairs, not nodes
    if len(paths) < len(node.value):
        data.add(issues.YAML_INVALID, "a split is a folder, a list file, or a list of those", node.start_mark)
    return paths


def _names(node: Any, data: DataYaml) -> tuple[str, ...]:
    if isinstance(node.value, str):
        if _text(node):
            data.add(issues.NAMES_INVALID, f"`names` is the text {node.value[:60]!r}", node.start_mark)
        return ()
    if node.value and isinstance(node.value[0], tuple):
        pairs = dict(_pairs(node, data))
        names = {int(key): _text(value) for key, value in pairs.items() if _is_number(key)}
        if wrong := [key for key in pairs if not _is_number(key)]:
            data.add(
                issues.NAMES_INVALID, f"the class number {wrong[0][:60]!r} is not an integer from 0", node.start_mark
            )
    else:
        names = dict(enumerate(map(_text, node.value)))
    count = max(names, default=-1) + 1
    if count > max(_MOST_GAPS, 10 * len(names)):  # a key of 10**9 must not make as many names
        data.add(issues.NAMES_INVALID, f"{plural(len(names), 'name')} with numbers up to {count - 1}", node.start_mark)
        return tuple(names[number] for number in sorted(names))
    if gaps := [str(number) for number in range(count) if not names.get(number)]:
        data.add(issues.NAMES_INVALID, f"no name for class {', '.join(gaps[:5])} of 0 to {count - 1}", node.start_mark)
    return tuple(names.get(number) or f"class_{number}" for number in range(count))
