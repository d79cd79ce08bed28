"""A data directory as an earlier revision leaves it, packed into one file for the test of upgrades.

    python -m benchmarks.home_before REVISION FILE.tar.xz

The revision's own commands make it: `lake init`, `lake land` and `lake catch-up`. It also has a manifest of landing, a
key of erasures, and an instance of Dagster with one materialization. Its tables are on S3, because names of files there
do not depend on where a test runs. The file has the folders `home` and `bucket`, in which the keys are paths.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks.before import code_of
from benchmarks.cluster.stack import BUCKET, KEY, KEY_ID, s3
from benchmarks.sizing.lake import Store
from lake_assets.services.service import free_port, running

SIGNUPS = """signup_id,account_id,plan,monthly_price,event_ts
s1,a1,basic,7.99,2026-01-01T00:10:00Z
s2,a2,premium,17.99,2026-01-01T01:20:00Z
s3,a3,family,27.99,2026-01-01T02:30:00Z
"""
LATE_SIGNUPS = """signup_id,account_id,plan,monthly_price,event_ts
s4,a4,basic,7.99,2026-01-01T00:40:00Z
s2,a2,premium,17.99,2026-01-01T01:20:00Z
"""
PENDING_SIGNUPS = """signup_id,account_id,plan,monthly_price,event_ts
s5,a5,basic,7.99,2026-01-01T01:50:00Z
"""
"""Landed, and not built: the version after has to build it."""

KEPT = ("catalog.db", "tables.json", "erasure.key", "landing.db", "lake.env")
STORES = """
import os
from pathlib import Path
from dagster import AssetKey, AssetMaterialization, DagsterInstance
from lake_assets.incremental.metadata.erasure_registry import erasure_key
from lake_assets.landing.manifest.store import open_manifest
from lake_assets.settings import settings

open_manifest(settings())
erasure_key(settings())
with DagsterInstance.from_config(os.environ["DAGSTER_HOME"]) as instance:
    built = AssetMaterialization(AssetKey(["core", "signup_fact"]), partition="2026-01-01-00:00")
    instance.report_runless_asset_event(built)
"""


def main(revision: str, file: Path) -> None:
    """Make the file."""
    with tempfile.TemporaryDirectory(prefix="lake-before-") as made, code_of(revision) as (code, environment):
        folder = Path(made)
        home = folder / "home"
        (home / "dagster").mkdir(parents=True)
        (home / "dagster" / "dagster.yaml").touch()
        (home / "lake.env").write_text("LAKE_TICK_SECONDS=3\n")
        with running(s3(folder / "s3", free_port())) as service:
            store = Store(service)
            store.bucket.create()
            _play(code, {**environment, **_variables(home, store)}, folder)
            for found in store.bucket.objects.all():
                target = folder / "bucket" / found.key
                target.parent.mkdir(parents=True, exist_ok=True)
                store.bucket.download_file(found.key, str(target))
        with tarfile.open(file, "w:xz") as packed:
            for name in KEPT:
                packed.add(home / name, f"home/{name}")
            packed.add(home / "dagster", "home/dagster")
            packed.add(folder / "bucket", "bucket")


def _play(code: Path, environment: Mapping[str, str], folder: Path) -> None:
    """Let the commands of the revision work."""

    def run(*words: str) -> None:
        subprocess.run([sys.executable, *words], cwd=code, env=environment, check=True)

    lake = ("-m", "lake_assets.cli.main")
    run(*lake, "init")
    for number, rows in enumerate((SIGNUPS, LATE_SIGNUPS, PENDING_SIGNUPS)):
        file = folder / f"signups-{number}.csv"
        file.write_text(rows)
        run(*lake, "land", "raw.signups", str(file), "--through", "2026-01-01-02:00")
        if rows != PENDING_SIGNUPS:
            run(*lake, "catch-up", "signup_fact")
    run("-c", STORES)


def _variables(home: Path, store: Store) -> dict[str, str]:
    return {
        "LAKE_HOME": str(home),
        "DAGSTER_HOME": str(home / "dagster"),
        "LAKE_WAREHOUSE": f"s3://{BUCKET}/warehouse",
        "LAKE_CATALOG__S3__ENDPOINT": store.address,
        "LAKE_CATALOG__S3__ACCESS_KEY_ID": KEY_ID,
        "LAKE_CATALOG__S3__SECRET_ACCESS_KEY": KEY,
    }


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
