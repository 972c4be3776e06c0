import json
import os
import subprocess
import sys

import pytest
import torch

from flowtempo.errors import UserError
from flowtempo.training import checkpoint

STATE = {
    "data": {"name": "x", "fingerprint": "ab", "shape": [1, 8, 8]},
    "num_classes": 3,
    "proposal": {},
    "seconds": 2.5,
}
FILES = ["model.safetensors", "ema.safetensors", "optimizer.pt"]


def save(folder, step, value=1.0):
    tensors = {"raw": {"w": torch.full((3,), value)}, "ema": {"w": torch.full((3,), -value)}}
    optimizer = {"optimizer": {"state": {0: {"step": torch.tensor(4.0)}}, "param_groups": []}}
    return checkpoint.save(folder, step, weights=tensors, optimizer=optimizer, state=STATE)


def read_all(found):
    return [found.weights("raw"), found.weights("ema"), found.optimizer()]


def test_round_trip(tmp_path):
    folder = save(tmp_path, 12)
    assert folder == tmp_path / "step-00000012"
    found = checkpoint.find(tmp_path)
    assert (found.folder, found.step, found.state["seconds"]) == (folder, 12, 2.5)
    assert found.weights("raw")["w"].tolist() == [1, 1, 1]
    assert found.weights("ema")["w"].tolist() == [-1, -1, -1]
    assert found.optimizer()["optimizer"]["state"][0]["step"] == 4
    assert {"flowtempo", "torch", "python"} == set(found.state["versions"])
    assert sorted(found.state["files"]) == sorted(FILES)


def test_newest_is_by_step_number(tmp_path):
    for step in (9, 10, 2):
        save(tmp_path, step)
    os.utime(tmp_path / "step-00000009", (2e9, 2e9))
    (tmp_path / "step-00000099.tmp").mkdir()
    assert checkpoint.steps(tmp_path) == [2, 9, 10]
    assert checkpoint.find(tmp_path).step == 10
    assert checkpoint.find(tmp_path, 2).step == 2


def test_unknown_step_and_none_at_all(tmp_path):
    with pytest.raises(UserError, match="no checkpoint there"):
        checkpoint.find(tmp_path / "missing")
    save(tmp_path, 3)
    save(tmp_path, 6)
    with pytest.raises(UserError, match="no checkpoint of step 4; there are 3, 6"):
        checkpoint.find(tmp_path, 4)
    with pytest.raises(UserError, match="unknown track 'mean'; known tracks: raw, ema"):
        checkpoint.find(tmp_path).weights("mean")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["cut", "flipped", "missing"])
def test_damage_is_found_and_the_file_named(tmp_path, name, damage):
    path = save(tmp_path, 5) / name
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content[: len(content) // 2] if damage == "cut" else content[:-1] + b"\x01")
    with pytest.raises(UserError, match=f"{name}: (damaged|missing).*delete the folder step-00000005"):
        read_all(checkpoint.find(tmp_path))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": 1, "step": 5}', '{"schema": 1, "step": 6, "files": {}}']
)
def test_damaged_state_is_named(tmp_path, text):
    path = save(tmp_path, 5) / "state.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"state.json: missing or damaged; delete the folder step-00000005"):
        checkpoint.find(tmp_path)


def test_other_schema(tmp_path):
    path = save(tmp_path, 5) / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 2}))
    with pytest.raises(UserError, match="schema 2 was written by another version"):
        checkpoint.find(tmp_path)


def test_no_pickle_is_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "evil"),)

    folder = save(tmp_path, 5)
    torch.save({"optimizer": Evil()}, folder / "optimizer.pt")
    state = json.loads((folder / "state.json").read_text())
    state["files"]["optimizer.pt"] = checkpoint._sha256(folder / "optimizer.pt")
    (folder / "state.json").write_text(json.dumps(state))
    with pytest.raises(UserError, match=r"optimizer.pt: its content"):
        checkpoint.find(tmp_path).optimizer()
    assert not (tmp_path / "evil").exists()


def test_failed_write_leaves_the_others_alone(tmp_path):
    save(tmp_path, 5)
    with pytest.raises(Exception, match="pickle"):
        checkpoint.save(
            tmp_path, 6, weights={"raw": {"w": torch.ones(1)}}, optimizer={"f": lambda: 0}, state={}
        )
    assert checkpoint.steps(tmp_path) == [5]
    assert len(list(tmp_path.iterdir())) == 1


def test_pruning_keeps_the_newest_and_clears_leftovers(tmp_path):
    for step in (5, 10, 15):
        save(tmp_path, step)
    (tmp_path / ".step-00000020.abc").mkdir()
    checkpoint.prune(tmp_path, None)
    assert checkpoint.steps(tmp_path) == [5, 10, 15]
    checkpoint.prune(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000010", "step-00000015"]
    checkpoint.prune(tmp_path / "missing", 2)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data", [1]),
        ("data", {"name": "x", "fingerprint": "ab", "shape": [1, 8]}),
        ("data", {"name": "x", "fingerprint": "ab", "shape": [1, 8, "8"]}),
        ("data", {"name": "x", "fingerprint": 3, "shape": [1, 8, 8]}),
        ("num_classes", "3"),
        ("proposal", None),
        ("seconds", "long"),
        ("files", []),
    ],
)
def test_wrong_field_of_the_state_is_damage(tmp_path, key, value):
    path = save(tmp_path, 5) / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(UserError, match=r"state.json: missing or damaged"):
        checkpoint.find(tmp_path)


def test_state_nested_too_deeply_is_damage(tmp_path):
    (save(tmp_path, 5) / "state.json").write_text("[" * 100_000)
    with pytest.raises(UserError, match=r"state.json: missing or damaged"):
        checkpoint.find(tmp_path)


@pytest.mark.parametrize("name", FILES)
def test_garbage_with_its_own_digest_is_named(tmp_path, name):
    folder = save(tmp_path, 5)
    (folder / name).write_bytes(b"garbage" * 100)
    state = json.loads((folder / "state.json").read_text())
    state["files"][name] = checkpoint._sha256(folder / name)
    (folder / "state.json").write_text(json.dumps(state))
    with pytest.raises(UserError, match=f"{name}: its content is not that of a checkpoint"):
        read_all(checkpoint.find(tmp_path))


@pytest.mark.parametrize("large", ["weights", "optimizer"])
def test_failed_write_is_the_systems_error_and_keeps_the_others(tmp_path, large):
    """A limit on the size of files stands for a full disk."""
    script = f"""
import pathlib, resource, signal, torch
from flowtempo.training import checkpoint
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, 1 << 18))
sizes = {{"weights": 1, "optimizer": 1, {large!r}: 1 << 20}}
for step in (5, 6):
    weights, optimizer = (torch.ones(sizes[k] if step == 6 else 1) for k in ("weights", "optimizer"))
    try:
        checkpoint.save(
            pathlib.Path({str(tmp_path)!r}), step, weights={{"raw": {{"w": weights}}}},
            optimizer={{"o": optimizer}}, state={{}},
        )
    except OSError as error:
        print(error.errno is not None, error.filename)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", str(tmp_path / "step-00000006")]
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000005"]
