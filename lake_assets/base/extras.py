"""The optional parts of the package: which packages they need, and whether these are installed.

The names are those of `[project.optional-dependencies]` in pyproject.toml. A module that imports a package of an extra
is imported only by commands and definitions that need it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "landing": ("confluent_kafka",),
    "serving": ("fastapi", "uvicorn"),
    "pages": ("plotly",),
}
"""Extra → the packages that it installs, by the names that Python imports."""


def installed(extra: str) -> bool:
    """Return whether all packages of an extra can be imported. Imports none of them."""
    return all(_is_installed(package) for package in EXTRAS[extra])


def missing_extra(error: ImportError) -> str | None:
    """Return what is not installed and what to do, as one line; None if the import failed for another reason."""
    package = (error.name or "").partition(".")[0]
    for extra, packages in EXTRAS.items():
        if package in packages and not _is_installed(package):
            return f"{package} is not installed: run pip install 'lake-assets[{extra}]'."
    return None


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # of an import hook, or of a module that was set to None
        return False
