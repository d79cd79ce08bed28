"""Processes that die while they change a served table: what is seen is what docs/serving-faults.md says."""

from __future__ import annotations

from pathlib import Path

import pytest

from lake_assets_tests.matrices import one_now
from lake_assets_tests.object_store import KEY, KEY_ID, made_bucket
from lake_assets_tests.serving.faults import PAGE, SCENARIOS, page, play


@pytest.mark.parametrize("store", one_now(["folder", "S3"]))
def test_wherever_a_process_dies_readers_see_a_whole_snapshot_as_the_page_says(
    store: str, zookeeper: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder: Path | str = tmp_path
    if store == "S3":
        address, folder = request.getfixturevalue("s3"), "s3://lake/serving"
        made_bucket(address)
        for name, value in (("ENDPOINT", address), ("ACCESS_KEY_ID", KEY_ID), ("SECRET_ACCESS_KEY", KEY)):
            monkeypatch.setenv(f"LAKE_CATALOG__S3__{name}", value)
    found = {what: play(what, zookeeper, folder) for what in SCENARIOS}
    assert page(found) == PAGE.read_text()
