"""Starting Spark in this process: what Java prints goes to a log file, and if it does not start, the error says why."""

from __future__ import annotations

import logging
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lake_assets.errors import ServiceError
from lake_assets.errors.texts import ErrorText, chain_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_JAVA = 17
JAVA_SECONDS = 60
INSTALL = "Install Java 17 or 21 (such as openjdk-17-jre-headless), or set JAVA_HOME to one."
NOT_STARTED = "JAVA_GATEWAY_EXITED"
"""Pyspark's name of the error."""

STDERR = 2


def start_in_process(builder: Any, home: Path) -> SparkSession:
    """Start Spark in this process, or return the session that it has.

    Args:
        builder: A builder of pyspark.
        home: The data directory. Java writes its warnings to `logs/spark-in-process.log` in it.

    Raises:
        ServiceError: Java did not start.
    """
    log = home / "logs" / "spark-in-process.log"
    logging.getLogger().addFilter(_is_not_of_py4j)
    try:
        with _stderr_to(log):
            session: SparkSession = builder.getOrCreate()
    except Exception as error:
        if NOT_STARTED not in chain_text(error) and not isinstance(error, OSError):
            raise
        found = explain_java(_java_version(), log)
        raise ServiceError(found.problem, remedy=found.remedy) from error
    return session


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Leave out what py4j logs, with its traceback, if Java ends: the error that it raises then says the same."""
    return Path(record.pathname).parent.name != "py4j"


def explain_java(version: str | None, log: Path) -> ErrorText:
    """Return why Java did not start.

    Args:
        version: The output of `java -version`; None if there is no such program.
        log: The file with what Java printed.
    """
    if version is None:
        return ErrorText("Spark needs Java, and there is no program java in JAVA_HOME or PATH.", INSTALL)
    found = re.search(r'version "(?:1\.)?(\d+)', version)
    if found and int(found[1]) < MIN_JAVA:
        return ErrorText(
            f"Spark needs Java {MIN_JAVA} or later, and the installed Java is version {found[1]}.", INSTALL
        )
    return ErrorText(
        "Spark did not start, because Java ended.",
        f"Read {log}. If it reports too little memory, set LAKE_SPARK_MEMORY to less than the machine has.",
    )


def _java_version() -> str | None:
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else "java"
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=JAVA_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stderr + done.stdout


@contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Send standard error to a file meanwhile; a Java that starts meanwhile keeps writing to it."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        file = log.open("ab")
    except OSError:  # without a log, Java may print
        yield
        return
    terminal = os.dup(STDERR)
    os.dup2(file.fileno(), STDERR)
    try:
        yield
    finally:
        os.dup2(terminal, STDERR)
        os.close(terminal)
        file.close()
