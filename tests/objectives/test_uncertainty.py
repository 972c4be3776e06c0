"""EDM2's learned uncertainty against its closed form."""

import pytest
import torch

from flowtempo.errors import UserError
from flowtempo.objectives import LearnedUncertainty


def test_it_begins_as_the_plain_loss():
    loss, log_snr = torch.tensor([0.3, 2.0, 7.0]), torch.tensor([-10.0, 0.0, 10.0])
    torch.testing.assert_close(LearnedUncertainty()(loss, log_snr), loss)


def test_at_its_optimum_every_noise_level_has_a_loss_of_one():
    """d/du (l e^-u + u) = 0 where e^u = l: u becomes the logarithm of the mean loss at that level."""
    module = LearnedUncertainty()
    log_snr = torch.linspace(-10, 10, 64)
    mean = 2 + torch.tanh(log_snr / 4)
    optimizer = torch.optim.LBFGS(module.parameters(), max_iter=300, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = module(mean, log_snr).mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    u = module.uncertainty(log_snr).detach()
    torch.testing.assert_close(u, mean.log(), rtol=0, atol=0.02)
    torch.testing.assert_close(mean * torch.exp(-u), torch.ones(64), rtol=0.02, atol=0)


def test_the_network_s_gradient_is_divided_by_the_learned_loss():
    module = LearnedUncertainty(4)
    torch.nn.init.constant_(module.weight, 0.5)
    loss, log_snr = torch.tensor([0.3, 2.0], requires_grad=True), torch.tensor([-3.0, 1.0])
    module(loss, log_snr).sum().backward()
    torch.testing.assert_close(loss.grad, torch.exp(-module.uncertainty(log_snr)).detach())


def test_ends_are_finite_and_the_features_are_the_same_for_everybody():
    first, second = LearnedUncertainty(8), LearnedUncertainty(8)
    assert torch.equal(first.frequencies, second.frequencies)
    torch.nn.init.constant_(first.weight, 1.0)
    assert first.uncertainty(torch.tensor([-torch.inf, torch.inf])).isfinite().all()
    assert set(first.state_dict()) == {"frequencies", "phases", "weight"}


def test_wrong_shapes_and_sizes():
    with pytest.raises(ValueError, match="shapes differ"):
        LearnedUncertainty()(torch.ones(2), torch.ones(2, 1))
    with pytest.raises(UserError, match="channels = 0"):
        LearnedUncertainty(0)
