"""The checks of a machine and a data directory: settings, Java, disk, permissions and services."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile

from pydantic import ValidationError

from lake_assets.base.findings import Finding, Level, Repair
from lake_assets.cli.common import malformed_settings, unknown_settings
from lake_assets.connections import addresses
from lake_assets.connections.catalog import TABLES_FILE, check_home, parse_remembered
from lake_assets.errors import ConfigurationError, ServiceError, StoredByNewerVersion, StoredStateError
from lake_assets.incremental.declaration import Pipeline
from lake_assets.incremental.engine.erasures import KEY_FILE
from lake_assets.incremental.from_settings import open_pipeline
from lake_assets.incremental.operations.alerts import Webhook
from lake_assets.services import lifecycle
from lake_assets.services.service import check_java, java_version
from lake_assets.settings import Settings, settings

SETTINGS, VERSION, JAVA, DISK, SERVICES = "settings", "version", "java", "disk", "services"

ENOUGH_BYTES = 3 * 10**9
LEAST_BYTES = 200 * 10**6
"""With less free space, not even a commit is safe."""

OTHERS = 0o077
"""The permissions of a file's group and of everybody else."""


def check_settings() -> Iterator[Finding]:
    """Yield malformed and unknown variables, and pipelines that cannot be loaded. Secret values are not shown."""
    malformed = list(_malformed())
    yield from malformed
    unknown = [Finding(SETTINGS, "warning", each.problem, each.remedy) for each in unknown_settings()]
    yield from unknown
    if valid_settings() is None:
        return
    try:
        broken = [each.error for each in open_pipeline(settings()).broken]
    except ConfigurationError as error:
        broken = [error]
    if (addresses_of_alerts := settings().alert_webhook) is not None:
        try:
            Webhook(addresses_of_alerts)
        except ConfigurationError as error:
            broken.append(error)
    for found in broken:
        yield Finding(SETTINGS, "error", found.problem, found.remedy)
    if not malformed and not unknown and not broken:
        yield Finding(SETTINGS, "ok", f"All variables are known and valid; the home is {settings().home}.")


def valid_settings() -> Settings | None:
    """Return the settings; None if they are malformed, which the check of settings reports."""
    try:
        return settings()
    except Exception:  # a file that is no text, a value that is no JSON, a home of an unknown user
        return None


def loaded_pipeline(found: Settings) -> Pipeline | None:
    """Return the pipeline; None if it cannot be loaded, which the check of settings reports."""
    try:
        return open_pipeline(found)
    except Exception:  # a module of somebody's own may raise anything
        return None


def check_version(home: Path) -> Iterator[Finding]:
    """Yield why nothing can work on a data directory: a later version has written it, or it was moved."""
    try:
        check_home(home)
    except StoredStateError as error:
        yield Finding(VERSION, "error", error.problem, error.remedy)


def check_java_version() -> Iterator[Finding]:
    """Yield whether a Java runs that Spark can use."""
    output = java_version()
    try:
        check_java(output)
    except ServiceError as error:
        yield Finding(JAVA, "error", error.problem, error.remedy)
        return
    yield Finding(JAVA, "ok", (output or "").splitlines()[0])


def check_disk(home: Path) -> Iterator[Finding]:
    """Yield whether a data directory can be written to, has space, and keeps its secrets."""
    if not home.is_dir():
        yield Finding(DISK, "warning", f"{home} does not exist yet.", "Run `lake init`, or correct LAKE_HOME.")
        return
    found = [*_unwritable(home), *_little_space(home), *_readable_key(home), *_unreadable_memory(home)]
    yield from found
    if not found:
        free = shutil.disk_usage(home).free / 10**9
        yield Finding(DISK, "ok", f"{home} can be written to, and {free:,.0f} GB are free.")


def check_services(found: Settings) -> Iterator[Finding]:
    """Yield services that were started and have ended."""
    stale = lifecycle.stale_services(found)
    recorded = addresses.read_records(found.home)
    if not recorded:
        yield Finding(SERVICES, "ok", "No service was started here.")
        return
    failing = list(_failing_services(found))
    if failing:
        yield from failing
        return
    if not stale:
        yield Finding(SERVICES, "ok", f"{len(recorded)} services run.")
        return
    text = f"Recorded as started, but dead: {', '.join(stale)}."
    if len(stale) < len(recorded) or addresses.processes_of(found.home):
        yield Finding(SERVICES, "error", text, "Run `lake down`, then `lake up`.")
        return
    repair = Repair("removes the records of dead services", lambda: lifecycle.remove_stale_records(found))
    yield Finding(SERVICES, "warning", text, f"Run `lake up`; `lake doctor --repair` {repair.what}.", repair)


def _failing_services(found: Settings) -> Iterator[Finding]:
    for service in lifecycle.status(found):
        if service.state == "failing":
            text = f"{service.name} fails at every start: it {service.detail}."
            yield Finding(SERVICES, "error", text, f"Read {service.log}. It is started again by itself.")


def _malformed() -> Iterator[Finding]:
    try:
        settings()
    except ValidationError as error:
        for text in malformed_settings(error):
            yield Finding(SETTINGS, "error", text.problem, text.remedy)
    except ConfigurationError as error:  # a file that others can read
        yield Finding(SETTINGS, "error", error.problem, error.remedy)


def _unwritable(home: Path) -> Iterator[Finding]:
    try:
        with TemporaryFile(dir=home):
            pass
    except OSError as error:
        text = f"{home} cannot be written to: {error.strerror}."
        yield Finding(DISK, "error", text, "Give its owner back the permission to write, or mount it writable.")


def _little_space(home: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(home).free
    if free < ENOUGH_BYTES:
        text = f"Only {free / 10**9:.1f} GB are free in {home}."
        level: Level = "error" if free < LEAST_BYTES else "warning"
        remedy = f"Free {ENOUGH_BYTES // 10**9} GB; `lake maintain` removes files that no table needs."
        yield Finding(DISK, level, text, remedy)


def _readable_key(home: Path) -> Iterator[Finding]:
    file = home / KEY_FILE
    if file.exists() and file.stat().st_mode & OTHERS:
        repair = Repair(f"lets only its owner read {KEY_FILE}", lambda: file.chmod(0o600))
        text = f"Others than its owner can read {file}, the key that hides erased ids."
        yield Finding(DISK, "warning", text, f"Run `lake doctor --repair`, which {repair.what}.", repair)


def _unreadable_memory(home: Path) -> Iterator[Finding]:
    file = home / TABLES_FILE
    if not file.exists():
        return
    try:
        parse_remembered(file.read_text(), home)
    except StoredByNewerVersion:
        return  # the check of the version reports it
    except (OSError, ValueError) as error:
        text = f"{file} cannot be read: {error}."
        yield Finding(DISK, "warning", text, "Delete it if the catalog is right: the next command writes it again.")
