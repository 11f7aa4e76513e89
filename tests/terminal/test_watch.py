"""'fairmean watch': rounds, speeds and figures from growing folders; the end; the page for browsers."""

from __future__ import annotations

import http.client
import json
import math
import os
import pty
import re
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from fairmean.errors import UserError
from fairmean.experiments.following import Following
from fairmean.experiments.metrics import summarise
from fairmean.terminal import live_page, watching
from fairmean.terminal.gpu_memory import by_process
from fairmean.terminal.main import main
from fairmean.terminal.watching import Group, Watched, spark
from tests.terminal.made import MadeRun, accuracies, rows

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def at_work(here):
    """A run that has come through four of ten rounds."""
    run = MadeRun(here / "runs" / "made" / "abcdef123456").go_on(4)
    yield run
    run.stop()


def test_a_table_is_told_round_by_round_and_once(at_work):
    table = Following(at_work.folder)
    assert [news.round for news in table.news()] == [0, 1, 2]  # a row of round 3 might still come
    assert list(table.news()) == []
    at_work.go_on(1)
    assert [news.round for news in table.news()] == [3]
    with open(at_work.table, "a") as file:
        file.write(rows(5)[:-7])  # in the middle of a row
    assert [news.round for news in table.news()] == [4]
    with open(at_work.table, "a") as file:
        file.write(rows(5)[-7:])
    os.replace(at_work.table, at_work.folder / "clients.csv")
    last = list(table.news(whole=True))
    assert [news.round for news in last] == [5]
    assert last[0].clients == [0, 1, 2, 3]


def test_a_resumed_run_is_read_from_the_start(at_work):
    table = Following(at_work.folder)
    assert len(list(table.news(whole=True))) == 4
    at_work.table.write_text(at_work.table.read_text()[:200])
    assert next(iter(table.news())).round == 0


def test_figures_are_those_of_the_summary(at_work):
    news = next(iter(Following(at_work.folder).news()))
    told = np.array(accuracies(0))
    wanted = summarise(told, np.array(news.regular))
    assert news.figures() == pytest.approx({name: wanted[name] for name in ("average", "variance", "worst")})
    assert news.evaluated
    assert news.mean_loss() == pytest.approx(np.mean([2.0, 3.0, 4.0]))


def test_watching_a_real_run_to_its_end(here, own):
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "fairmean",
            "run",
            f"data.name={own}",
            "model.name=linear",
            "train.rounds=300",
            "--quiet",
        ],
        stdout=subprocess.DEVNULL,
    )
    group = Group([], "runs")
    seen: list[int] = []
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        group.look()
        seen += [run.round for run in group.runs]
        time.sleep(0.02)
    assert process.wait() == 0
    group.look()
    assert seen == sorted(seen)
    (run,) = group.runs
    summary = json.loads((run.folder / "summary.json").read_text())
    assert (run.status, run.round) == ("finished", 300)
    assert run.figures["average"][-1] == pytest.approx(summary["average"])
    assert run.figures["variance"][-1] == pytest.approx(summary["variance"])


def test_speed_and_time_left(at_work):
    for name, when in (("lock", 999), ("config.toml", 1000), ("clients.csv.part", 1006)):
        os.utime(at_work.folder / name, (when, when))
    run = Watched(at_work.folder)
    run.look()
    assert run.round == 2
    assert run.rounds_per_second == pytest.approx(2 / 6)  # from the beginning, at the first look
    at_work.go_on(4)
    os.utime(at_work.table, (1010, 1010))
    run.look()
    assert run.round == 6
    assert run.rounds_per_second == pytest.approx(1.0)
    assert run.seconds_left == pytest.approx(4.0)
    assert "round 6/10 · 1 rounds/s · 0:04 left" in run.lines({})[0]


def test_a_resumed_run_has_no_speed_at_the_first_look(at_work):
    for name, when in (("config.toml", 1000), ("lock", 5000), ("clients.csv.part", 5006)):
        os.utime(at_work.folder / name, (when, when))
    run = Watched(at_work.folder)
    run.look()
    assert math.isnan(run.rounds_per_second)
    assert "rounds/s" not in run.line({})


