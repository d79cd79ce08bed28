"""Faults of a machine and its services, recognised by the texts of their errors. Pure."""

from __future__ import annotations

import re
from collections import defaultdict

from lake_assets.errors.texts import ErrorText

Fault = tuple[str, str, str]
"""Pattern in the texts of an error and its causes → problem and remedy. In braces: what the pattern's groups found."""

AGAIN = "run the command again: it continues what was interrupted."
START = "Start it with `lake up`, or correct"

SPARK: tuple[Fault, ...] = (
    (
        r"java\.lang\.OutOfMemoryError|Java heap space|GC overhead limit exceeded",
        "Spark has too little memory.",
        "Set LAKE_SPARK_MEMORY to more, such as 4g, and restart Spark (`lake down`, then `lake up`). Then " + AGAIN,
    ),
    (
        r"INVALID_HANDLE\.(?P<what>SESSION_\w+)|INVALID_HANDLE\.(?P<operation>OPERATION_\w+)"
        r"|\[(?P<none>NO_ACTIVE_SESSION)\]",
        "Spark has ended the session of this command ({what}): it was restarted, or the session was idle for long.",
        "If Spark was restarted because it had too little memory, set LAKE_SPARK_MEMORY to more. Then " + AGAIN,
    ),
    (
        r"StatusCode\.UNAUTHENTICATED|StatusCode\.PERMISSION_DENIED",
        "Spark refuses the token of LAKE_SPARK_REMOTE.",
        "Correct the token in the address, sc://host:port/;token=…; the server's administrator has it.",
    ),
    (
        r"StatusCode\.UNIMPLEMENTED|Trying to connect an http1\.x server",
        "The server of LAKE_SPARK_REMOTE is no Spark Connect server.",
        "Correct the host and the port; Spark Connect listens at 15002 unless it is configured otherwise.",
    ),
    (
        r"StatusCode\.UNAVAILABLE|RetriesExceeded|StatusCode\.CANCELLED|Cannot invoke RPC on closed channel",
        "The connection to Spark was lost: Spark ended, or it cannot be reached any more.",
        "`lake status` shows whether it runs, and logs/spark.log in the data directory why it ended; with too little "
        "memory, set LAKE_SPARK_MEMORY to more. Then " + AGAIN,
    ),
    (
        r"py4j\.protocol\.Py4J(?:Network)?Error\b|Answer from Java side is empty|Error while sending or receiving"
        r"|An error occurred while calling \w+\.\w+\.?(?!\n:)(?:\n|\Z)"
        r"|SparkContext was shut ?down|stopped SparkContext",
        "The Java process of Spark ended, or cannot be reached any more.",
        "Read logs/spark-in-process.log in the data directory. If it had too little memory, set LAKE_SPARK_MEMORY to "
        "more. Then " + AGAIN,
    ),
    (
        r"of RPC that terminated with:\s+status = StatusCode\.(?P<what>\w+)\s+details = \"(?P<why>[^\"\n]*)",
        "Spark failed to answer a request ({what}: {why}).",
        "Read logs/spark.log in the data directory; with too little memory, set LAKE_SPARK_MEMORY to more and restart "
        "Spark (`lake down`, then `lake up`). Then " + AGAIN,
    ),
    (
        r"CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND|ExecutorLostFailure|FetchFailedException",
        "Spark lost an executor, with rows that it held.",
        "If executors end for too little memory, give them more by LAKE_SPARK_PROPERTIES. Then " + AGAIN,
    ),
)

