"""What the commands of engagement lakes print, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from lake_assets.pages import terminal_erasure

if TYPE_CHECKING:
    from lake_assets.engagement.erasure.certificate import LakeCertificate
    from lake_assets.engagement.maintenance.maintain import MaintenanceReport


def maintained(done: MaintenanceReport) -> str:
    """What a maintenance did, in words."""
    before, after, removed = done.before, done.after, sum(done.removed.values())
    kept = f"old versions stay readable for {done.kept_hours} hours" if done.kept_hours else "no old version is kept"
    files = f"{before.files:,} files ({before.bytes:,} bytes) are now {after.files:,} ({after.bytes:,} bytes)"
    return f"{done.orgs} orgs sorted; {files}; {removed:,} files removed; {kept}"


def certificate(found: LakeCertificate) -> None:
    """Print where an id still is in the lakes, and until when Kafka holds messages of it."""
    terminal_erasure.certificate(found)
    for kept in found.kafka:
        until = f"until {kept.until:%Y-%m-%d %H:%M} at the latest" if kept.until else "without end"
        typer.echo(f"  Kafka holds {kept.messages:,} messages of {kept.topic} {until}")
