from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from example_records import make_probe, write_run
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from PIL import Image

import flowtempo.report
from flowtempo.densities import LogitNormal, Tabulated
from flowtempo.design import Band as DensityBand
from flowtempo.design import Design, design, variance_curve
from flowtempo.errors import UserError
from flowtempo.interpolants import Linear, VariancePreserving
from flowtempo.report import figures, save_density_png, save_probe_png, save_profile_png, style
from flowtempo.report.records import Band, ReferenceLoss, read_run
from flowtempo.variance import Bracket
from flowtempo.variance.probe import probe_times
from flowtempo.variance.verdict import collapse

XLINK = "{http://www.w3.org/1999/xlink}href"


@pytest.fixture(autouse=True)
def report_style():
    with style.styled():
        yield


@pytest.fixture
def run(tmp_path):
    return read_run(write_run(tmp_path / "arm"))


def svg_of(figure: Figure, name: str = "name") -> ElementTree.Element:
    return ElementTree.fromstring(style.to_svg(figure, name, "what it shows"))


def bands_of(axes) -> list[np.ndarray]:
    return [collection.get_paths()[0].vertices for collection in axes.collections]


def test_bands_are_two_standard_errors_wide(example):
    bracket = Bracket.load(example.profile)
    axes = figures.posterior_variance(bracket, Linear()).axes[0]
    for profile, vertices in zip((bracket.lower, bracket.upper), bands_of(axes), strict=True):
        for x, mean, stderr in zip(profile.log_snr, profile.mean, profile.stderr, strict=True):
            at = vertices[np.isclose(vertices[:, 0], float(x)), 1]
            assert at.min() == pytest.approx(float(mean - 2 * stderr), abs=1e-12)
            assert at.max() == pytest.approx(float(mean + 2 * stderr), abs=1e-12)


def test_the_target_variance_is_the_designs_curve(example):
    bracket = Bracket.load(example.profile)
    axes = figures.target_variance(bracket, Linear(), "velocity").axes[0]
    for line, profile in zip(axes.lines, (bracket.lower, bracket.upper), strict=True):
        t = torch.as_tensor(line.get_xdata())
        curve = variance_curve(profile, Linear(), "velocity", t)
        assert (float(t[0]), float(t[-1])) == (0, 1)
        np.testing.assert_allclose(line.get_ydata(), curve.mean)


def test_the_second_axis_agrees_with_the_interpolant(example):
    bracket = Bracket.load(example.profile)
    path = VariancePreserving()
    top = figures.posterior_variance(bracket, path).axes[1]
    times = torch.tensor([float(label.get_text()) for label in top.get_xticklabels()], dtype=torch.float64)
    np.testing.assert_allclose(top.get_xticks(), path.log_snr(times), atol=1e-9)
    top = figures.target_variance(bracket, path, "velocity").axes[1]
    values = [float(label.get_text().replace("−", "-")) for label in top.get_xticklabels()]
    np.testing.assert_allclose(path.log_snr(torch.tensor(top.get_xticks())), values, atol=1e-6)


@pytest.mark.parametrize("prediction", ["velocity", "noise", "data", "score", "v"])
def test_a_pole_does_not_flatten_the_rest(example, prediction):
    bracket = Bracket.load(example.profile)
    axes = figures.target_variance(bracket, VariancePreserving(), prediction).axes[0]
    low, high = axes.get_ylim()
    middle = variance_curve(bracket.upper, VariancePreserving(), prediction, torch.linspace(0.2, 0.6, 9))
    assert 0 <= low < high < math.inf
    assert low < float(middle.mean.min())
    assert high / (1e6 if axes.get_yscale() == "log" else 50) < float(middle.mean.max()) < high


def test_densities_are_drawn_with_their_fit_and_the_references(example):
    made = Design.load(example.density)
    lines = figures.densities([("designed", made)]).axes[0].lines
    t = torch.as_tensor(lines[0].get_xdata())
    expected = [made.density, LogitNormal(made.fit.mean, made.fit.std)]
    expected += [density for _, density in figures.REFERENCES]
    for line, density in zip(lines, expected, strict=True):
        np.testing.assert_allclose(line.get_ydata(), density.pdf(t))
    assert [line.get_label() for line in lines][2:] == ["uniform", "LN(0, 1)"]