DATABASES: tuple[Fault, ...] = (
    (
        r"could not (?:extend|write to) file [^\n]*No space left on device|psycopg2\.errors\.DiskFull[^\n]*",
        "The disk of the PostgreSQL server is full.",
        "Free some space there. Then " + AGAIN,
    ),
    (
        r"database (?P<what>\"[^\"\n]+\") does not exist",
        "PostgreSQL has no database {what}.",
        "Create it, or correct its name in the address of the catalog (LAKE_CATALOG_URI) or of the manifest.",
    ),
    (
        r"FATAL:\s+(?P<what>(?:role \"|no pg_hba\.conf entry|[^\n]*authentication failed)[^\n]*)",
        "PostgreSQL refuses the login: {what}.",
        "Correct the user and the password in the address of the catalog (LAKE_CATALOG_URI) or of the manifest.",
    ),
    (
        r"InsufficientPrivilege\) (?P<what>[^\n]+)|PSQLException: ERROR: (?P<java>permission denied[^\n]+)",
        "PostgreSQL refuses access: {what}.",
        "Grant the user of the address the rights to read and write the tables of its database.",
    ),
    (
        r"cannot execute (?P<what>[A-Z ]+) in a read-only transaction",
        "PostgreSQL takes no changes: it is read-only and refuses {what}.",
        "Name the primary server in the address, or end its read-only mode. Then " + AGAIN,
    ),
    (
        r"LockNotAvailable|canceling statement due to (?P<what>lock timeout|statement timeout)|deadlock detected",
        "PostgreSQL gave up a statement that waited for another one.",
        "If it happens again, look for a long transaction in pg_stat_activity. Then " + AGAIN,
    ),
    (
        r"received invalid response to (?P<what>[^\n]+)|expected authentication request from server[^\n]*",
        "The server in the address of the database is no PostgreSQL server.",
        "Correct the host and the port in LAKE_CATALOG_URI, or in the address of the manifest.",
    ),
    (
        r"FATAL:\s+(?P<what>(?:sorry, )?too many (?:clients|connections)[^\n]*|remaining connection slots[^\n]*)",
        "PostgreSQL has no connection left: {what}.",
        "End programs that keep connections open, or raise the limit: max_connections of the server, or the CONNECTION "
        "LIMIT of the role or the database. Then " + AGAIN,
    ),
    (
        r"server closed the connection unexpectedly|terminating connection due to (?P<what>[^\n]+)"
        r"|the database system is (?P<state>starting up|shutting down|in recovery mode)|SSL SYSCALL error"
        r"|PSQLException: (?:An I/O error occurred while sending|This connection has been closed)",
        "PostgreSQL ended the connection.",
        "It was stopped or restarted. When it runs again, " + AGAIN,
    ),
    (
        r"(?:connection to server [^\n]* failed: |PSQLException: )FATAL:\s+(?P<what>[^\n]+)",
        "PostgreSQL refuses the connection: {what}.",
        "Correct what it names; the log of the server says more. Then " + AGAIN,
    ),
    (
        r"connection to server (?:at|on socket) (?P<what>\"[^\n]*?) failed: (?P<why>[^\n]+)"
        r"|PSQLException: (?P<java>Connection to \S+ refused)",
        "PostgreSQL cannot be reached at {what}: {why}.",
        "Start it, or correct the host and the port in LAKE_CATALOG_URI, or in the address of the manifest.",
    ),
    (
        r"database is locked|SQLITE_BUSY",
        "Another process has kept the SQLite file of the catalog or of the manifest locked for a minute.",
        "Wait until that command ends, or end the process that hangs; then " + AGAIN,
    ),
    (
        r"(?P<what>file is not a database|database disk image is malformed)|SQLITE_(?P<java>CORRUPT|NOTADB)",
        "The SQLite file of the catalog or of the manifest is damaged: {what}.",
        "Run `lake doctor`, which names it; restore it from a backup with `lake restore`.",
    ),
    (
        r"unable to open database file|SQLITE_CANTOPEN",
        "The SQLite file of the catalog or of the manifest cannot be opened.",
        "Check that the path in its address is a file that you may read and write.",
    ),
)

_HTTP = (
    r"requests\.exceptions\.HTTPError: (?P<what>{status}) \w+ Error: (?P<why>[^\n]*?) for url: "
    r"(?P<url>\w+://[^/\s]+){path}"
)

