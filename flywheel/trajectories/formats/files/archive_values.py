"""Inspect's `.eval` archives. Nothing in one is ever written to disk, so the names in it are only names."""

import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from flywheel.system.zip_directories import open_zip
from flywheel.trajectories.formats.files import file_limits
from flywheel.trajectories.formats.files.file_limits import Item
from flywheel.trajectories.formats.values.hostile_json import FormatError, load

MEMBERS_MAX = 200_000
"""Files in an archive."""
DIRECTORY_MAX = 128 * MEMBERS_MAX
"""Bytes of the directory in which they are named."""
_ZSTD = 93
"""A method that the standard library knows from Python 3.14 on."""


def archive_values(source: BinaryIO) -> Iterator[Item]:
    """Yield each sample with the log's header, read from memory: `samples/*.json` beside `header.json`."""
    try:
        archive = open_zip(source, DIRECTORY_MAX)
    except (zipfile.BadZipFile, ValueError, struct.error, OSError) as error:
        raise FormatError(f"zip: {error}") from None
    members = archive.infolist()
    if len(members) > MEMBERS_MAX:
        raise FormatError(f"zip: more than {MEMBERS_MAX} files")
    if any(entry.filename == "[Content_Types].xml" for entry in members):
        raise FormatError("zip: an Office document; save the sheet as CSV")
    samples = [entry for entry in members if entry.filename.startswith("samples/") and entry.filename.endswith(".json")]
    if not samples:
        raise FormatError("zip: no Inspect log, there are no samples/*.json in it; a ZIP of other files is not read")
    header: dict[str, Any] = {}
    for name in ("header.json", "_journal/start.json"):  # a log that was cut off has only the journal
        entry = next((entry for entry in members if entry.filename == name), None)
        if entry is not None and not header:
            found = load(_member(source, archive, entry))
            header = found.get("eval", {}) if isinstance(found, dict) else {}
    total = 0
    for entry in samples:
        try:
            text = _member(source, archive, entry)
            total += len(text)
            file_limits.check_unpacked("zip", total)
            yield Item(entry.filename, {"eval": header, "samples": [load(text)]}, size=len(text))
        except FormatError as error:
            yield Item(entry.filename[:200], error=str(error))
            if total > file_limits.UNPACKED_MAX:
                return


def _member(source: BinaryIO, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """One file of the archive, at most `VALUE_MAX` bytes of it, whatever its entry says of its size."""
    if entry.flag_bits & 1:
        raise FormatError("zip: encrypted")
    try:
        stream: Any = (
            _zstd(source, entry)
            if entry.compress_type == _ZSTD and not hasattr(zipfile, "ZIP_ZSTANDARD")
            else archive.open(entry)
        )
        with stream:
            text: bytes = stream.read(file_limits.VALUE_MAX + 1)
    except (zipfile.BadZipFile, NotImplementedError, OSError, EOFError, zlib.error, ValueError, struct.error) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"zip: {error}") from None
    if len(text) > file_limits.VALUE_MAX:
        raise FormatError(f"unpacks to more than {file_limits.VALUE_MAX // 1024**2} MiB")
    return text


def _zstd(source: BinaryIO, entry: zipfile.ZipInfo) -> Any:
    arrow = file_limits.import_arrow("pyarrow", "Inspect's .eval with Zstandard compression")
    source.seek(entry.header_offset)
    local = source.read(30)
    if local[:4] != b"PK\x03\x04":
        raise FormatError("zip: no file where the directory says")
    name, extra = struct.unpack("<HH", local[26:30])
    source.seek(entry.header_offset + 30 + name + extra)
    packed = source.read(min(entry.compress_size, file_limits.VALUE_MAX))
    return arrow.CompressedInputStream(arrow.BufferReader(packed), "zstd")
