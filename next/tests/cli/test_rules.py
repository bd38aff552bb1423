# SPDX-License-Identifier: Apache-2.0
"""The rules of the user interface that the option table and the built command line must keep."""

import ast
import inspect
import json
import random
import re
import resource
import shlex
from collections import Counter
from pathlib import Path

import pytest

import fewbit
from fewbit import errors, options
from fewbit.cli import main
from fewbit.cli.help_text import built_commands, command_help, main_help
from fewbit.cli.parsing import parse_command
from fewbit.options import COMMANDS, FOREIGN_COMMANDS, GROUPS, OPTIONS, REMOVED, options_of

SOURCE = Path(fewbit.__file__).parent
BUILT = built_commands()
DATA_GROUPS = ("Data", "Images", "Text")
ONLY_SOMETIMES = {"validation", "batch_size", "quick", "purpose", "data"}


def test_every_option_has_one_line_of_help_a_group_and_a_kind():
    for option in OPTIONS:
        assert 0 < len(option.help) <= 80 and option.help.endswith((".", ")")), option.name
        assert option.group in GROUPS and option.commands, option.name
        assert option.kind in ("flag", "count") or option.choices or option.value, option.name


def test_an_option_is_declared_once():
    assert max(Counter(option.name for option in OPTIONS).values()) == 1


def test_few_defaults_differ_between_commands():
    assert sum(bool(option.defaults) for option in OPTIONS) <= 8


def test_positional_arguments_and_short_flags():
    shorts = {option.short for option in OPTIONS if option.short}
    assert shorts == {"o", "v", "q"}
    for command in COMMANDS:
        names = [name.strip("[].") for name in command.arguments]
        assert set(names) <= {"MODEL", "DATA", "DIR", "KIND"}
        assert "model" not in {option.name for option in options_of(command.name)} or command.name == "check"
    assert [option.name for option in OPTIONS if option.kind == "path" and option.short] == ["output"]


def test_a_command_with_data_takes_all_of_the_data_options():
    everything = {option.name for option in OPTIONS if option.group in DATA_GROUPS} - ONLY_SOMETIMES
    for command in COMMANDS:
        names = {option.name for option in options_of(command.name)}
        if "data" in names or command.arguments == ("DATA",):
            assert everything <= names, command.name


@pytest.mark.parametrize("name", BUILT)
def test_help_fits_the_screen(name):
    short = command_help(name, long=False, width=80)
    assert len(short.splitlines()) <= 60
    for width in (80, 100):
        for long in (False, True):
            lines = command_help(name, long=long, width=width).splitlines()
            examples = [line for line in lines if line.startswith("  fewbit ")]
            assert all(len(line) <= width for line in lines if line not in examples), width
    assert len(command_help(name, long=True).splitlines()) < 120


def test_main_help_fits_a_terminal_and_lists_what_is_built():
    text = main_help()
    assert len(text.splitlines()) <= 40 and max(map(len, text.splitlines())) <= 80
    assert all(f"\n  {name} " in text for name in BUILT)
    unbuilt = {command.name for command in COMMANDS} - set(BUILT)
    assert not any(f"\n  {name} " in text for name in unbuilt | {"shrink", "benchmark", "predict", "report"})


@pytest.mark.parametrize("name", BUILT)
def test_every_command_has_three_examples_that_parse(name):
    command = next(command for command in COMMANDS if command.name == name)
    assert len(command.examples) == 3
    for example in command.examples:
        program, verb, *words = shlex.split(example)
        assert (program, verb) == ("fewbit", name)
        parse_command(name, words)


@pytest.mark.parametrize(("flag", "replacement"), REMOVED.items())
def test_removed_and_foreign_flags_get_a_hint(fewbit, flag, replacement):
    target = next(
        name for name in ("quantize", "check", *BUILT) if replacement in {o.name for o in options_of(name)} or True
    )
    code, _, err = fewbit(target, "x", f"--{flag.replace('_', '-')}", "1")
    assert code == 2 and "try:" in err
    if replacement in {option.name for option in options_of(target)}:
        assert f"--{replacement.replace('_', '-')}" in err


@pytest.mark.parametrize(("name", "line"), FOREIGN_COMMANDS.items())
def test_foreign_commands_get_a_line_to_type(fewbit, name, line):
    code, _, err = fewbit(name)
    assert code == 2 and line in err


def test_near_names_for_unknown_commands(fewbit):
    code, _, err = fewbit("quantise")
    assert code == 2 and "fewbit quantize" in err


def test_all_mistakes_of_a_line_are_reported_together(fewbit):
    code, _, err = fewbit("quantize", "--sampels", 3, "--image-size", "huge", "--samples", "none", "--mode", "x")
    assert code == 2
    for part in ("--sampels", "'huge'", "'none'", "--mode", "needs MODEL", "5 problems"):
        assert part in err