REST_CATALOG: tuple[Fault, ...] = (
    (
        _HTTP.format(status="401|403|419", path=""),
        "The catalog {url} refuses access: {what} {why}.",
        "Correct its login: LAKE_CATALOG__TOKEN or LAKE_CATALOG__CREDENTIAL; or ask for the right to use it.",
    ),
    (
        _HTTP.format(status="400|404|405|410|501", path=r"/\S*v1/config"),
        "The server {url} is no Iceberg REST catalog: it answers {what} {why}.",
        "Correct LAKE_CATALOG_URI: the address is that to which /v1/config is added.",
    ),
    (
        r"1 validation error for ConfigResponse",
        "The server of LAKE_CATALOG_URI is no Iceberg REST catalog: its answer is no configuration of one.",
        "Correct LAKE_CATALOG_URI: the address is that to which /v1/config is added.",
    ),
    (
        _HTTP.format(status=r"429|5\d\d", path=""),
        "The catalog {url} failed to answer a request: {what} {why}.",
        "Look at the log of the catalog's server. When it works again, " + AGAIN,
    ),
    (
        r"requests\.exceptions\.(?:ConnectionError|ConnectTimeout|ReadTimeout|SSLError): HTTPS?ConnectionPool"
        r"\(host='(?P<what>[^']*)', port=(?P<port>\d+)\)(?:[^\n]*?(?P<why>Connection refused|Failed to resolve|"
        r"timed out|CERTIFICATE_VERIFY_FAILED|WRONG_VERSION_NUMBER))?",
        "The server {what}, port {port}, cannot be reached: {why}.",
        "Start it, or correct LAKE_CATALOG_URI.",
    ),
)

KAFKA_IS_SILENT = "Kafka does not answer."

KAFKA: tuple[Fault, ...] = (
    (
        r"(?:_AUTHENTICATION|SASL_AUTHENTICATION_FAILED)\b|SaslAuthenticationException: (?P<what>[^\n]+)",
        "Kafka refuses the login.",
        "Correct LAKE_KAFKA__SASL_USERNAME, LAKE_KAFKA__SASL_PASSWORD and LAKE_KAFKA__SASL_MECHANISM.",
    ),
    (
        r"(?P<what>TOPIC|GROUP|CLUSTER|TRANSACTIONAL_ID)_AUTHORIZATION_FAILED|(?P<java>\w+)AuthorizationException",
        "Kafka refuses access ({what}).",
        "Grant the user of LAKE_KAFKA__SASL_USERNAME the rights to describe, read and write its topics.",
    ),
    (
        r"KafkaError\{code=UNKNOWN_TOPIC_OR_PART|UnknownTopicOrPartitionException",
        "Kafka has no such topic or partition.",
        "Create it with `lake landing init` or `lake engagement init`, or correct its name.",
    ),
    (
        r"code=MSG_SIZE_TOO_LARGE|RecordTooLargeException",
        "Kafka refuses a message because it is too large.",
        "Raise max.message.bytes of the topic, and message.max.bytes of the clients by LAKE_KAFKA__MESSAGE_MAX_BYTES.",
    ),
    (
        r"code=_SSL|SSL handshake failed|SslAuthenticationException",
        "Kafka refuses an encrypted connection: its port expects another protocol, or its certificate is not trusted.",
        "Correct LAKE_KAFKA__SECURITY_PROTOCOL, the port in LAKE_KAFKA, and LAKE_KAFKA__SSL_CA_LOCATION.",
    ),
    (
        r"KafkaError\{code=(?P<what>_ALL_BROKERS_DOWN|_TRANSPORT|_TIMED_OUT|_RESOLVE|REQUEST_TIMED_OUT)"
        r"|org\.apache\.kafka\.common\.errors\.(?P<java>TimeoutException|DisconnectException)",
        KAFKA_IS_SILENT,
        f"{START} LAKE_KAFKA, or LAKE_KAFKA__SECURITY_PROTOCOL if its port expects another protocol.",
    ),
)

