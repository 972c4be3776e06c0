import pytest
import torch

from flowtempo.errors import UserError
from flowtempo.generation import check_guidance
from flowtempo.generation.guidance import guided


class Recorder:
    """Predicts the label in every channel, 100 for the null label, and remembers what it was asked."""

    def __init__(self, num_classes=3):
        self.num_classes = num_classes
        self.calls = []

    def __call__(self, x, t, y=None):
        self.calls.append((x, t, y))
        value = torch.full((len(x),), 7.0) if y is None else torch.where(y == self.num_classes, 100, y)
        return value.float()[:, None].expand(x.shape).clone()


X, T, Y = torch.randn(2, 4), torch.tensor([0.2, 0.8]), torch.tensor([0, 2])


def test_one_doubled_batch_on_all_channels():
    model = Recorder()
    out = guided(model, Y, 3.0)(X, T)
    ((x, t, y),) = model.calls
    assert torch.equal(x, torch.cat([X, X]))
    assert torch.equal(t, torch.cat([T, T]))
    assert y.tolist() == [0, 2, 3, 3]
    expected = 100 + 3 * (Y.float() - 100)
    torch.testing.assert_close(out, expected[:, None].expand(2, 4))


@pytest.mark.parametrize(("scale", "labels"), [(1.0, [0, 2]), (0.0, [3, 3])])
def test_plain_scales_cost_one_plain_batch(scale, labels):
    model = Recorder()
    out = guided(model, Y, scale)(X, T)
    ((x, _, y),) = model.calls
    assert x is X
    assert y.tolist() == labels
    assert torch.equal(out, Recorder()(X, T, torch.tensor(labels)))


def test_unconditional_model():
    model = Recorder(num_classes=0)
    assert torch.equal(guided(model, None, 1.0)(X, T), torch.full((2, 4), 7.0))
    with pytest.raises(UserError, match="unconditional"):
        guided(model, None, 1.5)


@pytest.mark.parametrize("scale", [-1.0, float("nan"), float("inf")])
def test_bad_scale(scale):
    with pytest.raises(UserError, match="guidance is"):
        check_guidance(Recorder(), scale)
