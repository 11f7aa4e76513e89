"""The page about one's own loop: its blocks run one after the other, as a world of one rank."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch.distributed as dist

PAGE = (Path(__file__).parents[2] / "docs" / "your-own-loop.md").read_text(encoding="utf-8")


@pytest.fixture
def one_rank(tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:FairMeanLoss. there is one process")
def test_the_blocks_run(one_rank, capsys):
    pytest.importorskip("pandas", reason="pandas is not installed: pip install pandas")
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) >= 9
    space: dict[str, object] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"your-own-loop.md, block {number}", "exec"), space)
    running, weights, trust = map(eval, capsys.readouterr().out.splitlines())
    assert running.keys() == weights.keys() == trust.keys() == {"east", "north", "south"}
    assert all(0 < value <= 1 for value in trust.values())


def test_links_and_names_are_there():
    import fairmean

    for name in re.findall(r"fairmean\.(\w+)", PAGE):
        assert hasattr(fairmean, name), name
    for link in re.findall(r"\]\((\.\./[^)#]+)\)", PAGE):
        assert (Path(__file__).parents[2] / "docs" / link).exists(), link
