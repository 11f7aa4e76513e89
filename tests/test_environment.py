"""What a run was made with."""

from __future__ import annotations

import subprocess

from fairmean.experiments import environment


def test_the_commit_is_fairmeans_own(tmp_path, monkeypatch):
    """Installed inside somebody's repository, ignored by it, fairmean has no commit."""
    place = tmp_path / "theirs" / ".venv" / "fairmean"
    place.mkdir(parents=True)
    for command in (
        ["init", "-q"],
        ["-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-q", "--allow-empty", "-m", "x"],
    ):
        subprocess.run(["git", *command], cwd=tmp_path / "theirs", check=True)
    (place / "environment.py").write_text("")
    monkeypatch.setattr(environment, "__file__", str(place / "environment.py"))
    assert environment._commit.__wrapped__() is None
    subprocess.run(["git", "add", "-f", "."], cwd=tmp_path / "theirs", check=True)
    assert environment._commit.__wrapped__() is not None
