"""A federation on this machine: a SuperLink (Flower's server), a SuperNode for every client, all on loopback.

    with LocalFederation(clients=3, tls=True) as federation:
        federation.run(Path("my-app"), {"num-server-rounds": 3})

Everything that it starts is stopped at the end, also after an error and after Ctrl-C. It looks after its processes as
systemd does on a real server: a SuperNode that dies is started again; when the SuperLink dies, it is started again and
the app is submitted again, and goes on from its last checkpoint.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from fairmean.errors import UserError
from fairmean.flower.certificates import Certificates, NodeKey, make_certificates, make_node_key
from fairmean.flower.environment import need_flower, stay_offline
from fairmean.flower.processes import Process, stop

HOST = "127.0.0.1"
NAME = "local"  # what the SuperLink is called in Flower's config
START = 120.0  # seconds that a SuperLink may take until it answers; a busy machine takes long
PAUSE = 5.0  # seconds before a process that died is started again
PATIENCE = 30  # starts of one process, at most
RESUBMISSIONS = 3  # times that the app is killed, one after the other, without a finished round between them
_AT_WORK = ("pending", "starting", "running")
_KILLED = "No heartbeat"  # so Flower says that the server's app is not there any more
_LOOK = 0.25  # seconds between two looks at the processes

Settings = Mapping[str, str | int | float | bool]


class FederationFailed(UserError):
    """Something of the federation ended that should not have; the message names it and its log."""


def environment(home: Path) -> dict[str, str]:
    """This process's environment, in which Flower keeps to itself: it has a home of its own, and stays offline.

    Flower finds its programs by their names, so those beside this Python come first.
    """
    own = dict(os.environ)
    stay_offline(own)
    path = os.pathsep.join([str(Path(sys.executable).parent), own.get("PATH", os.defpath)])
    direct = dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")
    return own | direct | {"PATH": path, "FLWR_HOME": str(home), "PYTHONUNBUFFERED": "1"}


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((HOST, 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


class LocalFederation:
    """A SuperLink and ``clients`` SuperNodes on loopback, inside a ``with`` statement.

    With ``tls`` they speak TLS, with certificates made for this federation, and the SuperLink admits only nodes whose
    keys were registered. Keys, certificates, Flower's home and its database lie in a temporary folder that is removed
    at the end; after a failure, the logs stay. Processes run in ``folder`` (by default, the working folder), so that
    relative paths in an app's settings are relative to it. ``tell`` is called with every happening, as a sentence.
    """

    def __init__(
        self,
        clients: int,
        tls: bool = False,
        folder: Path | None = None,
        tell: Callable[[str], None] | None = None,
        revive: bool = True,
    ) -> None:
        need_flower()
        self.clients = clients
        self.tls = tls
        self.revive = revive
        self._tell = tell or (lambda _: None)
        self._folder = (folder or Path.cwd()).resolve()
        self._processes: list[Process] = []
        self._restart_at: dict[Process, float] = {}

    def __enter__(self) -> LocalFederation:
        self.place = Path(tempfile.mkdtemp(prefix="fairmean-flower-"))
        try:
            self._prepare()
            self._start_superlink()
            self._register()
            self._start_nodes()
        except BaseException as error:
            self._end(error)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        with _undisturbed():
            stop(self._processes)
            if isinstance(error, FederationFailed):
                for secret in ("certificates", "keys", "home", "state"):
                    _remove(self.place / secret)
            else:
                _remove(self.place)

    # What is started

    def _prepare(self) -> None:
        home = self.place / "home"
        (home / "user").mkdir(parents=True)
        (self.place / "state").mkdir()
        port, *node_ports = free_ports(1 + self.clients)
        self.address = f"{HOST}:{port}"
        self.certificates: Certificates | None = None
        self.keys: list[NodeKey] = []
        if self.tls:
            self.certificates = make_certificates(self.place / "certificates")
            self.keys = [make_node_key(self.place / "keys", f"node-{k}") for k in range(self.clients)]
        trust = f'root-certificates = "{self.certificates.authority}"' if self.certificates else "insecure = true"
        (home / "user" / "config.toml").write_text(
            f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\naddress = "{self.address}"\n{trust}\n',
            encoding="utf-8",
        )
        self.superlink = self.add("SuperLink", "superlink", self._superlink_command(port))
        self.nodes = [
            self.add(f"SuperNode {k}", f"supernode-{k}", self.node_command(k, node_port))
            for k, node_port in enumerate(node_ports)
        ]

    def _superlink_command(self, port: int) -> list[str]:
        words = [
            "flower-superlink",
            "--host",
            HOST,
            "--port",
            str(port),
            "--database",
            str(self.place / "state" / "state.db"),
        ]
        words += ["--disable-runtime-dependency-installation"]
        if self.certificates is None:
            return [*words, "--insecure"]
        words += ["--ssl-ca-certfile", str(self.certificates.authority)]
        words += ["--ssl-certfile", str(self.certificates.certificate), "--ssl-keyfile", str(self.certificates.key)]
        return [*words, "--enable-supernode-auth"]

    def node_command(self, k: int, port: int) -> list[str]:
        """How client k's SuperNode is started."""
        words = ["flower-supernode", "--superlink", self.address, "--host", HOST, "--port", str(port)]
        words += ["--node-config", f"partition-id={k} num-partitions={self.clients}"]
        if self.certificates is None:
            return [*words, "--insecure"]
        words += ["--root-certificates", str(self.certificates.authority)]
        return [*words, "--auth-supernode-private-key", str(self.keys[k].private)]

    def add(self, name: str, file: str, command: list[str]) -> Process:
        """A further process of this federation, which is stopped with it; the caller starts it."""
        home = self.place / "home" / (file if command[0] != "flwr" else "user")
        own = environment(home)
        own.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // max(1, self.clients))))  # all compute
        process = Process(name, command, self.place / f"{file}.log", own, self._folder)
        self._processes.append(process)
        return process

    def _start_superlink(self) -> None:
        self.superlink.start()
        deadline = time.monotonic() + START
        host, _, port = self.address.partition(":")
        while True:
            if not self.superlink.alive:
                raise self._failed(self.superlink, f"the SuperLink {self.superlink.ended_how()}")
            if _listens(host, int(port)):
                return
            if time.monotonic() > deadline:
                raise self._failed(self.superlink, f"the SuperLink did not answer within {START:.0f} s")
            time.sleep(0.1)

    def _register(self) -> None:
        """Tell the SuperLink the nodes' public keys, as many at once as there are cores."""
        at_once = max(1, os.cpu_count() or 1)
        for first in range(0, len(self.keys), at_once):
            calls = [
                self.flwr("register", "supernode", "register", str(key.public), NAME)
                for key in self.keys[first : first + at_once]
            ]
            for call in calls:
                self._wait(call)

    def _start_nodes(self) -> None:
        for node in self.nodes:
            node.start()

    def flwr(self, label: str, *words: str) -> Process:
        """Call Flower's own command line in this federation; what it says is in the log of the process."""
        number = len(self._processes)
        process = self.add(f"flwr {label}", f"flwr-{number}-{label}", ["flwr", *words])
        process.start()
        return process

    def _wait(self, call: Process, seconds: float = START) -> None:
        deadline = time.monotonic() + seconds
        while call.alive:
            if time.monotonic() > deadline:
                raise self._failed(call, f"'{' '.join(call.command[:3])}' did not end within {seconds:.0f} s")
            time.sleep(0.1)
        if call.returncode:
            raise self._failed(call, f"'{' '.join(call.command[:3])}' {call.ended_how()}")

    # What runs in it

    def run(
        self,
        app: Path,
        settings: Settings | None = None,
        hear: Callable[[str], bool | None] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Run an app to its end. ``settings`` replace those of its ``pyproject.toml``.

        ``hear`` is called with every line that the server's app prints, and answers True where the line means progress.
        If the SuperLink or the server's app is killed, the app is submitted again, as long as there is progress between
        two such events; an app that has saved what it did goes on from there.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        in_vain = 0
        while True:
            call = self.flwr("run", *self._run_command(app, settings or {}))
            said = _Said(hear or (lambda _: None))
            self._attend(call, said, deadline)
            status, details = self._status(call)
            while status.startswith(_AT_WORK):  # only the connection was lost by which it told us what it does
                stream = self.flwr("log", "log", _run_id(call) or "", NAME, "--stream")
                self._attend(stream, said, deadline)
                status, details = self._status(call)
            if status == "finished:completed":
                return
            in_vain = 0 if said.progress else in_vain + 1
            again = self.revive and in_vain <= RESUBMISSIONS
            if not self.superlink.alive and again:
                self._restart_superlink()
            elif not self.superlink.alive:
                raise self._failed(self.superlink, f"the SuperLink {self.superlink.ended_how()}")
            elif _KILLED in details and again:
                self._tell("The server's app was killed; it is submitted again.")
            else:
                raise self._failed(call, f"the app ended too early: {_reason(call) or details}", said=False)

    def _attend(self, call: Process, said: _Said, deadline: float) -> None:
        """Pass on what a call says until it ends, and look after the processes meanwhile."""
        lines = _Lines(call.log)
        while call.alive:
            time.sleep(_LOOK)
            said.hear(lines.new())
            self.tend()
            if not self.superlink.alive:
                call.signal(signal.SIGKILL)
            if time.monotonic() > deadline:
                raise self._failed(call, "the app did not finish in time")
        said.hear(lines.new())

    def _run_command(self, app: Path, settings: Settings) -> list[str]:
        words = ["run", str(app), NAME, "--stream"]
        if settings:
            words += ["--run-config", " ".join(f"{key}={_toml(value)}" for key, value in settings.items())]
        return words

    def _status(self, call: Process) -> tuple[str, str]:
        """What the SuperLink says about the run that a call submitted: its status and the details of it."""
        run_id = _run_id(call)
        if not self.superlink.alive or run_id is None:
            return "unknown", _last_line(call)
        listing = self.flwr("list", "list", NAME, "--run-id", run_id, "--format", "json")
        self._wait(listing)
        text = listing.text()
        answer: Any = json.loads(text[text.index("{") :])["runs"][0]
        return str(answer["status"]), str(answer["status-details"])

    def tend(self) -> None:
        """Start SuperNodes again that have died, a few seconds later.

        The SuperLink takes a node for present until two heartbeats are missing, about a minute, and refuses to admit it
        a second time before. So it is tried again until it is admitted.
        """
        if not self.revive:
            return
        for node in self.nodes:
            if node.alive:
                continue
            if node not in self._restart_at:
                if node.starts == 1:
                    self._tell(f"{node.name} {node.ended_how()}; it is started again.")
                if node.starts > PATIENCE:
                    raise self._failed(node, f"{node.name} {node.ended_how()} again and again")
                self._restart_at[node] = time.monotonic() + PAUSE
            elif time.monotonic() >= self._restart_at[node]:
                del self._restart_at[node]
                stop([node])  # what its last message had started
                node.start()

    def _restart_superlink(self) -> None:
        self._tell(f"The SuperLink {self.superlink.ended_how()}; it is started again with the same database.")
        stop([self.superlink])
        self._start_superlink()

    def _failed(self, process: Process, what: str, said: bool = True) -> FederationFailed:
        last = f" ({_last_line(process)})" if said and _last_line(process) else ""
        return FederationFailed(f"{what}{last}; see {process.log}")


class _Said:
    """What the server's app has said, passed on once; a connection that is made anew begins with the first line again.

    ``progress``: whether one of the lines meant some.
    """

    def __init__(self, hear: Callable[[str], bool | None]) -> None:
        self.progress = False
        self._hear = hear
        self._before: set[str] = set()

    def hear(self, lines: Iterable[str]) -> None:
        """Pass on the lines that are new."""
        for line in lines:
            if line not in self._before:
                self._before.add(line)
                self.progress |= bool(self._hear(line))


class _Lines:
    """The whole lines of a file that grows, each once."""

    def __init__(self, file: Path) -> None:
        self._file, self._offset, self._rest = file, 0, b""

    def new(self) -> list[str]:
        """Those that were written since the last time."""
        with open(self._file, "rb") as file:
            file.seek(self._offset)
            chunk = file.read()
        self._offset += len(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [line.decode(errors="replace") for line in lines]


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def _run_id(call: Process) -> str | None:
    """The number of the run that ``flwr run`` says it started."""
    for line in call.text().splitlines():
        _, found, rest = line.partition("Successfully started run ")
        if found:
            return rest.split()[0]
    return None


def _last_line(call: Process) -> str:
    """The last thing that a process said."""
    lines = [_plain(line) for line in call.text().splitlines()]
    return next((line[:300] for line in reversed(lines) if line), "")


def _reason(call: Process) -> str:
    """The last line of what an app says that names an error; empty where there is none."""
    errors = [line for line in map(_plain, call.text().splitlines()) if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return errors[-1].removeprefix("fairmean.errors.UserError: ")[:600] if errors else ""


def _plain(line: str) -> str:
    """A line without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", line).strip()


def _toml(value: str | int | float | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        quoted = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{quoted}"'
    return repr(value)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """A second Ctrl-C does not keep this from stopping what was started."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
