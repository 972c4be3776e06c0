import io

import numpy as np
import pytest
import torch
from safetensors.torch import save, save_file

from flowtempo.data import embeddings, load_embeddings
from flowtempo.errors import UserError

STATES = torch.randn(6, 5, 3, generator=torch.Generator().manual_seed(0))


def test_names_rows_and_dtypes(tmp_path):
    arrays = {
        "encoder_hidden_states": STATES.to(torch.bfloat16),
        "pooled_projections": STATES[:, 0].half(),
        "guidance": STATES[:, 0, 0].double(),
        "encoder_attention_mask": STATES[:, :, 0] > 0,
        "txt_ids": torch.arange(6),
    }
    save_file(arrays, tmp_path / "text.safetensors")
    found = load_embeddings(tmp_path / "text.safetensors", 6)
    assert found.keys() == arrays.keys()
    for name, values in arrays.items():
        dtype = torch.float32 if values.is_floating_point() else values.dtype
        assert found[name].dtype == dtype
        assert torch.equal(found[name], values.to(dtype))


def test_npz_gives_the_same(tmp_path):
    np.savez(tmp_path / "text.npz", encoder_hidden_states=STATES.numpy(), mask=np.ones(6, bool))
    found = load_embeddings(str(tmp_path / "text.npz"), 6)
    assert torch.equal(found["encoder_hidden_states"], STATES)
    assert found["mask"].dtype == torch.bool


@pytest.mark.parametrize("elements", [1, 20, 1 << 20])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_is_named(value, elements, tmp_path, monkeypatch):
    monkeypatch.setattr(embeddings, "_CHUNK_ELEMENTS", elements)
    bad = STATES.clone()
    bad[4, 2, 1] = value
    save_file({"fine": STATES, "states": bad}, tmp_path / "x.safetensors")
    with pytest.raises(UserError, match=r"x\.safetensors: states holds NaN or infinity in row 4"):
        load_embeddings(tmp_path / "x.safetensors", 6)


def npz(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


OBJECTS = np.empty(6, dtype=object)
FAULTS = {
    "few.safetensors": (save({"states": STATES[1:].clone()}), r"states has shape \(5, 5, 3\).*the 6 latents"),
    "scalar.safetensors": (save({"guidance": torch.tensor(3.5)}), r"guidance has shape \(\)"),
    "key.safetensors": (save({"text.states": STATES}), "'text.states' cannot be a keyword"),
    "none.safetensors": (save({}), "holds no arrays"),
    "cut.safetensors": (save({"states": STATES})[:-4], "damaged"),
    "empty.safetensors": (b"", "damaged"),
    "cut.npz": (npz(states=STATES.numpy())[:-9], "damaged"),
    "none.npz": (npz(), "holds no arrays"),
    "objects.npz": (npz(states=OBJECTS), "Python objects"),
    "text.npz": (npz(states=np.array(list("abcdef"))), "states holds <U1"),
    "complex.safetensors": (save({"states": STATES.to(torch.complex64)}), "complex"),
    "states.pt": (b"PK", r"\.safetensors or \.npz"),
}


@pytest.mark.parametrize(("name", "content", "message"), [(k, *v) for k, v in FAULTS.items()], ids=FAULTS)
def test_faults_are_one_line_and_name_the_file(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        load_embeddings(tmp_path / name, 6)
    assert str(caught.value).startswith(str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(UserError, match=r"nowhere\.npz: no such file"):
        load_embeddings(tmp_path / "nowhere.npz", 6)
