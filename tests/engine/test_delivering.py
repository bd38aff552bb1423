# SPDX-License-Identifier: Apache-2.0
"""Nothing of the user's is touched, and a folder is there whole and checked or not at all."""

import json
import os
from functools import wraps

import pytest
import torch

import fewbit
from fewbit import registry
from fewbit.engine.delivering import export, load
from fewbit.engine.quantizer import ModelQuantizer
from fewbit.engine.staging import check_target
from fewbit.errors import DataError, UsageError
from fewbit.record import Record
from fewbit.schemes.presets import preset
from quantized_models import mlp, numbers, quantize_linears


@pytest.fixture
def model():
    return quantize_linears(mlp())


@pytest.fixture
def exported(model, tmp_path):
    return export(model, tmp_path / "out")


def everything(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_new_folder_and_its_parents_are_made(model, tmp_path):
    made = export(model, tmp_path / "a" / "b")
    assert made == tmp_path / "a" / "b" and sorted(p.name for p in made.iterdir()) == [
        "fewbit.json",
        "fewbit.safetensors",
    ]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


def test_an_empty_folder_is_used_and_stays_the_same_folder(model, tmp_path):
    (tmp_path / "out").mkdir()
    number = (tmp_path / "out").stat().st_ino
    assert len(list(export(model, tmp_path / "out").iterdir())) == 2
    assert (tmp_path / "out").stat().st_ino == number


@pytest.mark.parametrize("name", [".", "out", "./out/", "link"])
def test_an_empty_folder_by_other_names(model, tmp_path, monkeypatch, name):
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to("out")
    monkeypatch.chdir(tmp_path / "out" if name == "." else tmp_path)
    export(model, name)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["fewbit.json", "fewbit.safetensors"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "out"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_the_users_is_left_alone(model, tmp_path, overwrite):
    """Quark's file2file deletes an existing folder with everything in it (defect 14)."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    before = everything(tmp_path)
    with pytest.raises(UsageError) as error:
        export(model, tmp_path / "out", overwrite=overwrite)
    assert "out" in str(error.value) and everything(tmp_path) == before
    assert "overwrite" not in str(error.value.try_)  # it would not help


def test_a_file_in_the_place_of_the_folder(model, tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(UsageError, match="is a file"):
        export(model, tmp_path / "out", overwrite=True)
    assert everything(tmp_path) == {"out": b"mine"}


def test_a_file_or_a_broken_link_on_the_way_to_the_folder(model, tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for target, what in (("file/out", "file' is a file"), ("link", "link' is a link to nothing")):
        with pytest.raises(UsageError, match=what):
            check_target(tmp_path / target, overwrite=False)
        with pytest.raises(UsageError, match=what):
            export(model, tmp_path / target)


@pytest.mark.parametrize("target", ["locked", "locked/new", "locked/new/er"])
def test_a_folder_that_may_not_be_written_to_is_told_before_the_work(tmp_path, monkeypatch, target):
    (tmp_path / "locked").mkdir()
    locked = str(tmp_path / "locked")
    monkeypatch.setattr(os, "access", lambda path, mode: not (str(path) == locked and mode & os.W_OK))  # root may all
    with pytest.raises(UsageError, match="locked' may not be written to"):
        check_target(tmp_path / target, overwrite=True)
    with pytest.raises(UsageError, match="may not be written to"):
        fewbit.compress_weights(mlp(), output=tmp_path / target)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_really_may_not_be_written_to(model, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(UsageError, match="may not be written to"):
        export(model, tmp_path / "locked" / "out")


def test_home_is_home_from_the_first_check_on(tmp_path, monkeypatch):
    """What lies in a folder that is called `~` is of no interest; what lies in the home folder is."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "~" / "out").mkdir(parents=True)
    (tmp_path / "~" / "out" / "thesis.txt").write_text("years of work")
    made = fewbit.compress_weights(mlp(), output="~/out")
    assert made == tmp_path / "home" / "out" and (made / "fewbit.json").is_file()
    with pytest.raises(UsageError, match="not empty"):
        check_target("~/out", overwrite=False)


def test_a_folder_that_is_there_is_filled_from_inside(model, tmp_path, monkeypatch):
    """What is beside it may be another disk (a volume of a container is one), and a move across fails."""
    (tmp_path / "disk").mkdir()
    real = os.rename

    def rename(source, target, *_):
        assert str(source).startswith(f"{tmp_path}/disk/"), "a move across disks"
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(os, "replace", rename)
    export(model, tmp_path / "disk")
    assert sorted(path.name for path in (tmp_path / "disk").iterdir()) == ["fewbit.json", "fewbit.safetensors"]


def test_overwriting_replaces_the_export_and_keeps_what_else_is_there(model, tmp_path):
    out = export(model, tmp_path / "out", shard_bytes=300)
    (out / "notes.md").write_text("mine")
    with pytest.raises(UsageError, match="not empty") as error:
        export(model, out)
    assert "overwrite=True" in error.value.try_
    export(model, out, overwrite=True)
    assert set(everything(out)) == {"fewbit.json", "fewbit.safetensors", "notes.md"}
    assert (out / "notes.md").read_text() == "mine"
    assert torch.equal(load(out, mlp())(numbers(5, 40)), model(numbers(5, 40)))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_file_the_user_changed_is_the_users(model, tmp_path):
    out = export(model, tmp_path / "out")
    (out / "fewbit.safetensors").write_bytes(b"mine now")
    before = everything(tmp_path)
    with pytest.raises(UsageError, match=r"changed since: fewbit\.safetensors"):
        export(model, out, overwrite=True)
    assert everything(tmp_path) == before


def test_a_file_under_a_name_the_export_needs_is_the_users(model, tmp_path):
    out = export(model, tmp_path / "out", shard_bytes=300)
    (out / "fewbit.safetensors").write_bytes(b"mine")
    before = everything(tmp_path)
    with pytest.raises(UsageError, match=r"would replace: fewbit\.safetensors"):
        export(model, out, overwrite=True)
    assert everything(tmp_path) == before


@pytest.mark.parametrize(
    "stop", [KeyboardInterrupt, OSError("disk full"), DataError("no")], ids=["ctrl-c", "disk", "check"]
)
@pytest.mark.parametrize("place", ["write", "check"])
def test_an_export_that_fails_leaves_nothing(model, tmp_path, monkeypatch, stop, place):
    exporter = registry.get("exporters", "safetensors")
    real = getattr(exporter, place)

    @wraps(real)
    def fail(*arguments, **options):
        real(*arguments, **options)
        raise stop

    monkeypatch.setattr(exporter, place, fail)
    with pytest.raises(BaseException) as error:
        export(model, tmp_path / "deep" / "out", shard_bytes=300)
    assert error.type is (stop if isinstance(stop, type) else type(stop))
    assert not any(tmp_path.iterdir())


def test_a_failed_overwrite_leaves_the_earlier_export(model, tmp_path, monkeypatch):
    out = export(model, tmp_path / "out")
    before = everything(tmp_path)
    monkeypatch.setattr(registry.get("exporters", "safetensors"), "check", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export(quantize_linears(mlp()), out, overwrite=True, shard_bytes=300)
    assert everything(tmp_path) == before


def test_a_half_done_overwrite_is_noticed(model, tmp_path):
    """Files are moved one by one, the manifest last: what a crash leaves between them does not load as something."""
    old = export(model, tmp_path / "old")
    other = mlp()
    with torch.no_grad():
        other[0].bias += 1
    new = export(quantize_linears(other), tmp_path / "new")
    os.replace(new / "fewbit.safetensors", old / "fewbit.safetensors")
    with pytest.raises(DataError, match="not those that were exported") as error:
        load(old, mlp())
    assert "0.bias" in error.value.where


def test_an_unknown_format_or_option_is_told_before_anything_is_made(model, tmp_path):
    with pytest.raises(UsageError, match="safetensor") as error:
        export(model, tmp_path / "out", format="safetensor")
    assert "did you mean 'safetensors'" in error.value.expected
    with pytest.raises(UsageError, match="shard_size") as error:
        export(model, tmp_path / "out", shard_size=1)
    assert "shard_bytes" in error.value.expected and not any(tmp_path.iterdir())


def test_something_that_is_no_module(tmp_path):
    with pytest.raises(UsageError, match="a dict cannot be written"):
        export({}, tmp_path / "out")


def test_the_configuration_and_the_record_come_along(model, tmp_path):
    model.fewbit_config = preset("w4a16")
    model.fewbit_record = Record("quantize")
    out = export(model, tmp_path / "out")
    assert load(out, mlp()).fewbit_config == preset("w4a16")
    assert json.loads((out / "record.json").read_text())["verb"] == "quantize"
    export(model, out, overwrite=True)  # the record is a file of the export


def test_the_callers_model_is_not_changed_by_loading(exported):
    skeleton = mlp()
    before = {name: tensor.clone() for name, tensor in skeleton.state_dict().items()}
    made = load(exported, skeleton)
    assert made is not skeleton and type(skeleton[0]) is torch.nn.Linear
    assert all(torch.equal(skeleton.state_dict()[name], tensor) for name, tensor in before.items())
    with torch.no_grad():
        made[0].bias.zero_()
    assert skeleton[0].bias.any()


def test_a_factory_builds_the_model(exported, model, tmp_path):
    (tmp_path / "build.py").write_text(
        "from torch import nn\ndef make():\n    return nn.Sequential(nn.Linear(40, 24), nn.ReLU(), nn.Linear(24, 8))\n"
        "def wrong():\n    return 1\n"
    )
    for factory in (mlp, f"{tmp_path}/build.py:make"):
        assert torch.equal(load(exported, factory=factory)(numbers(5, 40)), model(numbers(5, 40)))
    for factory, what in ((f"{tmp_path}/build.py:wrong", "returned a int"), ("make", "does not name a function")):
        with pytest.raises(UsageError, match=what):
            load(exported, factory=factory)
    with pytest.raises(UsageError, match="both"):
        load(exported, mlp(), factory=mlp)


@pytest.mark.parametrize("device", ["gpu", "cuda:99", 3.5])
def test_a_device_there_is_not(exported, device):
    with pytest.raises(UsageError, match=str(device)):
        load(exported, mlp(), device=device)


def test_the_home_of_nobody(model):
    for call in (lambda: export(model, "~no_such_user/out"), lambda: load("~no_such_user/out")):
        with pytest.raises(UsageError, match="no_such_user"):
            call()


def test_the_loaded_model_is_in_eval_mode(exported):
    assert not load(exported, mlp().train()).training


def test_a_model_that_cannot_be_copied(exported):
    skeleton = mlp()
    skeleton.lock = __import__("threading").Lock()
    with pytest.raises(UsageError, match="cannot be copied") as error:
        load(exported, skeleton)
    assert "factory" in error.value.try_


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_from_and_to_a_gpu(model, tmp_path):
    out = export(model.cuda(), tmp_path / "out")
    for device in ("cpu", "cuda"):
        made = load(out, mlp(), device=device)
        assert made[0].weight_packed.device.type == made[0].bias.device.type == device
        expected = model.to(device)(numbers(5, 40).to(device))
        assert torch.equal(made(numbers(5, 40).to(device)), expected)


def test_the_folder_is_written_with_the_users_permissions(exported):
    mask = os.umask(0)
    os.umask(mask)
    assert exported.stat().st_mode & 0o777 == 0o777 & ~mask


def test_the_names_are_public():
    assert fewbit.export is export and fewbit.load is load


@pytest.mark.parametrize("name", ["w8a8", "w8a8_dynamic", "w4a16"])
@pytest.mark.parametrize("frozen", [False, True], ids=["unfrozen", "frozen"])
def test_a_module_with_several_paths_comes_back(tmp_path, name, frozen):
    torch.manual_seed(0)
    block = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU())
    model = torch.nn.Sequential(block, block, torch.nn.Linear(64, 8)).eval()
    x = torch.randn(4, 64)
    quantizer = ModelQuantizer(name)
    quantized = quantizer.quantize_model(model, [x])
    given = quantizer.freeze(quantized) if frozen else quantized
    export(given, tmp_path / "out")
    assert torch.equal(load(tmp_path / "out", model=model)(x), quantized(x))
