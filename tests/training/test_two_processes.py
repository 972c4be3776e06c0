import json
import os
import socket
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from flowtempo.training import save_config, train

SCRIPT = """
import sys
from pathlib import Path
import torch
from flowtempo.training import load_config, train
from flowtempo.training.step import TrainStep

log, original = [], TrainStep.__call__

def recording(self, batch, step):
    log.append((batch.t, batch.x0, batch.x1))
    return original(self, batch, step)

TrainStep.__call__ = recording
result = train(load_config(Path(sys.argv[1])), sys.argv[2])
import os
torch.save([torch.stack(column) for column in zip(*log)], f"{sys.argv[2]}-rank{os.environ['RANK']}.pt")
torch.distributed.destroy_process_group()
sys.exit(result.exit_code)
"""


def launch(config_file, run_folder, processes):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {
        **os.environ,
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    running = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(config_file), str(run_folder)],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    for process in running:
        _, errors = process.communicate()
        assert process.returncode == 0, errors


def lines(folder, kind):
    records = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [record for record in records if record["kind"] == kind]


@pytest.fixture(scope="module")
def runs(make_config, tmp_path_factory):
    """The same four steps by one process and by two."""
    folder = tmp_path_factory.mktemp("ranks")
    config = make_config(steps=4, log_every=2)
    save_config(config, folder / "config.yaml")
    train(config, folder / "one")
    launch(folder / "config.yaml", folder / "two", 2)
    return folder


def test_same_weights_as_one_process(runs):
    for name in ("model.safetensors", "ema.safetensors"):
        one, two = (load_file(runs / n / "checkpoints" / "step-00000004" / name) for n in ("one", "two"))
        for key in one:
            torch.testing.assert_close(one[key], two[key], atol=1e-5, rtol=1e-4)


def test_same_records_as_one_process(runs):
    for kind, keys in [
        ("train", ["loss", "unweighted", "mse", "grad_norm", "skipped", "images", "lr"]),
        ("reference", ["loss", "stderr"]),
    ]:
        one, two = lines(runs / "one", kind), lines(runs / "two", kind)
        assert len(one) == len(two) > 0
        for a, b in zip(one, two, strict=True):
            assert [b[key] for key in keys] == pytest.approx([a[key] for key in keys], rel=1e-4)
    assert lines(runs / "two", "header")[0]["processes"] == 2


def test_ranks_draw_different_times_noise_and_images(runs):
    ranks = [torch.load(f"{runs / 'two'}-rank{rank}.pt", weights_only=True) for rank in range(2)]
    times, noise, images = (torch.cat(pair, dim=1) for pair in zip(*ranks, strict=True))
    assert times.shape == (4, 8)
    assert len(times.unique()) == times.numel()
    assert len(noise.unique()) == noise.numel()
    assert all(len(step.flatten(1).unique(dim=0)) == 8 for step in images)


def test_one_process_goes_on_where_two_stopped(runs, make_config):
    result = train(make_config(steps=6, log_every=2), runs / "two", resume=True)
    assert result.step == 6
    train(make_config(steps=6, log_every=2), runs / "one", resume=True)
    one, two = (load_file(runs / n / "checkpoints/step-00000006/model.safetensors") for n in ("one", "two"))
    for key in one:
        torch.testing.assert_close(one[key], two[key], atol=1e-5, rtol=1e-4)
