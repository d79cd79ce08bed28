"""The truth about the membership tables, which the demo checks itself by, too: `lake_assets.demo.membership_oracle`."""

from __future__ import annotations

from lake_assets.demo.membership_oracle import KEY, Row, expected, sound

__all__ = ["KEY", "Row", "expected", "sound"]
