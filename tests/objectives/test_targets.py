import itertools

import numpy as np
import pytest
import torch

from flowtempo.errors import UserError
from flowtempo.interpolants import Linear, Trigonometric, per_sample
from flowtempo.objectives.targets import Banks, MultiSample, multi_sample, posterior_means


def random(seed):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=random(seed), dtype=dtype)


def exact_data(images, x_t, t, path):
    """E[x1 | x_t] over `images`, from the definition: all pairs of noisy images and images."""
    alpha, sigma = per_sample(path.alpha(t), x_t)[:, None], per_sample(path.sigma(t), x_t)[:, None]
    noise = (x_t[:, None] - alpha * images) / sigma
    weight = torch.softmax(-noise.flatten(2).square().sum(2) / 2, 1)
    return torch.einsum("bn,n...->b...", weight, images)


def test_in_high_dimension_only_the_own_image_counts_and_near_copies_share():
    """49,152 dimensions, where a bound on the exponents makes all weights equal."""
    images = normal(5, 3, 128, 128, dtype=torch.float32)
    twin = images[:1] + 0.01 * normal(1, 3, 128, 128, seed=1, dtype=torch.float32)
    x0 = normal(5, 3, 128, 128, seed=2, dtype=torch.float32)
    t = torch.full((5,), 0.5)
    bank = torch.cat([images, twin])
    own = torch.eye(5, 6, dtype=torch.bool)
    mean, noise = posterior_means(images, x0, t, bank, Linear(), own=own)
    assert torch.equal(mean[1:], images[1:])
    assert torch.equal(noise[1:], x0[1:])
    # |x1 - twin|^2 / 2 is about 2.5: neither of the two is certain
    exact = exact_data(bank.double(), Linear().mix(images, x0, t).double()[:1], t[:1].double(), Linear())
    share = float((exact - images[:1]).norm() / (twin - images[:1]).norm())
    assert 0.01 < share < 0.99
    torch.testing.assert_close(mean[:1].double(), exact, rtol=0, atol=1e-5)


def test_the_pure_ends_of_the_path():
    images, x0 = normal(4, 3, seed=1), normal(4, 3, seed=2)
    own = torch.eye(4, dtype=torch.bool)
    mean, noise = posterior_means(images, x0, torch.zeros(4), images, Linear(), own=own)
    torch.testing.assert_close(mean, images.mean(0).expand(4, -1))
    assert torch.equal(noise, x0)
    mean, noise = posterior_means(images, x0, torch.ones(4), images, Linear(), own=own)
    assert torch.equal(mean, images)
    assert torch.equal(noise, x0)


def test_autocast_does_not_reach_the_weights():
    images, x0 = normal(8, 40, seed=1, dtype=torch.float32), normal(8, 40, seed=2, dtype=torch.float32)
    t = torch.full((8,), 0.3)
    plain = posterior_means(images, x0, t, images, Linear(), own=torch.eye(8, dtype=torch.bool))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = posterior_means(images, x0, t, images, Linear(), own=torch.eye(8, dtype=torch.bool))
    assert torch.equal(plain[0], cast[0])
    assert cast[0].dtype == torch.float32


def make(images, labels=None, classes=0, **settings):
    return Banks(
        MultiSample(**settings),
        lambda rows: (images[rows], None),
        count=len(images),
        labels=labels,
        num_classes=classes,
    )


def draws(images, labels, classes, *, steps, batch, log_snr, **settings):
    """Images, their expectations and noisy images of many batches, and the exact expectation in the class."""
    path = Trigonometric()
    banks = make(images, labels, classes, below=10.0, **settings)
    t = path.time(torch.full((batch,), log_snr, dtype=torch.float64))
    rows = []
    for step in range(steps):
        index = torch.randint(len(images), (batch,), generator=random(step))
        x0 = normal(batch, *images.shape[1:], seed=step + 10_000)
        mean, _ = banks.expected(images[index], x0, t, labels[index], index, step=step, interpolant=path)
        rows.append((images[index], mean, path.mix(images[index], x0, t), labels[index]))
    x1, mean, x_t, y = (torch.cat(part) for part in zip(*rows, strict=True))
    exact = torch.empty_like(x1)
    for label in range(classes):
        mine = y == label
        exact[mine] = exact_data(images[labels == label], x_t[mine], t[:1].expand(int(mine.sum())), path)
    return x1, mean, x_t, exact


