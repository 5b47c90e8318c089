"""report.html in a real browser: it renders, toggles, sorts, downloads, fits a phone, and ignores hostile text."""

from __future__ import annotations

import csv

import pytest
from browser import chromium, dark, need_browser, open_page, size
from page_kit import EVIL, hostile, hostile_manifest, make_page
from search_kit import make_state

from pddbench.report.capacity import document
from pddbench.report.html.capacity_page import page as capacity_page

PLOTS = ("curves", "buckets", "hits", "lanes", "gaps", "paired", "timeline")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A normal page and one made of hostile text."""
    need_browser()
    out = tmp_path_factory.mktemp("pages")
    for name, recipe in (("good", {}), ("hostile", {"edit": hostile, "manifest": hostile_manifest})):
        text, _ = make_page(tmp_path_factory.mktemp(name), sessions=60, **recipe)
        (out / f"{name}.html").write_text(text, encoding="utf-8")
    state = make_state(name=EVIL, invalid=("send_lag",))
    (out / "capacity.html").write_text(capacity_page(document(state)), encoding="utf-8")
    return out


@pytest.fixture(scope="module")
def driver(files):
    with chromium(downloads=files) as found:
        yield found


def run(driver, script, *arguments):
    return driver.execute_script(script, *arguments)


@pytest.fixture
def good(driver, files):
    size(driver, 1280)
    dark(driver, False)
    open_page(driver, files / "good.html")
    yield driver
    assert driver.get_log("browser") == []


@pytest.mark.parametrize("plot", PLOTS)
def test_every_plot_is_drawn(good, plot):
    """An exception in one plot would leave it and all later ones blank."""
    marks = run(good, "return document.querySelectorAll(`#${arguments[0]} svg :is(path, circle, rect)`).length", plot)
    assert marks > 3
    assert run(good, "return document.querySelectorAll(`#${arguments[0]} .empty`).length", plot) == 0


def test_a_series_can_be_switched_off_and_on(good):
    """Toggling an arm takes its line away and brings it back."""
    count = "return document.querySelectorAll('#curves .line').length"
    toggle = "document.querySelectorAll('#curves .legend button')[1].click()"
    before = run(good, count)
    run(good, toggle)
    assert run(good, count) == before - 1
    assert run(good, "return document.querySelectorAll('#curves .legend button')[1].ariaPressed") == "false"
    run(good, toggle)
    assert run(good, count) == before


def test_choices_redraw(good):
    """Choosing another metric, arm or quantile must change the picture."""
    for plot in ("curves", "lanes", "paired", "buckets", "gaps"):
        change = """const s = document.querySelector(`#${arguments[0]} select`); s.selectedIndex = 1;
                    s.dispatchEvent(new Event('change'))"""
        picture = "return document.querySelector(`#${arguments[0]} svg`).outerHTML"
        before = run(good, picture, plot)
        run(good, change, plot)
        assert run(good, picture, plot) != before, plot


def test_tables_sort(good):
    """A click sorts by the ratio to the first arm, a second the other way, the first column restores the order."""
    column = """const rows = [...document.querySelectorAll('#side-by-side tbody')][1].rows;
                return [...rows].map(r => r.cells[3]?.dataset.value ?? null)"""
    click = "document.querySelectorAll('#side-by-side thead button')[arguments[0]].click()"
    before = run(good, column)
    run(good, click, 3)
    known = [float(value) for value in run(good, column) if value]
    assert known == sorted(known, reverse=True) and len(known) > 5
    run(good, click, 3)
    known = [float(value) for value in run(good, column) if value]
    assert known == sorted(known)
    run(good, click, 0)
    assert run(good, column) == before


def test_hover_shows_values(good):
    """The exact figure behind a point is a hover away."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    dot = good.find_elements(By.CSS_SELECTOR, "#buckets .dot")[0]
    run(good, "arguments[0].scrollIntoView({block: 'center'})", dot)
    ActionChains(good).move_to_element(dot).perform()
    tip = good.find_element(By.ID, "tip")
    assert tip.is_displayed() and "baseline" in tip.text and "[" in tip.text


