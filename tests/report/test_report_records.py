from __future__ import annotations

import json
import math

import pytest
import yaml
from example_records import reference_line, write_run

from flowtempo.errors import UserError
from flowtempo.report.records import differences, read_run, read_runs


def test_everything_a_run_wrote_is_read_back(tmp_path):
    run = read_run(write_run(tmp_path / "arm", target="logit_normal(0, 1)", spacing="stratified", seed=3))
    assert (run.name, run.steps, run.skipped, run.notes) == ("arm", 800, 0, ())
    assert run.seconds == pytest.approx(48)
    assert run.setting("timesteps.target") == "logit_normal(0, 1)"
    assert run.setting("no.such.key", "default") == "default"
    assert run.told("data.name") == "digits"
    assert run.shares == pytest.approx([0.1] * 10)
    assert [record.step for record in run.evaluations] == [200, 400, 600, 800]
    assert run.evaluations[-1].card.nfe == 50
    assert [(step, path.name) for step, path in run.samples][-1] == (800, "step-00000800.png")
    assert len(run.samples) == 4
    final = run.final_reference()
    assert (final.track, final.step, len(final.bands)) == ("ema", 800, 10)
    assert final.loss == pytest.approx(sum(band.loss for band in final.bands) / 10)
    assert yaml.safe_load(run.config_text) == run.config


def test_raw_weights_stand_in_where_there_is_no_average(tmp_path):
    folder = write_run(tmp_path / "arm")
    (folder / "metrics.jsonl").write_text(reference_line(5, "raw", 1.0, 0.0))
    assert read_run(folder).final_reference().track == "raw"


def test_half_a_line_at_the_end_is_a_run_that_was_stopped(tmp_path):
    folder = write_run(tmp_path / "arm")
    log = folder / "metrics.jsonl"
    whole = read_run(folder)
    log.write_text(log.read_text() + '{"kind": "train", "st')
    run = read_run(folder)
    assert run.reference == whole.reference
    assert run.steps == whole.steps
    assert run.notes == ("the last line of metrics.jsonl is incomplete and left out",)


def test_a_step_logged_twice_counts_once_with_its_later_value(tmp_path):
    folder = write_run(tmp_path / "arm")
    with open(folder / "metrics.jsonl", "a") as log:
        log.write(reference_line(800, "ema", 7.0, 0.0))
    ema = [record for record in read_run(folder).reference if record.track == "ema"]
    assert [record.step for record in ema] == [200, 400, 600, 800]
    assert ema[-1].loss == pytest.approx(json.loads(reference_line(800, "ema", 7.0, 0.0))["loss"])


def test_a_loss_that_is_not_finite_is_kept_as_such(tmp_path):
    folder = write_run(tmp_path / "arm")
    (folder / "metrics.jsonl").write_text(
        '{"kind": "reference", "step": 1, "track": "raw", "loss": null, "bands": []}\n'
    )
    assert math.isnan(read_run(folder).final_reference().loss)


def test_records_of_other_kinds_are_passed_over(tmp_path):
    folder = write_run(tmp_path / "arm")
    (folder / "metrics.jsonl").write_text('{"kind": "note", "text": "hello"}\n\n')
    run = read_run(folder)
    assert (run.steps, run.seconds, run.reference) == (None, None, ())


TRAIN = '{"kind": "train", "step": 1, "seconds": 1.0, "skipped": 0}\n'


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.yaml", "a: [1,\n", "config.yaml: not valid YAML at line 2"),
        ("config.yaml", "- a\n", "config.yaml: a mapping of settings is expected, found list"),
        ("config.yaml", b"\xff\xfe", "config.yaml: not a UTF-8 text file"),
        ("metrics.jsonl", TRAIN + "{oops\n" + TRAIN, "metrics.jsonl, line 2: not valid JSON"),
        ("metrics.jsonl", "[1]\n", "metrics.jsonl, line 1: a JSON object is expected, found list"),
        ("metrics.jsonl", "[" * 100_000 + "\n", "metrics.jsonl, line 1: not valid JSON"),
        ("metrics.jsonl", TRAIN.replace("1,", '"1",', 1), "line 1: 'step' must be a whole number, found '1'"),
        ("metrics.jsonl", '{"kind": "train", "step": 1}\n', "line 1: 'seconds' must be a number, found None"),
        (
            "metrics.jsonl",
            '{"kind": "reference", "step": 1, "loss": 1, "bands": [3]}\n',
            "line 1: 'bands' must be a list of objects",
        ),
        (
            "metrics.jsonl",
            '{"kind": "reference", "step": 1, "loss": 1, "bands": [{"low": 0, "high": 1}]}\n',
            "line 1: 'loss' must be a number",
        ),
        ("metrics.jsonl", '{"kind": "header", "proposal": {"bands": 3}}\n', "'proposal.bands' must be"),
        ("evaluations/step-00000800.json", '{"schema": 1, "st', "00800.json: not an evaluation record"),
        ("evaluations/step-00000800.json", '{"schema": 2}', "step-00000800.json: evaluation schema 2"),
    ],
)
def test_a_damaged_record_is_named_in_one_line(tmp_path, file, content, message):
    folder = write_run(tmp_path / "arm")
    (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as error:
        read_run(folder)
    assert message in str(error.value)
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_without_records_is_no_run(tmp_path):
    with pytest.raises(UserError, match="nothing: no such run folder"):
        read_run(tmp_path / "nothing")
    with pytest.raises(UserError, match=r"not a run folder \(it has neither config.yaml nor metrics.jsonl\)"):
        read_run(tmp_path)


def test_a_run_that_has_only_begun_says_what_it_lacks(tmp_path):
    (tmp_path / "config.yaml").write_text("steps: 10\n")
    run = read_run(tmp_path)
    assert run.notes == ("no metrics.jsonl: this arm has logged nothing",)
    assert (run.evaluations, run.samples, run.final_reference()) == ((), (), None)


def test_arms_get_the_shortest_names_that_tell_them_apart(tmp_path):
    folders = [write_run(tmp_path / path) for path in ("a/uniform", "b/uniform", "b/designed")]
    assert [run.name for run in read_runs(folders)] == ["a/uniform", "b/uniform", "designed"]


def test_the_same_run_twice_is_an_error(tmp_path):
    folder = write_run(tmp_path / "arm")
    with pytest.raises(UserError, match="given twice"):
        read_runs([folder, folder / ".." / "arm"])


def test_differences_name_every_key_that_is_not_the_same(tmp_path):
    runs = read_runs([write_run(tmp_path / "a"), write_run(tmp_path / "b", spacing="stratified", seed=1)])
    assert differences(runs) == {"timesteps.spacing": ("independent", "stratified"), "seed": (0, 1)}
    assert differences(runs[:1]) == {}


def test_probes_are_found_by_step(tmp_path):
    folder = write_run(tmp_path / "arm")
    (folder / "probes").mkdir()
    for name in ("step-00000800.json", "step-00000200.json", "step-x.json", "step-00000200.json.tmp"):
        (folder / "probes" / name).write_text("{}")
    assert [(step, path.name) for step, path in read_run(folder).probes] == [
        (200, "step-00000200.json"),
        (800, "step-00000800.json"),
    ]
