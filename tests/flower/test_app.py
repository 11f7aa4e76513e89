"""The app that 'fairmean flower new' writes, in Flower's own simulation; and the commands of the guide."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

from fairmean.flower.local import LocalFederation, Settings, environment
from tests.flower.federations import FULL, nobody_left, parameters, simulated, small_app

GUIDE = Path(__file__).parents[2] / "docs" / "flower-deployment.md"


class Simulation(LocalFederation):
    """What 'flwr run .' starts for a simulation, but on a free port, and stopped in the end."""

    def __init__(self, clients: int) -> None:
        super().__init__(0)
        self._simulated = clients

    def _superlink_command(self, port: int) -> list[str]:
        return [*super()._superlink_command(port), "--simulation"]

    def _run_command(self, app: Path, settings: Settings) -> list[str]:
        return [*super()._run_command(app, settings), "--federation-config", f"num-supernodes={self._simulated}"]


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found by /proc")
def test_in_flowers_simulation_it_equals_ours(here, monkeypatch):
    app = small_app(here / "app")
    lines = []
    method = "fairmean:kappa=4"
    with nobody_left(monkeypatch), Simulation(4) as federation:
        settings = FULL | {"num-server-rounds": 3, "clients": 4, "report": "sums", "method": method}
        federation.run(app, settings, lines.append, 400)
    (folder,) = (here / "runs" / "app").iterdir()
    other = simulated(here / "simulated", {"name": "fairmean", "kappa": 4.0}, 3, clients=4)
    torch.testing.assert_close(parameters(folder), parameters(Path(other.folder)), rtol=0, atol=1e-5)
    assert sum(line.startswith("fairmean: round ") for line in lines) == 3


@pytest.mark.parametrize("program", ["flower-superlink", "flower-supernode"])
def test_the_guide_uses_options_that_there_are(program, tmp_path):
    shown = re.findall(rf"{program} (.*?)(?:\n[A-Z\[#`]|\n\n)", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    options = {option for words in shown for option in re.findall(r"--[a-z-]+", words)}
    assert len(options) >= 4
    helped = subprocess.run(
        [program, "--help"], env=environment(tmp_path), capture_output=True, text=True, check=True, timeout=120
    )
    assert options <= set(re.findall(r"--[a-z-]+", helped.stdout))
