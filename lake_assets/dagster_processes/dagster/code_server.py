"""Dagster's code server as `lake up` starts it: the process of a run is forked, with the definitions loaded.

    python -m lake_assets.dagster_processes.dagster.code_server --module-name lake_assets.definitions --port 4000

The options are those of `dagster api grpc`. That command starts a new interpreter for each run, which imports Dagster
and the definitions for 2 s or more. Each run has a process of its own here, too. If the definitions cannot be forked,
the log says why, and runs start as they do with that command.
"""

from __future__ import annotations

import logging
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context

import dagster as dg

from lake_assets.connections.dagster import (
    Moved,
    code_server_command,
    import_definitions,
    lazy_definitions,
    unknown_version,
    use_context,
    use_time_zones,
)
from lake_assets.dagster_processes import fork_server
from lake_assets.dagster_processes.dagster.captured_output import use_lean_capture
from lake_assets.dagster_processes.dagster.storages import read_migrations, use_sparing_storages

RUN_MODULES = (
    "dagster._grpc.impl",
    "dagster._grpc.server",
    "dagster._core.execution.api",
    "dagster._core.storage.sqlite_storage",
    "dagster._core.storage.local_compute_log_manager",
    "pyspark.sql.connect.session",
    "pyspark.sql.connect.dataframe",
    "pyspark.sql.connect.functions",
    "pyiceberg.catalog.sql",
    "pyiceberg.io.pyarrow",
    "sqlalchemy.dialects.sqlite",
    # What a session imports when it first needs it, so that nobody else has to load Spark:
    "dagster._core.executor.in_process",
    "fsspec.implementations.local",
    "lake_assets.connections.sql_catalog",
    "lake_assets.connections.query_plans",
    "lake_assets.connections.spark",
    "lake_assets.incremental.engine.audit_run",
    "lake_assets.incremental.engine.stage",
    "pyarrow.acero",
    "pyiceberg.avro.decoder_fast",
    "pyspark.sql.connect.window",
    "upath.implementations.local",
)
"""What a run imports beside the definitions; importing it takes a second. A name that is gone is left out."""

log = logging.getLogger("lake_assets.code_server")


def main(arguments: Sequence[str]) -> None:
    """Load the definitions, start the fork server, and serve until the process is stopped.

    Args:
        arguments: Options of `dagster api grpc`.
    """
    logging.basicConfig(format="%(asctime)s - %(name)s - %(message)s", level=logging.INFO)
    for reason in filter(None, (use_sparing_storages(), use_lean_capture())):
        log.warning("Sensors and runs take more processor time: %s.", reason)
    use_time_zones()
    if _preloads(arguments):
        reason = start_fork_server()
        if reason:
            log.warning("Each run starts a new interpreter, which takes 2 s or more: %s.", reason)
    code_server_command()(arguments)


def start_fork_server() -> str:
    """Start a fork server of this process, and make the code server use it.

    Returns:
        Why that cannot be done; empty if it is done.
    """
    if not fork_server.supported():
        return f"Python {sys.version.split()[0]} has another fork server"
    found = fork_server.obstacles()
    if found:
        return f"importing the definitions leaves {', '.join(found)}, which a fork cannot share"
    try:
        use_context(get_context("forkserver"))
    except Moved as error:
        return unknown_version(error)
    pid = fork_server.start()
    log.info("Runs are forked from process %d, which has loaded the definitions.", pid)
    return ""


def preload(module: str, folder: str | None) -> None:
    """Import definitions and what a run needs beside them, and build the repository of the definitions.

    Args:
        module: Name of the module of definitions.
        folder: Folder to import it from, beside those of the Python path.
    """
    loaded = import_definitions(module, folder)
    for name in RUN_MODULES:
        with suppress(ImportError):
            import_module(name)
    with suppress(Moved):
        read_migrations()
    for value in list(vars(loaded).values()):
        with suppress(Moved):
            value = value() if isinstance(value, lazy_definitions()) and not value.has_context_arg else value
        if isinstance(value, dg.Definitions):
            value.get_repository_def().load_all_definitions()


def _preloads(arguments: Sequence[str]) -> bool:
    """Preload what the options name. Return whether that worked."""
    parser = ArgumentParser()
    parser.add_argument("--module-name")
    parser.add_argument("--working-directory")
    options, _ = parser.parse_known_args(arguments)
    if options.module_name is None:
        return False
    try:
        preload(options.module_name, options.working_directory)
    except (Exception, SystemExit):  # of the user's module: the command loads it again, and reports the error
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1:])
