from __future__ import annotations

from pathlib import Path

import pytest
from example_records import build_example, write_run

from flowtempo.report import write_report

FIGURES = [
    "posterior-variance",
    "explained-variance",
    "target-variance",
    "target-variance-trigonometric",
    "target-variance-variance-preserving",
    "gradients-0",
    "gradients-loss-0",
    "gradients-group-0",
    "densities",
    "loss-by-band",
    "loss-over-steps",
    "frechet-over-steps",
    "samples-0",
    "samples-1",
    "samples-2",
]
SIZES = {"desk": (1280, 900), "phone": (390, 844), "small phone": (320, 568)}


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    example = build_example(folder)
    long = write_run(folder / "an arm with a long name, <b>&amp; $signs$", spacing="stratified", gain=1.05)
    write_report(
        folder / "report.html",
        runs=[*example.runs, long],
        profile=example.profile,
        densities=[example.density],
    )
    return folder / "report.html"


def show(browser, page: Path, size: str = "desk", theme: str = "light") -> None:
    width, height = SIZES[size]
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    feature = {"name": "prefers-color-scheme", "value": theme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    browser.get_log("browser")  # forget what an earlier page said
    browser.get(page.as_uri())


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_every_figure_is_rendered_without_an_error(browser, page, size, theme):
    show(browser, page, size, theme)
    figures = browser.execute_script("""
        return [...document.querySelectorAll("figure")].map(figure => {
            const box = figure.querySelector("svg, img").getBoundingClientRect();
            return [figure.id, box.width, box.height, figure.querySelector("figcaption").innerText.length];
        })""")
    assert [figure[0] for figure in figures] == FIGURES
    for name, width, height, words in figures:
        assert min(width, height) > 100, name
        assert words > 10, name
    images = browser.execute_script("return [...document.images].map(i => [i.complete, i.naturalWidth])")
    assert images == [[True, 64]] * 3
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("size", SIZES)
def test_nothing_is_wider_than_the_window(browser, page, size):
    show(browser, page, size)
    browser.execute_script("document.querySelectorAll('details').forEach(details => details.open = true)")
    wide, window = browser.execute_script(
        "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert window <= SIZES[size][0]
    assert wide <= window


@pytest.mark.parametrize("size", ["desk", "phone"])
def test_text_in_figures_is_legible_and_inside(browser, page, size):
    show(browser, page, size)
    texts = browser.execute_script("""
        return [...document.querySelectorAll("figure svg text")].map(text => {
            const box = text.getBoundingClientRect(), frame = text.closest("svg").getBoundingClientRect();
            const size = parseFloat(getComputedStyle(text).fontSize) * frame.width
                / text.closest("svg").viewBox.baseVal.width;
            const outside = Math.max(frame.left - box.left, box.right - frame.right,
                                     frame.top - box.top, box.bottom - frame.bottom);
            return [text.textContent, size, outside];
        })""")
    assert len(texts) > 80
    for text, size, outside in texts:
        assert size >= 9, text
        assert outside <= 1, text


@pytest.mark.parametrize(
    ("theme", "ground", "ink", "line"),
    [
        ("light", "rgb(255, 255, 255)", "rgb(27, 31, 36)", "rgb(0, 114, 178)"),
        ("dark", "rgb(18, 22, 27)", "rgb(231, 234, 238)", "rgb(86, 180, 233)"),
    ],
)
def test_figures_follow_the_theme(browser, page, theme, ground, ink, line):
    show(browser, page, theme=theme)
    colours = browser.execute_script("""
        const style = element => getComputedStyle(element);
        const figure = document.querySelector("#frechet-over-steps svg");
        return [style(document.body).backgroundColor,
                [...figure.querySelectorAll("text")].map(text => style(text).fill),
                [...figure.querySelectorAll("path")].map(path => style(path).stroke)]""")
    assert colours[0] == ground
    assert set(colours[1]) == {ink}
    assert line in colours[2]


def test_details_open(browser, page):
    show(browser, page)
    details = browser.find_elements("css selector", "details")
    assert len(details) == 6
    for element in details:
        content = element.find_element("css selector", ":scope > :not(summary)")
        assert not content.is_displayed()
        element.find_element("css selector", "summary").click()
        assert content.is_displayed()


def test_the_page_lets_no_script_run_and_no_request_leave(browser, page, tmp_path):
    intruder = """<script>document.title = "run"</script><img src="https://flowtempo.invalid/x.png">"""
    changed = tmp_path / "changed.html"
    text = page.read_text(encoding="utf-8")
    changed.write_text(text.replace("<main>", f"<main>{intruder}"), encoding="utf-8")
    show(browser, changed)
    assert browser.title == "flowtempo: where on the noise axis to train"
    refused = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert len(refused) == 2
    assert all("Content Security Policy" in message for message in refused)
