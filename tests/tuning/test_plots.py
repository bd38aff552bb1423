# SPDX-License-Identifier: Apache-2.0
import re
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from fewbit.tuning.plots import _ticks, draw, write_plots


def test_curves_of_steps_and_evaluations_share_a_picture(tmp_path):
    steps = [{"kind": "step", "step": step, "epoch": 0, "loss": 4 / step, "lr": 0.1} for step in range(1, 9)]
    broken = [{"kind": "step", "step": 9, "epoch": 0, "loss": float("nan"), "lr": 0.1}]
    evals = [{"kind": "eval", "step": 8, "epoch": 0, "loss": 0.6, "accuracy": 0.5}]
    files = write_plots([*steps, *broken, *evals], tmp_path / "plots")
    assert [path.name for path in files] == ["accuracy.svg", "loss.svg", "lr.svg"]
    text = (tmp_path / "plots" / "loss.svg").read_text()
    ElementTree.fromstring(text)
    assert text.count("<polyline") == 2 and "nan" not in text


def test_a_falling_curve_goes_down_the_page():
    (points,) = re.findall(r'polyline points="([^"]+)"', draw("loss", {"train": [(0, 3.0), (1, 2.0), (2, 0.5)]}))
    heights = [float(point.split(",")[1]) for point in points.split()]
    assert heights == sorted(heights) and heights[0] < heights[-1]  # pictures count from their upper edge


def test_a_title_cannot_break_the_picture():
    ElementTree.fromstring(draw("<a & b>", {"<x>": [(0, 1.0)]}))


@given(low=st.floats(-1e6, 1e6), size=st.floats(1e-3, 1e6))
def test_marks_cover_the_values(low, size):
    marks = _ticks(low, low + size)
    assert 2 <= len(marks) <= 8
    assert marks[0] <= low + 1e-6 * size and marks[-1] >= low + size - 1e-6 * size
