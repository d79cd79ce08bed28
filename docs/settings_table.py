"""MkDocs writes the table of all settings into settings.md, from the fields of `Settings`: none is described twice."""

from __future__ import annotations

from lake_assets.settings import Settings, variable_name

MARK = "<!-- the table of all settings -->"
OF_TESTS = "failpoint"


def on_page_markdown(markdown: str, **_: object) -> str:
    """Put the table in place of its mark. MkDocs calls this for each page."""
    return markdown.replace(MARK, table()) if MARK in markdown else markdown


def table() -> str:
    """One row for each setting: variable, meaning, default."""
    lines = ["| variable | meaning | default |", "| --- | --- | --- |"]
    for name, field in Settings.model_fields.items():
        meaning, _, default = (field.description or "").partition("; default: ")
        shown = default or ("none" if field.default in (None, "", {}) else f"`{field.default}`")
        if name != OF_TESTS:
            lines.append(f"| `{variable_name(name)}` | {meaning} | {shown} |".replace("\n", " "))
    return "\n".join(lines)
