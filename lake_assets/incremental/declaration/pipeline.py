"""A pipeline: raw tables, targets and subjects that belong together, and what must fit together in each of them.

None of the checks needs a table. Each argument is of its type; tables, keys, modes and transforms fit together; and
the SQL that users write, conditions of sources and queries of audits, can be what it has to be.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any

from lake_assets.base.hours import parse_hour
from lake_assets.base.sql_text import condition_mistake, tokens, unclosed, unknown_placeholders
from lake_assets.base.values import parts_of
from lake_assets.errors import ConfigurationError, ErrorText, InvalidHourKey, UsageError, suggestion
from lake_assets.incremental.declaration.model import (
    TABLE,
    Audit,
    Defer,
    RawTable,
    Sequential,
    Source,
    Stateful,
    Stateless,
    Subject,
    Target,
    Topic,
    check_whole_hours,
    is_name_of,
    require_columns,
    require_described,
    require_name,
    require_renamed,
)

MODES = (Stateless, Stateful, Sequential)
EMAIL = re.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z|]{2,7}")
TEAM = re.compile(r"team:.+", re.DOTALL)
"""The owners that Dagster accepts: email addresses and teams."""


def check_arguments(
    table: str,
    *,
    mode: object,
    sources: object,
    key: object,
    columns: object,
    audits: object,
    owners: object,
) -> None:
    """Check the types of what `incremental_asset` receives.

    Raises:
        ConfigurationError: An argument is of another type.
    """
    if isinstance(mode, type) and issubclass(mode, MODES):
        raise ConfigurationError(
            f"{table} has mode={mode.__name__}, the class and not a value of it.",
            remedy=f"Add parentheses: mode={mode.__name__}().",
        )
    if not isinstance(mode, MODES):
        modes = {kind.__name__.lower(): kind.__name__ for kind in MODES}
        wanted = modes.get(str(mode).lower(), "Stateless")
        raise ConfigurationError(
            f"{table} has mode={_shown(mode)}, which is no mode.",
            remedy=f"Write mode={wanted}(). The modes are Stateless(), Stateful() and Sequential().",
        )
    check_items(f"sources= of {table}", sources, Source, example='sources=[Source("raw.events", ...)]')
    check_items(f"audits= of {table}", audits, Audit, example="audits=[unique_key()]")
    names = [key] if isinstance(key, str) else key
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise ConfigurationError(
            f"{table} has key={_shown(key)}.",
            remedy='Name the column, or the columns, that with the time identify a row: key="payment_id".',
        )
    if not isinstance(columns, Mapping):
        raise ConfigurationError(
            f"columns= of {table} is {_shown(columns)}.",
            remedy='Write a dict of column and Iceberg type: columns={"amount": "long", ...}.',
        )
    if isinstance(owners, str) or not isinstance(owners, Sequence):
        raise ConfigurationError(
            f"owners= of {table} is {_shown(owners)}, not a list.", remedy='Write owners=["team:weather"].'
        )
    for owner in owners:
        text = str(owner)
        if not EMAIL.fullmatch(text) and not TEAM.fullmatch(text):
            raise ConfigurationError(
                f"{table} has the owner {owner!r}, which is neither an email address nor a team.",
                remedy=f"Write the team as 'team:{text}', or use an email address.",
            )


def check_items(what: str, found: object, kind: type, *, example: str) -> None:
    """Check that an argument is a list or tuple of values of one class.

    Args:
        what: The argument, for the message.
        found: Its value.
        kind: The class.
        example: The argument as it should be written.

    Raises:
        ConfigurationError: It is not.
    """
    if isinstance(found, kind):
        raise ConfigurationError(
            f"{what} is one {kind.__name__} ({_shown(found)}), not a list or tuple.", remedy=f"Write {example}."
        )
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise ConfigurationError(f"{what} is {_shown(found)}, not a list or tuple.", remedy=f"Write {example}.")
    for item in found:
        if not isinstance(item, kind):
            raise ConfigurationError(
                f"{what} contains {_shown(item)}, which is no {kind.__name__}.", remedy=_item_remedy(item, example)
            )


def _item_remedy(item: object, example: str) -> str:
    name = getattr(item, "__name__", None)
    if not callable(item) or name is None:
        return f"Write {example}."
    if example.startswith("targets="):
        return f"Decorate the function {name} with @incremental_asset(...)."
    return f"If {name} returns the value, call it: {name}(...)."


def _shown(value: Any) -> str:
    """Return a value as a message shows it: tables by name, functions and classes by kind and name, others in full."""
    if isinstance(value, RawTable | Source | Target):
        return value.table
    if isinstance(value, Subject | Audit):
        return value.name
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if callable(value) and hasattr(value, "__name__"):
        return f"the function {value.__name__}"
    return repr(value)


def check_source_columns(target: Target, source: Source, columns: Mapping[str, str]) -> None:
    """Check that a source has the columns that a target's `Source` names, of types that they may have.

    Args:
        target: The target.
        source: One of its sources.
        columns: Column → Iceberg type, as the source is declared.

    Raises:
        ConfigurationError: A column is missing, or has another type.
    """
    for column in (source.time_column, *source.named_columns, source.landed_column):
        if column is not None and column not in columns:
            raise ConfigurationError(
                f"{target.table} reads {column!r} of {source.table}, which declares no such column.",
                remedy=suggestion(column, tuple(columns)),
            )
        if column is not None and parts_of(columns[column]):
            raise ConfigurationError(
                f"{target.table} reads {source.table} by {column!r}, which is {columns[column]}.",
                remedy="Name a column without parts, such as a string.",
            )
    landed_type = "timestamptz" if source.landed_column is None else columns[source.landed_column]
    if landed_type != "timestamptz":
        raise ConfigurationError(
            f"{target.table} reads {source.table} with landed_column={source.landed_column!r}, which is {landed_type}.",
            remedy="Name the timestamptz column that says when a row landed, or leave landed_column= out.",
        )
    time_type = columns[source.time_column]
    if time_type != "timestamptz":
        raise ConfigurationError(
            f"{target.table} reads {source.table} by the time column {source.time_column!r}, which is {time_type}.",
            remedy="Name a timestamptz column as time_column=, or declare this one as timestamptz.",
        )


def check_raw_source(target: Target, source: Source, raw: RawTable) -> None:
    """Check a source that is a raw table: it has a key, which identifies repeated deliveries, and its columns exist.

    Only the catalog knows the columns of a table that exists: a plan checks them.

    Raises:
        ConfigurationError: The key is missing, or a column.
    """
    if not raw.exists_already:
        check_source_columns(target, source, raw.all_columns)
    if source.key is None:
        raise ConfigurationError(
            f"{target.table} reads {raw.table} without a key.",
            remedy=f"Add key= to its Source({raw.table!r}, ...): rows may be landed more than once.",
        )


def check_versions(target: Target) -> None:
    """Check the sources of a target whose rows are versions of a key.

    Raises:
        ConfigurationError: A source has no key, or the target's mode cannot use what it keeps.
    """
    for source in target.sources:
        if source.has_versions and source.key is None:
            raise ConfigurationError(
                f"{target.table} keeps the {source.keep} of a key of {source.table}, but the source has no key.",
                remedy=f'Name one column as the key: Source("{source.table}", key="payment_id", ...).',
            )
        if source.keep == "all" and not isinstance(target.mode, Stateful):
            raise ConfigurationError(
                f"{target.table} reads {source.table} with keep='all', but is {type(target.mode).__name__.lower()}.",
                remedy="Use mode=Stateful(load='changed'), or keep='last'.",
            )


def check_late(target: Target) -> None:
    """Check that hours of a target may wait for its late rows.

    An hour of a sequential target builds on the hour before it, and one of a stateful target on earlier events: they
    would build on rows that are known to be incomplete. A new version of a key changes the hour that it leaves and the
    one that it enters, which must be published together.

    Raises:
        ConfigurationError: They may not, or late= is no policy.
    """
    if target.late is None:
        return
    if not isinstance(target.late, Defer):
        raise ConfigurationError(
            f"late= of {target.table} is {target.late!r}.",
            remedy='Write late=Defer(older_than="6 hours", at_most="4 hours").',
        )
    if not isinstance(target.mode, Stateless):
        raise ConfigurationError(
            f"{target.table} has late=Defer(...), but is {type(target.mode).__name__.lower()}: its later hours are"
            " built from the earlier ones, so none of them may wait.",
            remedy="Remove late=, and declare it on the stateless targets that this one is built from.",
        )
    for source in target.sources:
        if source.has_versions:
            raise ConfigurationError(
                f"{target.table} has late=Defer(...), and reads {source.table} with keep={source.keep!r}: a correction"
                " changes two hours, which must be published together.",
                remedy="Remove late=, or keep every row of the source.",
            )


def check_entity(target: Target, columns: Mapping[str, Collection[str]]) -> None:
    """Check that all sources of a target have the entity's column, and a sequential target, too.

    The rows of the sources of a sequential target must be validated already: otherwise a delivery of one entity could
    replace one of another.

    Args:
        target: The target.
        columns: Table → its declared columns; without the tables whose columns only the catalog knows.

    Raises:
        ConfigurationError: A column is missing, or the target validates the rows of a source, by a key or rules.
    """
    entity = None if isinstance(target.mode, Stateless) else target.mode.entity
    if entity is None:
        return
    if isinstance(target.mode, Sequential):
        _check_has_entity(target.table, target.columns, target, entity)
    for source in target.sources:
        if source.table in columns:
            _check_has_entity(source.table, columns[source.table], target, entity)
    if isinstance(target.mode, Sequential):
        _check_validates_no_source(target, entity)


def _check_validates_no_source(target: Target, entity: str) -> None:
    for source in target.sources:
        if not source.trusted:
            raise ConfigurationError(
                f"{target.table} has the entity {entity!r}, but validates the rows of {source.table} itself.",
                remedy="Read a fact that is built from them, or drop entity=.",
            )


def _check_has_entity(table: str, columns: Collection[str], target: Target, entity: str) -> None:
    if entity not in columns:
        whose = "the target and all its sources have" if isinstance(target.mode, Sequential) else "all its sources have"
        raise ConfigurationError(
            f"{table} has no column {entity!r}, which is the entity of {target.table}.",
            remedy=f"Name a column that {whose}, or drop entity=.",
        )


def check_held(subject: Subject, raw: Sequence[RawTable]) -> None:
    """Check that a raw table contains the subject's ids.

    Raises:
        ConfigurationError: No raw table contains them.
    """
    is_held = any(subject.columns_of(raw_table.columns) for raw_table in raw)
    if not is_held and not any(raw_table.exists_already for raw_table in raw):
        raise ConfigurationError(
            f"No raw table holds the subject {subject.name}: none has a column {' or '.join(subject.columns)!r}.",
            remedy="Name the columns that contain its id.",
        )


def check_id_columns(subject: Subject, raw: Sequence[RawTable], targets: Sequence[Target]) -> None:
    """Check that all columns of a subject's ids have types that an id may have.

    Raises:
        ConfigurationError: One has another.
    """
    declared = {each.table: each.columns for each in raw} | {each.table: each.columns for each in targets}
    for table, columns in declared.items():
        for column in subject.columns_of(columns):
            check_id_column(subject, table, column, columns[column])


def check_id_column(subject: Subject, table: str, column: str, kind: str) -> None:
    """Check that a column has a type that an id may have.

    Raises:
        ConfigurationError: It has none.
    """
    if kind not in ("string", "int", "long") and not kind.startswith("decimal("):
        raise ConfigurationError(
            f"{table}.{column}, an id of the subject {subject.name}, is {kind}.",
            remedy="An id is a string, int, long or decimal. Declare the column so, or leave it out of columns=.",
        )


def check_feed(raw: RawTable, subjects: Sequence[Subject]) -> None:
    """Check that the id column of a feed is a subject's, if the raw table has any: files are erased by this column.

    Raises:
        ConfigurationError: It is another column.
    """
    if not isinstance(raw.feed, Topic):
        return
    id_columns: list[str] = []
    for subject in subjects:
        id_columns += subject.columns_of(raw.columns)
    if id_columns and raw.feed.id_column not in id_columns:
        raise ConfigurationError(
            f"The feed of {raw.table} has the id column {raw.feed.id_column!r}, but erasures go by another.",
            remedy=f"Name the column that landed files are erased by, one of: {', '.join(id_columns)}.",
        )


def check_target(target: Target) -> None:
    """Check a target by itself.

    Raises:
        ConfigurationError: Something in the declaration cannot work.
    """
    require_name(TABLE, target.table, "The target")
    require_columns(target.table, target.columns)
    require_described(target.table, target.columns, target.descriptions)
    require_renamed(target.table, target.columns, target.renamed_from)
    if not target.key:
        raise ConfigurationError(
            f"{target.table} has no key.", remedy="Name the columns that, with the time, identify a row."
        )
    if not target.sources:
        raise ConfigurationError(f"{target.table} has no source.", remedy="Name at least one Source.")
    for column in (*target.key, target.time_column):
        if column not in target.columns:
            raise ConfigurationError(
                f"{target.table} has no column {column!r}, which is its key or time.",
                remedy=f"Add it to columns=. {suggestion(column, tuple(target.columns))}",
            )
    if target.columns[target.time_column] != "timestamptz":
        raise ConfigurationError(
            f"{target.table}.{target.time_column} is {target.columns[target.time_column]}.",
            remedy=f"The time column is partitioned by {target.grain.name} and must be timestamptz.",
        )
    if isinstance(target.mode, Stateless) and len(target.sources) != 1:
        raise ConfigurationError(
            f"{target.table} is stateless and has {len(target.sources)} sources.",
            remedy="A stateless target is built from each row of one source; use Stateful() for more.",
        )
    check_versions(target)
    check_late(target)
    _check_audits(target)
    _check_options(target)
    _check_transform(target)


def _check_audits(target: Target) -> None:
    for audit in target.audits:
        for column in audit.columns:
            if column not in target.columns:
                raise ConfigurationError(
                    f"The audit {audit.name} of {target.table} names the column {column!r}, which the target lacks.",
                    remedy=suggestion(column, tuple(target.columns)),
                )


def _check_options(target: Target) -> None:
    if target.quarantine_limit < 0:
        raise ConfigurationError(
            f"{target.table} has a quarantine limit of {target.quarantine_limit}.",
            remedy="Use 0 or more rows, or a share of the rows between 0 and 1.",
        )
    if target.max_delay is not None and target.max_delay < timedelta(0):
        raise ConfigurationError(
            f"{target.table} has a max_delay of {target.max_delay}.", remedy="Use a timedelta of 0 or more, or None."
        )
    unknown = sorted(target.lineage.keys() - target.columns.keys())
    if unknown:
        raise ConfigurationError(
            f"{target.table} declares lineage for {', '.join(unknown)}, but has no such column.",
            remedy="Add it to columns=, or remove it from lineage=.",
        )


def _check_transform(target: Target) -> None:
    """Check that the transform accepts the session and one DataFrame for each source."""
    sources = target.source_tables
    parameters = 1 + len(sources)
    try:
        inspect.signature(target.transform).bind(*range(parameters))
    except TypeError:
        raise ConfigurationError(
            f"The transform of {target.table} cannot be called with a session and {len(sources)} source(s).",
            remedy=f"Give it {parameters} parameters: the session, then one for each of {', '.join(sources)}.",
        ) from None


STAGED = "staged"
"""The placeholder of the staged rows in the query of an audit."""


def check_own_sql(targets: Iterable[Target]) -> None:
    """Check each condition and each query of an audit by itself, and that the targets can have their audits.

    Raises:
        ConfigurationError: One of them cannot be what it has to be. The message names the target and the text.
    """
    for target in targets:
        for source in target.sources:
            for what, condition in conditions_of(source):
                require_condition(f"{target.table}: {what}", condition)
        for audit in target.audits:
            require_query(f"{target.table}: ", audit)
            if audit.check is not None:
                audit.check(target)


def conditions_of(source: Source) -> Iterator[tuple[str, str]]:
    """Yield the conditions of a source, each after what it is."""
    for rule in source.rules:
        yield f"in the rule {rule.reason!r} of {source.table}", rule.where
    if source.deleted is not None:
        yield f"in deleted= of {source.table}", source.deleted


def require_condition(what: str, condition: str) -> None:
    """Check a condition on the rows of a source. what: what it is, for the message. Raises `ConfigurationError`."""
    _refuse(what, condition_mistake(condition))


def require_query(where: str, audit: Audit) -> None:
    """Check the query of an audit, if it has one. where: where it is declared. Raises `ConfigurationError`."""
    if audit.query is not None:
        _refuse(f"{where}in the audit {audit.name}", _query_mistake(audit.query))


def _query_mistake(query: str) -> ErrorText | None:
    open_part = unclosed(query)
    if open_part is not None:
        return open_part
    if not tokens(query):
        return ErrorText("there is no query", f"Write a SELECT from {{{STAGED}}}.")
    unknown = unknown_placeholders(query, (STAGED,))
    if unknown:
        problem = f"there is the placeholder {{{unknown[0]}}}"
        return ErrorText(problem, f"Only {{{STAGED}}} is replaced, by the rows that would be published.")
    return None


def _refuse(what: str, mistake: ErrorText | None) -> None:
    if mistake is not None:
        raise ConfigurationError(f"{what}, {mistake.problem}.", remedy=mistake.remedy)


@dataclass(frozen=True)
class Broken:
    """A declaration that cannot be used: a file or a module that cannot be read, or a table that it declares wrongly.

    Attributes:
        error: What is wrong, and where.
        text: What names the tables that it declares: the text of a file, or a table; None if nothing is known of them.
    """

    error: ConfigurationError
    text: str | None

    def mentions(self, name: str) -> bool:
        """Return whether it may declare a table, by its full name or by its name without namespace."""
        return self.text is None or re.search(rf"\b{re.escape(name)}\b", self.text) is not None


@dataclass(frozen=True)
class Pipeline:
    """Raw tables and targets that belong together.

    Attributes:
        raw: The raw tables.
        targets: The targets, in any order.
        start: The first event hour, a key such as `2026-01-01-00:00`.
        subjects: The subjects whose rows can be erased.
        broken: What was left out when files and modules were read, because it cannot be used.

    Raises:
        ConfigurationError: Parts of the declaration do not fit together.
    """

    raw: tuple[RawTable, ...]
    targets: tuple[Target, ...]
    start: str
    subjects: tuple[Subject, ...] = ()
    broken: tuple[Broken, ...] = ()

    def __post_init__(self) -> None:
        check_items("raw= of the pipeline", self.raw, RawTable, example="raw=(EVENTS,), with the comma")
        check_items("targets= of the pipeline", self.targets, Target, example="targets=(event_fact,), with the comma")
        check_items("subjects= of the pipeline", self.subjects, Subject, example="subjects=(PERSON,), with the comma")
        object.__setattr__(self, "targets", tuple(map(self._with_landing, self.targets)))
        try:
            parse_hour(self.start)
        except InvalidHourKey:
            raise ConfigurationError(
                f"The pipeline starts at {self.start!r}.", remedy="Name its first event hour, such as 2026-01-01-00:00."
            ) from None
        self._check_declared_once()
        self._check_sources()
        self.in_order()
        for target in self.targets:
            check_whole_hours(target.table, target.grain, self.start_hour)
        for subject in self.subjects:
            check_id_columns(subject, self.raw, self.targets)
        for raw in self.raw:
            check_feed(raw, self.subjects)

    @property
    def start_hour(self) -> int:
        """The first event hour, as a number."""
        return parse_hour(self.start, where="The pipeline's start")

    def target(self, name: str) -> Target:
        """Return a target by its table, or by its name without the namespace.

        Raises:
            ConfigurationError: Its declaration cannot be used.
            UsageError: There is no such target.
        """
        found = self.find_target(name)
        if found is not None:
            return found
        self.refuse_broken(name)
        remedy = suggestion(name, [target.name for target in self.targets])
        raise UsageError(f"There is no target {name!r}.", remedy=remedy)

    def find_target(self, name: str) -> Target | None:
        """Return a target by its table, or by its name without the namespace; None if there is no such target."""
        return next((target for target in self.targets if is_name_of(name, target.table)), None)

    def refuse_broken(self, name: str = "") -> None:
        """Raise the error of a declaration that cannot be used, if one may declare a table.

        Args:
            name: The table, or its name without namespace. Empty: any table at all.

        Raises:
            ConfigurationError: What is wrong with the declaration.
        """
        for broken in sorted(self.broken, key=lambda each: each.text is None):
            if not name or broken.mentions(name.replace("/", ".")):
                raise broken.error

    def check_subjects(self) -> None:
        """Check that a raw table contains each subject. Parts of a pipeline may declare them apart.

        Raises:
            ConfigurationError: No raw table contains the ids of a subject.
        """
        for subject in self.subjects:
            check_held(subject, self.raw)

    def raw_table(self, table: str) -> RawTable | None:
        """Return the declaration of a raw table; None if the pipeline declares none of this name."""
        for raw in self.raw:
            if raw.table == table:
                return raw
        return None

    def subject(self, name: str) -> Subject:
        """Return a subject by its name.

        Raises:
            UsageError: There is no such subject.
        """
        for subject in self.subjects:
            if subject.name == name:
                return subject
        names = [subject.name for subject in self.subjects]
        remedy = suggestion(name, names) if names else "None is declared: add `subjects=` to the Pipeline."
        raise UsageError(f"There is no subject {name!r}.", remedy=remedy)

    def in_order(self) -> list[Target]:
        """Return the targets in topological order: each after those that it is built from."""
        return list(self._ordered)

    @cached_property
    def _ordered(self) -> tuple[Target, ...]:
        """The targets in topological order. It is asked for again for each target, of which there may be hundreds."""
        by_table = {target.table: target for target in self.targets}
        upstream: dict[str, list[str]] = {}
        for target in self.targets:
            upstream[target.table] = [table for table in target.source_tables if table in by_table]
        try:
            ordered = list(TopologicalSorter(upstream).static_order())
        except CycleError as error:
            raise ConfigurationError(
                f"Targets are built from each other in a circle: {' → '.join(error.args[1])}.",
                remedy="A target that needs its own earlier hours is Sequential, and does not name itself as a source.",
            ) from None
        return tuple(by_table[table] for table in ordered)

    @cached_property
    def columns(self) -> Mapping[str, Mapping[str, str]]:
        """Table → its declared columns; none of a raw table that exists: only the catalog knows them."""
        found: dict[str, Mapping[str, str]] = {raw.table: raw.all_columns for raw in self.raw}
        return found | {target.table: target.columns for target in self.targets}

    @cached_property
    def targets_behind(self) -> Mapping[str, int]:
        """Target → the number of targets in the longest chain that begins with those that are built from it."""
        longest: dict[str, int] = {}
        for target in reversed(self._ordered):
            behind = longest.setdefault(target.table, 0)
            for table in target.source_tables:
                longest[table] = max(longest.get(table, 0), behind + 1)
        return {target.table: longest[target.table] for target in self.targets}

    def upstream_of(self, target: Target) -> list[Target]:
        """Return the targets that a target is built from, directly or indirectly, in topological order."""
        wanted = set(target.source_tables)
        found: list[Target] = []
        for candidate in reversed(self.in_order()):
            if candidate.table in wanted:
                found.append(candidate)
                wanted.update(candidate.source_tables)
        found.reverse()
        return found

    def _with_landing(self, target: Target) -> Target:
        """Return a target whose sources name the column of the landing that their raw tables declare."""
        sources = []
        for source in target.sources:
            raw = self.raw_table(source.table)
            if source.landed_column is None and raw is not None:
                source = replace(source, landed_column=raw.landed_column)
            sources.append(source)
        return target if tuple(sources) == target.sources else replace(target, sources=tuple(sources))

    def _check_declared_once(self) -> None:
        declared = Counter(raw.table for raw in self.raw)
        declared.update(target.table for target in self.targets)
        for table, times in declared.items():
            if times > 1:
                raise ConfigurationError(f"{table} is declared {times} times.", remedy="Declare each table once.")
        fed: dict[str, str] = {}
        for raw in self.raw:
            if isinstance(raw.feed, Topic):
                topic = raw.feed.name or raw.table
                other = fed.setdefault(topic, raw.table)
                if other != raw.table:
                    raise ConfigurationError(
                        f"{other} and {raw.table} are both landed from the topic {topic!r}.",
                        remedy="Land it into one raw table, and build both targets from that.",
                    )
        named: dict[str, str] = {}
        for target in self.targets:
            other = named.setdefault(target.name, target.table)
            if other != target.table:
                raise ConfigurationError(
                    f"{other} and {target.table} have the same name {target.name!r} in two namespaces.",
                    remedy="Rename the function of one of them: commands and sensors call a target by its name alone.",
                )

    def _check_sources(self) -> None:
        targets = {target.table: target for target in self.targets}
        raw_tables = {raw.table: raw for raw in self.raw}
        # Only the catalog knows the columns of a table that exists.
        columns: dict[str, Collection[str]] = {target.table: target.columns for target in self.targets}
        columns |= {raw.table: raw.all_columns for raw in self.raw if not raw.exists_already}
        for target in self.targets:
            for source in target.sources:
                raw = raw_tables.get(source.table)
                if raw is not None:
                    check_raw_source(target, source, raw)
                elif source.table in targets:
                    check_source_columns(target, source, targets[source.table].columns)
            check_entity(target, columns)


def column_sources(pipeline: Pipeline, target: Target) -> dict[str, tuple[str, ...]]:
    """Return column of a target → the source columns that it comes from, each `namespace.name.column`.

    A column without declared lineage comes from the columns of the same name in the sources. A column that comes from
    no source, or of which that is not known, is left out.
    """
    columns = pipeline.columns
    found = {}
    for column in target.columns:
        names = list(target.lineage.get(column, ()))
        if column not in target.lineage:
            names = [f"{source}.{column}" for source in target.source_tables if column in columns.get(source, {})]
        if names:
            found[column] = tuple(names)
    return found
