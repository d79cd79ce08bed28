"""`lake setup`: the jars that the Python packages do not bring along.

In a checkout, `make setup` downloads them together with all packages. If the package was installed from a wheel, only
the jars are missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from lake_assets.base.extras import installed
from lake_assets.connections.spark import EXTRA_JARS, extra_jars, spark_home
from lake_assets.errors import UsageError, suggestion
from lake_assets.services import bootstrap
from lake_assets.services.bootstrap import Step
from lake_assets.services.jar_files import LOCK_FILE, changed_jars

if TYPE_CHECKING:
    from lake_assets.settings import Settings

CONFIGURATION = Path(__file__).with_name("configuration")


def set_up(settings: Settings, extras: Iterable[str] = ()) -> list[Path]:
    """Download the jars of Spark, and those of Kafka's broker if the extra `landing` is installed.

    A folder is left as it is while the file that names its jars, pyspark's version, and the jars are unchanged.

    Args:
        settings: Name the folders.
        extras: Which of `EXTRA_JARS` are downloaded, too.

    Returns:
        The folders of the jars.

    Raises:
        ServiceError: There is no Java, or a download failed.
        UsageError: There are no such extra jars.
    """
    wanted = {settings.jars: _step("setup-jars", settings.jars, "ivy.xml")}
    if installed("landing"):
        wanted[settings.kafka_jars] = _step("setup-kafka-jars", settings.kafka_jars, "ivy-kafka.xml")
    for name in extras:
        wanted.update(_extra(name, settings))
    missing = {folder: step for folder, step in wanted.items() if not _is_there(folder, step)}
    for folder, step in missing.items():
        bootstrap.check_java(bootstrap.java_version())
        folder.parent.mkdir(parents=True, exist_ok=True)
        step.take(folder.parent)
    return list(wanted)


def _extra(name: str, settings: Settings) -> dict[Path, Step]:
    if name not in EXTRA_JARS:
        raise UsageError(f"There are no jars for {name!r}.", remedy=suggestion(name, [*EXTRA_JARS]))
    folder = extra_jars(settings, name)
    return {folder: _step(f"setup-jars-{name}", folder, f"ivy-{name}.xml")}


def _step(name: str, folder: Path, ivy: str) -> Step:
    named = CONFIGURATION / ivy
    content = f"pyspark {version('pyspark')}\n".encode() + named.read_bytes()
    resolver = next((spark_home() / "jars").glob("ivy-*.jar"))
    return Step(name, content, lambda: bootstrap.fetch_jars(folder.parent, named, folder, resolver))


def _is_there(folder: Path, step: Step) -> bool:
    """Whether all jars of the folder are there, and are those that were locked."""
    is_complete = step.is_done(folder.parent) and any(folder.glob("*.jar"))
    return is_complete and not changed_jars(folder, CONFIGURATION / LOCK_FILE)
