"""Landing: messages of Kafka, through two independent zones of checked files, into raw tables.

What a file is: `records`, `formats`, `files`, `cutover`. Which files there are: `coverage`, `manifest`, `state`,
`zones`. How they come to be: `messages`, `kafka`, `tail`, `zone_tailer`. What is done with them: `operations`,
`reshard`, `heal`, `accept`, `erasure`. How they become rows: `loading`, `dead_letters`. `landing_service` runs
all of them, `problems` tells what is wrong, `reading` shows the rows that have landed, and `dagster`
shows it all in Dagster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lake_assets.incremental.from_settings import Declared
    from lake_assets.settings import Settings

__all__ = ["read"]


def read(
    topic: str,
    *,
    open: bool = False,  # noqa: A002
    pipeline: Declared | None = None,
    settings: Settings | None = None,
) -> list[dict[str, Any]]:
    """Return the rows of a topic that have landed, from both zones, each once, in order of partition and offset.

    Args:
        topic: The topic.
        open: Also return the rows of open files: what a zone has read within the last two seconds, at the latest.
        pipeline: A `Pipeline`, or what `LAKE_PIPELINES` may name. Default: what that names.
        settings: Of the home. Default: those of the process.

    Returns:
        A dict for each row: the columns of the raw table as Python values; `partition` and `offset` of the message;
        `sent_at`, its own time in UTC; `open`, whether it is of an open file. A name that the table has as a column
        begins with `_`. Rows of erased ids, dead letters and heartbeats are left out. All rows are in memory.

    Raises:
        UsageError: No raw table is fed by the topic.
        LandingError: A file is damaged in each zone that has it.
    """
    from lake_assets.incremental.from_settings import declared_pipeline
    from lake_assets.landing.reading import rows_of
    from lake_assets.settings import settings as settings_of_process

    found = settings or settings_of_process()
    declared = declared_pipeline(found.pipelines if pipeline is None else pipeline, start=found.start)
    return rows_of(found, declared, topic, open=open)
