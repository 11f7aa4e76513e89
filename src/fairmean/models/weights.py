"""Parameters that were trained before: from a safetensors file, or from a state_dict that torch.save wrote.

Neither executes code. A safetensors file is eight bytes that give the length of a JSON header, the header, which says
type, shape and place of every tensor, and the numbers themselves.
"""

from __future__ import annotations

import hashlib
import io
import json
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fairmean.errors import UserError
from fairmean.importing import failure

_TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
_FEW = 3  # names in a message


def digest(path: str) -> str:
    """SHA-256 of the file's content."""
    return hashlib.sha256(_content(path)).hexdigest()


def load(model: nn.Module, name: str, path: str, sha256: str | None = None) -> None:
    """Give the model the parameters (and buffers) in the file, which must be exactly its own, in their shapes.

    ``sha256``: what the file's content must be.
    """
    stored, own = read(path, sha256), model.state_dict()
    missing, extra = [key for key in own if key not in stored], [key for key in stored if key not in own]
    if missing or extra:
        parts = [f"{_listed(missing)} of the model {_are(missing)} missing"] if missing else []
        parts += [f"{_listed(extra)} {_are(extra)} not in the model"] if extra else []
        raise UserError(f"model.weights = '{path}': does not fit model '{name}': {'; '.join(parts)}")
    for key, value in own.items():
        if stored[key].shape != value.shape:
            raise UserError(
                f"model.weights = '{path}': '{key}' has shape {tuple(stored[key].shape)} there, and "
                f"{tuple(value.shape)} in model '{name}'; use weights of this model for this data"
            )
        if not stored[key].isfinite().all():
            raise UserError(f"model.weights = '{path}': '{key}' holds NaN or infinite numbers; use other weights")
    model.load_state_dict(stored)


def read(path: str, sha256: str | None = None) -> dict[str, Tensor]:
    """The tensors in a file, by name."""
    content = _content(path)
    found = hashlib.sha256(content).hexdigest()
    if sha256 not in (None, found):
        raise UserError(
            f"model.weights = '{path}': has changed (its content was sha256 {sha256}, and is {found} now); put the old "
            "file back"
        )
    if content[8:9] == b"{" and int.from_bytes(content[:8], "little") <= len(content) - 8:
        return _safetensors(path, content)
    return _state_dict(path, content)


def _content(path: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except FileNotFoundError:
        raise UserError(f"model.weights = '{path}': there is no such file; check the path") from None
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"model.weights = '{path}': cannot be read ({error})") from None


def _safetensors(path: str, content: bytes) -> dict[str, Tensor]:
    start = 8 + int.from_bytes(content[:8], "little")
    tensors = {}
    try:
        header = json.loads(content[8:start])
        for key, entry in header.items():
            if key != "__metadata__":
                tensors[key] = _tensor(content, start, entry)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"model.weights = '{path}': is damaged ({failure(error)}); copy or save it again") from None
    return tensors


def _tensor(content: bytes, start: int, entry: dict[str, Any]) -> Tensor:
    kind, shape, (first, last) = _TYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
    numbers = prod(shape)
    if min(shape, default=1) < 0 or not 0 <= first <= last <= len(content) - start:
        raise ValueError("a tensor lies outside the file")
    if last - first != numbers * kind.itemsize:
        raise ValueError("a tensor has another size than its shape")
    if numbers == 0:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(bytearray(content[start + first : start + last]), dtype=kind).view(shape)


def _state_dict(path: str, content: bytes) -> dict[str, Tensor]:
    remedy = "save it with torch.save(model.state_dict(), path), or as safetensors"
    try:
        stored = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception:  # whatever a file that is none may cause
        raise UserError(
            f"model.weights = '{path}': is no state_dict that can be read without executing code; {remedy}"
        ) from None
    if not (isinstance(stored, dict) and stored and all(isinstance(value, Tensor) for value in stored.values())):
        raise UserError(f"model.weights = '{path}': holds something else than tensors by name; {remedy}")
    return {str(key): value for key, value in stored.items()}


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return ", ".join(f"'{name}'" for name in names[:_FEW]) + more


def _are(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"
