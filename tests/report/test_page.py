"""The page in a browser: it draws, asks for nothing, and is worked by mouse and by keyboard, on any screen."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

import fairmean
from fairmean.report import write
from fairmean.terminal.main import main

pytestmark = pytest.mark.browser

PICTURES = ("tradeoff", "clients", "spread", "curves", "partition")


def no_violations(page) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    found = axe.Axe().run(page.page)
    assert found.violations_count == 0, found.generate_report()


@pytest.fixture(scope="module")
def study(written):
    """Three methods, two attacks, twenty draws."""
    return written("study", seeds=tuple(range(1, 21)))


@pytest.mark.parametrize("look", [{}, {"dark": True}, {"width": 390}, {"width": 390, "dark": True}], ids=str)
def test_everything_is_drawn_fits_and_is_accessible(study, opened, look):
    page = opened(study, **look)
    for name in PICTURES:
        assert page.colours(f".plot[data-view={name}]") > 40, name
    assert page.page.locator(".plot[data-view=weights]").count() == 3
    assert page.colours(".plot[data-view=weights]") > 20
    assert page.fits()
    page.page.fill("#client", "3")
    assert page.fits()


@pytest.mark.parametrize("look", [{}, {"dark": True}, {"width": 390}], ids=str)
@pytest.mark.parametrize("state", ["fresh", "used"])
def test_axe_finds_nothing(study, opened, look, state):
    page = opened(study, csp=False, **look)
    if state == "used":
        page.page.fill("#client", "9")
        page.page.select_option("#attack", "0")
        page.page.locator("th[data-column='3'] button").click()
        page.page.locator("details summary").first.click()
        page.page.locator(".plot[data-view=clients]").hover()
    no_violations(page)


def test_canvas_follows_the_theme(study, opened):
    page = opened(study)
    pick = "canvas => canvas.toDataURL()"
    light = page.page.locator(".plot[data-view=partition] canvas").evaluate(pick)
    page.page.emulate_media(color_scheme="dark")
    for _ in range(50):  # the browser tells the page of the change at its next frame
        dark = page.page.locator(".plot[data-view=partition] canvas").evaluate(pick)
        if dark != light:
            break
        page.page.wait_for_timeout(50)
    assert light != dark


def methods(page):
    return page.page.locator(".results tbody th").all_inner_texts()


def test_sort_by_mouse_and_by_keyboard(study, opened):
    page = opened(study)
    before = methods(page)
    worst = page.page.locator("th[data-column='6']")
    worst.locator("button").click()
    assert worst.get_attribute("aria-sort") == "descending"
    figures = [
        float(v)
        for v in page.page.locator(".results tbody tr").evaluate_all("rows => rows.map(r => r.cells[6].dataset.value)")
    ]
    assert figures == sorted(figures, reverse=True)
    worst.locator("button").focus()
    page.page.keyboard.press("Enter")
    assert worst.get_attribute("aria-sort") == "ascending"
    assert methods(page)[-1].strip() == "method-2"
    page.page.locator("th[data-column='0'] button").press("Space")
    assert sorted(methods(page)) == methods(page)
    assert page.page.locator("[aria-sort=ascending]").count() == 1
    assert sorted(before) == methods(page)


def test_follow_by_mouse(study, opened):
    page = opened(study)
    said = page.page.locator("#followed")
    assert "Click on a client" in said.inner_text()
    heat = page.page.locator(".plot[data-view=clients]")
    box = heat.bounding_box()
    heat.click(position={"x": box["width"] - 20, "y": 60})
    assert "(poisoned)" in said.inner_text()
    client = page.page.input_value("#client")
    assert said.inner_text().startswith(f"Client {client} (poisoned): mean ")
    for name in ("tradeoff", "clients", "spread", "curves", "partition"):  # the front layer holds the marks
        assert page.page.locator(f".plot[data-view={name}] svg > g:nth-of-type(2) > *").count() > 0, name
    assert page.page.locator(".plot[data-view=weights] .ring").count() == 3
    page.page.click("#nobody")
    assert page.page.locator(".plot[data-view=clients] .ring").count() == 0


def test_follow_by_keyboard(study, opened):
    page = opened(study)
    keyboard = page.page.keyboard
    page.page.focus("#client")
    keyboard.type("4")
    assert page.page.locator("#followed").inner_text().startswith("Client 4:")
    keyboard.press("ArrowUp")
    assert page.page.input_value("#client") == "5"
    keyboard.press("ArrowDown")
    assert page.page.input_value("#client") == "4"
    page.page.fill("#client", "400")
    assert page.page.locator("#followed").inner_text() == "There is no client “400”. Clients are numbered 0 to 9."
    slider = page.page.locator(".plot[data-view=clients] svg")
    slider.focus()
    keyboard.press("Home")
    first = slider.get_attribute("aria-valuetext")
    keyboard.press("ArrowRight")
    assert slider.get_attribute("aria-valuenow") == "1"
    assert slider.get_attribute("aria-valuetext") != first
    assert page.page.locator("#followed").get_attribute("aria-live") == "polite"
    keyboard.press("Escape")
    assert page.page.input_value("#client") == ""


def test_filter_by_attack_and_draw(study, opened):
    page = opened(study)
    page.page.fill("#client", "9")
    attacked = page.page.locator("#followed").inner_text()
    page.page.select_option("#attack", "0")
    calm = page.page.locator("#followed").inner_text()
    assert "(poisoned)" in attacked
    assert "(poisoned)" not in calm
    page.page.select_option("#draw", "7")
    assert page.page.locator("#followed").inner_text() != calm
    before = page.colours(".plot[data-view=partition]")
    assert before > 20


def test_on_a_phone_the_table_shows_the_chosen_attack(study, opened):
    page = opened(study, width=390)
    assert page.page.locator(".results thead .group:visible").all_inner_texts() == ["pairwise"]
    page.page.select_option("#attack", "0")
    assert page.page.locator(".results thead .group:visible").all_inner_texts() == ["no attack"]


def test_prints_whole(study, opened, tmp_path):
    page = opened(study, dark=True)
    pdf = page.page.pdf(format="A4")
    assert pdf.startswith(b"%PDF")
    pages = pdf.count(b"/Type /Page\n") or pdf.count(b"/Type /Page ") or pdf.count(b"/Type/Page/")
    assert 2 <= pages <= 12
    drawn = []
    for one in (page, opened(study)):  # paper is light, whatever the screen is
        one.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        drawn.append(one.page.locator("[data-view=partition] canvas").evaluate("canvas => canvas.toDataURL()"))
    assert drawn[0] == drawn[1]
    page.page.emulate_media(media="print")
    assert page.page.evaluate("getComputedStyle(document.body).color") == "rgb(28, 31, 36)"
    assert page.page.locator(".toolbar").is_hidden()
    assert page.page.locator("#repeat").is_visible()


def test_reads_without_scripts(study, opened):
    page = opened(study, script=False)
    assert page.page.locator("h1").is_visible()
    assert page.page.locator(".results tbody tr").count() == 3
    assert page.page.locator(".toolbar").is_hidden()


def test_a_thousand_clients(written, opened):
    options = {"methods": 8, "attacks": ("none", "pairwise", "random"), "seeds": (1, 2, 3)}
    file = written("thousand", clients=1000, rounds=50, untested=range(0, 1000, 3), **options)
    assert file.stat().st_size < 3_000_000
    times = []
    for _ in range(2):  # the machine may be busy with something else once
        page = opened(file)
        times.append(page.drawn())
    assert min(times) < 1500
    for name in PICTURES:
        assert page.colours(f".plot[data-view={name}]") > 40, name
    assert page.fits()
    notes = " ".join(page.page.locator(".note").all_inner_texts())
    assert "kept for draw 1 only" in notes
    assert "recorded rounds, 12 are drawn" in notes


def test_ten_thousand_clients_open_and_say_what_is_thinned(written, opened):
    page = opened(written("many", methods=3, attacks=("pairwise",), seeds=(1,), clients=10_000, rounds=20))
    assert page.colours(".plot[data-view=clients]") > 40
    assert "clients of 10,000" in " ".join(page.page.locator(".note").all_inner_texts())
    page.page.fill("#client", "9999")
    assert page.page.locator("#followed").inner_text().startswith("Client 9999 (poisoned)")


def test_forty_methods(written, opened):
    page = opened(written("forty", methods=40), csp=False)
    assert page.page.locator(".results tbody tr").count() == 40
    assert page.fits()
    words = "The highest and the lowest under pairwise are shown, 12 of 78 differences."
    assert words in page.page.locator(".forest-figure").inner_text()
    chosen = page.page.locator(".chooser button[aria-pressed=true]")
    assert chosen.count() == 7
    page.page.locator(".chooser button[aria-pressed=false]").first.click()
    assert chosen.count() == 7
    no_violations(page)


LABELS = """() => [...document.querySelectorAll('[data-view=tradeoff] .halo, [data-view=curves] .strong')].map(t => {
  const box = t.getBoundingClientRect();
  return [box.left, box.top + 3, box.right, box.bottom - 3, t.textContent];
})"""


@pytest.mark.parametrize("count", [3, 40])
@pytest.mark.parametrize("width", [390, 1200])
def test_no_label_lies_on_another(written, opened, count, width):
    page = opened(written(f"labels-{count}", methods=count), width=width, csp=False)
    boxes = page.page.evaluate(LABELS)
    assert len(boxes) >= 3
    for i, one in enumerate(boxes):
        for other in boxes[:i]:
            apart = one[0] >= other[2] or one[2] <= other[0] or one[1] >= other[3] or one[3] <= other[1]
            assert apart, (one[4], other[4])


NASTY = "<b>bold</b> & \"it's\" </script><script>document.title='owned'</script>"


def test_names_with_markup_stay_text(written, opened):
    names = [f"<i>site {i}</i>" for i in range(10)]
    page = opened(written("markup", methods=["mean", NASTY], attacks=("<u>a</u>",), title="<i>t</i>", names=names))
    assert page.page.title().startswith("<i>t</i>: ")
    assert page.page.locator("main b:has-text('bold'), main i:has-text('site'), main u").count() == 0
    assert NASTY in " ".join(methods(page))
    page.page.fill("#client", "<i>site 9</i>")
    assert page.page.locator("#followed").inner_text().startswith("Client <i>site 9</i> (poisoned): mean")
    assert page.page.locator("script").count() == 2


def test_a_study_of_twenty_draws_that_was_really_run(own, here, opened):
    found = fairmean.compare(
        methods=["mean", "fairmean:kappa=1"],
        attacks=["none", "pairwise"],
        seeds=list(range(1, 21)),
        data={"name": own},
        partition={"clients": 6},
        train={"rounds": 4, "lr": 0.5},
        run={"name": "small", "eval_every": 1},
        model={"name": "linear"},
    )
    file = write(found, here / "report.html")
    assert write("runs/small", here / "again.html").read_text() == file.read_text()
    page = opened(file, csp=False)
    for name in PICTURES:
        assert page.colours(f".plot[data-view={name}]") > 20, name
    shown = page.page.locator(".results tbody tr").first.locator("td").first.get_attribute("data-value")
    assert float(shown) == pytest.approx(found.cells["mean", "none"].estimate("average")[0], abs=1e-5)
    assert "fairmean compare --methods mean,fairmean:kappa=1" in page.page.locator(".command code").inner_text()
    no_violations(page)
    assert "<svg" in found._repr_html_()


def test_the_demos_report(here, opened, capsys):
    """The command of 'make demo', with two rounds."""
    recipe = (Path(__file__).parents[2] / "Makefile").read_text(encoding="utf-8")
    (words,) = re.findall(r"^\t\$\(BIN\)/fairmean (compare run\.name=demo .*)$", recipe, re.MULTILINE)
    assert main([*words.replace("train.rounds=150", "train.rounds=2").split(), "--quiet"]) == 0
    assert "report: report.html (open it in a browser)" in capsys.readouterr().out
    page = opened(here / "report.html", csp=False)
    for name in PICTURES:
        assert page.colours(f".plot[data-view={name}]") > 20, name
    assert page.page.locator(".results tbody tr").count() == 6
    assert page.fits()
    no_violations(page)


SITES = [
    "Ulm, Donau",
    'Bern "Insel"',
    "<b>Graz</b>",
    "Oslo & Co",
    *(f"a site with a long name, no. {i}" for i in range(8)),
]


@pytest.fixture(scope="module")
def errors(written):
    """A study of errors of named clients."""
    return written(
        "errors", task="regression", data="own.csv", names=SITES, clients=12, seeds=tuple(range(1, 9)), gain=15
    )


@pytest.mark.parametrize("look", [{}, {"width": 390, "dark": True}], ids=str)
def test_a_report_on_errors(errors, opened, look):
    page = opened(errors, csp=False, **look)
    for name in PICTURES:
        assert page.colours(f".plot[data-view={name}]") > 20, name
    assert page.fits()
    worst = page.page.locator("th[data-column='6']")
    worst.locator("button").click()
    assert worst.get_attribute("aria-sort") == "ascending"  # the best first, and that is the smallest error
    assert methods(page)[0].strip() == "method-2"
    page.page.fill("#client", "graz")
    said = page.page.locator("#followed").inner_text()
    assert said.startswith("Client <b>Graz</b>: RMSE mean ")
    assert re.search(
        r"method-2 \d+\.\d \(\d+\.\d to \d+\.\d\)\. In brackets: 95 % intervals from 66 test samples\.$", said
    )
    assert page.page.locator("#names option").count() == 12
    page.page.fill("#client", 'Bern "Insel"')
    assert page.page.locator("#followed").inner_text().startswith('Client Bern "Insel": ')
    no_violations(page)


def test_a_client_with_one_test_sample_has_no_interval(written, opened):
    page = opened(written("one-sample", task="regression", clients=201, seeds=(1,), methods=2))
    page.page.fill("#client", "150")
    assert page.page.locator("#followed").inner_text().endswith(" It has 1 test sample.")


def test_good_is_bright_and_worst_comes_first(errors, opened):
    """In the heat map the errors of a row fall from left to right, and the brightest field is the smallest error."""
    page = opened(errors)
    page.page.select_option("#attack", "0")
    heat = page.page.locator("[data-view=clients]")
    texts = [float(t) for t in heat.locator("text").all_text_contents() if re.fullmatch(r"\d+", t)]
    ends = texts[-2:]
    assert ends[0] > ends[1]  # the legend goes from bad to good
    served = [sum(texts[row * 12 + column] for row in range(3)) for column in range(12)]
    assert max(b - a for a, b in itertools.pairwise(served)) <= 3  # the fields are rounded
    assert "↙ better for both" in page.page.locator("[data-view=tradeoff]").text_content()
    brightness = """host => {
      const canvas = host.querySelector('canvas'), scale = canvas.width / host.clientWidth;
      const row = canvas.getContext('2d').getImageData(0, 44 * scale, canvas.width, 1).data;
      return [0.2, 0.98].map(share => {
        const at = 4 * Math.round(share * canvas.width);
        return 0.3 * row[at] + 0.6 * row[at + 1] + 0.1 * row[at + 2];
      });
    }"""
    left, right = heat.evaluate(brightness)
    assert 0 < left < right
