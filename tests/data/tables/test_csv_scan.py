# SPDX-License-Identifier: Apache-2.0
"""The whole-array scan against an automaton that reads one byte at a time."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from fewbit.data.tables.csv_scan import Runs, tokens

COMMA = ord(",")
texts = st.lists(st.sampled_from(['"', '"', ",", "\n", "\r", "\r\n", "a", '""', " "]), max_size=40).map("".join)


def automaton(text: str) -> dict[str, list[int]]:
    """Positions of field ends, record ends, next fields, stray and early quotes, by the rule of Python's `csv`."""
    found: dict[str, list[int]] = {"ends": [], "after": [], "closing": [], "breaks": [], "stray": [], "early": []}
    state, at = "start", 0
    while at < len(text):
        byte = text[at]
        width = 2 if text.startswith("\r\n", at) else 1
        separator = byte in ",\r\n"
        if byte in "\r\n":
            found["breaks"].append(at + width)
        if state == "inside":
            state = "quote" if byte == '"' else "inside"
        elif separator:
            found["ends"].append(at)
            found["after"].append(at + width)
            if byte != ",":
                found["closing"].append(len(found["ends"]) - 1)
            state = "start"
        elif byte == '"' and state in ("start", "quote"):
            state = "inside"
        else:
            if state == "quote":
                found["early"].append(at - 1)
            if byte == '"' and (at == 0 or text[at - 1] != '"'):
                found["stray"].append(at)
            state = "bare"
        at += width
    return found


@settings(max_examples=600, deadline=None)
@given(texts)
@example('"a""b",""\r\n"""",a"b')
@example('a""b\n"x"y"z"\n')
@example('"",""""\n')
def test_the_scan_finds_what_an_automaton_finds(text: str) -> None:
    found, wanted = tokens(text.encode(), COMMA), automaton(text)
    for name, positions in wanted.items():
        assert getattr(found, name).tolist() == positions, name


@settings(max_examples=300, deadline=None)
@given(texts)
def test_an_open_quote_is_found_where_it_was_opened(text: str) -> None:
    data = text.encode()
    if '"' not in text:
        return
    runs = Runs.of(data, COMMA)
    opener, state = -1, "start"
    for at, byte in enumerate(text):
        if byte == '"' and state == "start":
            state, opener = "inside", at
        elif byte == '"' and state == "inside":
            state = "quote"
        elif byte == '"' and state == "quote":
            state = "inside"
        elif state != "inside":
            state = "start" if byte in ",\r\n" else "bare"
    assert bool(runs.inside[-1]) == (state == "inside")
    assert runs.held == (state == "quote")
    if state in ("inside", "quote"):
        assert runs.opener() == opener


def test_a_large_piece_takes_the_same_way() -> None:
    data = b'1,"a ""b"", c\nd",x\r\n' * 5000
    found = tokens(data, COMMA)
    assert len(found.closing) == 5000
    assert len(found.ends) == 15000
    assert len(found.breaks) == 10000
    assert not len(found.early) and not len(found.stray)


def test_an_empty_piece() -> None:
    assert tokens(b"", COMMA).ends.tolist() == []
