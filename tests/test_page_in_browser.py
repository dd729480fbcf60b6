"""The page in a real browser: loads nothing, complains of nothing, shows every picture, fits phone and desktop."""

import pytest
from chromium import Browser, find
from fabricated_finals import EVERYONE, grid_finals
from fabricated_recording import FINGERPRINT
from fabricated_servings import serving_rows

from cudal2.cli.main import main
from cudal2.records.latency import KIND
from cudal2.records.shards import RecordLog

CHROMIUM = find()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium or chrome on PATH: apt-get install chromium")

#: Width in CSS pixels, and whether the reader prefers dark.
VIEWS = [(390, False), (1280, False), (390, True), (1280, True)]
IMAGES = """Promise.all([...document.images].map(async (image) => {
  await image.decode();
  return [image.dataset.name, image.naturalWidth, image.naturalHeight, image.clientWidth, image.clientHeight];
}))"""
CONTRAST = """(() => {
  const parse = (text) => text.match(/[0-9.]+/g).slice(0, 3).map(Number);
  const light = (text) => {
    const linear = (c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = parse(text).map((c) => linear(c / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = light(getComputedStyle(document.body).backgroundColor);
  return [...document.querySelectorAll("p, td, th, a, small, figcaption, pre, h1, h2, h3")].map((node) => {
    const ink = light(getComputedStyle(node).color);
    return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
  }).reduce((a, b) => Math.min(a, b));
})()"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A page of 96 shapes with every optional contestant in two leaderboards, one of server mode, and a browser."""
    folder = tmp_path_factory.mktemp("page")
    with RecordLog(folder / "finals", FINGERPRINT) as log:
        log.append(grid_finals(96))
    with RecordLog(folder / "latency", FINGERPRINT) as log:
        for mnk in ("64_64_64", "16384_16384_16384"):
            for served in serving_rows(mnk, 10.0, {name: 12.0 for name in EVERYONE}):
                log.write_row(KIND, served.to_dict())
    path = folder / "page.html"
    given = ["--finals", str(folder / "finals"), "--latency", str(folder / "latency")]
    assert main(["report", *given, "--html", str(path)]) == 0
    with Browser(CHROMIUM, folder / "profile") as browser:
        yield browser, path


@pytest.mark.parametrize(("width", "dark"), VIEWS)
def test_the_page_as_a_reader_sees_it(shown, width, dark):
    browser, path = shown
    browser.open(path, width=width, dark=dark)
    images = browser.evaluate(IMAGES)
    assert [name for name, *_ in images] == [*["heatmap", "ecdf", "floor", "flops", "roofline"] * 2, "ecdf"]
    assert all(size > 100 for _, *sizes in images for size in sizes)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
    assert browser.evaluate("document.body.scrollWidth") <= width
    assert browser.requests() == [path.as_uri()], "the page asked for something"
    assert browser.complaints() == []


@pytest.mark.parametrize("dark", [False, True])
def test_every_text_stands_out_from_its_background(shown, dark):
    browser, path = shown
    browser.open(path, width=1280, dark=dark)
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") is not dark
    assert browser.evaluate(CONTRAST) >= 4.5, "WCAG 2 AA"


def test_a_click_on_a_head_sorts_the_shapes(shown):
    browser, path = shown
    browser.open(path, width=1280)
    rows = "[...document.querySelectorAll('#shapes-offline-fp32-on tbody tr')]"
    column = f"{rows}.map((row) => Number(row.cells[2].textContent))"
    before = browser.evaluate(column)
    browser.evaluate("document.querySelectorAll('#shapes-offline-fp32-on th button')[2].click()")
    assert browser.evaluate(column) == sorted(before) != before


def test_the_browser_of_these_tests_notices_what_they_look_for(shown, tmp_path):
    browser, _ = shown
    bad = tmp_path / "bad.html"
    bad.write_text(
        '<body style="margin:0"><div style="width:900px">wide</div><img src="http://127.0.0.1:9/x.png">'
        "<script>console.error('one'); throw new Error('two')</script>"
    )
    browser.open(bad, width=390)
    assert browser.evaluate("document.documentElement.scrollWidth") >= 900
    assert browser.requests() == [bad.as_uri(), "http://127.0.0.1:9/x.png"]
    assert len(browser.complaints()) >= 3
