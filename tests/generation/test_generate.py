import pytest
import torch

from flowtempo.errors import UserError
from flowtempo.generation import generate, interval
from flowtempo.interpolants import (
    DdpmLinear,
    Linear,
    Polynomial,
    Shifted,
    Trigonometric,
    VarianceExploding,
    VariancePreserving,
)
from flowtempo.models import ModelConfig, build
from flowtempo.predictions import PREDICTIONS
from flowtempo.randomness import normal

SHAPE = (1, 8, 8)
HEUN, DOPRI5 = {"solver": "heun", "steps": 400}, {"solver": "dopri5", "steps": None, "rtol": 1e-5}
CASES = [
    *[
        (path, solver, prediction)
        for path in (Linear(), Trigonometric(), VariancePreserving())
        for solver in (HEUN, DOPRI5)
        for prediction in PREDICTIONS
    ],
    *[(VarianceExploding(), HEUN, prediction) for prediction in PREDICTIONS],
    (DdpmLinear(), HEUN, "noise"),
    (Shifted(Linear(), 3), HEUN, "velocity"),
]


def run(model, **changes):
    settings = {"interpolant": Linear(), "prediction": "velocity", "shape": SHAPE, "count": 6, "steps": 4}
    return generate(model, **(settings | changes))


@pytest.fixture(scope="module")
def sit():
    model = build(ModelConfig(size="micro/4"), SHAPE, 3).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.1, generator=generator)
    return model


@pytest.mark.parametrize(("interpolant", "solver", "prediction"), CASES, ids=str)
def test_every_prediction_on_every_path_follows_the_exact_flow(
    interpolant, prediction, solver, gaussian_field
):
    model = gaussian_field(interpolant, prediction)
    out = run(model, interpolant=interpolant, prediction=prediction, seed=5, **solver)
    noise = normal(5, "generation noise", 0, range(6), SHAPE)
    if isinstance(interpolant, VarianceExploding):
        noise = noise * 6401**0.5
    assert out.images.dtype == torch.float32
    torch.testing.assert_close(
        out.images, model.exact(noise, *interval(interpolant, prediction)), atol=0.01, rtol=0.005
    )


def test_interval_is_whole_unless_there_is_a_pole():
    assert interval(Linear(), "velocity") == interval(Trigonometric(), "v") == (0, 1)
    assert interval(Linear(), "noise") == (1e-3, 1)
    assert interval(Trigonometric(), "score") == (1e-3, 1 - 1e-3)
    assert interval(Linear(), "data") == (0, 1 - 1e-3)
    assert interval(VariancePreserving(), "noise") == (0, 1 - 1e-3)
    assert interval(VarianceExploding(), "data") == interval(VarianceExploding(), "score") == (0, 1)
    assert interval(Polynomial(0.5), "velocity") == (1e-3, 1)


def test_image_depends_on_seed_and_index_alone(sit):
    whole = run(sit, count=6, labels=[0, 1, 2, 0, 1, 2])
    cut = run(sit, count=6, labels=[0, 1, 2, 0, 1, 2], batch_size=4)
    fewer = run(sit, count=3, labels=[0, 1, 2])
    torch.testing.assert_close(whole.images, cut.images)
    torch.testing.assert_close(whole.images[:3], fewer.images)
    assert torch.equal(run(sit).images, run(sit).images)
    assert (run(sit, seed=1).images - whole.images).abs().mean() > 0.1
    distance = torch.cdist(whole.images.flatten(1), whole.images.flatten(1))
    assert distance[~torch.eye(6, dtype=torch.bool)].min() > 0.1


def test_labels_matter_and_default_to_all_classes_in_turn(sit):
    default = run(sit, count=5)
    assert default.labels.tolist() == [0, 1, 2, 0, 1]
    assert torch.equal(default.images, run(sit, count=5, labels=[0, 1, 2, 0, 1]).images)
    assert not torch.allclose(default.images, run(sit, count=5, labels=[1] * 5).images)


def test_guidance_one_is_the_conditional_model_and_guidance_changes_images(sit):
    plain = run(sit)
    assert torch.equal(plain.images, run(sit, guidance=1.0).images)
    unguided, strong = run(sit, guidance=0.0), run(sit, guidance=3.0)
    assert (plain.images - strong.images).abs().max() > 1e-3
    assert (plain.images - unguided.images).abs().max() > 1e-3
    null = run(lambda_model(sit), guidance=1.0)
    torch.testing.assert_close(unguided.images, null.images)


def lambda_model(sit):
    """`sit` with every label replaced by its null label."""

    class Null:
        num_classes = 3

        def __call__(self, x, t, y):
            return sit(x, t, torch.full_like(y, 3))

    return Null()


def test_evaluations_are_counted(gaussian_field):
    model = gaussian_field(Linear())
    out = run(model, solver="heun", steps=7, count=5, batch_size=2)
    assert out.nfe == 14
    assert model.calls == 14 * 3
    assert run(model, solver="euler", steps=7).nfe == 7


def test_progress_reaches_one(gaussian_field):
    seen = []
    run(gaussian_field(Linear()), count=5, batch_size=2, progress=seen.append)
    assert seen == pytest.approx([0.4, 0.8, 1.0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 0}, "count is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"labels": [0, 1]}, "labels must be 6 whole numbers"),
        ({"labels": [0.5] * 6}, "whole numbers"),
        ({"labels": [3] * 6}, "classes are 0 to 2"),
        ({"labels": [-1] * 6}, "classes are 0 to 2"),
        ({"solver": "dopri5"}, "leave steps out"),
    ],
)
def test_bad_values(sit, changes, message):
    with pytest.raises(UserError, match=message):
        run(sit, **changes)


def test_unconditional_model_takes_neither_labels_nor_guidance(gaussian_field):
    with pytest.raises(UserError, match="leave labels out"):
        run(gaussian_field(Linear()), labels=[0] * 6)
    with pytest.raises(UserError, match="unconditional"):
        run(gaussian_field(Linear()), guidance=2.0)
