"""Real federations on loopback: a SuperLink and SuperNodes in processes of their own."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

import fairmean
from fairmean.flower.certificates import make_certificates, make_node_key
from fairmean.flower.local import HOST, LocalFederation, environment, free_ports
from fairmean.flower.processes import Process
from tests.flower.federations import FULL, nobody_left, parameters, refused, simulated, small_app, table
from tests.own import turns

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found by /proc")
TIMEOUT = 900.0  # seconds, on a machine that does other things as well


def test_with_tls_and_node_keys_it_equals_the_simulator_and_refuses_strangers(here, monkeypatch):
    app = small_app(here / "app")
    lines = []
    with nobody_left(monkeypatch), LocalFederation(3, tls=True) as federation:
        strangers = intruders(federation)
        settings = FULL | {"num-server-rounds": 3, "clients": 3, "min-clients": 3}
        federation.run(app, settings, lines.append, TIMEOUT)
        unregistered, plain, elsewhere = (refused(stranger) for stranger in strangers)
        assert all(node.alive and node.starts == 1 for node in federation.nodes)
        homes = {Path(process._environment["FLWR_HOME"]) for process in federation._processes}
        secrets = [key.private for key in federation.keys] + [federation.certificates.key]
        assert all(file.stat().st_mode & 0o077 == 0 for file in secrets)
        place = federation.place
    assert not place.exists()
    assert all(home.is_relative_to(place) for home in homes)
    assert "Failed to activate SuperNode" in unregistered
    assert "Giving up reconnection" in plain
    assert "CERTIFICATE_VERIFY_FAILED" in elsewhere

    told = [line.removeprefix("fairmean: ") for line in lines if line.startswith("fairmean: round ")]
    assert [line.split(" · ")[0] for line in told] == ["round 1/3", "round 2/3", "round 3/3"]
    (folder,) = (here / "runs" / "app").iterdir()
    run = fairmean.load(folder)
    assert run.summary["status"] == "finished"
    other = simulated(here / "simulated", {"name": "fairmean", "kappa": 1.0}, 3)
    torch.testing.assert_close(parameters(folder), parameters(Path(other.folder)), rtol=0, atol=1e-5)
    federated, simulation = table(folder), table(Path(other.folder))
    assert federated.keys() == simulation.keys()
    for key, row in federated.items():
        for column in ("loss", "weight", "accuracy"):
            assert float(row[column] or -1) == pytest.approx(float(simulation[key][column] or -1), abs=1e-4)


def intruders(federation: LocalFederation) -> list[Process]:
    """Nodes that must not be admitted: with a key nobody registered, without TLS, and with another authority."""
    key = make_node_key(federation.place / "other", "stranger").private
    other = make_certificates(federation.place / "other").authority
    assert federation.certificates is not None
    right = federation.certificates.authority
    registered = federation.keys[0].private
    wrong = {
        "unregistered": ["--root-certificates", str(right), "--auth-supernode-private-key", str(key)],
        "plain": ["--insecure"],
        "elsewhere": ["--root-certificates", str(other), "--auth-supernode-private-key", str(registered)],
    }
    processes = []
    for (name, words), port in zip(wrong.items(), free_ports(3), strict=True):
        start = ["flower-supernode", "--superlink", federation.address, "--host", HOST, "--port", str(port)]
        process = federation.add(name, name, [*start, "--max-retries", "1", *words])
        process.start()
        processes.append(process)
    return processes


@pytest.mark.exhaustive
def test_killed_one_after_the_other_nothing_is_lost(here, monkeypatch, registries):
    """A SuperNode, the SuperLink and the server's app are killed in the middle of a round; all clients take part in
    every round that counts, so the model is the simulator's. The method has memories on clients and on the server."""
    fairmean.register_objective("turns")(turns.Judged)
    fairmean.register_scale("turns")(turns.Trusted)
    undisturbed = Path(simulated(here / "simulated", {"name": "turns+mean", "objective": "turns"}, 6).folder)
    app = small_app(here / "app", own="turns")
    killed: list[str] = []
    happened: list[str] = []

    def hear(line: str) -> bool:
        """Kill when a round is done, for then the next one begins."""
        done = next((k for k in (1, 3, 4) if line.startswith(f"fairmean: round {k}/")), None)
        victims = {1: "flower-supernode", 3: "flower-superlink", 4: "flwr-serverapp"}
        if done is not None and victims[done] not in killed:
            killed.append(victims[done])
            process = federation.nodes[1] if done == 1 else federation.superlink
            ids = [pid for pid, command in process.everything().items() if victims[done] in command]
            assert len(ids) == 1
            os.kill(ids[0], signal.SIGKILL)
        return line.startswith("fairmean: round ")

    method = "turns+mean:objective=turns"
    settings = FULL | {"num-server-rounds": 6, "clients": 3, "min-clients": 3, "method": method}
    with nobody_left(monkeypatch), LocalFederation(3, tls=True, tell=happened.append) as federation:
        federation.run(app, settings, hear, TIMEOUT)
        assert federation.nodes[1].starts > 1
        assert federation.superlink.starts == 2
    assert killed == ["flower-supernode", "flower-superlink", "flwr-serverapp"]
    assert [sentence.split()[0] for sentence in happened] == ["SuperNode", "The", "The"]
    (folder,) = (here / "runs" / "app").iterdir()
    torch.testing.assert_close(parameters(folder), parameters(undisturbed), rtol=0, atol=1e-5)
    assert table(folder).keys() == table(undisturbed).keys()
    assert (folder / "rejected.csv").read_text().count("no reply") >= 1


def test_a_home_of_its_own_and_no_word_to_anybody(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", "/somebody/else")
    monkeypatch.delenv("FLWR_TELEMETRY_ENABLED", raising=False)
    own = environment(tmp_path)
    assert own["FLWR_HOME"] == str(tmp_path)
    assert own["FLWR_TELEMETRY_ENABLED"] == "0"
    assert own["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert "127.0.0.1" in own["NO_PROXY"]
