"""``fairmean flower up``: an app of the user's in a federation on this machine."""

from __future__ import annotations

import json
import re
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fairmean.errors import UserError, unknown
from fairmean.flower.local import LocalFederation
from fairmean.flower.round_lines import PREFIX

MOST_CLIENTS = 64
"""Each is a process that imports PyTorch; a simulation takes thousands."""
Value = str | int | float | bool


def up(
    app: Path,
    *,
    clients: int | None = None,
    tls: bool = False,
    settings: Mapping[str, str] | None = None,
    tell: Callable[[str], None] = print,
    timeout: float | None = None,
) -> dict[str, Any]:
    """Run the app in ``app`` with so many SuperNodes, and stop everything; what came of it.

    Without ``clients``, there are as many as the app's setting of that name says, or 3. ``settings`` are texts that
    replace the app's own settings. ``tell`` is called with every line for the user.
    """
    config = settings_of(app)
    values = {key: _value(app, config, key, text) for key, text in (settings or {}).items()}
    expected = values.get("clients", config.get("clients", 3))
    if clients is None:
        clients = expected if isinstance(expected, int) else 3
    if values.get("clients", clients) != clients:
        raise UserError(f"clients={values['clients']} does not fit --clients {clients}; leave one of them out")
    if not 1 <= clients <= MOST_CLIENTS:
        raise UserError(
            f"--clients {clients}: a federation on one machine has 1 to {MOST_CLIENTS} clients; for more of them, use "
            "Flower's simulation ('flwr run .') or 'fairmean run'"
        )
    if "clients" in config:
        values["clients"] = clients
    heard = _Heard(tell)
    began = time.monotonic()
    how = "with TLS, and keys for the nodes" if tls else "without encryption"
    tell(f"starting a SuperLink and {clients} SuperNode{'s' * (clients > 1)} on this machine, {how}")
    with LocalFederation(clients, tls, tell=tell) as federation:
        tell(f"up after {time.monotonic() - began:.0f} s, at {federation.address}; the first round takes longest")
        federation.run(app.resolve(), values, heard.line, timeout)
        ran = time.monotonic() - began
    outcome = {"rounds": heard.rounds, "seconds": round(ran, 1), "folder": heard.folder} | _summary(heard.folder)
    if heard.folder is None:
        tell(f"the app has ended after {ran:.0f} s; everything is stopped")
    else:
        short = Path(heard.folder).name[:8]
        tell(f"{heard.folder} has the results ({ran:.0f} s in all); next: fairmean show {short}")
    return outcome


def settings_of(app: Path) -> dict[str, Any]:
    """The settings of an app, as its pyproject.toml has them."""
    file = app / "pyproject.toml"
    remedy = "'fairmean flower new DIR' writes one"
    if not app.is_dir():
        raise UserError(f"'{app}' is no folder with a Flower app; {remedy}")
    if not file.is_file():
        raise UserError(f"'{app}' holds no pyproject.toml, so it is no Flower app; {remedy}")
    try:
        section = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("flwr", {}).get("app")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"'{file}' cannot be read ({error})") from None
    if not isinstance(section, dict) or "components" not in section:
        raise UserError(f"'{file}' has no section [tool.flwr.app.components], so it is no Flower app; {remedy}")
    config = section.get("config", {})
    return config if isinstance(config, dict) else {}


def _value(app: Path, config: Mapping[str, Any], key: str, text: str) -> Value:
    """A setting as it was typed, with the type of the one that it replaces."""
    if key not in config:
        raise unknown(f"setting of the app '{app}'", key, config)
    before = config[key]
    kind = type(before)
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if kind is int:
            return int(text)
        return float(text) if kind is float else text
    except (KeyError, ValueError):
        words = {bool: "true or false", int: "a whole number", float: "a number"}
        raise UserError(f"{key} = '{text}': must be {words[kind]}, as {json.dumps(before)} is") from None


class _Heard:
    """What the server's app says, as far as it is for the user."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.folder: str | None = None
        self.rounds = 0
        self._tell = tell

    def line(self, text: str) -> bool:
        """Pass a line on; whether it says that a round is done."""
        if not text.startswith(PREFIX):
            return False
        words = text.removeprefix(PREFIX)
        self._tell(words)
        if match := re.match(r"run folder (\S+?),?(?: which .*)?$", words):
            self.folder = match[1]
        done = re.match(r"round (\d+)/", words)
        self.rounds = int(done[1]) if done else self.rounds
        return done is not None


def _summary(folder: str | None) -> dict[str, Any]:
    """The figures of the run, if it has a folder here."""
    file = None if folder is None else Path(folder) / "summary.json"
    return json.loads(file.read_text(encoding="utf-8")) if file and file.is_file() else {}
