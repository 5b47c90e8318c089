"""The live page in a real browser: it draws, fits a phone, ignores hostile names, says when the run is over."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from live_kit import S, board, busy_board, served

sys.path.insert(0, str(Path(__file__).parents[1] / "html"))
from browser import chromium, dark, need_browser, size

EVIL = "<img src=x onerror=window.pwned=1><script>window.pwned=1</script>"


@pytest.fixture(scope="module")
def driver():
    need_browser()
    with chromium() as found:
        yield found


def open_live(driver, where):
    from selenium.webdriver.support.ui import WebDriverWait

    driver.get(where)
    WebDriverWait(driver, 30).until(lambda d: d.execute_script("return document.documentElement.dataset.ready"))


@pytest.mark.parametrize("width", [320, 375, 1600])
def test_it_draws_and_fits(driver, width):
    """A phone beside the terminal is where a long run is watched."""
    size(driver, width)
    dark(driver, width == 375)
    with served(busy_board()) as where:
        open_live(driver, where)
        text = driver.execute_script("return document.body.innerText")
        wide = driver.execute_script("return document.documentElement.scrollWidth")
    assert "2 of 2 runs" in text and "8 / 10" in text and "inf" in text and "own health" in text
    assert wide <= width
    assert not [one for one in driver.get_log("browser") if "ERR_CONNECTION" not in one["message"]]


def test_hostile_names_are_text(driver):
    """The experiment's name and a server's words come from others."""
    size(driver, 1280)
    made = busy_board()
    made.announced.name = EVIL
    made.watches[0].arm = EVIL
    with served(made) as where:
        open_live(driver, where)
        assert driver.execute_script("return window.pwned ?? null") is None
        assert EVIL in driver.execute_script("return document.getElementById('name').textContent")
        assert driver.execute_script("return document.images.length") == 0


def test_it_says_when_nobody_answers_any_more(driver):
    """A page that stands still looks like a run that hangs."""
    from selenium.webdriver.support.ui import WebDriverWait

    with served(board()) as where:
        open_live(driver, where)
    WebDriverWait(driver, 30).until(
        lambda d: "the run is over" in d.execute_script("return document.getElementById('state').textContent")
    )


def test_a_run_without_requests_yet_is_drawn(driver):
    """The first seconds of every run: nothing is known, and no exception hides the page."""
    made = board()
    with served(made) as where:
        open_live(driver, where)
        assert "starting" in driver.execute_script("return document.body.innerText")
    assert made.snapshot(5 * S)["runs"][0]["ttft_s"]["p50"] is None
