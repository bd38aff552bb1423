# SPDX-License-Identifier: Apache-2.0
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from PIL import Image

from fewbit.data.images import child, pool
from fewbit.data.images.decode import ImageFault, read_image
from fewbit.data.images.pool import decode_in_order, verify_in_order


@pytest.fixture
def files(tmp_path):
    """Forty images of growing size, three of them broken."""
    paths = []
    for index in range(40):
        path = tmp_path / f"{index:02d} é.png"
        Image.fromarray(np.full((10 + index, 12, 3), index, np.uint8)).save(path)
        paths.append(str(path))
    os.truncate(paths[3], 0)
    os.truncate(paths[20], 50)
    os.unlink(paths[39])
    return paths


def outcomes(found):
    return [(o.code, o.message) if isinstance(o, ImageFault) else o.tobytes() for o in found]


@pytest.mark.parametrize("workers", [2, 3])
def test_more_workers_give_the_same_bytes_in_the_same_order(files, workers):
    alone = outcomes(decode_in_order(files, 1))
    assert outcomes(decode_in_order(files, workers)) == alone
    assert [isinstance(o, tuple) for o in alone].count(True) == 3


def test_pixels_of_any_worker_are_writable_and_their_own(files):
    found = [o for o in decode_in_order(files, 2) if not isinstance(o, ImageFault)]
    for pixels in found:
        pixels[:] = 7
    assert outcomes(decode_in_order(files, 2)) == outcomes(decode_in_order(files, 1))


def test_the_background_reaches_the_children(tmp_path):
    paths = [str(tmp_path / f"{index}.png") for index in range(8)]
    for path in paths:
        Image.new("RGBA", (12, 12), (255, 0, 0, 0)).save(path)
    assert all(pixels[0, 0].tolist() == [1, 2, 3] for pixels in decode_in_order(paths, 2, (1, 2, 3)))


def test_verifying_gives_the_faults_only(files):
    for workers in (1, 2):
        found = list(verify_in_order(files, workers))
        assert [index for index, fault in enumerate(found) if fault] == [3, 20, 39]


def test_images_too_large_for_the_shared_memory_come_through_the_pipe(files, monkeypatch):
    monkeypatch.setattr(pool, "AHEAD_BYTES", 4096)
    assert outcomes(decode_in_order(files, 2)) == outcomes(decode_in_order(files, 1))


def test_without_shared_memory_everything_comes_through_the_pipe(files, monkeypatch):
    monkeypatch.setattr(child, "_arena", lambda size: child.NO_ARENA)
    assert outcomes(decode_in_order(files, 2)) == outcomes(decode_in_order(files, 1))


def test_a_child_that_dies_loses_nothing(files, monkeypatch):
    monkeypatch.setattr(child, "_BOOT", "import sys; sys.stdin.readline(); sys.stdin.readline(); sys.exit(3)")
    with pytest.warns(RuntimeWarning, match="ended before its work was done") as told:
        assert outcomes(decode_in_order(files, 2)) == outcomes(decode_in_order(files, 1))
    assert len(told) == 1


def test_without_a_second_interpreter_the_caller_works_alone_and_says_so(files, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.warns(RuntimeWarning, match="/nowhere/python cannot be started: No such file"):
        assert outcomes(decode_in_order(files, 3)) == outcomes(decode_in_order(files, 1))
    with pytest.warns(RuntimeWarning, match="fewer processes than asked for"):
        assert sum(fault is not None for fault in verify_in_order(files, 2)) == 3


def test_a_system_without_poll_says_that_the_caller_works_alone(files, monkeypatch):
    monkeypatch.setattr(pool, "_POLLABLE", False)
    with pytest.warns(RuntimeWarning, match="fewer processes than asked for"):
        assert outcomes(decode_in_order(files, 2)) == outcomes(decode_in_order(files, 1))


def test_an_iterator_closed_early_leaves_no_child(files, monkeypatch):
    started = []
    make = subprocess.Popen

    def note(*args, **options):
        started.append(make(*args, **options))
        return started[-1]

    monkeypatch.setattr(child.subprocess, "Popen", note)
    found = decode_in_order(files, 3)
    next(found)
    assert [process.poll() for process in started] == [None, None]
    found.close()
    assert all(process.returncode is not None for process in started)


def test_the_current_folder_is_not_on_the_childs_path(files, tmp_path, monkeypatch):
    (tmp_path / "numpy.py").write_text(f"open({str(tmp_path / 'was-run')!r}, 'w')")
    (tmp_path / "PIL.py").write_text(f"open({str(tmp_path / 'was-run')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    assert len(list(decode_in_order(files, 2))) == 40
    assert not (tmp_path / "was-run").exists()


SCRIPT = """
    import sys
    from fewbit.data.images.pool import decode_in_order
    found = decode_in_order(sys.argv[1:] * 200, 2)
    next(found)
    child = found.gi_frame.f_locals["team"]._children[0]._process.pid
    print(child, flush=True)
    print(sum(1 for _ in found) + 1, flush=True)
    sys.stdin.read()
"""


def test_a_script_without_a_main_guard_works_and_its_child_dies_with_it(files, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, str(script), *files[4:12]]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        number = int(parent.stdout.readline())
        parent.send_signal(signal.SIGSTOP)
        parent.kill()
        parent.wait()
    for _ in range(200):
        if not running(number):
            break
        time.sleep(0.05)
    assert not running(number)


def running(number):
    try:
        with open(f"/proc/{number}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_path_may_hold_anything_a_file_name_can(tmp_path):
    names = ["a\nb.png", 'quote".png', os.fsdecode(b"bytes\xff.png")]
    paths = []
    for name in names:
        path = os.path.join(tmp_path, name)
        with open(path, "wb") as file:
            Image.new("RGB", (12, 12), (1, 2, 3)).save(file, "PNG")
        paths.append(path)
    found = list(decode_in_order(paths * 10, 2))
    assert len(found) == 30
    assert all(np.array_equal(pixels, read_image(paths[0])) for pixels in found)
