"""Run folders with damaged files: whoever reads them says so in a line, or makes do with what is there."""

from __future__ import annotations

import json

import pytest

from fairmean.terminal.main import main
from tests.terminal.made import MadeRun

DAMAGE = {
    "empty": b"",
    "binary": bytes(range(256)),
    "not of its kind": b'{"status": 3, "average": "high"}[',
    "other values": b'{"status": "finished", "average": "high", "worst": null, "format": 99}',
    "odd rows": b"round,client\n1,x,1,a,b,c,d\n2\n3,1,1,high,,,\n4,0,1,1.0,,nan,nan\n",
    "odd settings": b'seed = "x"\n[train]\nrounds = "ten"\n[method]\nname = 3\n',
    "a folder": None,
}
VERBS = (
    ["watch", "abc"],
    ["watch", "--json", "abc"],
    ["export", "abc", "--to", "tensorboard"],
    ["ls"],
    ["ls", "--csv"],
)


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["config.toml", "clients.csv", "summary.json", "run.json", "lock"])
def test_a_damaged_file(name, damage, here, fake, capsys):
    run = MadeRun(here / "runs" / "made" / "abcdef123456").finish()
    file = run.folder / name
    file.unlink()
    content = DAMAGE[damage]
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    for words in VERBS:
        code = main(words)
        out, err = capsys.readouterr()
        assert code in (0, 2), words
        assert err.count("\n") == (1 if code else 0), (words, err)
        if code == 0 and "--json" in words:
            json.loads(out)
