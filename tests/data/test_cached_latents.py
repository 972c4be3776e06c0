"""Caches written as the tools write them: sd-scripts at commit 48d368f, SimpleTuner at bc8e6ab."""

import gzip
import io
import pickle
import re

import numpy as np
import pytest
import torch

from flowtempo.data import DataConfig, load, load_buckets
from flowtempo.errors import UserError


def latent(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def sd_arrays(values, suffix="", flipped=False):
    """What sd-scripts saves for one image at one size; other sizes are added to the same file."""
    size = np.array([values.shape[2] * 8, values.shape[1] * 8])
    arrays = {
        f"latents{suffix}": values,
        f"original_size{suffix}": size,
        f"crop_ltrb{suffix}": np.array([0, 0, *size]),
    }
    if flipped:
        arrays[f"latents_flipped{suffix}"] = values[:, :, ::-1] + 1
        arrays[f"alpha_mask{suffix}"] = np.ones(values.shape[1:], np.float32)
    return arrays


def sizes(*latents):
    arrays = {}
    for values in latents:
        arrays |= sd_arrays(values, f"_{values.shape[1]}x{values.shape[2]}", flipped=True)
    return arrays


def torch_bytes(value, **options):
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def sd_scripts(folder, **options):
    return DataConfig("sd-scripts", str(folder), **options)


def simpletuner(folder, **options):
    return DataConfig("simpletuner", str(folder), **options)


@pytest.fixture
def flux(tmp_path):
    """Three images in two folders: two at one size, one at both sizes, and what else lies there."""
    below = tmp_path / "10_cats"
    below.mkdir()
    np.savez(tmp_path / "b_0064x0032_flux.npz", **sizes(latent(1, 16, 4, 8)))
    np.savez(below / "a_0064x0032_flux.npz", **sizes(latent(2, 16, 4, 8), latent(3, 16, 6, 6)))
    np.savez(below / "c_0048x0048_flux.npz", **sizes(latent(4, 16, 6, 6)))
    np.savez(below / "d_0048x0048_flux.npz", **sizes(latent(5, 16, 6, 6)))
    np.savez(below / "a_flux_te.npz", t5_out=latent(6, 5, 7), l_pooled=latent(7, 7))
    (below / "a.txt").write_text("a cat")
    (below / "a.png").write_bytes(b"\x89PNG")
    return tmp_path


def test_every_size_of_every_image_is_in_the_bucket_of_its_shape(flux):
    large, small = load_buckets(sd_scripts(flux))
    assert large.shape == (16, 6, 6)
    np.testing.assert_array_equal(large.images, np.stack([latent(seed, 16, 6, 6) for seed in (3, 4, 5)]))
    np.testing.assert_array_equal(small.images, np.stack([latent(seed, 16, 4, 8) for seed in (2, 1)]))
    assert small.name == f"{flux} (16x4x8)"
    assert large.labels is None
    assert large.describe()["channel_mean"] == pytest.approx(large.images.mean((0, 2, 3)).tolist(), abs=1e-6)


def test_training_takes_one_bucket(flux):
    with pytest.raises(UserError, match=r"several shapes.*16x6x6 \(3\), 16x4x8 \(2\).*data\.bucket.*6x6"):
        load(sd_scripts(flux))
    chosen = load(sd_scripts(flux, bucket="4x8"))
    assert (len(chosen), chosen.shape, chosen.name) == (2, (16, 4, 8), str(flux))
    assert [chosen.fingerprint] == [one.fingerprint for one in load_buckets(sd_scripts(flux, bucket="4x8"))]
    assert chosen.fingerprint == load_buckets(sd_scripts(flux))[1].fingerprint
    with pytest.raises(UserError, match=re.escape("data.bucket=8x4: ") + ".* has latents of 4x8, 6x6 only"):
        load(sd_scripts(flux, bucket="8x4"))


def test_limit_counts_the_latents_of_all_buckets(flux):
    def rows(limit):
        return {row.tobytes() for part in load_buckets(sd_scripts(flux, limit=limit)) for row in part.images}

    assert [len(rows(limit)) for limit in range(1, 6)] == [1, 2, 3, 4, 5]
    assert rows(1) < rows(2) < rows(3) < rows(4) < rows(None)
    assert len(load(sd_scripts(flux, limit=2, bucket="6x6"))) == 2
    with pytest.raises(UserError, match=r"data\.limit=6 is outside 1\.\.5"):
        load_buckets(sd_scripts(flux, limit=6))


# Where the tools scale: SD and SDXL multiply in the training step, as SD3 and Hunyuan do; Flux's encoder
# has done so. The numbers are those of the models' own configurations.
@pytest.mark.parametrize(
    ("model", "shift", "scale"),
    [
        ("sd", 0, 0.18215),
        ("sdxl", 0, 0.13025),
        ("sd3", 0.0609, 1.5305),
        ("hi", 0, 0.75289),
        ("flux", 0, 1),
        ("lumina", 0, 1),
        ("anima", 0, 1),
    ],
)
def test_latents_are_in_the_units_of_training(model, shift, scale, tmp_path):
    raw = latent(0, 4, 8, 8)
    arrays = sd_arrays(raw, flipped=True) if model in ("sd", "sdxl") else sizes(raw)
    np.savez(tmp_path / f"my_cat_0512x0512_{model}.npz", **arrays)
    np.testing.assert_allclose(
        load(sd_scripts(tmp_path)).images[0], (raw - shift) * scale, rtol=1e-6, atol=1e-7
    )
    given = load(sd_scripts(tmp_path, scale=2.0)).images[0]
    np.testing.assert_allclose(given, (raw - shift) * 2, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["cat.npz", "cat_sd.npz", "cat_0512x0512_new.npz"])
def test_an_unknown_scale_is_asked_for(name, tmp_path):
    np.savez(tmp_path / name, **sd_arrays(latent(0, 4, 8, 8)))
    with pytest.raises(UserError, match=r"set data\.scale \(SD 1 and 2: 0\.18215") as caught:
        load(sd_scripts(tmp_path))
    assert str(caught.value).startswith(str(tmp_path / name))
    np.testing.assert_array_equal(load(sd_scripts(tmp_path, scale=0.5)).images[0], latent(0, 4, 8, 8) / 2)


def test_two_models_in_one_folder(tmp_path):
    for model in ("sd", "sdxl"):
        np.savez(tmp_path / f"a_0064x0064_{model}.npz", **sd_arrays(latent(0, 4, 8, 8)))
    with pytest.raises(UserError, match=r"two models \(.*a_0064x0064_sd\.npz, .*_sdxl\.npz\)"):
        load_buckets(sd_scripts(tmp_path))


def test_simpletuner_tensors_dicts_and_compressed_files(tmp_path):
    values = [torch.from_numpy(latent(seed, 16, 4, 6)) for seed in range(5)]
    half = values[1].to(torch.bfloat16)
    (tmp_path / "sub").mkdir()
    (tmp_path / "0.pt").write_bytes(torch_bytes(values[0]))
    (tmp_path / "1.pt").write_bytes(torch_bytes(half))
    (tmp_path / "2.pt").write_bytes(gzip.compress(torch_bytes(values[2].half())))
    (tmp_path / "3.pt").write_bytes(torch_bytes({"latents": values[3][:, None], "num_frames": 1}))
    (tmp_path / "sub" / "4.pt").write_bytes(torch_bytes(values[4].requires_grad_()))
    (tmp_path / "text.pt").write_bytes(torch_bytes({"prompt_embeds": values[0]}))
    (tmp_path / "old-text.pt").write_bytes(torch_bytes((values[0], values[0])))
    (tmp_path / "vae.json").write_text("{}")
    data = load(simpletuner(tmp_path))
    expected = [values[0], half.float(), values[2].half().float(), values[3], values[4].detach()]
    np.testing.assert_array_equal(data.images, torch.stack(expected).numpy())
    assert data.images.dtype == np.float32


def test_simpletuner_buckets(tmp_path):
    for index, shape in enumerate([(16, 4, 4), (16, 2, 8), (16, 8, 2), (16, 2, 8)]):
        (tmp_path / f"{index}.pt").write_bytes(torch_bytes(torch.from_numpy(latent(index, *shape))))
    assert [part.shape for part in load_buckets(simpletuner(tmp_path))] == [
        (16, 2, 8),
        (16, 4, 4),
        (16, 8, 2),
    ]
    assert load(simpletuner(tmp_path, bucket="8x2")).images.tobytes() == latent(2, 16, 8, 2).tobytes()


@pytest.mark.parametrize("limit", [None, 30])
def test_many_latents_of_mixed_shapes_keep_their_order(limit, tmp_path):
    shapes = [(1, 2, 2), (1, 2, 3), (1, 3, 2)]
    whole = [latent(index, *shapes[index * index % 3]) for index in range(90)]
    for index, values in enumerate(whole):
        (tmp_path / f"{index:02d}.pt").write_bytes(torch_bytes(torch.from_numpy(values)))
    buckets = load_buckets(simpletuner(tmp_path, limit=limit))
    assert sum(map(len, buckets)) == (limit or 90)
    for bucket in buckets:
        order = [
            next(i for i, values in enumerate(whole) if np.array_equal(values, row)) for row in bucket.images
        ]
        assert order == sorted(set(order))


class Code:
    """Any class: to load it from a pickle would be to run what the file says."""


GOOD = torch_bytes(torch.zeros(4, 8, 8))
PT_FAULTS = {
    "cut": (GOOD[:-100], "damaged, or not a saved tensor"),
    "empty": (b"", "damaged or cut short"),
    "text": (b"hello", "damaged, or not a saved tensor"),
    "compressed and cut": (gzip.compress(GOOD)[:-30], "damaged or cut short"),
    "old and cut": (torch_bytes(torch.zeros(4, 8, 8), _use_new_zipfile_serialization=False)[:-9], "damaged"),
    "object": (torch_bytes(Code()), "Python objects, which are never loaded"),
    "pickle": (pickle.dumps(Code(), protocol=2), "Python objects, which are never loaded"),
    "nan": (torch_bytes(torch.full((4, 8, 8), torch.nan)), "NaN or infinity"),
    "half that overflowed": (torch_bytes(torch.full((4, 8, 8), torch.inf).half()), "NaN or infinity"),
    "integers": (torch_bytes(torch.zeros(4, 8, 8, dtype=torch.int64)), "dense tensor of floats"),
    "batch": (torch_bytes(torch.zeros(4, 64)), r"\(C, H, W\), got float32 \(4, 64\)"),
    "video": (torch_bytes(torch.zeros(4, 5, 8, 8)), "5 video frames"),
}


@pytest.mark.parametrize(("content", "message"), PT_FAULTS.values(), ids=PT_FAULTS)
def test_a_bad_simpletuner_file_is_named(content, message, tmp_path):
    (tmp_path / "a.pt").write_bytes(GOOD)
    (tmp_path / "b.pt").write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        load_buckets(simpletuner(tmp_path))
    assert str(caught.value).startswith(str(tmp_path / "b.pt"))
    assert "\n" not in str(caught.value)
    assert "internal" not in str(caught.value)  # PyTorch's guesses about its zip reader


def npz_bytes(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def npy_bytes(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


OBJECTS = np.empty(1, dtype=object)
NPZ_FAULTS = {
    "cut": (npz_bytes(**sd_arrays(latent(0, 4, 8, 8)))[:-30], "damaged"),
    "empty": (b"", "damaged"),
    "pickle": (pickle.dumps([1]), "holds Python objects"),
    "array": (npy_bytes(latent(0, 4, 8, 8)), "not a .npz file"),
    "objects": (npz_bytes(latents=OBJECTS), "holds Python objects"),
    "nan": (npz_bytes(latents=np.full((4, 8, 8), np.nan, np.float32)), "NaN or infinity"),
    "integers": (npz_bytes(latents=np.zeros((4, 8, 8), int)), r"must be floats \(C, H, W\), got int64"),
    "one axis": (npz_bytes(latents=np.zeros(4)), r"must be floats \(C, H, W\)"),
    "no values": (npz_bytes(latents=np.zeros((4, 0, 8))), r"must be floats \(C, H, W\)"),
}


@pytest.mark.parametrize(("content", "message"), NPZ_FAULTS.values(), ids=NPZ_FAULTS)
def test_a_bad_sd_scripts_file_is_named(content, message, tmp_path):
    np.savez(tmp_path / "a_0064x0064_sd.npz", **sd_arrays(latent(0, 4, 8, 8)))
    bad = tmp_path / "b_0064x0064_sd.npz"
    bad.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        load_buckets(sd_scripts(tmp_path))
    assert str(caught.value).startswith(str(bad))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("config", [sd_scripts, simpletuner])
def test_a_folder_without_latents_says_what_was_looked_for(config, tmp_path):
    np.savez(tmp_path / "a_sd3_te.npz", lg_out=latent(0, 3, 4))
    (tmp_path / "a.pt").write_bytes(torch_bytes({"prompt_embeds": torch.zeros(3)}))
    with pytest.raises(
        UserError, match=r"no latents of .*: looked for .* 1 .* files in it and below"
    ) as caught:
        load_buckets(config(tmp_path))
    assert str(caught.value).startswith(str(tmp_path))
    with pytest.raises(UserError, match=r"a\.pt: not a folder"):
        load_buckets(config(tmp_path / "a.pt"))


def test_the_order_of_the_files_is_that_of_their_names(tmp_path):
    for name in ("b/2", "b/1", "a/9", "c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.pt").write_bytes(torch_bytes(torch.full((1, 2, 2), float(ord(name[-1])))))
    assert load(simpletuner(tmp_path)).images[:, 0, 0, 0].tolist() == [ord(name) for name in "912c"]


def test_progress_reaches_one_and_never_falls(flux):
    np.save(flux / "x.npy", np.zeros((9, 8, 8), np.uint8))
    for config in (sd_scripts(flux), DataConfig("array", str(flux / "x.npy"))):
        seen = []
        load_buckets(config, seen.append)
        assert seen == sorted(seen)
        assert seen[-1] == pytest.approx(1)
    first = []
    load_buckets(sd_scripts(flux), first.append)
    assert 0 < first[0] < 0.3
