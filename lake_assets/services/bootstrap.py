"""Install the project on a machine: `.venv` with the locked packages, the project itself, and the jars of `ivy*.xml`.

The system's Python runs this file before anything is installed, so it and `installation` import only the standard
library.

Each step runs once: a stamp file holds the hash of the step's inputs. The stamp is removed before the step starts, so
an interrupted step runs again. If nothing is to do, a call takes a tenth of a second. `--tests` adds what tests need.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent.parent
if not __package__:  # run as a file, before the project is installed
    sys.path.insert(0, str(PROJECT))

from lake_assets.errors import ServiceError  # noqa: E402
from lake_assets.services.browser import install_browser  # noqa: E402
from lake_assets.services.jar_files import LOCK_FILE, check_jars, one_at_a_time  # noqa: E402

CONFIGURATION = Path("lake_assets", "services", "configuration")
"""The folder of the files that name jars, in the project."""

PYTHON = (3, 11)
JAVA = 17
DISK_GB = 3
JAVA_SECONDS = 60
PROGRESS_SECONDS = 5
POLL_SECONDS = 0.05
SHOWN_LINES = 10
SHOWN_CHARACTERS = 160

# Output of the tools → what is wrong, and what to do about it.
SYMPTOMS = (
    (
        r"No space left on device|Errno 28|Disk quota exceeded",
        "The disk is full.",
        f"Free {DISK_GB} GB, then run the command again.",
    ),
    (
        r"DO NOT MATCH THE HASHES",
        "A downloaded package is not the one that was locked.",
        "Empty pip's cache (`pip cache purge`), then run the command again.",
    ),
    (
        r"NewConnectionError|NameResolutionError|Max retries|UnknownHost|Connection refused|ConnectException|"
        r"Network is unreachable|[Tt]imed out|(?:Read|Connect)Timeout|CERTIFICATE_VERIFY|PKIX|"
        r"No matching distribution|module not found|Server access error",
        "The packages cannot be downloaded.",
        "Connect to the network, or set a proxy (for pip in its configuration, for Java in JAVA_TOOL_OPTIONS).",
    ),
    (
        r"ensurepip",
        "This Python cannot create virtual environments.",
        "Install its venv package, for example python3-venv.",
    ),
)

COMMAND = """#!/bin/sh
exec "$(dirname "$(readlink -f "$0")")/python" -P -m lake_assets.cli.main "$@"
"""
"""The content of `.venv/bin/lake`. A checkout that changes it gets the new one at the next `make`."""


@dataclass(frozen=True)
class Step:
    """One part of the installation.

    Attributes:
        name: Names the stamp file.
        content: All inputs that the result depends on. The step is done while they are unchanged.
        run: Does the step.
    """

    name: str
    content: bytes
    run: Callable[[], None]

    def stamp(self, venv: Path) -> Path:
        """Return the file that records the inputs of the last complete run."""
        return venv / "stamps" / self.name

    @property
    def digest(self) -> str:
        """The hash of the inputs."""
        return hashlib.sha256(self.content).hexdigest()

    def is_done(self, venv: Path) -> bool:
        """Return whether the last complete run had the same inputs."""
        try:
            return self.stamp(venv).read_text() == self.digest
        except OSError:
            return False

    def take(self, venv: Path) -> None:
        """Run the step and record its inputs."""
        stamp = self.stamp(venv)
        stamp.unlink(missing_ok=True)
        self.run()
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(self.digest)


def steps(project: Path) -> list[Step]:
    """Return the steps in order; each step needs those before it."""
    venv = project / ".venv"
    lock = project / "requirements.lock"
    ivy = project / CONFIGURATION / "ivy.xml"
    version = python_version().encode()
    packages = version + lock.read_bytes()
    return [
        Step("environment", version, lambda: make_environment(venv)),
        Step("packages", packages, lambda: install_packages(venv, lock)),
        Step("project", version + f"{project}\n{COMMAND}".encode(), lambda: install_project(venv, project)),
        Step("jars", packages + ivy.read_bytes(), lambda: fetch_jars(venv, ivy, venv / "jars")),
        jars_step(venv, project / CONFIGURATION / "ivy-kafka.xml", "kafka-jars"),
    ]


def steps_of_tests(project: Path) -> list[Step]:
    """Return the steps that only the tests need: Pinot's own code (125 MB), the jars of S3 (69 MB) and PostgreSQL."""
    files = {"pinot-jars": "ivy-pinot.xml", "jars-s3": "ivy-s3.xml", "jars-postgresql": "ivy-postgresql.xml"}
    return [jars_step(project / ".venv", project / CONFIGURATION / ivy, folder) for folder, ivy in files.items()]


