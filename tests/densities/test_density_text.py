import json

import pytest

from flowtempo.densities import DENSITIES, LogitNormal, Mixture, Tabulated, Truncated, Uniform, parse
from flowtempo.errors import UserError


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "density.json").write_text(json.dumps({"table": {"t": [0, 1], "pdf": [1, 3]}}))
    return Tabulated([0, 1], [1, 3])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("uniform", Uniform()),
        (" uniform() ", Uniform()),
        ("logit_normal(-0.75, 1)", LogitNormal(-0.75, 1)),
        ("logit_normal(std=1e0, mean=+0)", LogitNormal(0, 1)),
        ("mixture(logit_normal(0, 1), 0.1)", Mixture(LogitNormal(0, 1), 0.1)),
        ("truncated(uniform, 0.01, 0.99)", Truncated(Uniform(), 0.01, 0.99)),
        ("truncated(mixture(uniform, floor=.5), high=0.9)", Truncated(Mixture(Uniform(), 0.5), 0, 0.9)),
    ],
)
def test_text_forms(text, expected):
    assert parse(text) == expected
    assert parse(str(expected)) == expected


@pytest.mark.parametrize("text", ["density.json", " density.json ", "table('density.json')"])
def test_tables_by_path(table, text):
    assert parse(text) == table
    assert parse(str(parse(text))) == table
    assert parse("mixture(table(path='density.json'), 0.2)") == Mixture(table, 0.2)


def test_numbers_survive_the_text_form():
    density = LogitNormal(1 / 3, 0.1 + 0.2)
    assert parse(str(density)) == density
    assert str(LogitNormal(-0.75, 1)) == "logit_normal(-0.75, 1)"


@pytest.mark.parametrize("text", ["lognorm", "logitnormal(0, 1)", "mixture(gaussian, 0.1)"])
def test_unknown_names_list_the_known_ones(text):
    with pytest.raises(UserError, match=f"unknown density .* use one of {', '.join(DENSITIES)}"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("logit_normal", r"missing .*'mean'.*use logit_normal\(mean, std\)"),
        ("logit_normal(0)", r"missing .*'std'.*use logit_normal\(mean, std\)"),
        ("logit_normal(0, 1, 2)", r"too many positional .*use logit_normal\(mean, std\)"),
        ("logit_normal(0, sigma=1)", r"'?(sigma|std)'?.*use logit_normal\(mean, std\)"),
        ("uniform(3)", r"too many positional .*use uniform\(\)"),
        ("logit_normal(0, std=1, std=2)", "cannot read"),
        ("logit_normal(*x)", "cannot read"),
        ("logit_normal(**x)", "cannot read"),
        ("logit_normal('0', 1)", "logit_normal: mean = '0' .*must be a number"),
        ("logit_normal(0, True)", "std = True .*must be a number"),
        ("logit_normal(0, 1 + 1)", r"std = 1 \+ 1 .*must be a number"),
        ("logit_normal(0, uniform)", "std = uniform .*must be a number"),
        ("logit_normal(0, -1)", r"std = -1\.0 must be"),
        ("mixture(0.1, uniform)", r"base = 0\.1 .*must be a density"),
        ("mixture(uniform, 2)", r"floor = 2\.0 must be"),
        ("table(3)", "must be a quoted path"),
        ("table('no.json')", r"no\.json: cannot be read"),
        ("missing.json", r"missing\.json: cannot be read"),
        ("", "cannot read the density ''"),
        ("uniform uniform", "cannot read"),
        ("uniform.pdf", "cannot read"),
        ("__import__('os').system('true')", "cannot read"),
        ("(lambda: uniform)()", "cannot read"),
        ("[uniform]", "cannot read"),
        ("'uniform'", "cannot read"),
        ("uniform\0", "cannot read"),
        ("(" * 5000, "cannot read"),
    ],
)
def test_bad_text_is_one_line_that_says_what_is_wrong(text, message):
    with pytest.raises(UserError, match=message) as error:
        parse(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", [None, 3, f"logit_normal({10**400}, 1)"])
def test_what_is_no_density_text_is_refused(text):
    with pytest.raises(UserError, match=r"density must be a text|too large"):
        parse(text)
