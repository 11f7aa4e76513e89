"""A tracker that keeps what it is told, as a server would."""

from __future__ import annotations


class Fake:
    """A tracker that remembers what it is told, by hash."""

    told: dict[str, list[object]] = {}  # noqa: RUF012 - what a server would keep
    rounds: dict[str, int] = {}  # noqa: RUF012

    def __init__(self, place):
        self.place = place

    def start(self, run):
        self.run = run
        Fake.told.setdefault(run.hash, []).append(("start", run.name, run.group, dict(run.settings)))
        return Fake.rounds.get(run.hash, 0)

    def clients(self, t, ids, values):
        Fake.told[self.run.hash].append(("clients", t, list(ids), {k: list(v) for k, v in values.items()}))

    def round(self, t, figures):
        Fake.told[self.run.hash].append(("round", t, dict(figures)))
        Fake.rounds[self.run.hash] = t + 1

    def finish(self, summary, files):
        Fake.told[self.run.hash].append(("finish", dict(summary), [file.name for file in files]))
        return f"fake {self.place}"
