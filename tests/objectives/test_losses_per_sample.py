import pytest
import torch
import torch.nn.functional as F

from flowtempo.objectives import direction, mse, weighted


def batch(*shape: int, seed: int = 0, dtype=torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_mse_is_the_mean_over_all_but_the_batch():
    output, target = batch(3, 2, 4, 5), batch(3, 2, 4, 5, seed=1)
    expected = torch.stack([F.mse_loss(a, b) for a, b in zip(output, target, strict=True)])
    torch.testing.assert_close(mse(output, target), expected)


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 7), (3, 4, 5, 6), (3, 1, 2, 2)])
def test_direction_matches_torch_cosine_similarity(shape):
    output, target = batch(*shape), batch(*shape, seed=1)
    cosine = F.cosine_similarity(output, target, dim=1)
    expected = 1 - cosine.reshape(3, -1).mean(1)
    torch.testing.assert_close(direction(output, target), expected)


def test_direction_ignores_length_and_sees_the_sign():
    v = batch(2, 3, 4, 4)
    torch.testing.assert_close(direction(-v, v), torch.full((2,), 2.0, dtype=torch.float64))
    torch.testing.assert_close(direction(2 * v, v), torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-15)
    torch.testing.assert_close(mse(2 * v, v), v.square().mean((1, 2, 3)))


def test_direction_is_per_site():
    # One site agrees, one is opposite: 1 on average; over all channels and sites the cosine would be -0.98.
    target = torch.tensor([[[1.0, 10.0], [0.0, 0.0]]])
    output = torch.tensor([[[1.0, -10.0], [0.0, 0.0]]])
    assert direction(output, target).tolist() == [1.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("zero", ["output", "target", "both"])
def test_zero_vectors_are_finite_and_send_no_gradient(dtype, zero):
    output, target = batch(2, 3, 4).to(dtype), batch(2, 3, 4, seed=1).to(dtype)
    if zero in ("output", "both"):
        output[:, :, 0] = 0
    if zero in ("target", "both"):
        target[:, :, 0] = 0
    output.requires_grad_()
    loss = direction(output, target)
    assert loss.dtype == torch.float32
    assert loss.isfinite().all()
    loss.sum().backward()
    assert output.grad.isfinite().all()
    assert (output.grad[:, :, 0] == 0).all()
    assert (output.grad[:, :, 1:] != 0).any()


def test_direction_of_large_half_precision_values_does_not_overflow():
    v = torch.full((1, 64, 2), 6e4, dtype=torch.float16)
    torch.testing.assert_close(direction(v, v), torch.zeros(1), rtol=0, atol=1e-6)
    torch.testing.assert_close(mse(v, -v), torch.full((1,), float(v[0, 0, 0]) ** 2 * 4))


def test_gradients_of_the_losses():
    output, target = batch(2, 3, 4).requires_grad_(), batch(2, 3, 4, seed=1)
    assert torch.autograd.gradcheck(direction, (output, target))
    assert torch.autograd.gradcheck(mse, (output, target))


@pytest.mark.parametrize("loss", [mse, direction])
def test_samples_are_never_mixed(loss):
    output, target = batch(4, 3, 5), batch(4, 3, 5, seed=1)
    whole = loss(output, target)
    assert whole.shape == (4,)
    changed = output.clone()
    changed[2] += 1
    assert torch.equal(loss(changed, target)[[0, 1, 3]], whole[[0, 1, 3]])
    assert loss(changed, target)[2] != whole[2]


@pytest.mark.parametrize("loss", [mse, direction])
def test_wrong_shapes_never_broadcast(loss):
    with pytest.raises(ValueError, match="differ in shape"):
        loss(torch.zeros(2, 3, 4), torch.zeros(2, 1, 4))
    with pytest.raises(ValueError, match="expected a batch"):
        loss(torch.zeros(2), torch.zeros(2))


def test_weights_never_broadcast():
    values = mse(torch.zeros(2, 4, 8, 8), torch.ones(2, 4, 8, 8))
    assert weighted(values, torch.tensor([0.5, 2.0])).tolist() == [0.5, 2.0]
    for shape in [(4, 1, 1, 1), (4,), (2, 1), (1,), ()]:
        with pytest.raises(ValueError, match="one number per sample"):
            weighted(values, torch.ones(shape))
    with pytest.raises(ValueError, match="one number per sample"):
        weighted(torch.zeros(2, 4, 8, 8), torch.ones(2, 4, 8, 8))
