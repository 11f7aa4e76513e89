"""What a client remembers of a run, in a file on its own node.

A file holds the memory as it was after each of the last few rounds, so that a round which is repeated, or gone back to
by a server that was killed, begins with the memory of before that round. It is replaced in one step: after ``kill -9``
it is the old one or the new one, whole.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import uuid
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from fairmean.errors import UserError
from fairmean.rules.round import State

KEPT = 4
"""The memory after so many rounds is kept."""
_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")


class NodeMemory:
    """The memory of one client in one run: ``folder``/``run``/``client``.npz."""

    def __init__(self, folder: Path, run: str, client: str) -> None:
        self.path = folder / _safe(run) / f"{_safe(client)}.npz"

    def before(self, t: int) -> State | None:
        """The memory with which round t begins; None where there is none yet."""
        stored, dropped = self._read()
        earlier = [r for r in stored if r < t]
        if earlier:
            return stored[max(earlier)]
        if dropped:
            raise UserError(
                f"'{self.path}': begins after round {min(stored)}, and the server went back to round {t}; remove the "
                "file to let the client start with an empty memory"
            )
        return None

    def keep(self, t: int, memory: State) -> None:
        """Round t left this memory; what was kept of that round and of later ones is forgotten."""
        before, dropped = self._read()
        stored = {r: state for r, state in before.items() if r < t} | {t: memory}
        latest = sorted(stored)[-KEPT:]
        dropped = dropped or len(latest) < len(stored)
        arrays = {f"{r}/{name}": value.numpy() for r in latest for name, value in stored[r].items()}
        buffer = io.BytesIO()
        np.savez(buffer, rounds=np.array(latest), dropped=np.array(dropped), **arrays)  # type: ignore[arg-type]
        self._replace(buffer.getvalue())

    def _replace(self, content: bytes) -> None:
        temporary = self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex[:8]}.tmp")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise UserError(
                f"the client's memory '{self.path}' cannot be written ({error.strerror}); choose another folder with "
                "memory="
            ) from None

    def _read(self) -> tuple[dict[int, State], bool]:
        """The memory after each round that is kept, and whether there were earlier rounds, which are not kept."""
        try:
            with np.load(io.BytesIO(self.path.read_bytes()), allow_pickle=False) as archive:
                stored: dict[int, State] = {int(r): {} for r in archive["rounds"]}
                for key in archive.files:
                    r, slash, name = key.partition("/")
                    if slash:
                        stored[int(r)][name] = torch.from_numpy(np.array(archive[key]))
                dropped = bool(archive["dropped"])
        except FileNotFoundError:
            return {}, False
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise UserError(
                f"'{self.path}' is damaged ({error}); remove it to let the client start with an empty memory"
            ) from None
        return stored, dropped


def _safe(name: str) -> str:
    """A name as part of a path: itself if it is plain, else its digest; a server cannot point outside the folder."""
    return name if _PLAIN.fullmatch(name) else hashlib.sha256(name.encode()).hexdigest()[:32]