ZOOKEEPER: tuple[Fault, ...] = (
    (
        r"kazoo\.exceptions\.(?P<what>NoAuthError|AuthFailedError|InvalidACLError)",
        "ZooKeeper refuses access: its nodes belong to another login.",
        "Set LAKE_ZOOKEEPER_AUTH=name:password to the login that created them.",
    ),
    (
        r"kazoo\.exceptions\.(?P<what>ConnectionLoss|SessionExpiredError|ConnectionClosedError|OperationTimeoutError)"
        r"|KazooTimeoutError|kazoo\.retry\.RetryFailedError|kazoo\.exceptions\.(?P<other>ConnectionDropped)",
        "ZooKeeper stopped answering.",
        "`lake status` shows whether it runs. When it does, " + AGAIN,
    ),
)

KNOWN: tuple[Fault, ...] = (
    *SPARK,
    *DATABASES,
    *REST_CATALOG,
    *KAFKA,
    *ZOOKEEPER,
    (
        r"JAVA_GATEWAY_EXITED",
        "Spark did not start, because Java did not.",
        "Install Java 17 or 21, or set JAVA_HOME to one.",
    ),
    (
        r"No suitable driver found for jdbc:postgresql",
        "Spark has no JDBC driver for PostgreSQL, which it needs for the catalog.",
        "Run `lake setup --with postgresql`. If `lake up` runs, restart it: `lake down`, then `lake up`.",
    ),
    (
        r"No suitable driver found for (?P<what>jdbc:\w+)",
        "Spark has no JDBC driver for {what}, which it needs for the catalog.",
        "Add the driver's jar to the folder LAKE_JARS, or run `lake setup`, which downloads it.",
    ),
    (
        r"(?:ClassNotFoundException: |Cannot find catalog plugin class for catalog '\w+': )"
        r"(?P<what>org\.apache\.iceberg\.\S+|io\.delta\.\S+|org\.apache\.spark\.sql\.delta\.\S+)",
        "Spark has no jar with the class {what}.",
        "Run `lake setup`, which downloads the jars, or correct LAKE_JARS.",
    ),
    (
        r"\[[Ee]rrno 28\]|No space left on device|database or disk is full|ENOSPC",
        "The disk is full.",
        "Free some space on the disks of LAKE_HOME and of the temporary folder, then run the command again: "
        "it continues what was interrupted.",
    ),
    (
        r"\[Errno (?:13|30)\] (?:Permission denied:|Read-only file system:|Failed to open local file) "
        r"'(?P<what>[^']+)'"
        r"|\(Permission denied\)|\(Read-only file system\)|attempt to write a readonly database",
        "{what} cannot be written.",
        "Set LAKE_HOME to a folder that you may write, or change the permissions of this one.",
    ),
    (
        r"NoClassDefFoundError: software/amazon/awssdk|ClassNotFoundException: software\.amazon\.awssdk"
        r"|Cannot initialize FileIO implementation org\.apache\.iceberg\.aws\.s3"
        r"|Failed to get file system for path: s3://|No FileSystem for scheme \"s3\"",
        "Spark has no jar that reads and writes S3.",
        "Run `lake setup --with s3`. If `lake up` runs, restart it: `lake down`, then `lake up`.",
    ),
    (
        r"Failed to get file system for path: (?P<what>\w+://[^/\s]*)|No FileSystem for scheme \"(?P<scheme>\w+)\"",
        "Spark has no jar that reads and writes {what}.",
        "Add one to the folder LAKE_JARS (for s3a:// hadoop-aws), or correct LAKE_WAREHOUSE.",
    ),
    (
        r"AWS Error NETWORK_CONNECTION[^\n]*|software\.amazon\.awssdk[^\n]*Unable to execute HTTP request[^\n]*"
        r"|EndpointConnectionError[^\n]*|Unable to load (?:region|credentials)[^\n]*",
        "The object store of LAKE_WAREHOUSE cannot be reached.",
        "Check LAKE_WAREHOUSE, the network, and LAKE_CATALOG__S3__ENDPOINT, LAKE_CATALOG__S3__REGION and the keys, "
        "or AWS_REGION, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
    ),
    (
        r"AWS Error (?P<what>ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|NO_SUCH_BUCKET)"
        r"|AWS Error (?P<answer>RESOURCE_NOT_FOUND) during (?:CreateMultipartUpload|PutObject)"
        r"|awssdk\.services\.s3\.model\.(?:NoSuchBucketException|S3Exception): (?P<message>[^\n(]*[^\s(])",
        "The object store of LAKE_WAREHOUSE refuses access: {what}.",
        "Check the bucket of LAKE_WAREHOUSE, LAKE_CATALOG__S3__ACCESS_KEY_ID and LAKE_CATALOG__S3__SECRET_ACCESS_KEY, "
        "or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
    ),
    (
        r"AWS Error (?P<what>SLOW_DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|REQUEST_LIMIT_EXCEEDED"
        r"|UNKNOWN \(HTTP status 5\d\d\))"
        r"|\(Service: S3, (?P<java>Status Code: 50[03])",
        "The object store of LAKE_WAREHOUSE is overloaded, or fails: {what}.",
        "If it does not pass, look at the store's own status. Then " + AGAIN,
    ),
    (
        r"AWS Error (?P<what>[A-Z_]+[^\n]*)",
        "The object store of LAKE_WAREHOUSE answers with an error: {what}.",
        "Check the bucket of LAKE_WAREHOUSE, and LAKE_CATALOG__S3__ENDPOINT and LAKE_CATALOG__S3__REGION.",
    ),
    (
        r"Cannot initialize FileIO implementation (?P<what>[\w.]+)",
        "Spark cannot read or write the warehouse: it has no jar for {what}.",
        "Add the jar of this file system to the folder LAKE_JARS.",
    ),
)
"""Faults that other work meets, too. The first that matches is what a person reads."""

