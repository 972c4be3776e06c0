"""The page and the picture of `flowtempo inspect`: their numbers, their words, and that nothing escapes."""

import base64
import hashlib
import json
import math
import re

import pytest
import torch

from flowtempo.densities import LogitNormal, Uniform
from flowtempo.design.snr import SnrPdf
from flowtempo.errors import UserError
from flowtempo.interpolants import Linear, VariancePreserving
from flowtempo.report import style
from flowtempo.report.figures.snr import snr_pdfs
from flowtempo.report.inspect import save_snr_png, write_inspection
from flowtempo.variance import Bracket, VarianceProfile

NASTY = "</script><b>&amp;\"'$x$ <!--"
SUBJECTS = [
    (NASTY, SnrPdf(LogitNormal(-0.75, 1.0), Linear(), std=2.0, target=Uniform())),
    ("vp", SnrPdf(Uniform(), VariancePreserving(), prediction="noise")),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    write_inspection(SUBJECTS, path)
    return path.read_text(encoding="utf-8")


def test_the_page_holds_the_numbers_of_the_curves(page):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    data = json.loads(found[1])
    assert data["edges"] == [-10, 10]
    assert [curve["name"] for curve in data["curves"]] == [NASTY, "vp"]
    for curve, (_, snr) in zip(data["curves"], SUBJECTS, strict=True):
        grid = curve["first"] + curve["step"] * torch.arange(len(curve["p"]), dtype=torch.float64)
        for key, function in (
            ("t", snr.time),
            ("p", snr.pdf),
            ("w", snr.weight),
            ("qw", snr.normalised_emphasis),
        ):
            # The page's grid is the interpolant's log-SNR; the input's adds 2 log std.
            true = function(grid + 2 * math.log(curve["std"])).tolist()
            assert curve[key] == [
                pytest.approx(value, rel=1e-5, abs=1e-300) if math.isfinite(value) else None for value in true
            ]


def test_names_are_text_and_the_page_is_on_its_own(page):
    assert "<b>" not in page
    assert page.count("</script>") == 2
    assert "&lt;/script&gt;&lt;b&gt;&amp;amp;" in page
    assert "weighted to the target" in page
    assert "normal with mean -0.113706 and standard deviation 2" in page
    # The only address is the name of SVG.
    assert set(re.findall(r"https?://[^\s\"']+", page)) == {"http://www.w3.org/2000/svg"}
    script = page[page.rindex("<script>") + len("<script>") : page.rindex("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert "default-src 'none'" in page


def test_the_same_subjects_give_the_same_bytes(page, tmp_path):
    write_inspection(SUBJECTS, tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == page


def test_only_a_web_page_is_replaced(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for path in (tmp_path / "notes.txt", tmp_path):
        with pytest.raises(UserError, match="exists and is no web page"):
            write_inspection(SUBJECTS, path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_the_picture_draws_every_curve(tmp_path):
    with style.styled():
        left, right, *_ = snr_pdfs(SUBJECTS).axes
    assert [line.get_label() for line in left.lines] == [NASTY, "vp"]
    for line, (_, snr) in zip(left.lines, SUBJECTS, strict=True):
        x, y = (torch.as_tensor(values) for values in line.get_data())
        torch.testing.assert_close(y, snr.pdf(x))
        assert float(torch.trapezoid(y, x)) == pytest.approx(1, abs=0.01)
    assert len(right.lines) == 2
    # t means another thing on each path: no scale of t.
    assert len(snr_pdfs(SUBJECTS).axes) == 2
    assert len(snr_pdfs(SUBJECTS[:1]).axes) == 3


def test_what_was_measured_stands_beside_them_in_units_of_its_own_variance(tmp_path):
    grid = torch.linspace(-10, 10, 41, dtype=torch.float64)
    mean = 4 / (1 + 4 * grid.exp())
    profile = VarianceProfile("posterior_variance", "closed form", "estimate", grid, mean, 0 * mean, 2, 4.0)
    with style.styled():
        axes = snr_pdfs(SUBJECTS, Bracket(profile, profile), std=2.0).axes
    x, y = (torch.as_tensor(values) for values in axes[2].lines[0].get_data())
    # N(0, 4): over the log-SNR that counts the standard deviation it is that of N(0, 1).
    torch.testing.assert_close(y, 1 / (1 + x.exp()))
    t, variance = (torch.as_tensor(values) for values in axes[3].lines[0].get_data())
    torch.testing.assert_close(variance, 4 / (4 * t**2 + (1 - t) ** 2), rtol=1e-6, atol=0)
    save_snr_png(SUBJECTS, tmp_path / "a.png", Bracket(profile, profile), 2.0)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