def jars_step(venv: Path, ivy: Path, folder: str) -> Step:
    """Return the step that downloads the jars of an Ivy file into a folder of the virtual environment."""
    return Step(folder, ivy.read_bytes(), lambda: fetch_jars(venv, ivy, venv / folder))


def set_up(project: Path, *, for_tests: bool = False) -> None:
    """Run every step whose inputs have changed.

    Args:
        project: Folder of the project.
        for_tests: Also run the steps that only the tests need.

    Raises:
        ServiceError: A step failed, or the machine lacks Python, Java or disk space.
    """
    check_python(sys.version_info[:2])
    venv = project / ".venv"
    wanted = steps(project) + (steps_of_tests(project) if for_tests else [])
    missing = [step for step in wanted if not step.is_done(venv)]
    if missing:
        check_java(java_version())
        check_disk(shutil.disk_usage(project).free)
        for step in missing:
            step.take(venv)
        say("Ready.")
    if for_tests:
        install_browser(say, lambda command: run(command, venv))


def python_version() -> str:
    """Return the version of this Python, such as `3.11`."""
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


def check_python(version: tuple[int, int]) -> None:
    """Raise `ServiceError` if a Python is too old."""
    if version < PYTHON:
        wanted = ".".join(map(str, PYTHON))
        raise ServiceError(
            f"This is Python {version[0]}.{version[1]}; {wanted} or later is needed.",
            remedy=f"Install it, then run: make setup PYTHON=python{wanted}",
        )