def test_the_other_edges_density_is_drawn_with_its_edge(example):
    made = Design.load(example.density)
    other = design(Bracket.load(example.profile), Linear(), rule="paper", edge="lower")
    line = figures.densities([("designed", made)], other).axes[0].lines[2]
    assert line.get_label() == "from the lower edge"
    np.testing.assert_allclose(line.get_ydata(), other.density.pdf(torch.as_tensor(line.get_xdata())))


def test_a_steep_density_keeps_the_others_in_sight(example):
    peak = Tabulated([0.0, 1e-4, 2e-4, 1.0], [1.0, 9000.0, 1.0, 1.0])
    steep = replace(Design.load(example.density), density=peak)
    assert figures.densities([("steep", steep)]).axes[0].get_ylim()[1] < 20


def test_losses_by_band_stand_between_their_bands_and_compare_with_the_first(run):
    worse = replace(run, name="worse", reference=tuple(_scaled(record, 1.1) for record in run.reference))
    top, below = figures.loss_by_band([run, worse]).axes
    steps = [patch.get_data() for patch in top.patches]
    np.testing.assert_allclose(steps[0].values, [band.loss for band in run.final_reference().bands])
    np.testing.assert_allclose(steps[0].edges, np.arange(11) / 10)
    np.testing.assert_allclose(below.patches[0].get_data().values, 0)
    np.testing.assert_allclose(below.patches[1].get_data().values, 10)


def test_losses_in_different_bands_are_not_compared(run):
    halves = ReferenceLoss(800, "ema", 1.0, (Band(0, 0.5, 1.0), Band(0.5, 1, 1.0)))
    assert len(figures.loss_by_band([run, replace(run, reference=(halves,))]).axes) == 1


def test_losses_that_are_not_finite_are_gaps(run):
    broken = replace(run, reference=tuple(_scaled(record, math.nan) for record in run.reference))
    for draw in (figures.loss_by_band, figures.loss_over_steps):
        svg_of(draw([run, broken]))
        svg_of(draw([broken]))


def test_the_loss_before_the_first_step_does_not_set_the_scale(run):
    untrained = [replace(_scaled(run.reference[0], 9.0), step=0, track=track) for track in ("raw", "ema")]
    begun = replace(run, reference=(*untrained, *run.reference))
    lines = figures.loss_over_steps([begun]).axes[0].lines
    assert all(list(line.get_xdata()) == [200, 400, 600, 800] for line in lines)
    only = figures.loss_over_steps([replace(run, reference=tuple(untrained))]).axes[0].lines
    assert all(list(line.get_xdata()) == [0] for line in only)


def test_averaged_and_raw_weights_look_different(run):
    averaged, raw = figures.loss_over_steps([run]).axes[0].lines
    assert (averaged.get_label(), averaged.get_color()) == ("arm", raw.get_color())
    assert raw.get_linestyle() == ":"


def test_error_bars_are_two_standard_errors_long(run):
    axes = figures.frechet_over_steps([run]).axes[0]
    bars = axes.collections[0].get_segments()
    assert len(bars) == len(run.evaluations)
    for bar, evaluation in zip(bars, run.evaluations, strict=True):
        np.testing.assert_allclose(bar[:, 1].mean(), evaluation.frechet)
        np.testing.assert_allclose(np.ptp(bar[:, 1]), 4 * evaluation.stderr)


def test_error_bars_of_arms_stand_side_by_side_near_their_step(run):
    lines = figures.frechet_over_steps([run, run, run]).axes[0].lines
    places = np.array([line.get_xdata(orig=False) for line in lines if line.get_marker() in style.MARKERS])
    assert (np.diff(places, axis=0) > 0).all()
    np.testing.assert_allclose(places.mean(axis=0), [200, 400, 600, 800])
    assert np.abs(places - places.mean(axis=0)).max() < 0.02 * 600


def test_an_arm_keeps_its_colour_where_another_has_no_records(run):
    bare = replace(run, evaluations=(), reference=())
    for draw in (figures.frechet_over_steps, figures.loss_over_steps):
        assert draw([bare, run]).axes[0].lines[0].get_color() == style.SERIES[1]
    assert to_hex(figures.loss_by_band([bare, run]).axes[0].patches[0].get_edgecolor()) == style.SERIES[1]


