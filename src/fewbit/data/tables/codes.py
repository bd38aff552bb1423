# SPDX-License-Identifier: Apache-2.0
"""Every fault the rows of a table can have."""

from __future__ import annotations

from fewbit.data import walk
from fewbit.data.findings import Code, Severity

_ERROR, _WARN, _INFO = Severity.ERROR, Severity.WARN, Severity.INFO
_DROP = ("drop",)
_REPAIR = ("repair",)

FILE = {
    **walk.CODES,
    "no-files": Code(_ERROR, "no file of rows was found", "point at a .jsonl, .json, .csv or .parquet file", "raise"),
    "no-rows": Code(_ERROR, "there is not one row", "check how the file was written"),
    "empty-file": Code(_WARN, "a file holds no row", "remove it, or write it again"),
    "bad-compression": Code(_ERROR, "packed data is damaged or cut off", "fetch the file again", "raise", _DROP),
    "expansion-bomb": Code(
        _ERROR, "a packed file grows beyond reason", "unpack and inspect it yourself", "raise", _DROP
    ),
    "packing-mismatch": Code(
        _WARN, "a file is packed and its name does not say so, or the other way round", "give it the right suffix"
    ),
    "truncated-file": Code(_ERROR, "the file ends too early", "fetch the file again", "raise", _DROP),
    "trailing-data": Code(
        _ERROR, "text goes on after the data's end", "one array a file, or one row a line", "raise", _DROP
    ),
    "bad-parquet": Code(_ERROR, "not a readable parquet file", "write it again", "raise", _DROP),
    "not-lines": Code(_INFO, "named as lines, but is an array or the like", "rename it to .json"),
    "not-rows": Code(_WARN, "a single object, taken as one row", "write an array of rows, or one object a line"),
    "rows-under-data": Code(_INFO, 'the rows are the array under "data"', "write the array alone to be clear"),
    "coco-json": Code(_ERROR, "annotations in COCO's form, which are not rows", "convert them to YOLO labels", "raise"),
    "ignored-file": Code(_INFO, "a file beside the rows is not read", "name a single file to read just that"),
    "several-kinds": Code(_WARN, "the folder mixes kinds of files", "keep one kind, or the same rows may count twice"),
    "several-splits": Code(_WARN, "a file name speaks of more than one split", "keep one of the words in the name"),
}

ROW = {
    "bad-encoding": Code(
        _ERROR,
        "bytes that are not in the text's encoding",
        "save it as UTF-8, or pass `encoding=` ('cp1252' is the usual one)",
        "raise",
        ("drop", "repair"),
    ),
    "nul-byte": Code(
        _ERROR, "NUL bytes in the text", "a copy was interrupted, or it is UTF-16: `encoding=`", "raise", _DROP
    ),
    "mark-inside": Code(
        _WARN, "a byte-order mark inside the text", "join files without their marks", "repair", ("raise",)
    ),
    "row-too-long": Code(
        _ERROR, "a row too long to be held", "one row a line; is this the right file?", "raise", _DROP
    ),
    "too-deep": Code(_ERROR, "a value nested too deep", "flatten it", "raise", _DROP),
    "bad-json": Code(_ERROR, "a row is not JSON", "mend the row, or policy={'bad-json': 'drop'}", "raise", _DROP),
    "truncated-row": Code(
        _ERROR, "the file ends inside a row", "fetch the file again, or drop the row", "raise", _DROP
    ),
    "not-an-object": Code(
        _ERROR, "a row is not an object", 'write {"text": …} instead of the bare value', "raise", _DROP
    ),
    "duplicate-key": Code(_ERROR, "a key stands twice in one object", "keep one of the two", "raise", ("drop", "keep")),
    "nan-in-json": Code(_WARN, "NaN or Infinity, which JSON does not have", "write null", "keep", ("raise", "drop")),
    "lone-surrogate": Code(_ERROR, "half a character", "write the text again as UTF-8", "raise", ("drop", "repair")),
}

