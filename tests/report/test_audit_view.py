"""The part of a page that shows an audit."""

from __future__ import annotations

import pytest

from fairmean.report import collect, html
from tests.report.making import made_study


def audited(verdicts, excess):
    """An audit as a run folder keeps it."""
    clients = [
        {
            "client": str(i),
            "verdict": verdict,
            "excess": value,
            "entropy": 0.1 * i if verdict != "too little data" else None,
            "loss": 1.0,
            "words": f"'{i}' is {verdict}.",
        }
        for i, (verdict, value) in enumerate(zip(verdicts, excess, strict=True))
    ]
    return {"clients": clients, "limit": 0.3, "notes": ["How it was found."]}


@pytest.fixture
def page(tmp_path):
    study = made_study()
    names = ["nothing unusual"] * 7 + ["served badly", "too little data", "contradicted"]
    for entry in study.entries:
        if entry.run is not None and entry.attack != "none":
            entry.run.audit = audited(names, [0.0, 0.1, -0.1, 0.0, 0.05, 0.0, 0.1, 0.0, None, 2.0])
    file = tmp_path / "page.html"
    file.write_text(html(collect(study)), encoding="utf-8")
    return file


def test_words_of_the_page(page):
    text = page.read_text(encoding="utf-8")
    part = text[text.index('<section id="audit"') : text.index('<section id="curves"')]
    assert "are contradicted by what the other clients" in part
    assert "&#x27;9&#x27; is contradicted." in part
    assert "nothing unusual." not in part
    assert "How it was found." in part


@pytest.mark.browser
def test_dots_are_drawn_and_a_client_is_followed(page, opened):
    view = opened(page).page
    dots = view.locator("#audit circle")
    assert dots.count() >= 9  # nine clients of each audited run; one has no place
    assert "9" in view.locator("#audit svg text.strong").all_text_contents()
    before = view.locator("#audit svg > g:last-child > *").count()
    view.fill("#client", "9")
    assert view.locator("#audit svg > g:last-child > *").count() > before
