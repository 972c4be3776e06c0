"""The first five losses of every method recipe on digits: what `test_method_recipes.py` compares.

python tests/recipes/five_steps.py      # writes tests/golden/recipes.json
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from flowtempo import recipes
from flowtempo.cli.parsing import config_from_recipes
from flowtempo.training import train

GOLDEN = Path(__file__).parents[1] / "golden" / "recipes.json"
METHODS = [recipe.name for recipe in recipes.shipped() if recipe.is_method]
# What vr-paper and vr-bracket read, as `flowtempo design` would write it.
DENSITY = {"table": {"t": [0, 0.4, 1], "pdf": [0.5, 2, 1]}}
SMALL = [
    "--data.limit=256",
    "--reference_data=null",
    "--model.size=micro/4",
    "--steps=5",
    "--batch_size=16",
    "--log_every=1",
    "--reference_every=1000",
    "--reference_count=8",
    "--optimizer.warmup_steps=0",
]


def five_losses(name, folder):
    """Train five steps in `folder`, which becomes the working directory."""
    os.chdir(folder)
    Path("density.json").write_text(json.dumps(DENSITY))
    probes = ["--probe_every=3", "--probe_images=8"] if name == "vr-online" else []
    train(config_from_recipes(["digits", name], [*SMALL, *probes]), Path(folder) / name)
    lines = map(json.loads, (Path(folder) / name / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["kind"] == "train"]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        found = {name: five_losses(name, folder) for name in METHODS}
    GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
    sys.stdout.write(f"{len(found)} methods in {GOLDEN}\n")
