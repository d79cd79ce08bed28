"""The version of the package: that of `pyproject.toml` in a checkout, otherwise that of the installed distribution."""

from __future__ import annotations

import tomllib
from importlib.metadata import version

from lake_assets.settings import CHECKOUT

DISTRIBUTION = "lake-assets"


def _find_version() -> str:
    # A checkout is importable without being installed; a distribution installed beside it may have another version.
    if CHECKOUT is None:
        return version(DISTRIBUTION)
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    found: str = project["project"]["version"]
    return found


__version__ = _find_version()
