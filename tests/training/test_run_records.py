import json
import math

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from flowtempo.training.records import Records


def train_line(step, loss=1.0):
    return {"kind": "train", "step": step, "loss": loss, "skipped": 0}


def reference_line(step):
    bands = [{"low": 0.0, "high": 0.1, "loss": 3.0}]
    return {"kind": "reference", "step": step, "track": "ema", "loss": 2.0, "bands": bands}


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def scalars(folder, tag):
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {event.step: event.value for event in events.Scalars(tag)}


def test_lines_and_tensorboard_hold_the_same(tmp_path):
    records = Records(tmp_path)
    for record in (train_line(1, 4.0), reference_line(1), train_line(2, 3.0)):
        records.write(record)
    records.sync()
    assert lines(tmp_path) == [train_line(1, 4.0), reference_line(1), train_line(2, 3.0)]
    records.close()
    assert scalars(tmp_path, "train/loss") == {1: 4.0, 2: 3.0}
    assert scalars(tmp_path, "reference/ema/loss") == {1: 2.0}
    assert scalars(tmp_path, "reference/ema/band 0.0-0.1") == {1: 3.0}


def test_values_that_json_lacks_become_null(tmp_path):
    records = Records(tmp_path)
    records.write({"kind": "header", "step": 0, "weight": math.inf, "bands": [{"x": math.nan}]})
    records.write({"kind": "train", "step": 1, "loss": None})
    records.close()
    assert lines(tmp_path) == [
        {"kind": "header", "step": 0, "weight": None, "bands": [{"x": None}]},
        {"kind": "train", "step": 1, "loss": None},
    ]


def test_resuming_drops_what_will_be_done_again(tmp_path):
    records = Records(tmp_path)
    for step in (2, 4, 6):
        records.write(train_line(step))
    records.close()
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"kind": "train", "st')
    records = Records(tmp_path, keep=4)
    records.write(train_line(5, 9.0))
    records.close()
    assert lines(tmp_path) == [train_line(2), train_line(4), train_line(5, 9.0)]
    assert scalars(tmp_path, "train/loss") == {2: 1.0, 4: 1.0, 5: 9.0}
