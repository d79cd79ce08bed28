"""One erasure from landed files, for a process of its own that a test may let die."""

from __future__ import annotations

from datetime import datetime
from functools import partial

from lake_assets.incremental.engine.erasures import Erasure, KeyedHash, erasure_key
from lake_assets.landing.erasure import LandedErasure, erase_landed
from lake_assets.membership import PIPELINE
from lake_assets.settings import Settings, settings
from lake_assets_tests.landing.scenario import NOW


def erasure_of(home: Settings, account: str, at: datetime = NOW) -> Erasure:
    """As `etl.erasure` has it."""
    hashed = KeyedHash(partial(erasure_key, home)).of("account", account)
    return Erasure("account", hashed, at, "requested")


def erased(home: Settings, *accounts: str, at: datetime = NOW) -> LandedErasure:
    """What comes of erasures at a time."""
    return erase_landed(home, PIPELINE, [erasure_of(home, account, at) for account in accounts], now=at)


def erase_account(account: str) -> str:
    """The same, in the home of this process."""
    return str(erased(settings(), account))
