"""Whether messages may be the cause of an error, or only the services under a batch. Pure."""

from __future__ import annotations

import re

from confluent_kafka import KafkaException
from deltalake.exceptions import DeltaError
from kazoo.exceptions import KazooException

from lake_assets.errors import (
    ConfigurationError,
    CoordinationError,
    ServiceError,
    StreamError,
    chain,
    chain_text,
    text_of,
)
from lake_assets.errors.described import is_machines_fault, passes_by_itself

INFRASTRUCTURE_CLASSES: tuple[type[Exception], ...] = (
    ConfigurationError,
    CoordinationError,
    ServiceError,
    StreamError,
    DeltaError,
    KafkaException,
    KazooException,
    OSError,
    MemoryError,
)
"""Errors of services, of the coordinator and of the machine. An attempt that ends with one of them does not count.

`DeltaError` is of delta-rs, which reads and writes no message for a batch.
"""

INFRASTRUCTURE_TEXTS = re.compile(
    r"DELTA_CONCURRENT|DELTA_METADATA_CHANGED|DELTA_PROTOCOL_CHANGED|DELTA_LOG_FILE_NOT_FOUND"
    r"|StatusCode\.(?!INTERNAL|UNKNOWN|INVALID_ARGUMENT)|Socket closed|SparkContext (?:was|has been) (?:shut|stopped)"
    r"|stopped SparkContext|OPERATION_CANCELED|FAILED_READ_FILE|FileNotFoundException"
    r"|org\.apache\.kafka\.|KAFKA_DATA_LOSS|File too large|java\.io\.IOException|Python worker exited unexpectedly"
)
"""Texts of Spark's and Delta's errors that report another writer, a lost server, Kafka, or a disk.

`errors.described.PASSING` has others, such as a lost executor.
"""

_STACK_FRAME = re.compile(r"^\s*at .*$", re.MULTILINE)
_CONDITION = re.compile(r"(?:^|(?:Exception|Error)(?:\)|:) )\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\]", re.MULTILINE)
_PYTHON_ERROR = re.compile(r"^(?:\w+\.)*(\w*Error): ", re.MULTILINE)


def is_infrastructure(error: BaseException) -> bool:
    """Return whether an error is one of the services under a batch, so that its messages are not the cause."""
    if any(isinstance(found, INFRASTRUCTURE_CLASSES) for found in chain(error)):
        return True
    text = _STACK_FRAME.sub("", chain_text(error))
    is_of_writers = INFRASTRUCTURE_TEXTS.search(text) is not None
    return is_of_writers or is_machines_fault(error) or passes_by_itself(text)


def error_name(error: BaseException) -> str:
    """Return the condition of an error of Spark or Delta, the class of a Python error of a task, or its own class.

    It contains no value of a message, because messages name persons, and the name is stored.
    """
    text = _STACK_FRAME.sub("", text_of(error))
    names: list[str] = _CONDITION.findall(text) or _PYTHON_ERROR.findall(text)
    return names[-1] if names else type(error).__name__