@pytest.fixture(scope="module")
def small():
    """Two classes of 7 and 12 skewed points in the plane."""
    images = normal(19, 2, seed=3).exp()
    return images, torch.tensor([0, 1, 1] * 6 + [0])


@pytest.mark.parametrize("size", [2, 4, 8])
def test_the_expectation_is_unbiased_at_every_noisy_image(small, size):
    """Also for a class that is smaller than a bank, and with fewer images than the class has."""
    x1, mean, x_t, exact = draws(*small, 2, steps=300, batch=64, log_snr=-1.0, size=size)
    features = torch.cat([torch.ones_like(x_t), x_t, x_t.square(), x_t.sin()], 1)
    for wanted in (x1, exact):
        for error in (mean - wanted).unbind(1):
            # images of one step share a bank: the steps are what is independent
            moments = (error[:, None] * features).reshape(300, 64, -1).mean(1)
            z = moments.mean(0) / (moments.std(0) / len(moments) ** 0.5)
            assert float(z.abs().max()) < 4.5


def test_the_variance_falls_as_banks_grow_to_the_whole_class(small):
    errors = []
    for size in (2, 4, 8, 12):
        x1, mean, _, exact = draws(*small, 2, steps=60, batch=64, log_snr=-1.0, size=size)
        errors.append(float((mean - exact).square().mean()))
    one = float((x1 - exact).square().mean())
    assert errors[0] < 0.8 * one
    assert all(after < 0.7 * before for before, after in itertools.pairwise(errors[:3]))
    assert errors[3] < 1e-20


def test_gaussian_data_approach_the_closed_form():
    """E[x1 | x_t] = alpha s^2 x_t / (alpha^2 s^2 + sigma^2); what is left falls as 1 / size."""
    images = 0.5 * normal(4000, 2, seed=5)
    labels = torch.zeros(4000, dtype=torch.int64)
    left = []
    for size in (16, 256):
        _, mean, x_t, _ = draws(images, labels, 0, steps=16, batch=64, log_snr=0.0, size=size)
        exact = 2**-0.5 * 0.25 / (0.5 * 0.25 + 0.5) * x_t
        left.append(float((mean - exact).square().mean()))
    assert left[0] / left[1] == pytest.approx(16, rel=0.5)


def test_where_the_noise_is_weak_the_target_is_the_ordinary_one():
    images, x0 = normal(8, 3, seed=1), normal(8, 3, seed=2)
    t = torch.tensor([0.1, 0.3, 0.49, 0.5, 0.6, 0.7, 0.9, 1.0], dtype=torch.float64)
    banks = make(images, below=0.0)
    mean, noise = banks.expected(images, x0, t, None, torch.arange(8), step=0, interpolant=Linear())
    assert torch.equal(mean[3:], images[3:])
    assert torch.equal(noise[3:], x0[3:])
    assert bool((mean[:3] != images[:3]).all())


def test_banks_hold_their_class_and_the_null_bank_all_images():
    images, labels = torch.arange(40.0)[:, None], torch.arange(40) % 4
    labels[labels == 2] = 1  # a class without images
    banks = make(images, labels.numpy(), 4, size=8)
    for label in (0, 1, 3):
        rows = banks.indices(label, 5)
        assert len(rows.unique()) == 8
        assert set(labels[rows].tolist()) == {label}
    drawn = torch.cat([banks.indices(4, step) for step in range(500)])
    counts = torch.bincount(drawn, minlength=40)
    # hypergeometric: 8 of 40 without replacement, 500 times
    assert float((counts - 100).abs().max()) < 4.5 * (500 * 0.2 * 0.8) ** 0.5
    assert torch.equal(
        make(images, labels.numpy(), 4, size=10).indices(0, 0).sort()[0], torch.arange(0, 40, 4)
    )