def test_arms_beyond_the_colours_differ_in_their_dashes(run):
    runs = [replace(run, name=str(index)) for index in range(2 * len(style.SERIES))]
    lines = [line for line in figures.loss_over_steps(runs).axes[0].lines if line.get_marker() != "None"]
    looks = {(line.get_color(), str(line._unscaled_dash_pattern)) for line in lines}
    assert len(lines) == len(looks) == len(runs)


@pytest.mark.parametrize(
    ("values", "scale"),
    [([1, 2], "linear"), ([1, 20], "log"), ([0, 20], "linear"), ([1, math.nan, 20], "log"), ([], "linear")],
)
def test_the_axis_is_logarithmic_where_positive_values_span_much(values, scale):
    axes = style.new_figure().subplots()
    style.scale_to(axes, values)
    assert axes.get_yscale() == scale


def test_an_svg_is_well_formed_repeatable_and_refers_to_nothing_outside(run, example):
    def draw() -> list[str]:
        bracket = Bracket.load(example.profile)
        drawings = [
            figures.posterior_variance(bracket, Linear()),
            figures.target_variance(bracket, Linear(), "velocity"),
            figures.densities([("designed", Design.load(example.density))]),
            figures.loss_by_band([run, run]),
            figures.loss_over_steps([run]),
            figures.frechet_over_steps([run]),
        ]
        return [style.to_svg(drawing, f"name-{index}", "alt") for index, drawing in enumerate(drawings)]

    first = draw()
    assert first == draw()
    ids = []
    for index, text in enumerate(first):
        root = ElementTree.fromstring(text)
        assert root.get("role") == "img"
        assert root.get("aria-label") == "alt"
        elements = list(root.iter())
        own = [element.get("id") for element in elements if element.get("id")]
        assert all(id.startswith(f"name-{index}-") for id in own)
        for element in elements:
            for key, value in element.attrib.items():
                for target in re.findall(r"url\(#([^)]*)\)", value) + ([value[1:]] if key == XLINK else []):
                    assert target in own
        assert "date" not in text
        assert "://" not in text.replace("http://www.w3.org/1999/xlink", "").replace(
            "http://www.w3.org/2000/svg", ""
        )
        ids += own
    assert len(ids) == len(set(ids))


def test_every_colour_of_an_svg_follows_the_theme(run):
    text = style.to_svg(figures.frechet_over_steps([run, run]), "name", "alt")
    bare = re.sub(r"var\(--[a-z0-9-]+, #[0-9a-f]{6}\)", "", text)
    assert len(bare) < len(text)
    assert not re.findall(r"#[0-9a-f]{6}\b", bare)


def test_names_are_text_and_neither_markup_nor_mathematics(run):
    name = '<b>$x_1$ & "#0072b2'
    root = svg_of(figures.frechet_over_steps([replace(run, name=name)]))
    assert name in {element.text for element in root.iter() if element.text}


def test_long_names_lose_their_middle():
    assert style.shorten("short") == "short"
    long = style.shorten("a" * 20 + "b" * 20)
    assert (len(long), long[:12], long[-13:]) == (26, "a" * 12, "b" * 13)


def luminance(colour: str) -> float:
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def test_every_colour_stands_out_in_both_themes():
    css = (Path(flowtempo.report.__file__).parent / "templates" / "report.css").read_text()
    themes = [re.findall(r"(--[a-z0-9-]+): (#[0-9a-f]{6})", part) for part in css.split("@media")[:2]]
    light, dark = map(dict, themes)
    assert tuple(light[f"--series-{index}"] for index in range(len(style.SERIES))) == style.SERIES
    assert (light["--ink"], light["--muted"], light["--grid"]) == (style.INK, style.MUTED, style.GRID)
    least = {"--ink": 7.0, "--muted": 4.5, "--accent": 4.5}
    least |= {f"--series-{index}": 3.0 for index in range(len(style.SERIES))}
    for theme in (light, dark):
        for name, ratio in least.items():
            for ground in ("--paper", "--panel"):
                pair = sorted((luminance(theme[name]), luminance(theme[ground])))
                assert (pair[1] + 0.05) / (pair[0] + 0.05) >= ratio, (name, ground)


