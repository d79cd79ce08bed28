"""The address of a PostgreSQL database for Java, and any address without its passwords."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote, urlsplit

from lake_assets.errors import ConfigurationError

HOST = "host"
PORT = "port"

_SECRET_PARAMETER = re.compile(r"([?&]\w*(?:password|secret|token)\w*=)[^&]*", re.IGNORECASE)


def jdbc_properties(address: str) -> dict[str, str]:
    """Return a PostgreSQL address as properties of Iceberg's JDBC catalog.

    The address that Java's errors show has no parameters: each is a property of its own, passwords among them.

    Raises:
        ConfigurationError: The address names no host, but a socket, which Java cannot connect to.
    """
    parts = urlsplit(address)
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    host = parts.hostname or parameters.pop(HOST, "")
    if not host or host.startswith("/"):
        raise ConfigurationError(
            f"LAKE_CATALOG_URI is {safe_address(address)!r}, which names no host; Spark cannot connect to a socket.",
            remedy="Name the host and the port: postgresql+psycopg2://user:password@localhost:5432/database.",
        )
    port = parts.port or parameters.pop(PORT, None)
    found = {"uri": f"jdbc:postgresql://{host}:{port}{parts.path}" if port else f"jdbc:postgresql://{host}{parts.path}"}
    if parts.username:
        found["jdbc.user"] = unquote(parts.username)
    if parts.password:
        found["jdbc.password"] = unquote(parts.password)
    for name, value in parameters.items():
        found[f"jdbc.{name}"] = value
    return found


def safe_address(address: str) -> str:
    """Return the address of a database without its passwords."""
    password = urlsplit(address).password
    without = address.replace(f":{password}@", ":***@") if password else address
    return _SECRET_PARAMETER.sub(r"\1***", without)
