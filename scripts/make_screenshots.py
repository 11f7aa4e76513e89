"""Makes docs/report/*.png: the report of a small comparison of 20 draws, which is run for it, in three looks.

python scripts/make_screenshots.py          # needs chromium and playwright; about a minute on one core
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

import fairmean
from fairmean import report

PLACE = Path(__file__).resolve().parents[1] / "docs" / "report"
METHODS = ["mean", "fairmean:kappa=1", "fairmean-split"]
LOOKS: tuple[tuple[str, int, int, Literal["light", "dark"]], ...] = (
    ("light", 1200, 2080, "light"),
    ("dark", 1200, 2080, "dark"),
    ("phone", 390, 1700, "light"),
)


def main() -> int:
    """Run the comparison, open its report in each look, follow a client, and keep what is seen."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        print("chromium is not installed", file=sys.stderr)
        return 1
    PLACE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        settings: dict[str, Any] = {
            "train.rounds": 15,
            "train.lr": 0.2,
            "model.name": "linear",
            "run.name": "demo",
            "run.eval_every": 1,
        }
        attacks, seeds = ["none", "random_class"], list(range(1, 21))
        study = fairmean.compare(methods=METHODS, attacks=attacks, seeds=seeds, **settings)
        file = report.write(study, Path(folder) / "report.html")
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            for name, width, height, scheme in LOOKS:
                _shoot(browser, file, name, width, height, scheme)
            browser.close()
    return 0


def _shoot(browser: Browser, file: Path, name: str, width: int, height: int, scheme: Literal["light", "dark"]) -> None:
    """One picture; the pointer and the focus are put where they do not show."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = context.new_page()
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-drawn]")
    page.fill("#client", "9")
    page.locator("h1").click()
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    target = PLACE / f"{name}.png"
    image.save(target, optimize=True)
    print(f"{target.name}: {target.stat().st_size / 1000:.0f} KB")
    context.close()


if __name__ == "__main__":
    sys.exit(main())
