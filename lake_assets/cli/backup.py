"""`lake backup` and `lake restore`: the data directory as a folder of its own, and back."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lake_assets.cli.common import progress_bar
from lake_assets.settings import home_directory, settings

if TYPE_CHECKING:
    from lake_assets.services.backup.contents import Contents

NewFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of the backup. It must not exist.")]
Backup = Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder that `lake backup` has made.")]


def backup(folder: NewFolder) -> None:
    """Copy the data directory into FOLDER, with checksums. The services must be stopped: `lake down`.

    Lists what belongs to the lake and is not in the data directory, such as a bucket or a database server.
    """
    from lake_assets.services.backup.make import back_up

    with progress_bar("Copying") as progress:
        made = back_up(settings(), folder, now=datetime.now(UTC), progress=progress)
    typer.echo(f"{folder}: {_size(made)} of {made.home}.")
    for line in made.elsewhere:
        typer.echo(f"Not in it: {line}")


def restore(folder: Backup) -> None:
    """Restore the data directory from the backup FOLDER. The data directory must be empty.

    All files are compared with their checksums before one of them is put in its place. If the command is interrupted,
    run it again.
    """
    from lake_assets.services.backup.restore import restore

    with progress_bar("Copying") as progress:
        restored = restore(home_directory(), folder, progress=progress)
    typer.echo(f"{restored.home}: {_size(restored)} as of {restored.made_at}, by version {restored.made_by}.")
    for line in restored.elsewhere:
        typer.echo(f"Not restored: {line}")
    typer.echo("Check it by `lake doctor`, then run `lake up`.")


def _size(found: Contents) -> str:
    return f"{len(found.files):,} files, {found.bytes:,} bytes"
