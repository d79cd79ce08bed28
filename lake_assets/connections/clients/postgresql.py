"""The address of a PostgreSQL database for Java, and any address without its passwords."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote, urlsplit

from lake_assets.errors import ConfigurationError

PYTHON_DRIVER = "postgresql+psycopg2"
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
    login = {"user": parts.username, "password": parts.password}
    parameters.update({name: unquote(value) for name, value in login.items() if value})
    server = _server(address, parts.hostname or parameters.pop(HOST, ""), parts.port or parameters.pop(PORT, None))
    named = {f"jdbc.{name}": value for name, value in parameters.items()}
    return {"uri": f"jdbc:postgresql://{server}{parts.path}", **named}


def python_address(address: str) -> str:
    """Return a PostgreSQL address with the driver that is installed; without one, SQLAlchemy looks for another."""
    scheme, separator, rest = address.partition("://")
    return address if "+" in scheme else f"{PYTHON_DRIVER}{separator}{rest}"


def _server(address: str, host: str, port: int | str | None) -> str:
    if not host or host.startswith("/"):
        raise ConfigurationError(
            f"LAKE_CATALOG_URI is {safe_address(address)!r}, which names no host; Spark cannot connect to a socket.",
            remedy="Name the host and the port: postgresql+psycopg2://user:password@localhost:5432/database.",
        )
    return f"{host}:{port}" if port else host


def safe_address(address: str) -> str:
    """Return the address of a database without its passwords."""
    password = urlsplit(address).password
    without = address.replace(f":{password}@", ":***@") if password else address
    return _SECRET_PARAMETER.sub(r"\1***", without)
