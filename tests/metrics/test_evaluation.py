import dataclasses
import json
import warnings

import numpy as np
import pytest

from flowtempo.data import DataConfig, load
from flowtempo.errors import UserError
from flowtempo.metrics import Card, Evaluation, Provenance, Reference, evaluate, features
from flowtempo.metrics.frechet import Statistics, distance

MADE = Provenance(
    solver="heun", steps=10, nfe=19, guidance=1.0, ema="ema", seed=3, checkpoint="step-00000100"
)


@pytest.fixture(scope="module")
def digits():
    return load(DataConfig()).images


@pytest.fixture(scope="module")
def net():
    return features.load("digits")


@pytest.fixture(scope="module")
def reference(digits, net):
    return Reference.measure(digits, net, name="digits/train", fingerprint="abc")


def test_value_and_card(digits, net, reference):
    samples = digits[::3]
    result = evaluate(samples, reference, net, MADE, step=100)
    want = distance(Statistics.of(net(samples)), Statistics.of(net(digits)))
    assert result.frechet == pytest.approx(want, rel=1e-6)
    assert 0 < result.stderr < result.frechet
    card = result.card
    assert (card.features, card.features_checksum, card.dim) == ("digits", net.checksum, 64)
    assert (card.samples, card.reference) == (500, 1500)
    assert (card.reference_name, card.reference_fingerprint) == ("digits/train", "abc")
    assert {name: getattr(card, name) for name in dataclasses.asdict(MADE)} == dataclasses.asdict(MADE)
    assert set(card.versions) == {"flowtempo", "python", "torch", "numpy"}


def test_worse_images_are_farther(digits, net, reference):
    rng = np.random.default_rng(0)
    values = []
    for noise in (0, 20, 60, 200):
        noisy = np.clip(digits[:500] + rng.normal(0, noise, digits[:500].shape), 0, 255).astype(np.uint8)
        values.append(evaluate(noisy, reference, net, MADE, step=0).frechet)
    assert values == sorted(values)
    assert values[3] > 10 * values[0]


def test_warns_when_there_are_fewer_images_than_features(digits, net, reference):
    with pytest.warns(UserWarning, match="from 63 images with 64 features"):
        evaluate(digits[:63], reference, net, MADE, step=0)
    few = Reference.measure(digits[:50], net, name="few", fingerprint="")
    with pytest.warns(UserWarning, match="from 50 images"):
        evaluate(digits, few, net, MADE, step=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate(digits[:64], reference, net, MADE, step=0)


def test_refusals(digits, net, reference):
    with pytest.raises(UserError, match="4 generated images or more, got 3"):
        evaluate(digits[:3], reference, net, MADE, step=0)
    with pytest.raises(UserError, match="one: a reference needs 2 images or more, got 1"):
        Reference.measure(digits[:1], net, name="one", fingerprint="")
    with pytest.raises(UserError, match=r"other features \(digits .*\) than the samples \(pixels"):
        evaluate(digits, reference, features.load("pixels", (1, 8, 8)), MADE, step=0)
    with pytest.raises(UserError, match="takes"):
        evaluate(np.zeros((9, 3, 8, 8), np.uint8), reference, net, MADE, step=0)


def test_record_round_trip(digits, net, reference, tmp_path):
    result = evaluate(digits[:100], reference, net, dataclasses.replace(MADE, steps=None), step=100)
    path = tmp_path / "evaluations" / "step-00000100.json"
    result.save(path)
    assert Evaluation.load(path) == result
    record = json.loads(path.read_text())
    assert record["schema"] == 1
    assert record["step"] == 100
    assert set(record) == {"schema", "step", "frechet", "stderr", "card"}
    assert set(record["card"]) == {field.name for field in dataclasses.fields(Card)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda record: record.update(schema=2), "schema 2; this version reads 1"),
        (lambda record: record.pop("frechet"), "not an evaluation record"),
        (lambda record: record.update(frechet="far"), "not an evaluation record"),
        (lambda record: record.update(card=3), "not an evaluation record"),
        (lambda record: record["card"].pop("seed"), "card: missing or unknown: seed"),
        (lambda record: record["card"].update(colour=1), "card: missing or unknown: colour"),
    ],
)
def test_bad_records(change, message, digits, net, reference, tmp_path):
    path = tmp_path / "e.json"
    evaluate(digits[:100], reference, net, MADE, step=1).save(path)
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    with pytest.raises(UserError, match=message) as caught:
        Evaluation.load(path)
    assert str(caught.value).count(str(path)) == 1


@pytest.mark.parametrize("content", ["", "{", "[]", "null"])
def test_files_that_are_not_records(content, tmp_path):
    path = tmp_path / "e.json"
    path.write_text(content)
    with pytest.raises(UserError, match="not an evaluation record"):
        Evaluation.load(path)
    with pytest.raises(UserError, match="cannot be read: No such file"):
        Evaluation.load(tmp_path / "nowhere.json")


@pytest.mark.parametrize("content", ["[" * 100_000, "{", '{"schema": 1, "step": 1, "card": 3}', "[]"])
def test_damaged_records_are_told_in_plain_words(tmp_path, content):
    (tmp_path / "e.json").write_text(content)
    with pytest.raises(UserError, match=r"e\.json: not an evaluation record: ") as error:
        Evaluation.load(tmp_path / "e.json")
    assert "Error(" not in str(error.value)
