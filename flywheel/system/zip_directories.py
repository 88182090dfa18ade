"""ZIP archives from outside, whose directory is looked at before it is read."""

import zipfile
from typing import Any, BinaryIO


def open_zip(source: BinaryIO, most: int) -> zipfile.ZipFile:
    """The archive. Raises zipfile.BadZipFile where its directory, which names all of it, has more bytes than `most`.

    zipfile reads the directory in one go and makes an object of each name, 46 bytes of it or more, before anybody can
    count them. How long it is stands at the archive's end in several ways, of which zipfile chooses one, whatever
    number of entries is told there; so it is held back at the very read.
    """
    narrow: Any = _Narrow(source, most)
    archive = zipfile.ZipFile(narrow)
    narrow.most = None
    return archive


class _Narrow:
    """A file that gives only so much at once, as long as there is a `most`."""

    def __init__(self, file: BinaryIO, most: int) -> None:
        self._file = file
        self.most: int | None = most

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, size: int = -1) -> bytes:
        if self.most is not None and size > self.most:  # without a size zipfile reads the last record alone
            raise zipfile.BadZipFile(f"its directory has {size:,} bytes, {self.most:,} are allowed: too many entries")
        return self._file.read(size)
