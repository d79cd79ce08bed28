"""`core.account_state_dim`: the state of every account at the end of every hour.

An hour is computed from the hour before it and its own events, so the table is sequential. A session starts from the
state before its first hour and builds all its hours in one job. The state of an account without events is copied to
every hour. The events of another account are folded over its state, in order, in one expression. Only the accounts with
events are shuffled, and no row leaves the JVM.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lake_assets.base.columns import hour_of
from lake_assets.base.hours import hour_start
from lake_assets.incremental.declaration import Sequential, Served, SessionContext, Source, incremental_asset
from lake_assets.incremental.engine.audits import accepted_values, not_null, sql, unique_key
from lake_assets.membership.columns import described

ACTIVE, UPGRADED, DOWNGRADED, CANCELED = STATES = ("Active", "Upgraded", "Downgraded", "Canceled")

# Order of events of an account at the same moment.
SIGNUP, PLAN_CHANGE, CANCEL = 0, 1, 2

HOUR_SECONDS = 3600
STATE = ("state", "plan", "monthly_price", "state_since", "last_event_ts", "churn_type")


@incremental_asset(
    mode=Sequential(entity="account_id"),
    sources=[
        Source("core.signup_fact", time_column="signed_up_at", landed_column="landed_at"),
        Source("core.plan_fact", time_column="changed_at", landed_column="landed_at"),
        Source("core.cancel_fact", time_column="canceled_at"),
    ],
    key="account_id",
    time_column="state_hour",
    columns={
        "state_hour": "timestamptz",
        "account_id": "string",
        "state": "string",
        "plan": "string",
        "monthly_price": "decimal(9, 2)",
        "state_since": "timestamptz",
        "last_event_ts": "timestamptz",
        "churn_type": "string",
    },
    descriptions=described(
        "state_hour", "account_id", "state", "plan", "monthly_price", "state_since", "last_event_ts", "churn_type"
    ),
    audits=[
        unique_key(),
        not_null("account_id", "state", "plan", "monthly_price", "state_since", "last_event_ts"),
        accepted_values("state", STATES),
        sql(
            "churn_type_of_canceled_only",
            f"select account_id from {{staged}} where (state = '{CANCELED}') <> (churn_type is not null)",
        ),
        sql(
            "nothing_from_the_future",
            "select account_id from {staged}"
            " where last_event_ts >= state_hour + interval 1 hour or state_since > last_event_ts",
        ),
    ],
    owners=["team:membership"],
    served=Served(name="account_state"),
    lineage={
        "state_hour": ["core.signup_fact.signed_up_at", "core.plan_fact.changed_at", "core.cancel_fact.canceled_at"],
        "account_id": ["core.signup_fact.account_id"],
        "state": ["core.signup_fact.signed_up_at", "core.plan_fact.monthly_price", "core.cancel_fact.canceled_at"],
        "state_since": ["core.signup_fact.signed_up_at", "core.plan_fact.changed_at", "core.cancel_fact.canceled_at"],
        "last_event_ts": ["core.signup_fact.signed_up_at", "core.plan_fact.changed_at", "core.cancel_fact.canceled_at"],
    },
)
def account_state_dim(
    session: SessionContext, signups: DataFrame, plan_changes: DataFrame, cancels: DataFrame
) -> DataFrame:
    """Return the state of every account at the end of each hour, from its first signup on.

    Events apply in the order of their time. At the same time a signup applies before a plan change, and a plan change
    before a cancel; then the order is that of the ids.

    - A signup makes a stranger or a canceled account `Active`, with the signup's plan and price. A signup of a member
      has no effect.
    - A plan change makes a member `Upgraded` if its price is higher, `Downgraded` if its price is lower. If the price
      is equal, it changes the plan and keeps the state. It has no effect if plan and price are the member's own.
    - A cancel makes a member `Canceled`, with a churn_type (null in all other states). Plan and price stay.
    - Plan changes and cancels of strangers and canceled accounts have no effect.

    Returns:
        One row for each hour and account. state_since: the time of the event that changed `state` to its present value;
        a second upgrade in a row does not. last_event_ts: the time of the last event that changed state, plan or price.
    """
    events = _events_by_account(
        session.within(signups, "signed_up_at"),
        session.within(plan_changes, "changed_at"),
        session.within(cancels, "canceled_at"),
    )
    first = F.lit(session.hours[0]).cast("long")
    last = F.lit(session.hours[-1]).cast("long")
    before = _state_before(session)
    with_events = events.select("account_id")
    unchanged = before.join(with_events, "account_id", "left_anti")
    copied = unchanged.withColumn("hour", F.explode(F.sequence(first, last)))
    changed = events.join(before.join(with_events, "account_id", "left_semi"), "account_id", "left")
    rows = copied.unionByName(_replay(changed, first, last))
    state_hour = F.timestamp_seconds(F.col("hour") * HOUR_SECONDS)
    return rows.withColumn("state_hour", state_hour).select(*account_state_dim.columns)


def _state_before(session: SessionContext) -> DataFrame:
    """Return account_id and `STATE` at the end of the hour before the session's first hour."""
    assert session.published is not None, "only an append has no published rows"
    hour = F.lit(hour_start(session.hours[0] - 1))
    return session.published.where(F.col("state_hour") == hour).select("account_id", *STATE)