def test_the_command_lines_plots_are_repeatable_images(example, tmp_path):
    probe = example.runs[1] / "probes" / "step-00000800.json"
    plots = (save_profile_png, example.profile), (save_density_png, example.density), (save_probe_png, probe)
    for save, source in plots:
        save(source, tmp_path / "a.png")
        save(source, tmp_path / "b.png")
        assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
        with Image.open(tmp_path / "a.png") as image:
            assert image.width >= 900
            assert image.convert("RGB").getpixel((2, 2)) == (255, 255, 255)
            assert len(image.convert("L").getcolors()) > 20


def test_a_plot_of_a_damaged_record_names_it(tmp_path):
    (tmp_path / "damaged.json").write_text('{"schema": 1, "lo')
    for save in (save_profile_png, save_density_png, save_probe_png):
        with pytest.raises(UserError, match=r"damaged\.json"):
            save(tmp_path / "damaged.json", tmp_path / "plot.png")
    assert not (tmp_path / "plot.png").exists()


def test_a_persons_matplotlib_settings_change_nothing(run):
    first = style.to_svg(figures.loss_over_steps([run]), "name", "alt")
    with (
        matplotlib.rc_context({"xtick.direction": "in", "lines.marker": "x"}),
        style.styled(),
    ):
        assert first == style.to_svg(figures.loss_over_steps([run]), "name", "alt")


def test_the_explained_variance_is_what_the_posterior_variance_leaves(example):
    bracket = Bracket.load(example.profile)
    axes = figures.explained_variance(bracket, Linear()).axes[0]
    total, *edges = axes.lines
    assert set(total.get_ydata()) == {bracket.upper.second_moment}
    for line, profile, vertices in zip(edges, (bracket.lower, bracket.upper), bands_of(axes), strict=True):
        np.testing.assert_allclose(line.get_ydata(), profile.second_moment - profile.mean)
        at = vertices[np.isclose(vertices[:, 0], -10), 1]
        assert np.ptp(at) == pytest.approx(4 * float(profile.stderr[0]))


def test_the_collapsed_range_is_shaded_from_where_it_begins(example):
    bracket = Bracket.load(example.profile)
    for draw in (figures.posterior_variance, figures.explained_variance):
        (patch,) = draw(bracket, Linear()).axes[0].patches
        assert patch.get_label() == "lower edge collapsed"
        corners = patch.get_extents().transformed(patch.axes.transData.inverted())
        assert corners.x0 == pytest.approx(collapse(bracket.lower))
        assert corners.x1 == pytest.approx(10)
        whole = replace(bracket, lower=replace(bracket.lower, ess=None))
        assert len(draw(whole, Linear()).axes[0].patches) == 0


def test_the_class_conditional_edges_have_a_colour_of_their_own(example):
    bracket = Bracket.load(example.profile)
    known = Bracket(
        *(replace(p, quantity="class_posterior_variance") for p in (bracket.lower, bracket.upper))
    )
    axes = figures.posterior_variance(replace(bracket, by_class=known), Linear()).axes[0]
    lines = {line.get_label(): line for line in axes.lines}
    looks = [lines[f"{edge} edge, class known"] for edge in ("lower", "upper")]
    assert {line.get_color() for line in looks} == {style.SERIES[2]}
    assert looks[0]._unscaled_dash_pattern != looks[1]._unscaled_dash_pattern
    np.testing.assert_allclose(looks[1].get_ydata(), known.upper.mean)


def test_the_band_of_a_density_is_drawn_where_it_lies(example):
    made = Design.load(example.density)
    t = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    band = DensityBand(t, low=torch.tensor([0.5, 0.6, 0.7]), high=torch.tensor([1.5, 1.6, 1.7]), level=0.9)
    axes = figures.densities([("designed", replace(made, band=band))]).axes[0]
    (collection,) = axes.collections
    assert collection.get_label() == "90% band"
    vertices = collection.get_paths()[0].vertices
    assert vertices[vertices[:, 0] == 0.5, 1].min() == pytest.approx(0.6)
    assert vertices[vertices[:, 0] == 0.5, 1].max() == pytest.approx(1.6)
    assert not figures.densities([("designed", replace(made, band=None))]).axes[0].collections


