"""`core.account_state_dim`: the state of every account at the end of every hour.

An hour is the hour before it plus its events, so the table is sequential. A session starts from the state before its
first hour and builds all its hours in one job: an account without events in them is copied to each as it is; the events
of any other are folded over its state, in order, in one expression. Only these few accounts are shuffled, and no row
leaves the JVM.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lake_assets.base.hours import hour_start
from lake_assets.incremental.declaration import Sequential, SessionContext, Source, incremental_asset
from lake_assets.incremental.staging.audits import accepted_values, not_null, sql, unique_key

ACTIVE, UPGRADED, DOWNGRADED, CANCELED = STATES = ("Active", "Upgraded", "Downgraded", "Canceled")

# At the same time, a signup goes before a plan change, and that before a cancel.
SIGNUP, PLAN_CHANGE, CANCEL = 0, 1, 2

STATE = ("state", "plan", "monthly_price", "state_since", "last_event_ts", "churn_type")


@incremental_asset(
    mode=Sequential(entity="account_id"),
    sources=[
        Source("core.signup_fact", time_column="signed_up_at"),
        Source("core.plan_fact", time_column="changed_at"),
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
    """The state at the end of each hour of every account that has signed up by then: one row an hour and account.

    Events apply by time; at the same time a signup goes before a plan change, and that before a cancel; then by id.

    - A signup makes a stranger or a canceled account `Active`, at the signup's plan and price; of a member it has no
      effect.
    - A plan change makes a member `Upgraded` if its price is higher, `Downgraded` if it is lower. At an equal price it
      changes the plan and leaves the state; to the plan the member already has, it has no effect.
    - A cancel makes a member `Canceled`, with its churn_type (null in all other states); plan and price stay as they
      were.
    - Of strangers and canceled accounts, plan changes and cancels have no effect.

    state_since: the time of the event that changed `state` to its present value (a second upgrade in a row does not).
    last_event_ts: the time of the last event that had an effect: that changed state, plan or price.
    """
    events = _events_by_account(
        session.within(signups, "signed_up_at"),
        session.within(plan_changes, "changed_at"),
        session.within(cancels, "canceled_at"),
    )
    first, last = (F.lit(hour).cast("long") for hour in (session.hours[0], session.hours[-1]))
    before = _state_before(session)
    names = events.select("account_id")
    carried = before.join(names, "account_id", "left_anti").withColumn("hour", F.explode(F.sequence(first, last)))
    touched = events.join(before.join(names, "account_id", "left_semi"), "account_id", "left")
    rows = carried.unionByName(_replayed(touched, first, last))
    return rows.withColumn("state_hour", F.timestamp_seconds(F.col("hour") * 3600)).select(*account_state_dim.columns)


def _state_before(session: SessionContext) -> DataFrame:
    """account_id and `STATE` at the end of the hour before the session's first; no row before all history."""
    assert session.published is not None, "only an append has no published rows"
    hour = F.lit(hour_start(session.hours[0] - 1))
    return session.published.where(F.col("state_hour") == hour).select("account_id", *STATE)


def _events_by_account(signups: DataFrame, plan_changes: DataFrame, cancels: DataFrame) -> DataFrame:
    """account_id, and `events`: an array of its events, in the order in which they apply."""
    price = ("plan", "monthly_price")
    rows = _events(signups, SIGNUP, "signed_up_at", "signup_id", *price)
    rows = rows.unionByName(_events(plan_changes, PLAN_CHANGE, "changed_at", "change_id", *price))
    rows = rows.unionByName(
        _events(cancels, CANCEL, "canceled_at", "cancel_id", "churn_type"), allowMissingColumns=True
    )
    event = F.struct("at", "kind", "id", "hour", *price, "churn_type")  # compared field by field, from the left
    return rows.groupBy("account_id").agg(F.sort_array(F.collect_list(event)).alias("events"))


def _events(rows: DataFrame, kind: int, time: str, key: str, *others: str) -> DataFrame:
    hour = F.floor(F.unix_seconds(F.col(time)) / 3600)
    return rows.select(
        "account_id",
        F.col(time).alias("at"),
        F.lit(kind).alias("kind"),
        F.col(key).alias("id"),
        hour.alias("hour"),
        *others,
    )


def _replayed(accounts: DataFrame, first: Column, last: Column) -> DataFrame:
    """account_id, `STATE` and hour, for each hour first..last at whose end the account has signed up.

    accounts: account_id, events, and `STATE` before the hour `first`, all null for a stranger.
    """
    before = F.struct(first.alias("hour"), *STATE)
    stretches = F.aggregate("events", F.array(before), _and_then, lambda history: _stretches(history, last))
    rows = accounts.select("account_id", F.explode(stretches).alias("stretch")).where("stretch.now.state is not null")
    return rows.select(
        "account_id", *(f"stretch.now.{name}" for name in STATE), F.explode("stretch.hours").alias("hour")
    )


def _stretches(history: Column, last: Column) -> Column:
    """Each state of a history, `now`, and the `hours` at whose end it stood: null when it did not last its hour."""

    def stretch(now: Column, i: Column) -> Column:
        end = F.coalesce(F.get(history, i + 1)["hour"] - 1, last)
        hours = F.when(end >= now["hour"], F.sequence(now["hour"], end))
        return F.struct(now.alias("now"), hours.alias("hours"))

    return F.transform(history, stretch)


def _and_then(history: Column, event: Column) -> Column:
    """A history with the state after one more event: the same as before, if the event has no effect."""
    now = F.element_at(history, -1)
    is_member = F.coalesce(now["state"] != CANCELED, F.lit(False))
    moves = (event["plan"] != now["plan"]) | (event["monthly_price"] != now["monthly_price"])
    after = (
        F.when((event["kind"] == SIGNUP) & ~is_member, _signed_up(event))
        .when((event["kind"] == PLAN_CHANGE) & is_member & moves, _moved(now, event))
        .when((event["kind"] == CANCEL) & is_member, _canceled(now, event))
        .otherwise(now)
    )
    return F.concat(history, F.array(after))


def _signed_up(event: Column) -> Column:
    return _state(event, F.lit(ACTIVE), like=event, since=event["at"], churn_type=F.lit(None).cast("string"))


def _moved(now: Column, event: Column) -> Column:
    difference = event["monthly_price"] - now["monthly_price"]
    state = F.when(difference > 0, UPGRADED).when(difference < 0, DOWNGRADED).otherwise(now["state"])
    since = F.when(state == now["state"], now["state_since"]).otherwise(event["at"])
    return _state(event, state, like=event, since=since, churn_type=F.lit(None).cast("string"))


def _canceled(now: Column, event: Column) -> Column:
    return _state(event, F.lit(CANCELED), like=now, since=event["at"], churn_type=event["churn_type"])


def _state(event: Column, state: Column, *, like: Column, since: Column, churn_type: Column) -> Column:
    """An element of a history: the hour of the event, and `STATE`, with plan and price of `like`."""
    values = (state, like["plan"], like["monthly_price"], since, event["at"], churn_type)
    return F.struct(
        event["hour"].alias("hour"), *(value.alias(name) for value, name in zip(values, STATE, strict=True))
    )