MEANING = {
    "mixed-types": Code(
        _WARN,
        "a column holds values of different types",
        "make them alike, or policy={'mixed-types': 'repair'} to cast them",
        "keep",
        ("raise", "repair"),
    ),
    "many-columns": Code(_WARN, "more columns than a table has", "are keys used as data? Put them into a list"),
    "duplicate-row": Code(_WARN, "rows that repeat another row", "remove the copies"),
    "split-leak": Code(_WARN, "a row stands in two splits", "remove it from one of them"),
    "bad-message": Code(
        _ERROR, "a chat message that has no role or content", "{'role': …, 'content': …}", "raise", ("drop", "keep")
    ),
    "unknown-role": Code(_WARN, "a chat role nobody knows", "system, user, assistant or tool"),
    "no-column": Code(
        _WARN, "a column that was asked for is in none of the first rows", "check its spelling in columns=; it is null"
    ),
    "empty-message": Code(_WARN, "a chat message without text", "write the text, or leave the message out"),
    "starts-with-answer": Code(_WARN, "a chat begins with the assistant", "most chat templates want the user first"),
    "ends-unanswered": Code(_INFO, "a chat does not end with the assistant", "fine for prompts; no answer to learn"),
    "empty-text": Code(_WARN, "rows whose text is null or empty", "fill them, or leave such rows out"),
    "missing-values": Code(_INFO, "a column holds null, NaN or empty values", "fill them, or leave the column out"),
    "ragged-lists": Code(_WARN, "lists of numbers that are not equally long", "embeddings have one length: pad or cut"),
    "replacement-character": Code(
        _WARN, "U+FFFD in a text: something was lost when it was written", "make the file again from its origin"
    ),
    "no-label": Code(_ERROR, "no column holds the labels", "name it: label='…'", "raise"),
    "bad-label": Code(
        _ERROR, "a value cannot be a label", "classes: names or whole numbers; regression: numbers", "raise", _DROP
    ),
    "unseen-label": Code(
        _ERROR, "a label that train does not have", "move such rows to train, or remove them", "raise", ("drop", "keep")
    ),
    "labels-remapped": Code(_WARN, "labels are not 0 … n-1 and get new numbers", "the order is in facts['classes']"),
    "labels-alike": Code(
        _WARN, "labels that differ only in case or in spaces round them", "write them alike, if they are the same"
    ),
    "labels-mixed": Code(_WARN, "labels of different types, compared as text", "write them all alike"),
    "unlabeled": Code(_INFO, "rows without a label; their label is -1", "label them, or leave them out of training"),
}

CSV = {
    "header-missing": Code(
        _ERROR, "the file has no usable header", "write the column names into the first line", "raise"
    ),
    "header-duplicate": Code(
        _ERROR, "two columns have the same name", "rename one of them; policy `repair` numbers them", "raise", _REPAIR
    ),
    "header-empty": Code(
        _ERROR,
        "a column has no name",
        "name it, or remove the trailing delimiter; policy `repair` calls it column_N",
        "raise",
        _REPAIR,
    ),
    "header-space": Code(
        _WARN, "a column's name has spaces round it", "remove them, or ask for the name with its spaces"
    ),
    "header-like-data": Code(
        _WARN, "the first line looks like data, not like names", "put a line with the column names above it"
    ),
    "delimiter-guessed": Code(
        _INFO, "the delimiter was found by looking at the first rows", "pass `delimiter=` to be sure"
    ),
    "delimiter-unclear": Code(_WARN, "more than one delimiter fits the first rows", "pass `delimiter=` to choose"),
    "row-short": Code(
        _ERROR,
        "a row has fewer fields than the header",
        "add what is missing; policy `drop` leaves the row out, `repair` fills it with empty text",
        "raise",
        ("drop", "repair"),
    ),
    "row-long": Code(
        _ERROR,
        "a row has more fields than the header",
        "put quotes round the field that holds the delimiter; policy `drop` leaves the row out, `repair` cuts it",
        "raise",
        ("drop", "repair"),
    ),
    "trailing-delimiter": Code(
        _WARN,
        "a row ends in delimiters with nothing behind them",
        "remove them; readers pass over them",
        "repair",
        ("drop", "raise"),
    ),
    "quote-stray": Code(
        _WARN,
        "a quote stands inside a field without quotes round it",
        "put quotes round the field and double the one inside; it is read as it stands",
        "keep",
        ("drop", "raise"),
    ),
    "quote-early": Code(
        _ERROR,
        "text follows the quote that closes a field",
        'double the quotes inside the field ("" for each "); policy `keep` takes both parts, `drop` leaves the row out',
        "raise",
        ("drop", "keep"),
    ),
    "quote-unclosed": Code(
        _ERROR,
        "a quote is opened and never closed",
        "close it, or double it if it belongs to the text; policy `drop` goes on at the next line",
        "raise",
        _DROP,
    ),
    "bad-cast": Code(
        _ERROR,
        "a value is not of the type its column was declared to have",
        "correct the value or the declared type; policy `drop` leaves the row out, `repair` makes it None",
        "raise",
        ("drop", "repair"),
    ),
}

GUESSED = frozenset({"bad-encoding", "lone-surrogate", "nul-byte", "row-short", "row-long", "bad-cast"})
"""Faults after which a row's values are a guess: they say nothing about types, and no mended copy has them."""

CODES = {**FILE, **ROW, **MEANING, **CSV}
