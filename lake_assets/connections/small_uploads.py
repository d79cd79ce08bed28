"""pyiceberg's files on S3, with few requests for small files: a new one costs a `HEAD` and a `PUT`.

By default it costs five. pyarrow begins a multipart upload when a file is opened (`POST`, `PUT`, `POST`); with
`allow_delayed_open` that is one `PUT` for less than 10 MB. And it looks for a folder of the same name before it says
that a file does not exist, which is a request to list a bucket, as expensive as one that writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarrow.fs import S3FileSystem
from pyiceberg.io import S3_RETRY_STRATEGY_IMPL
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

DELAYED = "allow_delayed_open"


class _SmallFile(PyArrowFile):
    """A file that is new if there is no object of its name."""

    @classmethod
    def of(cls, file: PyArrowFile) -> _SmallFile:
        return cls(file.location, file._path, file._filesystem, file._buffer_size)

    def exists(self) -> bool:
        try:
            self.open().close()
        except FileNotFoundError:
            return False
        return True


class SmallUploadsIO(PyArrowFileIO):
    """A `PyArrowFileIO` for S3, as the catalog's `py-io-impl`."""

    def new_output(self, location: str) -> PyArrowFile:
        """Return a file that can be written."""
        return _SmallFile.of(super().new_output(location))

    def _initialize_s3_fs(self, netloc: str | None) -> FileSystem:
        """Return pyiceberg's file system with the property that pyiceberg has no name for.

        A strategy of retries is not among the properties of a file system that can be read, so a file system with one
        stays as it is. So does that of a pyarrow without the property.
        """
        made = super()._initialize_s3_fs(netloc)
        _, (properties,) = made.__reduce__()
        if S3_RETRY_STRATEGY_IMPL in self.properties or DELAYED not in properties:
            return made
        return S3FileSystem(**{**properties, DELAYED: True})