def java_version() -> str | None:
    """Return the output of `java -version`; None if no Java runs. Like Spark, it uses JAVA_HOME if that is set."""
    command = [java_command(os.environ.get("JAVA_HOME")), "-version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=JAVA_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stderr + done.stdout


def java_command(java_home: str | None) -> str:
    """Return the path of Java's program. java_home: the value of JAVA_HOME; None to use the one on the path."""
    return str(Path(java_home) / "bin" / "java") if java_home else "java"


def check_java(output: str | None) -> None:
    """Raise `ServiceError` if Java is missing or too old. output: what `java_version` returns."""
    remedy = "Install Java 17 or 21 (for example openjdk-17-jre-headless or temurin-17), or set JAVA_HOME to one."
    found = re.search(r'version "(?:1\.)?(\d+)', output or "")
    if found is None:
        raise ServiceError("There is no Java that runs.", remedy=remedy)
    if int(found[1]) < JAVA:
        raise ServiceError(f"Java is {found[1]}; {JAVA} or later is needed.", remedy=remedy)


def check_disk(free_bytes: int) -> None:
    """Raise `ServiceError` if too little disk space is free."""
    if free_bytes < DISK_GB * 10**9:
        raise ServiceError(
            f"Only {free_bytes / 10**9:.1f} GB of disk space are free; {DISK_GB} GB are needed.",
            remedy="Free some space, then run the command again.",
        )


def make_environment(venv: Path) -> None:
    """Create the virtual environment. One of the same Python is kept: the next step checks its packages."""
    say(f"Creating the virtual environment {venv.name}")
    if not fits(venv):
        shutil.rmtree(venv, ignore_errors=True)
    # If .venv is active, `sys.executable` is the Python inside it.
    python = getattr(sys, "_base_executable", sys.executable)
    run([python, "-m", "venv", str(venv)], venv)


def fits(venv: Path) -> bool:
    """Return whether the environment exists and has this version of Python."""
    name = f"python{python_version()}"
    return (venv / "bin" / name).exists() and (venv / "lib" / name).exists()


def install_packages(venv: Path, lock: Path) -> None:
    """Install the packages of a lock file, with their hashes checked."""
    say("Installing the locked packages (about 1 GB; some minutes the first time)")
    # --no-deps: the lock file names all packages, and without it pip cannot check the hash of a package with extras.
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--progress-bar", "off"]
    run([*pip, "--no-deps", "--require-hashes", "-r", str(lock)], venv)


def install_project(venv: Path, project: Path) -> None:
    """Make the project's folder importable and write its command `lake`.

    This uses no build tool: a build tool would be a download that the lock file does not name.
    """
    say("Installing the command .venv/bin/lake")
    packages = next((venv / "lib").glob("python*/site-packages"))
    (packages / "lake_assets.pth").write_text(f"{project}\n")
    command = venv / "bin" / "lake"
    command.write_text(COMMAND)
    command.chmod(0o755)


def fetch_jars(venv: Path, ivy: Path, folder: Path, resolver: Path | None = None) -> None:
    """Download the jars that an Ivy file names into a folder: all or none. resolver: Ivy's jar; None: the venv's."""
    named = re.findall(r'<dependency .*?name="(.+?)" rev="(.+?)"', ivy.read_text())
    wanted = len(named)
    with suppress(ServiceError):
        if all((folder / f"{name}-{revision}.jar").exists() for name, revision in named):
            check_jars(folder, ivy.with_name(LOCK_FILE))
            return  # another command has fetched them, and a Spark that runs has them open
    say(f"Downloading the jars of {ivy.name}")
    resolver = resolver or next((venv / "lib").glob("python*/site-packages/pyspark/jars/ivy-*.jar"))
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    pattern = str(partial / "[artifact]-[revision](-[classifier]).[ext]")
    java = [java_command(os.environ.get("JAVA_HOME")), "-jar", str(resolver)]
    with one_at_a_time(say):
        run([*java, "-ivy", str(ivy), "-types", "jar", "bundle", "-retrieve", pattern], venv)
    found = len(list(partial.glob("*.jar")))
    if found < wanted:
        raise ServiceError(
            f"Only {found} of {wanted} jars were downloaded.",
            remedy=f"Read {log_of(venv)}, then run the command again.",
        )
    check_jars(partial, ivy.with_name(LOCK_FILE))
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def run(command: Sequence[str], venv: Path) -> None:
    """Run a tool with its output in a log, and print progress.

    Raises:
        ServiceError: The tool failed; the message explains its output.
    """
    venv.mkdir(exist_ok=True)
    log = log_of(venv)
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            wait(process, log)
        finally:
            process.kill()
            process.wait()
    if process.returncode != 0:
        raise meaning(log.read_text(errors="replace"), log)


def wait(process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a process ends. Print the last line of its log from time to time."""
    began = time.monotonic()
    reported = began
    while process.poll() is None:
        now = time.monotonic()
        if now - reported > PROGRESS_SECONDS:
            reported = now
            say(f"  {now - began:4.0f} s  {last_line(log)}")
        time.sleep(POLL_SECONDS)


def meaning(output: str, log: Path) -> ServiceError:
    """Return the error for a tool that failed.

    Args:
        output: What the tool printed.
        log: Where the output is.
    """
    for pattern, problem, remedy in SYMPTOMS:
        found = re.search(pattern, output)
        if found:
            shown = output[found.start() :].strip().splitlines()[0][:SHOWN_CHARACTERS].strip()
            return ServiceError(f"{problem} ({shown})", remedy=f"{remedy} The whole output is in {log}.")
    tail = "\n".join(f"    {line}" for line in output.splitlines()[-SHOWN_LINES:])
    return ServiceError(
        f"A step failed. The end of {log}:\n{tail}", remedy="Correct what it names, then run the command again."
    )


def log_of(venv: Path) -> Path:
    """Return the log of the tools."""
    return venv / "setup.log"


def last_line(log: Path) -> str:
    """Return the last line of a log that is not blank, cut to a line of a terminal; empty if there is none."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1].strip()[:SHOWN_CHARACTERS] if lines else ""


def say(text: str) -> None:
    """Print a line at once, also into a pipe."""
    print(text, flush=True)


def main() -> int:
    """Install the project; return the exit code."""
    try:
        set_up(PROJECT, for_tests="--tests" in sys.argv[1:])
    except ServiceError as error:
        print(f"Error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("Interrupted. Run the command again to continue.", file=sys.stderr)
    except OSError as error:
        place = error.filename or PROJECT
        remedy = f"Free disk space at {place}, or give access to it, then run the command again."
        print(f"Error: {error}\n  → {remedy}", file=sys.stderr)
    else:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