def test_every_plot_has_its_data_as_csv(good, files):
    """The data behind a plot must be had without reading Parquet."""
    from selenium.webdriver.support.ui import WebDriverWait

    for plot in PLOTS:
        run(good, "document.querySelector(`#${arguments[0]} .download`).click()", plot)
        file = files / f"{plot}.csv"
        WebDriverWait(good, 20).until(lambda _, file=file: file.exists() and file.stat().st_size)
        rows = list(csv.reader(file.open(encoding="utf-8")))
        assert len(rows) > 5 and len({len(row) for row in rows}) == 1, plot


@pytest.mark.parametrize("width", [320, 375, 768, 1280, 2560])
@pytest.mark.parametrize("name", ["hostile", "capacity"])
def test_no_sideways_scroll(driver, files, name, width):
    """A phone must not have to scroll the page sideways; tables scroll inside their card."""
    size(driver, width)
    open_page(driver, files / f"{name}.html")
    wide, seen = run(driver, "const d = document.documentElement; return [d.scrollWidth, d.clientWidth]")
    assert wide <= seen == width


def test_sections_fold(driver, files):
    """On a phone a table of sixty rows stands between a reader and the plots: its later sections begin folded."""
    size(driver, 375)
    open_page(driver, files / "good.html")
    shown = """return [...document.querySelectorAll('#side-by-side tbody')].map(b => b.rows[1].offsetHeight > 0)"""
    before = run(driver, shown)
    assert before[:2] == [True, True] and not any(before[2:])
    run(driver, "document.querySelectorAll('#side-by-side .fold')[2].click()")
    assert run(driver, shown)[2]
    size(driver, 1280)
    open_page(driver, files / "good.html")
    assert all(run(driver, shown))


def test_a_capacity_search_is_drawn(driver, files):
    """Runs, curve and knee of each arm, hollow where a run was not used; its data as CSV; nothing from a name runs."""
    from selenium.webdriver.support.ui import WebDriverWait

    size(driver, 1280)
    driver.get_log("browser")
    open_page(driver, files / "capacity.html")
    count = "return document.querySelectorAll(`#load ${arguments[0]}`).length"
    assert [run(driver, count, mark) for mark in (".line", ".step", ".band", ".spoilt")] == [3, 3, 3, 3]
    run(driver, "document.querySelector('#load .download').click()")
    WebDriverWait(driver, 20).until(lambda _: (files / "load.csv").exists() and (files / "load.csv").stat().st_size)
    rows = list(csv.reader((files / "load.csv").open(encoding="utf-8")))
    assert sum(row[1] == "run" for row in rows) == 24
    assert run(driver, "return window.pwned") is None and driver.get_log("browser") == []


def test_dark_is_dark(driver, files):
    """A page that stays white at night is not read."""
    size(driver, 1280)
    colours = []
    for on in (False, True):
        dark(driver, on)
        open_page(driver, files / "good.html")
        text = run(driver, "return getComputedStyle(document.body).backgroundColor")
        colours.append(sum(int(part) for part in text[4:-1].split(",")))
    assert colours[0] > 600 and colours[1] < 150


def test_hostile_text_does_nothing(driver, files):
    """A model, error or session name with markup in it is shown, never run."""
    size(driver, 1280)
    driver.get_log("browser")
    open_page(driver, files / "hostile.html")
    assert run(driver, "return window.pwned") is None
    assert run(driver, "return document.images.length") == 0
    assert run(driver, "return document.querySelectorAll('script').length") == 2
    assert "window.pwned" in run(driver, "return document.body.textContent")
    assert driver.get_log("browser") == []


def test_the_policy_stops_what_gets_in(driver, files):
    """The second line of defence: even an element that got into the page cannot run a handler."""
    open_page(driver, files / "good.html")
    run(driver, "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.pwned=1\">')")
    driver.execute_async_script("setTimeout(arguments[0], 300)")
    assert run(driver, "return window.pwned") is None
    assert any("Content Security Policy" in entry["message"] for entry in driver.get_log("browser"))


def test_a_failed_request_is_seen(driver, files):
    """Failures end a percentile line upwards; hiding them would flatter an arm."""
    size(driver, 1280)
    open_page(driver, files / "hostile.html")
    assert run(driver, "return document.querySelectorAll('#curves .failed').length") == 1
    assert "failed" in run(driver, "return document.querySelector('#curves .note').textContent")
