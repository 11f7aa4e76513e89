"""Columns as Apache Arrow stores them: Parquet files, and the tables of Hugging Face data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fairmean.data.column import DATE, FLAG, NUMBER, OTHER, TEXT, Column
from fairmean.errors import UserError


def library(what: str) -> Any:
    """The package pyarrow, which is needed for nothing else."""
    try:
        import pyarrow
    except ImportError:
        raise UserError(f"{what} is read by the package pyarrow, which is not installed: pip install pyarrow") from None
    return pyarrow


def parquet(name: str, file: Path) -> dict[str, Column]:
    """The columns of a Parquet file."""
    library(f"data '{name}'")
    import pyarrow.parquet

    try:
        with file.open("rb") as stream:
            table = pyarrow.parquet.read_table(stream)
    except OSError as error:
        if error.errno is not None:
            raise
        raise unreadable(name, file, error) from None
    except pyarrow.ArrowException as error:
        raise unreadable(name, file, error) from None
    return columns(name, table)


def unreadable(name: str, file: Path, error: Exception) -> UserError:
    """A file that pyarrow cannot read."""
    detail = " ".join(str(error).split())[:150]
    return UserError(f"data '{name}': {file.name} is not readable ({detail}): write it anew")


def columns(name: str, table: Any) -> dict[str, Column]:
    """The columns of a table, without the row numbers that pandas stores beside them."""
    keys = [key for key in table.column_names if not key.startswith("__index_level_")]
    if twice := [key for i, key in enumerate(keys) if key in keys[:i]]:
        raise UserError(f"data '{name}': two columns are called '{twice[0]}': give each a name of its own")
    if not keys or not table.num_rows:
        raise UserError(f"data '{name}' has no {'rows' if keys else 'columns'}: give it some")
    return {key: column(key, table.column(key)) for key in keys}


def column(name: str, values: Any) -> Column:
    """One column of a table."""
    import pyarrow.compute as compute
    import pyarrow.types as types

    kind = values.type
    declared = types.is_dictionary(kind)
    if declared:
        values = compute.cast(values, kind.value_type)
        kind = values.type
        if not (types.is_string(kind) or types.is_large_string(kind)):
            values = compute.cast(values, "string")
            kind = values.type
    if types.is_boolean(kind) or types.is_null(kind):
        numbers = np.array([np.nan if value is None else value for value in values.to_pylist()], float)
        return Column(name, FLAG, numbers)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        numbers = compute.cast(values, "float64", safe=False).to_numpy(zero_copy_only=False)
        return Column(name, NUMBER, np.asarray(numbers, np.float64))
    if types.is_string(kind) or types.is_large_string(kind) or str(kind) == "string_view":
        encoded = compute.dictionary_encode(values.combine_chunks())
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        return Column(name, TEXT, codes, tuple(encoded.dictionary.to_pylist()), declared=declared)
    if types.is_temporal(kind):
        example = next((str(value) for value in values.slice(0, 1000).to_pylist() if value is not None), str(kind))
        return Column(name, DATE, np.zeros(len(values)), (example,))
    return Column(name, OTHER, np.zeros(len(values)), (f"values of the type {kind}",))
