# SPDX-License-Identifier: Apache-2.0
import orjson

from fewbit.tuning.metrics_log import MetricsLog, read_lines


def line(step, loss=1.0):
    return {"kind": "step", "step": step, "loss": loss}


def test_lines_are_only_ever_appended_and_those_after_the_checkpoint_count_no_more(tmp_path):
    log = MetricsLog(tmp_path)
    log.write([line(1), line(2), line(3, 9.0)])
    log.close()
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"kind": "step", "st')  # killed while it wrote
    log = MetricsLog(tmp_path, resumed=2)
    log.write([line(3, 0.5)])
    log.close()
    content = (tmp_path / "metrics.jsonl").read_bytes()
    assert content.startswith(before)
    wanted = [line(1), line(2), line(3, 0.5)]
    assert log.lines == read_lines(tmp_path / "metrics.jsonl") == wanted
    assert orjson.loads(content.splitlines()[-2]) == {"kind": "resume", "step": 2}


def test_tensorboard_gets_the_same_numbers(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = MetricsLog(tmp_path, tensorboard=True)
    log.write([line(1, 2.0), line(2, 1.5), {"kind": "eval", "step": 2, "epoch": 0, "accuracy": 0.5}])
    log.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("step/loss")] == [(1, 2.0), (2, 1.5)]
    assert [event.value for event in events.Scalars("eval/accuracy")] == [0.5]


def test_without_a_folder_lines_are_remembered():
    log = MetricsLog(None)
    log.write([line(1), {"kind": "eval", "step": 1, "loss": 3.0}])
    assert log.of("eval") == [{"kind": "eval", "step": 1, "loss": 3.0}]