def lines_of(figure: Figure) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {line.get_label(): (line.get_xdata(), line.get_ydata()) for line in figure.axes[0].lines}


@pytest.mark.parametrize("over", ["t", "log_snr"])
def test_gradients_and_target_variance_have_unit_mean_over_t(example, over):
    bracket, probe = Bracket.load(example.profile), make_probe()
    t = probe_times(9).numpy()
    lines = lines_of(figures.gradients(probe, bracket, over))
    assert list(lines) == ["E|g|²", "E|g − E g|²", "|E g|²", "V(t), upper edge", "V(t), lower edge"]
    for name in ("E|g|²", "V(t), upper edge", "V(t), lower edge"):
        assert np.trapezoid(lines[name][1], t) == pytest.approx(t[-1] - t[0])
    # One unit for the three: the parts add up.
    np.testing.assert_allclose(lines["|E g|²"][1] + lines["E|g − E g|²"][1], lines["E|g|²"][1])
    curve = variance_curve(bracket.upper, Linear(), "velocity", torch.from_numpy(t)).mean.numpy()
    np.testing.assert_allclose(
        lines["V(t), upper edge"][1] / curve, (lines["V(t), upper edge"][1] / curve)[0]
    )
    x = t if over == "t" else Linear().log_snr(torch.from_numpy(t)).numpy()
    np.testing.assert_allclose(lines["E|g|²"][0], x, atol=1e-9)


def test_the_error_of_the_squared_norm_is_that_of_a_square():
    """The norm is known to 5 %, so its square to 10 %; the band is two of these wide on each side."""
    axes = figures.gradients(make_probe()).axes[0]
    vertices, middle = bands_of(axes)[2], axes.lines[2].get_ydata()[4]
    at = vertices[np.isclose(vertices[:, 0], 0.5), 1]
    assert (at.min(), at.max()) == (pytest.approx(0.8 * middle), pytest.approx(1.2 * middle))


def test_losses_are_relative_to_their_own_mean():
    lines = lines_of(figures.gradients_and_loss(make_probe()))
    t = probe_times(9).numpy()
    assert list(lines) == ["E|g|²", "loss", "loss²"]
    for _, y in lines.values():
        assert np.trapezoid(y, t) == pytest.approx(t[-1] - t[0])
    np.testing.assert_allclose(lines["loss"][1] / (2 - t), (lines["loss"][1] / (2 - t))[0])


def test_the_largest_groups_have_lines_and_the_others_add_up():
    names = [f"group {index}" for index in range(8)]
    lines = lines_of(figures.gradients_by_group(make_probe(groups=names)))
    assert list(lines) == ["group 7", "group 6", "group 5", "group 4", "group 3", "3 other groups"]
    whole = make_probe().profiles["gradient_second_moment"].mean
    np.testing.assert_allclose(sum(y for _, y in lines.values()), whole)
    few = lines_of(figures.gradients_by_group(make_probe(groups=names[:6])))
    assert sorted(few) == names[:6]


def test_a_collapsed_edge_does_not_set_the_scale_of_the_gradients(example):
    bracket = Bracket.load(example.profile)
    nothing = replace(bracket, lower=replace(bracket.lower, mean=bracket.lower.mean * 1e-12))
    steep = replace(
        nothing, lower=replace(nothing.lower, mean=torch.where(nothing.lower.log_snr < 0, 1.0, 0.0))
    )
    for each in (nothing, steep):
        assert figures.gradients(make_probe(), each).axes[0].get_ylim()[0] > -0.5


def test_crowded_labels_on_top_are_left_out():
    axes = style.new_figure().subplots()
    axes.set_xlim(0, 1)
    style.top_axis(axes, "top", [0.1, 0.11, 0.5, 0.53, 0.6], list("abcde"))
    top = axes.figure.axes[1]
    assert [label.get_text() for label in top.get_xticklabels()] == ["a", "c", "e"]
    np.testing.assert_allclose(top.get_xticks(), [0.1, 0.5, 0.6])


def _scaled(record: ReferenceLoss, factor: float) -> ReferenceLoss:
    bands = tuple(replace(band, loss=factor * band.loss) for band in record.bands)
    return replace(record, loss=factor * record.loss, bands=bands)
