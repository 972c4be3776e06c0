"""`flowtempo evaluate`: generated images -> Frechet distance with a card."""

from __future__ import annotations

import dataclasses
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from flowtempo.cli.console import say, say_next
from flowtempo.data import ArrayData, load
from flowtempo.errors import UserError
from flowtempo.files import read_json
from flowtempo.metrics import Evaluation, Provenance, Reference
from flowtempo.metrics import evaluate as evaluate_images
from flowtempo.metrics.features import FeatureNetwork
from flowtempo.metrics.features import load as load_features
from flowtempo.training import checkpoint, load_config

EXAMPLES = """
  flowtempo evaluate runs/designed
  flowtempo evaluate runs/designed --step 500 --features pixels
"""


def evaluate(run: str, step: int | None = None, features: str | None = None) -> None:
    """Frechet distance of a run's generated images to its training images.

    Reads RUN/samples/step-N.npz and writes RUN/evaluations/step-N-FEATURES.json with the value, its standard
    error and the card: everything that changes the number. Values are comparable when their cards agree.

    Args:
        run: A run folder with generated images.
        step: Which images; null is the newest step that has some.
        features: Feature network: digits, fashion_mnist or pixels; null chooses by the data.
    """
    folder = Path(run)
    if not folder.is_dir():
        raise UserError(f"{run}: no such run folder")
    data = load(load_config(folder / "config.yaml").data)
    _check_unchanged(folder, data)
    samples = _newest_samples(folder) if step is None else folder / "samples" / f"step-{step:08d}.npz"
    result, path = evaluate_samples(folder, samples, *reference_of(data, features))
    made = f"{result.card.samples:,} images of step {result.step}, features {result.card.features}"
    say(f"Frechet distance {result.frechet:.4g} ± {result.stderr:.2g} ({made})")
    say(f"evaluation: {path}")
    say_next("report", run)


def reference_of(data: ArrayData, name: str | None) -> tuple[Reference, FeatureNetwork]:
    """Reference statistics of `data` with the feature network `name`, or the one made for it."""
    if data.images.dtype != np.uint8:
        raise UserError(
            f"{data.name}: a Frechet distance compares uint8 images, and these are {data.images.dtype}"
        )
    network = load_features(name or _features_made_for(data), data.shape)
    return Reference.measure(data.images, network, name=data.name, fingerprint=data.fingerprint), network


def evaluate_samples(
    run: Path, samples: Path, reference: Reference, network: FeatureNetwork
) -> tuple[Evaluation, Path]:
    """Evaluate one .npz of generated images and write the record.

    Returns:
        The evaluation and where it was written.

    Raises:
        UserError: The images or the record beside them are missing or damaged; names the file.
    """
    if not samples.exists():
        raise UserError(f"{samples}: no such file; run `flowtempo generate` for that step first")
    record = _read_record(samples.with_suffix(".json"))
    step = record.pop("step")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        result = evaluate_images(_read_images(samples), reference, network, Provenance(**record), step=step)
    for warning in caught:
        say(f"warning: {warning.message}")
    path = evaluation_path(run, step, network.name)
    result.save(path)
    return result, path


def _check_unchanged(run: Path, data: ArrayData) -> None:
    trained = checkpoint.find(run / "checkpoints").state["data"]
    if trained["fingerprint"] != data.fingerprint:
        raise UserError(
            f"{data.name}: its contents changed since {run} was trained on it "
            f"({trained['fingerprint'][:12]} -> {data.fingerprint[:12]}): put the old data back"
        )


def evaluation_path(run: Path, step: int, features: str) -> Path:
    """Where the evaluation of one step with one feature network is."""
    return run / "evaluations" / f"step-{step:08d}-{features}.json"


def _features_made_for(data: ArrayData) -> str:
    for made_for, network in (("digits/", "digits"), ("fashion-mnist/", "fashion_mnist")):
        if data.name.startswith(made_for):
            return network
    return "pixels"


def _newest_samples(run: Path) -> Path:
    found = list((run / "samples").glob("step-*.npz"))
    if not found:
        raise UserError(f"{run}: no generated images; run `flowtempo generate {run}` first")
    # By number: beyond eight digits names no longer sort as their steps do.
    return max(found, key=lambda path: (len(path.name), path.name))


def _read_images(path: Path) -> np.ndarray:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            images = np.asarray(arrays["arr_0"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path}: not an .npz of generated images, or cut short: generate again") from error
    if images.dtype != np.uint8 or images.ndim != 4:
        raise UserError(f"{path}: arr_0 must be uint8 (N, H, W, C), got {images.dtype} {images.shape}")
    return images.transpose(0, 3, 1, 2)


def _read_record(path: Path) -> dict[str, Any]:
    known = {"schema", "step", *(field.name for field in dataclasses.fields(Provenance))}
    if not path.exists():
        raise UserError(f"{path}: missing; it says how the images beside it were made: generate again")
    record = read_json(path)
    whole = isinstance(record, dict) and set(record) == known and record.pop("schema") == 1
    if not whole or not isinstance(record["step"], int) or path.stem != f"step-{record['step']:08d}":
        raise UserError(f"{path}: not the record of `flowtempo generate` for this step: generate again")
    return record
