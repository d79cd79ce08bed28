"""Bringing the stack onto a machine: what is checked, what is done once, what a failure is said to mean."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lake_assets.errors import ServiceError
from lake_assets.services import bootstrap
from lake_assets.services.bootstrap import Step
from lake_assets.settings import PROJECT

SERVICES = PROJECT / "lake_assets" / "services"
BOOTSTRAP = f"import sys; sys.path.insert(0, {str(PROJECT)!r}); import lake_assets.services.bootstrap"


def imported(module: Path) -> set[str]:
    """Every module that it imports, at its top, inside functions, or for types alone."""
    nodes = list(ast.walk(ast.parse(module.read_text())))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}


def test_the_bootstrap_needs_nothing_but_the_standard_library() -> None:
    own = {f"lake_assets.{name}" for name in ("errors", "services.browser", "services.jar_files")}
    errors = SERVICES.parent / "errors" / "__init__.py"
    for module in (SERVICES / "bootstrap.py", SERVICES / "browser.py", SERVICES / "jar_files.py", errors):
        foreign = {name for name in imported(module) if name.split(".")[0] not in sys.stdlib_module_names}
        assert foreign <= own
    # Run without the packages of the environment.
    program = [sys.executable, "-I", "-S", "-c", BOOTSTRAP]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_old_python_is_named_with_the_one_to_install() -> None:
    bootstrap.check_python((3, 11))
    with pytest.raises(ServiceError, match=r"Python 3\.9; 3\.11 or later(.|\n)*PYTHON=python3\.11"):
        bootstrap.check_python((3, 9))


@pytest.mark.parametrize(
    "said", ['openjdk version "17.0.15" 2025-04-15', 'openjdk version "21" 2023-09-19', 'java version "25.0.1"']
)
def test_a_java_that_will_do(said: str) -> None:
    bootstrap.check_java(said)


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ('openjdk version "11.0.2" 2019-01-15', "Java is 11"),
        ('java version "1.8.0_202"', "Java is 8"),
        (None, "There is no Java"),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", "There is no Java"),
    ],
)
def test_a_java_that_will_not_do_is_named_with_the_one_to_install(said: str | None, problem: str) -> None:
    with pytest.raises(ServiceError, match=rf"{problem}(.|\n)*Install Java 17 or 21"):
        bootstrap.check_java(said)


def test_a_java_home_without_java_is_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert bootstrap.java_version() is None


def test_a_full_disk_is_seen_before_anything_is_fetched() -> None:
    bootstrap.check_disk(3 * 10**9)
    with pytest.raises(ServiceError, match=r"Only 1\.2 GB"):
        bootstrap.check_disk(1_200_000_000)


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "The disk is full"),
        ("WARNING: Retrying after NewConnectionError: Failed to establish", "cannot be downloaded"),
        ("java.net.UnknownHostException: somewhere", "cannot be downloaded"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE", "is not the one that was locked"),
        (
            "The virtual environment was not created successfully because ensurepip is not available",
            "virtual environments",
        ),
        ("Requirement already satisfied: pytest-timeout==2.4.0\nERROR: broken", "A step failed"),
        ("something else\nentirely", "something else\n    entirely"),
    ],
)
def test_what_a_failure_means(output: str, problem: str, tmp_path: Path) -> None:
    error = str(bootstrap.meaning(output, tmp_path / "setup.log"))
    assert problem in error
    assert "→" in error


def test_a_tool_that_fails_is_explained_from_its_output(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="The disk is full"):
        bootstrap.run([sys.executable, "-c", "raise OSError(28, 'No space left on device')"], tmp_path)


def test_a_step_is_done_while_what_went_in_is_the_same(tmp_path: Path) -> None:
    step = Step("packages", b"one", lambda: None)
    assert not step.is_done(tmp_path)
    step.stamp(tmp_path).parent.mkdir()
    step.stamp(tmp_path).write_text(step.digest)
    assert step.is_done(tmp_path)
    assert not Step("packages", b"two", lambda: None).is_done(tmp_path)


def test_jars_are_fetched_again_if_their_ivy_file_changes(tmp_path: Path) -> None:
    for name in ("ivy-pinot.xml", "ivy-s3.xml", "ivy-postgresql.xml"):
        named = tmp_path / bootstrap.CONFIGURATION / name
        named.parent.mkdir(parents=True, exist_ok=True)
        named.write_text(f"jars of {name}")
    steps = {step.name: step.content.decode() for step in bootstrap.steps_of_tests(tmp_path)}
    jars = {"pinot-jars": "ivy-pinot.xml", "jars-s3": "ivy-s3.xml", "jars-postgresql": "ivy-postgresql.xml"}
    assert steps == {folder: f"jars of {name}" for folder, name in jars.items()}


def test_the_command_is_put_beside_the_environment_and_finds_it_from_anywhere(tmp_path: Path) -> None:
    venv = tmp_path / ".venv"
    (venv / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    (venv / "bin").mkdir()
    (venv / "bin" / "python").symlink_to(sys.executable)
    bootstrap.install_project(venv, bootstrap.PROJECT)
    (tmp_path / "lake").symlink_to(venv / "bin" / "lake")
    assert (venv / "lib" / "python3.11" / "site-packages" / "lake_assets.pth").read_text().strip() == str(
        bootstrap.PROJECT
    )
    path = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"]}  # of a bare link to Python, not a venv
    said = subprocess.run([tmp_path / "lake", "--help"], capture_output=True, text=True, check=True, env=path).stdout
    assert "Usage: lake" in said
