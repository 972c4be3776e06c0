import json
import math
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flowtempo.densities import Tabulated, Uniform
from flowtempo.errors import UserError


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_triangle_in_closed_form():
    # pdf 2 t: cdf t^2, quantile sqrt(u).
    density = Tabulated([0, 1], [0, 7])
    t = torch.linspace(0, 1, 101, dtype=torch.float64)
    torch.testing.assert_close(density.pdf(t), 2 * t, rtol=1e-15, atol=0)
    torch.testing.assert_close(density.cdf(t), t**2, rtol=1e-15, atol=0)
    torch.testing.assert_close(density.quantile(t), t.sqrt(), rtol=1e-15, atol=0)


def test_falling_triangle_keeps_its_digits_where_the_pdf_vanishes():
    # pdf 2 (1 - t): 1 - quantile(u) = sqrt(1 - u), down to the last uniform.
    density = Tabulated([0, 1], [3, 0])
    rest = torch.logspace(-15, 0, 31, dtype=torch.float64)
    u = 1 - rest
    torch.testing.assert_close(density.quantile(u), 1 - (1 - u).sqrt(), rtol=0, atol=3e-16)


def test_a_nearly_flat_cell_has_no_cancellation():
    # (sqrt(p0^2 + 2 (p1 - p0) y) - p0) / (p1 - p0) would lose every digit here.
    u = torch.linspace(0, 1, 11, dtype=torch.float64)
    torch.testing.assert_close(Tabulated([0, 1], [1, 1 + 1e-15]).quantile(u), u, rtol=1e-14, atol=0)


def test_empty_cells_are_never_drawn_from():
    density = Tabulated([0, 0.2, 0.3, 0.6, 0.7, 0.9, 1], [0, 0, 1, 0, 0, 1, 0])
    assert (density.low, density.high) == (0.2, 1)
    assert density.gaps() == [(0, 0.2), (0.6, 0.7)]
    # Masses .05 + .15 and .1 + .05.
    left = 0.2 / 0.35
    t = density.quantile(tensor(0, left - 1e-12, left + 1e-12, 1))
    assert t[0] == 0.2
    assert 0.59 < t[1] < 0.6
    assert 0.7 < t[2] < 0.71
    assert t[3] == 1
    assert density.mass(0.6, 0.7) == 0


def test_quantile_is_the_smallest_time_with_that_cdf():
    assert Tabulated([0, 0.25, 0.75, 1], [1, 0, 0, 1]).quantile(tensor(0.5)) == 0.25


def test_a_first_cell_that_is_almost_empty_has_no_nan():
    density = Tabulated([0, 0.1, 0.2, 1], [0, 1e-200, 1, 1])
    t = density.quantile(tensor(1e-250, 1e-203, 1e-300, 5e-324))
    assert ((t > 0) & (t <= 0.1)).all()


def test_trailing_empty_cells_end_the_support():
    density = Tabulated([0, 0.5, 0.7, 1], [1, 0, 0, 0])
    assert density.high == 0.5
    assert density.quantile(tensor(1)) == 0.5
    assert density.gaps() == [(0.5, 1)]


def test_scale_does_not_matter():
    grid, curve = [0, 0.3, 1], [1.0, 2.0, 0.5]
    for scale in (1e-300, 8e307):
        scaled = Tabulated(grid, [scale * value for value in curve])
        torch.testing.assert_close(scaled.values, Tabulated(grid, curve).values, rtol=1e-14, atol=0)
    assert Tabulated([0, 1], [5, 5]).pdf(tensor(0.2)) == Uniform().pdf(tensor(0.2))


def test_the_argument_is_not_changed():
    grid, curve = torch.linspace(0, 1, 3, dtype=torch.float64), torch.ones(3, dtype=torch.float64) * 4
    Tabulated(grid, curve)
    assert curve.tolist() == [4, 4, 4]
    density = Tabulated(grid, curve)
    grid[1] = 0.9
    assert density.grid.tolist() == [0, 0.5, 1]


@st.composite
def tables(draw):
    count = draw(st.integers(2, 12))
    widths = draw(st.lists(st.floats(1e-6, 1), min_size=count - 1, max_size=count - 1))
    values = draw(st.lists(st.sampled_from([0.0]) | st.floats(1e-6, 1e3), min_size=count, max_size=count))
    if not any(values):
        values[0] = 1.0
    edges = torch.tensor([0.0, *widths], dtype=torch.float64).cumsum(0)
    return Tabulated(edges / edges[-1], values)


