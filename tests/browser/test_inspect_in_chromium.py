from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from flowtempo.densities import LogitNormal, Uniform
from flowtempo.design.snr import SnrPdf
from flowtempo.interpolants import DdpmLinear, Linear
from flowtempo.report.inspect import write_inspection

ZERO = torch.zeros((), dtype=torch.float64)
SIZES = {"desk": (1280, 900), "phone": (390, 844), "small phone": (320, 568)}


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("inspect") / "page.html"
    subjects = [
        ("logit-normal <b>&amp;", SnrPdf(LogitNormal(-0.75, 1.0), Linear())),
        ("uniform@ddpm_linear@0.5", SnrPdf(Uniform(), DdpmLinear(), std=0.5, prediction="noise")),
    ]
    write_inspection(subjects, path)
    return path


def show(browser, page: Path, size: str = "desk", theme: str = "light") -> None:
    width, height = SIZES[size]
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    feature = {"name": "prefers-color-scheme", "value": theme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    browser.get_log("browser")  # forget what an earlier page said
    browser.get(page.as_uri())


def move(browser, control: str, value: float) -> None:
    browser.execute_script(
        "const input = document.getElementById(arguments[0]); input.value = arguments[1];"
        "input.dispatchEvent(new Event('input'))",
        control,
        value,
    )


def cells(browser, curve: int) -> dict[str, float]:
    texts = browser.execute_script(
        "const found = document.querySelectorAll(`[data-curve='${arguments[0]}'] [data-cell]`);"
        "return Object.fromEntries([...found].map(cell => [cell.dataset.cell, cell.textContent]))",
        curve,
    )
    return {key: float(text.replace("−", "-")) for key, text in texts.items()}


def peak(browser, curve: int) -> float:
    """Log-SNR of the highest point of a curve of the first chart."""
    x, width, left, right = browser.execute_script(
        """const path = document.querySelector(`#chart-p [data-of="${arguments[0]}"]`);
        const points = path.getAttribute("d").slice(1).split("L").map(p => p.split(" ").map(Number));
        return [points.reduce((a, b) => b[1] < a[1] ? b : a)[0], WIDTH, LEFT, RIGHT]""",
        curve,
    )
    return -14 + 28 * (x - left) / (width - left - right)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_both_charts_are_drawn_inside_the_window(browser, page, size, theme):
    show(browser, page, size, theme)
    assert browser.get_log("browser") == []
    charts = browser.execute_script(
        """return [...document.querySelectorAll("figure svg")].map(svg => {
            const box = svg.getBoundingClientRect(), text = svg.querySelector("text");
            const size = parseFloat(getComputedStyle(text).fontSize) * box.width / svg.viewBox.baseVal.width;
            return [box.width, box.height, svg.querySelectorAll("path").length, size]})"""
    )
    assert len(charts) == 2
    for width, height, curves, letters in charts:
        assert min(width, height) > 100
        assert curves == 2
        assert letters >= 9
    wide, window = browser.execute_script(
        "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert wide <= window <= SIZES[size][0]
    assert browser.execute_script("return document.querySelectorAll('b').length") == 0


def test_values_follow_the_pointer_and_the_slider_of_log_snr(browser, page):
    show(browser, page)
    snr = LogitNormal(-0.75, 1.0)
    move(browser, "at", -1.5)
    found = cells(browser, 0)
    assert found["t"] == pytest.approx(1 / (1 + math.exp(0.75)), rel=1e-3)
    assert found["p"] == pytest.approx(1 / (2 * math.sqrt(2 * math.pi)), rel=1e-3)
    assert found["w"] == pytest.approx((1 + math.exp(-0.75)) ** 2, rel=1e-3)
    browser.execute_script(
        """const svg = document.getElementById("chart-qw"), box = svg.getBoundingClientRect();
        const x = box.left + (LEFT + 0.5 * (WIDTH - LEFT - RIGHT)) / WIDTH * box.width;
        svg.dispatchEvent(new PointerEvent("pointermove", {clientX: x, clientY: box.top + 20}))"""
    )
    found = cells(browser, 0)
    assert found["t"] == pytest.approx(0.5, abs=1e-3)
    assert found["p"] == pytest.approx(SnrPdf(snr, Linear()).pdf(ZERO).item(), rel=1e-3)
    assert found["qw"] == pytest.approx(SnrPdf(snr, Linear()).normalised_emphasis(ZERO).item(), rel=5e-3)


def test_the_standard_deviation_moves_every_curve(browser, page):
    show(browser, page)
    before = [peak(browser, curve) for curve in (0, 1)]
    assert before[0] == pytest.approx(-1.5, abs=0.11)
    move(browser, "std", 1)
    for curve in (0, 1):
        assert peak(browser, curve) - before[curve] == pytest.approx(2 * math.log(2), abs=0.02)
    assert cells(browser, 0)["std"] == 2
    assert cells(browser, 1)["std"] == 1
    move(browser, "at", -1.5 + 2 * math.log(2))
    assert cells(browser, 0)["p"] == pytest.approx(1 / (2 * math.sqrt(2 * math.pi)), rel=1e-3)
    browser.find_element("id", "reset").click()
    assert [peak(browser, curve) for curve in (0, 1)] == before


def test_curves_can_be_hidden(browser, page):
    show(browser, page)
    box = browser.find_element("css selector", "[data-curve='0'] input")
    box.click()
    drawn = "return [...document.querySelectorAll('#chart-p path')].map(path => path.dataset.of)"
    assert browser.execute_script(drawn) == ["1"]
    box.click()
    assert browser.execute_script(drawn) == ["0", "1"]


def test_no_other_script_runs_and_no_request_leaves(browser, page, tmp_path):
    intruder = """<script>document.title = "run"</script><img src="https://flowtempo.invalid/x.png">"""
    changed = tmp_path / "changed.html"
    text = page.read_text(encoding="utf-8")
    changed.write_text(text.replace("<main>", f"<main>{intruder}"), encoding="utf-8")
    show(browser, changed)
    assert browser.title == "flowtempo: densities over log-SNR"
    refused = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert len(refused) == 2
    assert all("Content Security Policy" in message for message in refused)