def test_wrong_command_lines_end_early_and_typed(tmp_path, monkeypatch, capsys):
    """A hundred lines made from the table: exit code 2, or 3 for a missing file; no traceback, no file, little time."""
    monkeypatch.chdir(tmp_path)
    draw = random.Random(0)
    values = ["", "-1", "x", "1e9", "\x1b[31m", "0", "a=b", "none", "\u202e", "99999999999999999999"]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    for _ in range(100):
        name = draw.choice([name for name in BUILT if name not in ("demo", "list")])
        words = [name, "missing.file"]
        for option in draw.sample([o for o in options_of(name) if o.name != "traceback"], 3):
            words += [option.flag] if option.kind in ("flag", "count") else [option.flag, draw.choice(values)]
        words += draw.choice([["--nonsense"], [], ["--json", "--bogus", "1"]])
        code = main(words)
        captured = capsys.readouterr()
        assert code in (2, 3), (words, captured)
        assert "Traceback" not in captured.err and "bug" not in captured.err, (words, captured.err)
        assert "\x1b" not in captured.err + captured.out and "\u202e" not in captured.err + captured.out, words
        if "--json" in words:
            document = json.loads(captured.out)
            assert document["exit_code"] == code and document["error"]["code"]
    assert list(tmp_path.iterdir()) == []
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - before < 50


def raised_errors():
    """Every call of an error class in the package, with its file."""
    classes = {"UsageError", "DataError", "ModelError", "ResourceError", "MissingLibraryError"}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) in classes:
                yield path.relative_to(SOURCE), node


def test_every_error_has_a_code_and_a_hint_and_known_parameters():
    names = {option.name for option in OPTIONS} | {"data", "model", "progress"}
    count = 0
    for path, call in raised_errors():
        count += 1
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        if None in keywords:  # **fields
            continue
        assert "code" in keywords and "hint" in keywords, f"{path}:{call.lineno}"
        param = keywords.get("param")
        if path.parts[:2] == ("data", "loading"):  # keys of a dataset configuration, which has no options
            continue
        if isinstance(param, ast.Constant) and param.value is not None:
            assert param.value in names, f"{path}:{call.lineno}: {param.value}"
    assert count > 20


def test_error_texts_name_parameters_only_through_placeholders():
    """`--flag` in a text would be wrong in Python, `name=` on the command line."""
    flags = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
    for path, call in raised_errors():
        for node in ast.walk(call):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and path.parts[0] != "cli":
                text = re.sub(r"`[^`]*`|fewbit [a-z]+ [^;,]*", "", node.value)  # quoted commands are commands
                assert not flags.search(text), f"{path}:{node.lineno}: {node.value}"


def test_words_of_the_old_version_do_not_come_back():
    private = re.compile(
        r"\b(settled?|harm(s|ed)?|terrain|lanes?|doz(e|ing)|usual|kept aside|answers' energy|stones?)\b", re.I
    )
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        texts = [
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        for text in texts:
            assert not private.search(text), f"{path.relative_to(SOURCE)}: {text[:80]}"


def test_python_functions_have_the_options_of_their_commands():
    python = {option.name for option in options_of("check") if option.python}
    parameters = {
        name
        for function in (fewbit.check_dataset, fewbit.fix_dataset)
        for name in inspect.signature(function).parameters
    }
    assert python <= parameters, python - parameters
    assert parameters - python <= {"data", "progress", "output"}
    for option in options_of("check"):
        default = inspect.signature(fewbit.check_dataset).parameters.get(option.name)
        if default is not None and option.name != "on_error":
            assert default.default == option.default_for("check"), option.name


def test_unknown_keywords_get_a_near_name():
    with pytest.raises(TypeError, match=r"sampels.*did you mean 'samples'"):
        fewbit.open_dataset([1, 2], sampels=3)


def test_exit_codes_come_from_one_table():
    from fewbit.cli.surface import EXIT_CODES
    from fewbit.record.schema import VERDICTS

    assert set(EXIT_CODES) == {*VERDICTS, None}
    codes = {kind.__name__: kind.exit_code for kind in errors.FewbitError.__subclasses__()}
    assert codes == {"UsageError": 2, "MissingLibraryError": 2, "DataError": 3, "ModelError": 3, "ResourceError": 3}


def test_names_that_list_prints_are_accepted(fewbit):
    code, out, _ = fewbit("list", "data-formats", "--json")
    for row in json.loads(out)["record"]["rows"]:
        options.parse(options.option("data_format"), [row["name"]])
        _, _, err = fewbit("check", "missing", "--data-format", row["name"])
        assert "data-format-unknown" not in err
    assert code == 0
    code, out, _ = fewbit("list", "tasks", "--json")
    from fewbit.data.tasks import find_task

    for row in json.loads(out)["record"]["rows"]:
        assert find_task(row["name"]).name == row["name"]
    code, _, err = fewbit("list", "presents")
    assert code == 2 and "presets" in err
