"""Tables as bytes: CSV without any package, Parquet with pyarrow; equal tables are equal bytes."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InputError

Columns = Mapping[str, Sequence[Any]]
TABLE_SUFFIXES = (".parquet", ".csv")


def has_parquet() -> bool:
    """Whether Parquet can be written here."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        return False
    return True


def check_table(suffix: str) -> None:
    """Refuse a format that cannot be written here."""
    if suffix == ".parquet" and not has_parquet():
        raise InputError("Parquet needs pyarrow: pip install 'dicl-flow[bulk]', or write .csv")


def encode_table(columns: Columns, suffix: str, types: Mapping[str, type] | None = None) -> bytes:
    """Return the bytes of a table; None is an empty entry. `types` are those of Parquet columns."""
    if suffix == ".csv":
        return _encode_csv(columns)
    if suffix == ".parquet":
        return _encode_parquet(columns, types or {})
    raise InputError(f"a table must end in {' or '.join(TABLE_SUFFIXES)}, got {suffix!r}")


def decode_table(data: bytes, suffix: str, types: Mapping[str, type]) -> dict[str, list[Any]]:
    """Read a table that `encode_table` has written, with values of these types, or None."""
    if suffix == ".parquet":
        from pyarrow import BufferReader, parquet

        return dict(parquet.read_table(BufferReader(data)).to_pydict())
    names, *rows = csv.reader(io.StringIO(data.decode(), newline=""))
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    return {
        name: [_typed(entry, types[name]) for entry in column]
        for name, column in zip(names, columns, strict=True)
    }


def _typed(entry: str, kind: type) -> Any:
    if entry == "":
        return "" if kind is str else None
    return entry == "True" if kind is bool else kind(entry)


def _encode_csv(columns: Columns) -> bytes:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return buffer.getvalue().encode("utf-8", "surrogateescape")


def _encode_parquet(columns: Columns, types: Mapping[str, type]) -> bytes:
    check_table(".parquet")
    import pyarrow as arrow
    from pyarrow import parquet

    kinds = {str: arrow.string(), int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_()}
    fields = [(name, kinds[types.get(name, str)]) for name in columns]
    table = arrow.table(
        {name: _utf8(column) for name, column in columns.items()}, arrow.schema(fields)
    )
    buffer = io.BytesIO()
    parquet.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def _utf8(column: Sequence[Any]) -> Sequence[Any]:
    """Replace what is not UTF-8, as names of files may be: Parquet has nothing else."""
    return [
        entry.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        if isinstance(entry, str)
        else entry
        for entry in column
    ]
