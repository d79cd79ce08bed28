"""Reading data files by pyiceberg, with INT96 times in microseconds.

pyarrow reads INT96 times, which Spark and Hive wrote in former times, as nanoseconds, and wraps those outside of the
years 1677 to 2262: 1500 becomes 2084. This module uses an internal part of pyiceberg, which has no option for it.
"""

from __future__ import annotations

from typing import Any

from pyarrow import dataset as ds
from pyiceberg.io import pyarrow as pyiceberg_arrow
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import FileFormat

__all__ = ["ArrowScan"]

_file_format = pyiceberg_arrow._get_file_format


def _with_exact_times(file_format: FileFormat, **options: Any) -> ds.FileFormat:
    if file_format is FileFormat.PARQUET:
        options = {**options, "coerce_int96_timestamp_unit": "us"}
    return _file_format(file_format, **options)


pyiceberg_arrow._get_file_format = _with_exact_times  # type: ignore[assignment]
