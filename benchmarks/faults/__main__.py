"""Play all faults and write the table into docs/reliability.md.

    python -m benchmarks.faults [--tries 1] [--only spark,disk] [--dry-run]

The data directory is a temporary one. The fault `disk` needs a file system of its own, which only root can mount.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.faults.player import Player, Row, total
from benchmarks.faults.table import table, written
from lake_assets.services.service import free_port
from lake_assets.settings import PROJECT, Settings

PAGE = PROJECT / "docs" / "reliability.md"
DISK_MB = 3000
MOST_MINUTES = 14


def main() -> None:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tries", type=int, default=1)
    parser.add_argument("--minutes", type=int, default=MOST_MINUTES, help="start no fault later")
    parser.add_argument("--only", help="faults, comma-separated")
    parser.add_argument("--dry-run", action="store_true", help="leave the page as it is")
    arguments = parser.parse_args()
    os.environ["PYTHONPATH"] = str(PROJECT)  # services find this pipeline
    with small_disk() as (folder, is_small):
        settings = faults_settings(folder / "home")
        only = arguments.only.split(",") if arguments.only else None
        rows = _play(Player(settings, print), only, arguments.tries, arguments.minutes, is_small)
    text = table(rows)
    print(text)
    if not arguments.dry_run:
        PAGE.write_text(written(PAGE.read_text(), text))
    if not all(row.is_harmless for row in rows):
        sys.exit(1)


def faults_settings(home: Path) -> Settings:
    """Return the settings of a data directory for this pipeline, with short waits."""
    return Settings(
        home=home,
        pipelines="benchmarks.faults.pipeline:PIPELINE",
        end="2026-01-02-00:00",
        settle_seconds=2,
        landing_age_seconds=5,
        webserver_port=free_port(),
    )


def _play(player: Player, only: list[str] | None, tries: int, minutes: int, is_small: bool) -> list[Row]:
    began = time.monotonic()
    rows = []
    with player.started():
        player.warm_up()
        for fault in only or player.faults:
            if fault == "disk" and not is_small:
                print("disk: left out, because only root can mount a file system of its own.")
                continue
            row = Row(fault)
            rows.append(row)
            for _ in range(tries):
                if time.monotonic() - began > 60 * minutes:
                    print(f"{fault}: left out, because {minutes} minutes are over.")
                    break
                row.add(player.play(fault), total(player.traffic.count()))
    return rows


@contextmanager
def small_disk() -> Iterator[tuple[Path, bool]]:
    """Yield a temporary folder, and whether it is a small file system of its own."""
    with tempfile.TemporaryDirectory(prefix="lake-faults-") as name:
        folder = Path(name)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "lake-faults", name]
        if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
            yield folder, False
            return
        try:
            yield folder, True
        finally:
            subprocess.run(["umount", "--lazy", name], check=True)


if __name__ == "__main__":
    main()
