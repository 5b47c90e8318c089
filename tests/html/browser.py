"""A headless Debian chromium for the page's tests: what it logged, how it looks, what its scripts left behind."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

APT = "apt-get install chromium chromium-driver (and pip install -e '.[browser]')"
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
          "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars")  # fmt: skip


def missing() -> str | None:
    """What is not installed that a browser test needs."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium"
    return next((name for name in ("chromium", "chromedriver") if shutil.which(name) is None), None)


def need_browser() -> None:
    """Skip, or fail in CI, where there is no browser."""
    name = missing()
    if name and os.environ.get("CI") == "true":
        pytest.fail(f"{name} is missing: {APT}")
    if name:
        pytest.skip(f"{name} is missing: {APT}")


@contextmanager
def chromium(width: int = 1280, height: int = 900, downloads: Path | None = None) -> Iterator[Any]:
    """A driver with a profile of its own that is gone afterwards."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    with TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = str(shutil.which("chromium"))
        for flag in (*_FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        if downloads:
            options.add_experimental_option(
                "prefs",
                {
                    "download.default_directory": str(downloads),
                    "profile.default_content_setting_values.automatic_downloads": 1,
                },
            )
        driver = webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
        try:
            yield driver
        finally:
            driver.quit()


def size(driver: Any, width: int, height: int = 900) -> None:
    """The page's own width, below the least that a window can have too."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def dark(driver: Any, on: bool = True) -> None:
    """Ask for the dark or the light scheme."""
    features = [{"name": "prefers-color-scheme", "value": "dark" if on else "light"}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def open_page(driver: Any, file: Path) -> None:
    """Open a file and wait until its script is through."""
    from selenium.webdriver.support.ui import WebDriverWait

    driver.get(file.resolve().as_uri())
    WebDriverWait(driver, 30).until(lambda d: d.execute_script("return document.documentElement.dataset.ready"))
    driver.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))")