def test_sparklines():
    assert spark([1, 2, 3]) == "▁▅█"
    assert spark([5, 5]) == "▁▁"
    assert spark([math.nan, 1]) == " ▁"
    assert spark([]) == ""
    assert len(spark(list(range(100)), 7)) == 7


def test_without_a_terminal_one_line_per_run(at_work, here, capsys):
    MadeRun(here / "runs" / "made" / "fedcba654321").finish()
    assert main(["watch", "made"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert "abcdef12  fairmean · pairwise · seed 3 · round 2/10" in lines[0]
    assert re.search(r"fedcba65 .* finished · average 100\.5 · variance 0\.2 · worst 100\.0", lines[1])


def test_a_folder_of_runs_elsewhere(here, capsys):
    for name in ("one", "two"):
        MadeRun(here / "elsewhere" / name / "fedcba654321").finish()
    assert main(["watch", "elsewhere", "elsewhere/one/fedcba654321"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2  # each once


def test_as_json(at_work, capsys):
    assert main(["watch", "abc", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert (record["status"], record["round"], record["rounds"]) == ("running", 2, 10)
    assert record["average"] == pytest.approx(20.5)
    assert record["gpu_gib"] is None


def test_nothing_is_at_work(here, capsys):
    MadeRun(here / "runs" / "made" / "fedcba654321").finish()
    assert main(["watch"]) == 0
    assert "No run is at work in 'runs'" in capsys.readouterr().out
    assert main(["watch", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize("status", ["interrupted", "diverged"])
def test_how_a_run_ended(status, at_work, capsys):
    if status == "diverged":
        at_work.finish("diverged")
    else:
        at_work.stop()
    assert main(["watch", "abc", "--once"]) == 0
    assert f"{status} in round" in capsys.readouterr().out


def test_ends_when_all_have_ended_or_a_while_after_the_last(at_work):
    shown: list[list[str]] = []

    def show(group):
        shown.append(group.page(120, 30))
        if len(shown) == 3:
            at_work.finish()

    watching.until_ended(Group([at_work.folder]), 0.01, 99, show)
    assert len(shown) == 4
    assert "▁" in shown[0][1]
    assert "finished" in shown[3][0]

    clock = iter(range(100))
    looks: list[int] = []
    watching.until_ended(Group([], "runs"), 0.0, 5, lambda group: looks.append(1), lambda: next(clock))
    assert len(looks) == 5  # the clock is read twice at the first look


def test_a_page_fits_the_terminal(here):
    made = [MadeRun(here / "runs" / "made" / f"{k:012d}").go_on(4) for k in range(8)]
    for run in made[:5]:
        run.finish()
    group = Group([run.folder for run in made])
    group.look()
    lines = group.page(40, 10)
    assert len(lines) <= 9
    assert all(len(line) < 40 for line in lines)
    assert lines[0].startswith("… ")
    for run in made:
        run.stop()


def test_on_a_terminal_until_the_end(at_work, here):
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "fairmean", "watch", "abc", "--every", "0.1"],
        stdout=follower,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
    )
    os.close(follower)
    text = b""
    finished = False
    try:
        while chunk := os.read(leader, 4096):
            text += chunk
            if not finished and text.count(b"round 2/10") >= 2:
                at_work.finish()
                finished = True
    except OSError:  # how Linux says that the other end is closed
        pass
    assert process.wait(20) == 0
    shown = text.decode()
    assert "variance 0.2" in shown
    assert "\033[2F\033[J" in shown
    assert "finished" in shown.splitlines()[-1]


def test_ctrl_c_ends_it_and_is_no_error(at_work, monkeypatch, capsys):
    def interrupted(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr("fairmean.terminal.watching.is_terminal", lambda stream: True)
    monkeypatch.setattr(watching.time, "sleep", interrupted)
    assert main(["watch", "abc"]) == 0
    assert "round 2/10" in capsys.readouterr().out


def test_memory_of_a_gpu(here, monkeypatch, capsys):
    tool = here / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\necho '{os.getpid()}, 1536'\necho '{os.getpid()}, 512'\necho '7, [N/A]'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    assert by_process() == {os.getpid(): 2.0}
    run = MadeRun(here / "runs" / "made" / "abcdef123456", device="cuda").go_on(4)
    assert main(["watch"]) == 0
    assert "GPU 2.0 GiB" in capsys.readouterr().out
    run.stop()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "there is no run 'nowhere'"),
        (["--every", "0"], "--every 0"),
        (["--every", "nan"], "--every nan"),
        (["--port", "80"], "--web"),
    ],
)
def test_bad_input_is_one_line(arguments, says, capsys):
    assert main(["watch", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert says in err


def asked(server, path="/", host=None, method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request(method, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer, body


@pytest.fixture
def serving():
    """Starts a server for a page, and stops it after the test."""
    servers = []

    def serve(make, at_work=lambda: True, every=60.0):
        server = live_page.server(live_page.Page(make, every), at_work, every)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return server

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def test_the_page_is_made_at_most_once_in_a_while_and_renews_itself(serving):
    made = []

    def make():
        made.append(1)
        return f"<!doctype html>page {len(made)}"

    working = [True]
    server = serving(make, lambda: working[0])
    answer, body = asked(server)
    assert (answer.status, body, answer.getheader("Refresh")) == (200, "<!doctype html>page 1", "60")
    assert asked(server)[1] == body
    assert asked(server, method="HEAD")[1] == ""
    working[0] = False
    answer, _ = asked(server)
    assert answer.getheader("Refresh") is None
    assert len(made) == 1
    assert server.server_address[0] == "127.0.0.1"


def test_only_this_page_and_only_for_this_machine(serving):
    server = serving(lambda: "secret")
    for answer, body in (asked(server, "/runs/config.toml"), asked(server, host="evil.example")):
        assert answer.status in (403, 404)
        assert "secret" not in body


def test_what_is_wrong_is_said_in_the_page(serving):
    def make():
        raise UserError("run <b> has no rows yet")

    answer, body = asked(serving(make))
    assert answer.status == 200
    assert "run &lt;b&gt; has no rows yet" in body


def test_web_serves_the_report_of_the_watched_runs(at_work, monkeypatch, capsys):
    """With a report of the test's own: its page has its own tests."""
    asked_for, pages = [], []

    def html_of(folders):
        asked_for.append(folders)
        return "<!doctype html>the report"

    def serve_once(server, poll_interval):
        thread = threading.Thread(target=lambda: pages.append(asked(server)))
        thread.start()
        server.handle_request()
        thread.join()
        raise KeyboardInterrupt

    monkeypatch.setattr(live_page, "html_of", html_of)
    monkeypatch.setattr(live_page.ThreadingHTTPServer, "serve_forever", serve_once)
    assert main(["watch", "abc", "--web"]) == 0
    assert re.search(r"http://127\.0\.0\.1:\d+/", capsys.readouterr().out)
    assert pages[0][1] == "<!doctype html>the report"
    assert asked_for[-1] == [at_work.folder.relative_to(os.getcwd())]


def test_a_port_that_cannot_be_used(at_work, monkeypatch, capsys):
    monkeypatch.setattr(live_page, "html_of", lambda folders: "")
    for port in ("99999", "-1"):
        assert main(["watch", "abc", "--web", "--port", port]) == 2
        assert f"--port {port}" in capsys.readouterr().err


def test_html_of_calls_the_report(monkeypatch, at_work):
    import types

    fake = types.ModuleType("fairmean.report")
    fake.gather, fake.collect, fake.html = (lambda x: ("gathered", x)), (lambda x: ("collected", x)), repr
    monkeypatch.setitem(sys.modules, "fairmean.report", fake)
    assert live_page.html_of([at_work.folder]) == repr(("collected", ("gathered", [at_work.folder])))


def test_without_a_report_it_says_so(monkeypatch, at_work):
    monkeypatch.setitem(sys.modules, "fairmean.report", None)
    with pytest.raises(UserError, match=r"fairmean\.report"):
        live_page.html_of([at_work.folder])