PASSING = re.compile(
    r"No Spark Connect server answers|StatusCode\.UNAVAILABLE|INVALID_HANDLE\.SESSION_|RetriesExceeded"
    r"|\[NO_ACTIVE_SESSION\]|Spark has ended the session|connection to Spark was lost|Java process of Spark ended"
    r"|Py4JNetworkError|Spark failed to answer a request"
    r"|No ZooKeeper answers|ZooKeeper[^\n]* stopped answering|Kafka at \S+ does not answer"
    r"|(?:429 Client|5\d\d Server) Error: "
    r"|\[[Ee]rrno 28\]|No space left on device|database or disk is full|database is locked"
    r"|AWS Error NETWORK_CONNECTION|Unable to execute HTTP request|EndpointConnectionError"
    r"|Connection refused|Connection reset by peer|Broken pipe|[Tt]imed out|server closed the connection"
    r"|kazoo\.exceptions\.(?:ConnectionLoss|SessionExpiredError)|KazooTimeoutError"
    r"|_ALL_BROKERS_DOWN|_TRANSPORT|Connection setup timed out"
    r"|CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND|ExecutorLostFailure|FetchFailed|SparkContext was shut ?down"
    r"|the database system is (?:starting up|shutting down|in recovery mode)|terminating connection due to"
    r"|\(Service: S3, Status Code: 50[03]|\(HTTP status 50[03]\)"
    r"|AWS Error (?:SLOW_DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE)"
    r"|marked as failed from outside the execution context"
    r"|code server that started the run is gone|code server does not have the run"
)
"""Faults that pass without a change of code, data or settings: a service that is restarted, a network, a full disk."""

NOTHING_NAMED = "The data directory"


def recognise(text: str) -> ErrorText | None:
    """Return the fault that a text reports.

    Args:
        text: Classes and messages of an error and its causes, as `texts.chain_text` returns them.

    Returns:
        Problem and remedy; None if the text reports none of the known faults.
    """
    for pattern, problem, remedy in KNOWN:
        found = re.search(pattern, text)
        if found:
            named = {name: value for name, value in found.groupdict().items() if value}
            what = next(iter(named.values()), NOTHING_NAMED)
            values = defaultdict(lambda: "no answer", {"what": what, **named})
            return ErrorText(problem.format_map(values), remedy)
    return None


def passes_by_itself(text: str) -> bool:
    """Return whether a text reports a fault after which the same work may succeed without anybody doing anything.

    Args:
        text: Classes and messages of an error and its causes.
    """
    return PASSING.search(text) is not None
