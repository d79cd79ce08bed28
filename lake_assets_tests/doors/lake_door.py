"""The `lake` command in a data directory of its own, and its tables as any other program reads them."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from lake_assets_tests.forked import FORKED

LONGEST = 300
"""Seconds that a command may take."""


@dataclass(frozen=True)
class Done:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """Both outputs."""
        return self.out + self.err


@dataclass
class LakeDoor:
    """A data directory, the declarations beside it, and the command that works on them.

    Attributes:
        folder: Holds the data directory `home`, the folder `tables` of YAML files, and modules of Python.
        environment: Further variables of each command.
        longest: Seconds that a command may take.
    """

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    longest: float = LONGEST

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def declare(self, *tables: Mapping[str, Any]) -> None:
        """Write one YAML file for each declaration: the attributes of a `lake_assets.IncrementalTable`."""
        folder = self.folder / "tables"
        folder.mkdir(exist_ok=True)
        for attributes in tables:
            document = {"type": "lake_assets.IncrementalTable", "attributes": dict(attributes)}
            text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
            (folder / f"{attributes['table'].rpartition('.')[2]}.yaml").write_text(text)
        self.environment["LAKE_PIPELINES"] = str(folder)

    def declare_in_python(self, text: str, module: str = "own_tables") -> None:
        """Write a module that has a `PIPELINE`."""
        (self.folder / f"{module}.py").write_text(text)
        self.environment["LAKE_PIPELINES"] = f"{module}:PIPELINE"

    def write(self, name: str, content: str | bytes) -> Path:
        """Write a file beside the data directory."""
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return file

    def run(self, *words: str | Path, **variables: str) -> Done:
        """Run `lake WORDS` in a process of its own, whatever comes of it."""
        environment = {
            "LAKE_HOME": str(self.home),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(self.folder), os.environ.get("PYTHONPATH")))),
            "COLUMNS": "200",
            **self.environment,
            **variables,
        }
        out, err = self.folder / "stdout", self.folder / "stderr"
        process = FORKED.Process(target=_command, args=(list(map(str, words)), environment, self.folder, out, err))
        process.start()
        process.join(self.longest)
        if process.is_alive():
            process.kill()
            process.join()
            raise AssertionError(
                f"lake {' '.join(map(str, words))} took over {self.longest} s:\n{out.read_text()}{err.read_text()}"
            )
        assert process.exitcode is not None
        return Done(process.exitcode, out.read_text(), err.read_text())

    def __call__(self, *words: str | Path, **variables: str) -> str:
        """Run a command that has to succeed; what it printed."""
        done = self.run(*words, **variables)
        assert done.code == 0, f"lake {' '.join(map(str, words))} → {done.code}\n{done.text}"
        return done.out

    def refused(self, *words: str | Path, **variables: str) -> str:
        """Run a command that has to fail with a message for people; the message."""
        done = self.run(*words, **variables)
        assert done.code, done.text
        assert "Traceback" not in done.text, done.text
        assert "report it" not in done.text, done.text
        return done.err

    def json(self, *words: str | Path) -> Any:
        """What a command says with `--json`."""
        return json.loads(self(*words, "--json"))

    def land(self, table: str, csv: str, *, through: str | None = None, name: str = "rows.csv") -> str:
        """Land rows of CSV text."""
        options = ["--through", through] if through else []
        return self("land", table, self.write(name, csv), *options)

    @property
    def catalog(self) -> SqlCatalog:
        return SqlCatalog(
            "lake",
            uri=f"sqlite:///{self.home / 'catalog.db'}?timeout=60",
            warehouse=f"file://{self.home / 'warehouse'}",
        )

    def table(self, name: str) -> Table:
        return self.catalog.load_table(name)

    def rows(self, table: str, *columns: str) -> list[dict[str, Any]]:
        """The rows of a table by pyiceberg, ordered by all their values."""
        scan = self.table(table).scan(selected_fields=columns or ("*",))
        found: Iterable[dict[str, Any]] = scan.to_arrow().to_pylist()
        return sorted(found, key=repr)

    def values(self, table: str, column: str) -> list[Any]:
        """The values of one column, ordered."""
        return [row[column] for row in self.rows(table, column)]


def _command(words: list[str], environment: dict[str, str], folder: Path, out: Path, err: Path) -> None:
    """Be the `lake` command, in a process that was forked for it."""
    gc.freeze()  # else each collection looks through all that was imported before the fork
    for descriptor, file in ((1, out), (2, err)):
        opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:0] = [path for path in environment["PYTHONPATH"].split(os.pathsep) if path not in sys.path]
    sys.argv = ["lake", *words]

    from lake_assets.cli.main import main
    from lake_assets.settings import settings

    settings.cache_clear()  # the process that this one was forked from may have read its own environment
    try:
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
