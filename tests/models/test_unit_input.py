import copy

import pytest
import torch

from flowtempo.errors import UserError
from flowtempo.generation import generate
from flowtempo.interpolants import STANDARD, ChenSigmoid, Linear, Trigonometric, VarianceExploding
from flowtempo.models import ModelConfig, SiT, UnitInputSiT, build
from flowtempo.models.scaled import noisy_std
from flowtempo.objectives import Objective
from flowtempo.predictions import convert, target
from flowtempo.variance import probe

SHAPE = (1, 4, 4)
CONFIG = ModelConfig(size="micro/2", unit_input=True)
PATHS = [*STANDARD, VarianceExploding(), ChenSigmoid(-3, 3, 0.3)]


def randomised(model):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.1, generator=generator)
    return model.eval()


def normal(*shape, seed=0, **options):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), **options)


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_the_network_sees_unit_variance(path):
    t = torch.linspace(0, 1, 9).repeat_interleave(4000)
    x_t = path.mix(0.3 * normal(len(t), 1), normal(len(t), 1, seed=1), t)
    seen = (x_t / noisy_std(path, t, 0.3)[:, None]).reshape(9, 4000)
    assert noisy_std(path, t, 0.3).dtype == torch.float32
    assert bool((seen.std(1) - 1).abs().max() < 4.5 / 8000**0.5)


def test_it_is_the_plain_network_at_the_scaled_input():
    path = Linear()
    scaled = randomised(build(CONFIG, SHAPE, 3, interpolant=path, data_std=0.5))
    plain = randomised(build(ModelConfig(size="micro/2"), SHAPE, 3))
    x, t, y = normal(5, *SHAPE), torch.linspace(0, 1, 5), torch.tensor([0, 1, 2, 3, 0])
    seen = x / (0.25 * t**2 + (1 - t) ** 2).sqrt()[:, None, None, None]
    torch.testing.assert_close(scaled(x, t, y), plain(seen, t, y))
    assert not torch.allclose(scaled(x, t, y), plain(x, t, y))


def test_parameters_have_the_same_names_and_initial_values():
    scaled = build(CONFIG, SHAPE, 3, seed=4, interpolant=Linear(), data_std=0.5)
    plain = build(ModelConfig(size="micro/2"), SHAPE, 3, seed=4)
    assert isinstance(scaled, SiT)
    assert list(scaled.state_dict()) == list(plain.state_dict())
    assert all(torch.equal(scaled.state_dict()[name], value) for name, value in plain.state_dict().items())
    assert type(plain) is SiT


def test_a_copy_scales_too():
    scaled = randomised(build(CONFIG, SHAPE, 0, interpolant=Linear(), data_std=0.5))
    x, t = normal(3, *SHAPE), torch.tensor([0.0, 0.5, 1.0])
    assert torch.equal(copy.deepcopy(scaled)(x, t), scaled(x, t))


def test_what_is_missing_or_wrong():
    with pytest.raises(ValueError, match="needs the interpolant"):
        build(CONFIG, SHAPE, 0, data_std=1.0)
    with pytest.raises(ValueError, match="standard deviation of the data"):
        build(CONFIG, SHAPE, 0, interpolant=Linear())
    with pytest.raises(UserError, match=r"model\.unit_input is on, but the images are constant"):
        build(CONFIG, SHAPE, 0, interpolant=Linear(), data_std=0.0)
    with pytest.raises(ValueError, match="above 0, not -1"):
        UnitInputSiT(SHAPE, interpolant=Linear(), data_std=-1, patch=2, depth=1, dim=32, heads=2)


def test_probing_and_generating_need_nothing_else():
    path = Trigonometric()
    model = randomised(build(CONFIG, SHAPE, 0, interpolant=path, data_std=0.5))
    images = normal(16, *SHAPE)
    measured = probe(
        model, Objective(path), lambda rows: (images[rows], None), 16, t=torch.tensor([0.2, 0.8]).double()
    )
    assert "blocks.0" in measured.groups
    generated = generate(
        model, interpolant=path, prediction="velocity", shape=SHAPE, count=2, solver="euler", steps=2
    )
    assert bool(generated.images.isfinite().all())


def edm(y, n, sigma):
    """EDM's network input and target (arXiv 2206.00364, table 1 and equation 8) with sigma_data = 1."""
    c_skip, c_out = 1 / (sigma**2 + 1), sigma / (sigma**2 + 1).sqrt()
    c_in = 1 / (sigma**2 + 1).sqrt()
    x = y + sigma * n
    return c_in * x, (y - c_skip * x) / c_out


def test_edm_is_v_prediction_at_unit_input():
    """Its target is -v / sqrt(1 + sigma^2) where alpha = 1; on the circle it is -v, and its input x_t."""
    sigma = torch.logspace(-2, 2, 30, dtype=torch.float64)
    y, n = normal(30, 3, dtype=torch.float64), normal(30, 3, seed=1, dtype=torch.float64)
    seen, wanted = edm(y, n, sigma[:, None])
    exploding = VarianceExploding()
    t = exploding.time(-2 * sigma.log())
    x_t, v = exploding.mix(y, n, t), target("v", y, n, t, exploding)
    torch.testing.assert_close(x_t / noisy_std(exploding, t, 1.0)[:, None], seen, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(-v / (1 + sigma[:, None] ** 2).sqrt(), wanted, rtol=1e-9, atol=1e-9)
    circle = Trigonometric()
    t = circle.time(-2 * sigma.log())
    x_t = circle.mix(y, n, t)
    torch.testing.assert_close(x_t, seen, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(-target("v", y, n, t, circle), wanted, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(noisy_std(circle, t, 1.0), torch.ones_like(t))
    # and D = c_skip x + c_out F is the conversion from v to data
    data = convert(-wanted, x_t, t, circle, source="v", to="data")
    torch.testing.assert_close(data, y, rtol=1e-9, atol=1e-9)
