from __future__ import annotations

import sys
from pathlib import Path

import pytest

# The records that the report's own tests are made from.
sys.path.insert(0, str(Path(__file__).parents[1] / "report"))

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A headless Chromium with an empty profile."""
    for program, package in ((CHROMIUM, "chromium"), (DRIVER, "chromium-driver")):
        if not program.exists():
            pytest.skip(f"{program} is missing: install the Debian package {package}")
    webdriver = pytest.importorskip("selenium.webdriver")
    service = pytest.importorskip("selenium.webdriver.chrome.service")
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, service.Service(str(DRIVER)))
    yield driver
    driver.quit()