@settings(deadline=None, derandomize=True)
@given(density=tables(), u=st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_any_table_inverts_exactly(density, u):
    u = torch.tensor(sorted(u), dtype=torch.float64)
    t = density.quantile(u)
    assert ((density.cdf(t) - u).abs() <= 1e-14 + 2e-16 * density.pdf(t)).all()
    assert (t.diff() >= -1e-15).all()
    for lo, hi in density.gaps():
        assert not ((t > lo + 1e-15) & (t < hi - 1e-15)).any()


@pytest.mark.parametrize(
    ("t", "pdf", "message"),
    [
        ([0.5], [1.0], "two lists of one length"),
        ([0, 1], [1.0, 1.0, 1.0], "two lists of one length"),
        ([[0, 1]], [[1.0, 1.0]], "two lists of one length"),
        ([0, 0, 1], [1.0, 1.0, 1.0], "increase strictly"),
        ([0, 2], [1.0, 1.0], r"within \[0, 1\]"),
        ([0, math.nan], [1.0, 1.0], "increase strictly"),
        ([0, 1], [1.0, -1.0], "not negative"),
        ([0, 1], [1.0, math.inf], "finite"),
        ([0, 1], [0.0, 0.0], "not zero everywhere"),
    ],
)
def test_bad_tables_raise(t, pdf, message):
    with pytest.raises(UserError, match=message):
        Tabulated(t, pdf)


def test_load_reads_what_a_design_saves(tmp_path):
    path = tmp_path / "density.json"
    path.write_text(json.dumps({"schema": 1, "table": {"t": [0, 0.5, 1], "pdf": [0, 1, 0]}, "rule": "paper"}))
    density = Tabulated.load(path)
    assert density == Tabulated([0, 0.5, 1], [0, 1, 0])
    assert str(density) == f"table({str(path)!r})"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[1, 2]", "holds no density table"),
        ('{"table": {"t": [0, 1]}}', "holds no density table"),
        ('{"table": {"t": [0, 1], "pdf": 3}}', "holds no density table"),
        ('{"table": {"t": [0, "x"], "pdf": [1, 1]}}', "holds no density table"),
        ('{"table": {"t": [0, 1], "pdf": [1, -1]}}', "not negative"),
        ('{"table": {"t": [0, 1], "pdf": [1, NaN]}}', "finite"),
    ],
)
def test_load_names_the_file(tmp_path, content, message):
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(UserError, match=message) as error:
        Tabulated.load(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_load_of_a_missing_or_binary_file(tmp_path):
    with pytest.raises(UserError, match=r"no\.json: cannot be read"):
        Tabulated.load(tmp_path / "no.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"bytes\.json: is not JSON"):
        Tabulated.load(tmp_path / "bytes.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [("[" * 100_000, "is not JSON"), (f'{{"table": {{"t": [0, {10**400}], "pdf": [1, 1]}}}}', "no density")],
)
def test_json_that_python_refuses_is_named(tmp_path, content, message):
    (tmp_path / "density.json").write_text(content)
    with pytest.raises(UserError, match=rf"density\.json: .*{message}"):
        Tabulated.load(tmp_path / "density.json")


def test_a_pipe_is_no_table(tmp_path):
    os.mkfifo(tmp_path / "density.json")
    with pytest.raises(UserError, match="not a regular file"):
        Tabulated.load(tmp_path / "density.json")


def test_a_function_is_followed_within_the_tolerance():
    def pdf(t):
        return 1 + 50 * torch.exp(-(((t - 0.3) / 0.01) ** 2))

    whole = 1 + 50 * 0.01 * math.pi**0.5
    t = torch.linspace(0, 1, 100_001, dtype=torch.float64)
    for tolerance in (1e-3, 1e-6):
        table = Tabulated.from_function(pdf, tolerance=tolerance)
        apart = torch.trapezoid((table.pdf(t) - pdf(t) / whole).abs(), t) / 2
        assert float(apart) < 2 * tolerance
    assert len(table.grid) > 2 * len(Tabulated.from_function(pdf, tolerance=1e-3).grid)


def test_a_straight_function_needs_no_more_than_the_first_grid():
    table = Tabulated.from_function(lambda t: 3 * t, 0.2, 0.9)
    assert (table.low, table.high, len(table.grid)) == (0.2, 0.9, 1025)
    assert table.mass(0.2, 0.5) == pytest.approx((0.25 - 0.04) / (0.81 - 0.04), abs=1e-12)


@pytest.mark.parametrize(
    ("pdf", "options", "message"),
    [
        (lambda t: t - 0.5, {}, r"is -0.5 at t = 0"),
        (lambda t: 1 / (1 - t), {}, r"is inf at t = 1: .* choose low and high"),
        (lambda t: t * 0, {}, "zero everywhere"),
        (lambda t: torch.ones(3), {}, r"gave shape \(3,\) for 1025 times"),
        (lambda t: (1 - t).clamp_min(1e-30) ** -0.999, {}, "too rough"),
        (lambda t: t, {"low": 0.5, "high": 0.5}, "low = 0.5 and high = 0.5"),
        (lambda t: t, {"tolerance": 0}, "tolerance = 0"),
    ],
)
def test_functions_that_are_no_density(pdf, options, message):
    with pytest.raises(UserError, match=message):
        Tabulated.from_function(pdf, **options)