def test_banks_are_a_function_of_the_step_and_not_of_what_came_before():
    images, labels = normal(50, 2), torch.arange(50) % 2
    x1, x0, t, y, index = images[:6], normal(6, 2, seed=1), torch.full((6,), 0.2), labels[:6], torch.arange(6)

    def at(banks, step, rows=slice(None)):
        return banks.expected(
            x1[rows], x0[rows], t[rows], y[rows], index[rows], step=step, interpolant=Linear()
        )[0]

    going, resumed = make(images, labels, 2, size=5, period=3), make(images, labels, 2, size=5, period=3)
    outputs = [at(going, step) for step in range(8)]
    assert torch.equal(at(resumed, 7), outputs[7])
    parts = [at(make(images, labels, 2, size=5, period=3), 7, rows) for rows in (slice(0, 3), slice(3, 6))]
    torch.testing.assert_close(torch.cat(parts), outputs[7], rtol=1e-12, atol=1e-12)
    assert torch.equal(outputs[0], outputs[2])
    assert not torch.equal(outputs[2], outputs[3])


def test_banks_are_read_once_in_a_period_and_whole_classes_once():
    images, labels, read = normal(30, 2), torch.arange(30) % 2, []
    labels[:25] = 0
    banks = Banks(
        MultiSample(8, period=5),
        lambda rows: (read.append(len(rows)), (images[rows], None))[1],
        count=30,
        labels=labels,
        num_classes=2,
    )
    for step in range(10):
        banks.expected(
            images, normal(30, 2), torch.full((30,), 0.1), labels, range(30), step=step, interpolant=Linear()
        )
    assert sorted(read) == [int((labels == 1).sum()), 8, 8]


def test_nothing_is_changed_in_place():
    images, x0 = normal(8, 3, seed=1), normal(8, 3, seed=2)
    before = images.clone(), x0.clone()
    make(images).expected(images, x0, torch.full((8,), 0.1), None, range(8), step=0, interpolant=Linear())
    assert torch.equal(images, before[0])
    assert torch.equal(x0, before[1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("multi_sample(0)", "size is 0.0: it must be a whole number and at least 2"),
        ("multi_sample(1)", "size is 1.0: it must be a whole number and at least 2"),
        ("multi_sample(2.5)", "size is 2.5"),
        ("multi_sample(8, 1e999)", "below is inf: it must be a finite log-SNR"),
        ("multi_sample(8, period=0)", "period is 0.0"),
        ("stable", "unknown target 'stable'"),
    ],
)
def test_faults_of_the_text(text, message):
    with pytest.raises(UserError, match=message):
        multi_sample(text)


def test_text_round_trips():
    for settings in (MultiSample(), MultiSample(32, -1.5, 10)):
        assert multi_sample(str(settings)) == settings
    assert multi_sample("multi_sample(64, below=-2)") == MultiSample(64, -2.0)


def test_wrong_shapes_raise():
    x, t = normal(4, 3), torch.rand(4)
    with pytest.raises(ValueError, match="do not fit"):
        posterior_means(x, x, t, normal(5, 2), Linear())
    with pytest.raises(ValueError, match=r"\(4, 5\)"):
        posterior_means(x, x, t, normal(5, 3), Linear(), own=torch.zeros(5, 4, dtype=torch.bool))


def test_labels_may_be_numpy_or_torch():
    images, labels = normal(20, 2), np.arange(20) % 3
    one, other = make(images, labels, 3, size=4), make(images, torch.as_tensor(labels), 3, size=4)
    assert torch.equal(one.indices(2, 1), other.indices(2, 1))
