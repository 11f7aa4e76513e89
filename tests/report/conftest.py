"""One headless chromium for all tests of pages, and pages that notice errors and requests."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fairmean.report import collect, html
from tests.report.making import made_study

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


@pytest.fixture(scope="session")
def browser():
    """Debian's chromium, driven by playwright; tests that need it are skipped where either is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no chromium on this machine")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Opened:
    """A page that was opened, with all that it logged, threw or asked for."""

    def __init__(self, browser, file: Path, width=1200, dark=False, csp=True, height=900, script=True):
        scheme = "dark" if dark else "light"
        self.context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            bypass_csp=not csp,
            java_script_enabled=script,
        )
        self.page = self.context.new_page()
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())
        if script:
            self.page.wait_for_selector("html[data-drawn]", timeout=20_000)

    def colours(self, selector: str) -> int:
        """How many different colours are in a picture: a blank one has one."""
        import io

        from PIL import Image

        element = self.page.locator(selector).first
        image = Image.open(io.BytesIO(element.screenshot())).convert("RGB")
        return len(image.getcolors(maxcolors=1 << 24) or [])

    def fits(self) -> bool:
        """Whether nothing is wider than the window."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))

    def drawn(self) -> float:
        """Milliseconds from the start of the page to the end of its first drawing."""
        return float(self.page.get_attribute("html", "data-drawn"))


@pytest.fixture
def opened(browser):
    """A function that opens a file; pages are closed, and what they logged or asked for is looked at, afterwards."""
    pages: list[Opened] = []

    def open_page(file: Path, **options) -> Opened:
        pages.append(Opened(browser, file, **options))
        return pages[-1]

    yield open_page
    for page in pages:
        page.context.close()
        assert page.problems == []
        assert [url for url in page.requests if not url.startswith(("file:", "blob:", "data:"))] == []


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """A function that writes a made study as a page; the same study is written once."""
    folder = tmp_path_factory.mktemp("pages")
    files: dict[str, Path] = {}

    def write_page(name: str, **options) -> Path:
        if name not in files:
            files[name] = folder / f"{name}.html"
            files[name].write_text(html(collect(made_study(**options))), encoding="utf-8")
        return files[name]

    return write_page