def _events_by_account(signups: DataFrame, plan_changes: DataFrame, cancels: DataFrame) -> DataFrame:
    """Return account_id and `events`: an array of its events, in the order in which they apply."""
    price = ("plan", "monthly_price")
    of_signups = _events(signups, SIGNUP, "signed_up_at", "signup_id", *price)
    of_plan_changes = _events(plan_changes, PLAN_CHANGE, "changed_at", "change_id", *price)
    of_cancels = _events(cancels, CANCEL, "canceled_at", "cancel_id", "churn_type")
    rows = of_signups.unionByName(of_plan_changes).unionByName(of_cancels, allowMissingColumns=True)
    # Structs are compared field by field, from the left.
    event = F.struct("at", "kind", "id", "hour", *price, "churn_type")
    events = F.sort_array(F.collect_list(event))
    return rows.groupBy("account_id").agg(events.alias("events"))


def _events(rows: DataFrame, kind: int, time: str, key: str, *others: str) -> DataFrame:
    hour = hour_of(time)
    return rows.select(
        "account_id",
        F.col(time).alias("at"),
        F.lit(kind).alias("kind"),
        F.col(key).alias("id"),
        hour.alias("hour"),
        *others,
    )


def _replay(accounts: DataFrame, first: Column, last: Column) -> DataFrame:
    """Return account_id, `STATE` and hour, for each hour from `first` to `last` at the end of which a state exists.

    Args:
        accounts: account_id, events, and `STATE` before the hour `first`; the state of a stranger is null.
        first: First hour of the session.
        last: Last hour of the session, inclusive.
    """
    before = F.struct(first.alias("hour"), *STATE)
    periods = F.aggregate("events", F.array(before), _add_event, lambda history: _periods(history, last))
    rows = accounts.select("account_id", F.explode(periods).alias("period"))
    rows = rows.where("period.now.state is not null")
    state = [f"period.now.{name}" for name in STATE]
    return rows.select("account_id", *state, F.explode("period.hours").alias("hour"))


def _periods(history: Column, last: Column) -> Column:
    """Return each state of a history as `now`, and the hours at the end of which it holds; null if there are none."""

    def period(now: Column, place: Column) -> Column:
        next_state = F.get(history, place + 1)
        end = F.coalesce(next_state["hour"] - 1, last)
        hours = F.when(end >= now["hour"], F.sequence(now["hour"], end))
        return F.struct(now.alias("now"), hours.alias("hours"))

    return F.transform(history, period)


def _add_event(history: Column, event: Column) -> Column:
    """Return a history with the state after one more event. The state is repeated if the event has no effect."""
    now = F.element_at(history, -1)
    is_member = F.coalesce(now["state"] != CANCELED, F.lit(False))
    is_signup = (event["kind"] == SIGNUP) & ~is_member
    is_other_plan = (event["plan"] != now["plan"]) | (event["monthly_price"] != now["monthly_price"])
    is_plan_change = (event["kind"] == PLAN_CHANGE) & is_member & is_other_plan
    is_cancel = (event["kind"] == CANCEL) & is_member
    after = (
        F.when(is_signup, _after_signup(event))
        .when(is_plan_change, _after_plan_change(now, event))
        .when(is_cancel, _after_cancel(now, event))
        .otherwise(now)
    )
    return F.concat(history, F.array(after))


def _after_signup(event: Column) -> Column:
    return _state(
        event,
        F.lit(ACTIVE),
        plan_of=event,
        since=event["at"],
        churn_type=F.lit(None).cast("string"),
    )


def _after_plan_change(now: Column, event: Column) -> Column:
    difference = event["monthly_price"] - now["monthly_price"]
    state = F.when(difference > 0, UPGRADED).when(difference < 0, DOWNGRADED).otherwise(now["state"])
    since = F.when(state == now["state"], now["state_since"]).otherwise(event["at"])
    return _state(event, state, plan_of=event, since=since, churn_type=F.lit(None).cast("string"))


def _after_cancel(now: Column, event: Column) -> Column:
    return _state(event, F.lit(CANCELED), plan_of=now, since=event["at"], churn_type=event["churn_type"])


def _state(event: Column, state: Column, *, plan_of: Column, since: Column, churn_type: Column) -> Column:
    """Return an element of a history: the hour of the event, and `STATE`. plan_of: has the plan and its price."""
    return F.struct(
        event["hour"].alias("hour"),
        state.alias("state"),
        plan_of["plan"].alias("plan"),
        plan_of["monthly_price"].alias("monthly_price"),
        since.alias("state_since"),
        event["at"].alias("last_event_ts"),
        churn_type.alias("churn_type"),
    )
