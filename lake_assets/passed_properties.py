"""Names of variables, and the properties that some pass on to a client.

`LAKE_CATALOG__S3__ENDPOINT` is the catalog's property `s3.endpoint`. `settings.py` reads the variables, and
`connections/clients` gives the properties to each client in its own words. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PropertyGroup:
    """The variables of one kind of client.

    Attributes:
        setting: Field of the settings that has the properties.
        prefix: What the names of the variables begin with, in capitals.
        double: What `__` stands for in the rest of a name.
        single: What `_` stands for.
    """

    setting: str
    prefix: str
    double: str
    single: str

    def property_of(self, variable: str) -> str | None:
        """Return the property that a variable sets; None if it is not of this group."""
        capitals = variable.upper()
        if not capitals.startswith(self.prefix) or capitals == self.prefix:
            return None
        name = capitals.removeprefix(self.prefix).lower()
        parts = [part.replace("_", self.single) for part in name.split("__")]
        return self.double.join(parts)

    def variable_of(self, name: str) -> str:
        """Return the variable that sets a property."""
        words = name.replace(self.double, "\0").replace(self.single, "_").replace("\0", "__")
        return self.prefix + words.upper()


CATALOG = PropertyGroup("catalog_properties", "LAKE_CATALOG__", double=".", single="-")
"""As pyiceberg reads its own variables."""

KAFKA = PropertyGroup("kafka_properties", "LAKE_KAFKA__", double="_", single=".")
"""Properties of Kafka's clients are words and dots."""

GROUPS = (CATALOG, KAFKA)


def variable_name(field: str) -> str:
    """Return the variable of a setting."""
    return f"LAKE_{field.upper()}"


def passed_properties(variables: Mapping[str, str | None]) -> dict[str, dict[str, str]]:
    """Return the properties that variables set.

    Args:
        variables: Name → value, of all variables; None for a name without a value, which sets nothing.

    Returns:
        Setting → property → value, without settings that no variable sets.
    """
    found: dict[str, dict[str, str]] = {}
    for variable, value in variables.items():
        for group in GROUPS:
            name = group.property_of(variable)
            if name is not None and value is not None:
                found.setdefault(group.setting, {})[name] = value
    return found


def is_passed(variable: str) -> bool:
    """Return whether a variable sets a property."""
    return any(group.property_of(variable) for group in GROUPS)
