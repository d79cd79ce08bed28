"""An earlier revision of the code in a temporary folder, to measure it beside the present one in the same run."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from lake_assets.settings import Settings

ROOT = Path(__file__).resolve().parents[1]


@contextmanager
def code_of(revision: str | None, *, own_files: Sequence[str] = ()) -> Iterator[tuple[Path, dict[str, str]]]:
    """Give the folder of a revision and the environment in which Python imports its packages.

    Args:
        revision: A revision of git; None for the code as it is now.
        own_files: Files of this folder that measure. They are copied over those of the revision, which may lack them.
    """
    if revision is None:
        yield ROOT, environment_of(ROOT)
        return
    with TemporaryDirectory(prefix="lake-before-") as made:
        packed = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(made, filter="data")
        for name in own_files:
            shutil.copy(ROOT / "benchmarks" / name, Path(made) / "benchmarks")
        yield Path(made), environment_of(Path(made))


def environment_of(folder: Path) -> dict[str, str]:
    """Return the environment of this process with the packages of a folder before all others.

    Of `LAKE_*` it has the folders of jars alone, which are those of the present code.
    """
    others = {name: value for name, value in os.environ.items() if not name.startswith("LAKE_")}
    jars = {"LAKE_JARS": str(Settings().jars), "LAKE_KAFKA_JARS": str(Settings().kafka_jars)}
    return {**others, "PYTHONPATH": str(folder), **jars}
