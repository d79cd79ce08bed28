"""`lake setup`: the jars that the Python packages do not bring along.

In a checkout, `make setup` downloads them together with all packages. If the package was installed from a wheel, only
the jars are missing.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from lake_assets.base.extras import installed
from lake_assets.connections.spark import spark_home
from lake_assets.errors import ServiceError
from lake_assets.services import bootstrap
from lake_assets.services.bootstrap import Step

if TYPE_CHECKING:
    from lake_assets.settings import Settings

CONFIGURATION = Path(__file__).with_name("configuration")


def set_up(settings: Settings) -> list[Path]:
    """Download the jars of Spark, and those of Kafka's broker if the extra `landing` is installed.

    A folder is left as it is while the file that names its jars, and pyspark's version, are unchanged.

    Returns:
        The folders of the jars.

    Raises:
        ServiceError: There is no Java, or a download failed.
    """
    wanted = {settings.jars: _step("setup-jars", settings.jars, "ivy.xml")}
    if installed("landing"):
        wanted[settings.kafka_jars] = _step("setup-kafka-jars", settings.kafka_jars, "ivy-kafka.xml")
    missing = {folder: step for folder, step in wanted.items() if not _is_there(folder, step)}
    try:
        for folder, step in missing.items():
            _take(folder, step)
    except bootstrap.SetupError as error:
        problem, _, remedy = str(error).partition("\n  → ")
        raise ServiceError(problem, remedy=remedy) from None
    return list(wanted)


def _step(name: str, folder: Path, ivy: str) -> Step:
    named = CONFIGURATION / ivy
    content = f"pyspark {version('pyspark')}\n".encode() + named.read_bytes()
    resolver = next((spark_home() / "jars").glob("ivy-*.jar"))
    return Step(name, content, lambda: bootstrap.fetch_jars(folder.parent, named, folder, resolver))


def _is_there(folder: Path, step: Step) -> bool:
    return step.is_done(folder.parent) and any(folder.glob("*.jar"))


def _take(folder: Path, step: Step) -> None:
    bootstrap.check_java(bootstrap.java_version())
    folder.parent.mkdir(parents=True, exist_ok=True)
    step.take(folder.parent)
