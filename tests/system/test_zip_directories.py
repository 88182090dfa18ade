"""A ZIP that names too much is refused before its directory is read, whatever it says of the number of its entries."""

import io
import struct
import zipfile

import pytest

from flywheel.system.zip_directories import open_zip


def named(count: int, *, is_zip64: bool = False) -> bytes:
    """A ZIP without files whose directory has 52 bytes for each of so many names. How long it is stands in the record
    at the end, which says that there is one entry, or in that of ZIP64."""
    name = b"x.json"
    entry = struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", *[0] * 11, len(name), *[0] * 6) + name
    size, told = count * len(entry), (0xFFFF, 0xFFFFFFFF) if is_zip64 else (1, count * len(entry))
    big = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, 0)
    where = struct.pack("<4sLQL", b"PK\6\7", 0, size, 1)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, told[0], told[0], told[1], 0, 0)
    return entry * count + (big + where if is_zip64 else b"") + end


class Watched(io.BytesIO):
    """A file that knows how much was read of it at once."""

    most = 0

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        self.most = max(self.most, len(found))
        return found


@pytest.mark.parametrize("is_zip64", [False, True])
def test_a_directory_is_measured_before_it_is_read(is_zip64: bool) -> None:
    source = Watched(named(30_000, is_zip64=is_zip64))
    with pytest.raises(zipfile.BadZipFile, match="its directory has 1,560,000 bytes, 1,000,000 are allowed"):
        open_zip(source, 1_000_000)
    assert source.most < 100_000
    with open_zip(source, 1_560_000) as archive:
        assert len(archive.infolist()) == 30_000


def test_what_is_in_the_archive_may_be_longer_than_its_directory() -> None:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("a", b"x" * 500_000)
    with open_zip(sink, 100_000) as archive:
        assert len(archive.read("a")) == 500_000
