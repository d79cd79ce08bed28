"""Files on S3 come back as they were written, small ones and those that are uploaded in parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import PyArrowFileIO

from lake_assets.base.described import recognise
from lake_assets.connections.catalog import pyiceberg_properties
from lake_assets.connections.small_uploads import SmallUploadsIO
from lake_assets.errors import chain_text
from lake_assets_tests.object_store import on_s3

if TYPE_CHECKING:
    from lake_assets.settings import Settings

MB = 1_000_000
STRATEGY = {"s3.retry-strategy-impl": "pyarrow.fs.AwsDefaultS3RetryStrategy"}


@pytest.mark.parametrize("further", [{}, STRATEGY])
def test_a_file_is_read_as_it_was_written(bare_home: Settings, s3: str, further: dict[str, str]) -> None:
    io = load_file_io({**pyiceberg_properties(on_s3(bare_home, s3), chooses_io=False), **further})
    assert isinstance(io, SmallUploadsIO)
    for size in (0, 1, 7 * MB, 12 * MB):
        location, content = f"s3://lake/files/{size}", bytes(reversed(range(251))) * (size // 251 + 1)
        output = io.new_output(location)
        assert not output.exists()
        with output.create() as file:
            file.write(content[:size])
        assert output.exists()
        with io.new_input(location).open() as file:
            assert file.read() == content[:size]
        assert len(io.new_input(location)) == size
        with pytest.raises(FileExistsError, match=location):
            output.create()
        with output.create(overwrite=True) as file:
            file.write(b"again")
        with output.to_input_file().open() as file:
            assert file.read() == b"again"
    assert not io.new_output("s3://lake/files").exists()


def test_a_file_of_a_missing_bucket_is_an_error(bare_home: Settings, s3: str) -> None:
    io = load_file_io(pyiceberg_properties(on_s3(bare_home, s3), chooses_io=False))
    with pytest.raises(OSError, match="nowhere") as error, io.new_output("s3://nowhere/file").create() as file:
        file.write(b"rows")
    assert recognise(chain_text(error.value))


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"s3.access-key-id": "me", "s3.secret-access-key": "hidden", "s3.session-token": "token"},
        {"s3.anonymous": "true", "s3.force-virtual-addressing": "true"},
        {"s3.role-arn": "arn:aws:iam::1:role/reader", "s3.role-session-name": "lake"},
        {"s3.proxy-uri": "http://me:hidden@proxy:3128", "s3.connect-timeout": "5", "s3.request-timeout": "30"},
        {"s3.endpoint": "http://s3.internal:9000"},
    ],
)
def test_no_property_of_the_store_is_lost(properties: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")  # a role is asked for, in vain, and several times by default
    of_region = {**properties, "s3.region": "eu-west-1"}
    made, expected = (cls(of_region).fs_by_scheme("s3", "lake").__reduce__() for cls in (SmallUploadsIO, PyArrowFileIO))
    assert made == (expected[0], ({**expected[1][0], "allow_delayed_open": True},))
