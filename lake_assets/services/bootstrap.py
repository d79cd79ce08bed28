"""Brings the stack onto a machine: `.venv` with the locked packages, the project itself, and the jars of `ivy*.xml`.

Run by the system's Python before anything is installed, so it needs nothing but the standard library and reads nothing
of this package. Each step runs once: a stamp holds the hash of what went in, and goes before the step begins, so a step
that was interrupted is done again. What is done is not looked at again: the second call takes a tenth of a second.
With `--tests`, what the tests alone need is fetched too.
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
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent.parent
PYTHON = (3, 11)
JAVA = 17
DISK_GB = 3
ALIVE_SECONDS = 5

# What the tools print → what is wrong, and what to do about it.
SYMPTOMS = (
    (
        r"No space left on device|Errno 28|Disk quota exceeded",
        "The disk is full.",
        f"Free {DISK_GB} GB, then call again.",
    ),
    (
        r"DO NOT MATCH THE HASHES",
        "A downloaded package is not the one that was locked.",
        "Empty pip's cache (`pip cache purge`), then call again.",
    ),
    (
        r"NewConnectionError|NameResolutionError|Max retries|UnknownHost|Connection refused|ConnectException|"
        r"Network is unreachable|[Tt]imed out|(?:Read|Connect)Timeout|CERTIFICATE_VERIFY|PKIX|"
        r"No matching distribution|module not found|Server access error",
        "The packages cannot be downloaded.",
        "Connect to the network, or set its proxy (pip's in its configuration, Java's in JAVA_TOOL_OPTIONS).",
    ),
    (
        r"ensurepip",
        "This Python cannot make virtual environments.",
        "Install its venv package, for example python3-venv.",
    ),
)


class SetupError(Exception):
    """What is wrong, and what to do about it."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}\n  → {remedy}")


@dataclass(frozen=True)
class Step:
    """content: all that its result depends on; equal content means nothing to do."""

    name: str
    content: bytes
    run: Callable[[], None]

    def stamp(self, venv: Path) -> Path:
        return venv / "stamps" / self.name

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    def is_done(self, venv: Path) -> bool:
        try:
            return self.stamp(venv).read_text() == self.digest
        except OSError:
            return False

    def take(self, venv: Path) -> None:
        """Runs it, and remembers that it is done."""
        stamp = self.stamp(venv)
        stamp.unlink(missing_ok=True)
        self.run()
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(self.digest)


def steps(project: Path) -> list[Step]:
    """In order; each needs those before."""
    venv = project / ".venv"
    version = ".".join(map(str, sys.version_info[:2])).encode()
    lock, ivy, kafka = project / "requirements.lock", project / "ivy.xml", project / "ivy-kafka.xml"
    return [
        Step("environment", version, lambda: make_environment(venv)),
        Step("packages", version + lock.read_bytes(), lambda: install_packages(venv, lock)),
        Step("project", version + str(project).encode(), lambda: install_project(venv, project)),
        Step("jars", version + lock.read_bytes() + ivy.read_bytes(), lambda: fetch_jars(venv, ivy, venv / "jars")),
        Step("kafka-jars", kafka.read_bytes(), lambda: fetch_jars(venv, kafka, venv / "kafka-jars")),
    ]


def steps_of_tests(project: Path) -> list[Step]:
    """What the tests need besides: Pinot's own code (125 MB), which they compare with."""
    venv, pinot = project / ".venv", project / "ivy-pinot.xml"
    return [Step("pinot-jars", pinot.read_bytes(), lambda: fetch_jars(venv, pinot, venv / "pinot-jars"))]


def set_up(project: Path, *, for_tests: bool = False) -> None:
    """Does what is not done yet; `SetupError` if it cannot."""
    check_python(sys.version_info[:2])
    venv = project / ".venv"
    wanted = [*steps(project), *(steps_of_tests(project) if for_tests else [])]
    missing = [step for step in wanted if not step.is_done(venv)]
    if not missing:
        return
    check_java(java_version())
    check_disk(shutil.disk_usage(project).free)
    for step in missing:
        step.take(venv)
    say("Ready.")


def check_python(version: tuple[int, int]) -> None:
    if version < PYTHON:
        wanted = ".".join(map(str, PYTHON))
        raise SetupError(
            f"This is Python {version[0]}.{version[1]}; {wanted} or later is needed.",
            f"Install it, then name it: make setup PYTHON=python{wanted}",
        )


def java_version() -> str | None:
    """What `java -version` says, or None if there is no Java. Spark looks where this looks: JAVA_HOME first."""
    home = os.environ.get("JAVA_HOME")
    try:
        done = subprocess.run([java_command(home), "-version"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stderr + done.stdout


def java_command(java_home: str | None) -> str:
    return str(Path(java_home) / "bin" / "java") if java_home else "java"


def check_java(said: str | None) -> None:
    remedy = "Install Java 17 or 21 (for example openjdk-17-jre-headless or temurin-17), or point JAVA_HOME at one."
    found = re.search(r'version "(?:1\.)?(\d+)', said or "")
    if found is None:
        raise SetupError("There is no Java that runs.", remedy)
    if int(found[1]) < JAVA:
        raise SetupError(f"Java is {found[1]}; {JAVA} or later is needed.", remedy)


def check_disk(free_bytes: int) -> None:
    if free_bytes < DISK_GB * 10**9:
        raise SetupError(
            f"Only {free_bytes / 10**9:.1f} GB of disk are free; {DISK_GB} are needed.", "Free some, then call again."
        )


def make_environment(venv: Path) -> None:
    """Keeps an environment of the same Python: its packages are checked by the next step anyway."""
    say(f"Making the virtual environment {venv.name}")
    if not fits(venv):
        shutil.rmtree(venv, ignore_errors=True)
    python = getattr(sys, "_base_executable", sys.executable)  # not the one inside .venv, when that is active
    run([python, "-m", "venv", str(venv)], venv)


def fits(venv: Path) -> bool:
    """Whether an environment is there, and of this Python."""
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return (venv / "bin" / name).exists() and (venv / "lib" / name).exists()


def install_packages(venv: Path, lock: Path) -> None:
    say("Installing the locked packages (about 1 GB; some minutes the first time)")
    # --no-deps: the lock names everything, and this pip cannot check hashes of a package with extras otherwise.
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--progress-bar", "off"]
    run([*pip, "--no-deps", "--require-hashes", "-r", str(lock)], venv)


def install_project(venv: Path, project: Path) -> None:
    """The project as it lies here, and its command. By hand: a build tool would be a download that no lock names."""
    say("Installing the command .venv/bin/lake")
    next((venv / "lib").glob("python*/site-packages")).joinpath("lake_assets.pth").write_text(f"{project}\n")
    command = venv / "bin" / "lake"
    command.write_text('#!/bin/sh\nexec "$(dirname "$(readlink -f "$0")")/python" -P -m lake_assets.cli.main "$@"\n')
    command.chmod(0o755)


def fetch_jars(venv: Path, ivy: Path, folder: Path) -> None:
    """Puts what an Ivy file names into a folder, all of it or nothing."""
    say(f"Fetching the jars of {ivy.name}")
    resolver = next((venv / "lib").glob("python*/site-packages/pyspark/jars/ivy-*.jar"))
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    pattern = str(partial / "[artifact]-[revision](-[classifier]).[ext]")
    java = [java_command(os.environ.get("JAVA_HOME")), "-jar", str(resolver)]
    run([*java, "-ivy", str(ivy), "-types", "jar", "bundle", "-retrieve", pattern], venv)
    wanted, found = ivy.read_text().count("<dependency "), len(list(partial.glob("*.jar")))
    if found < wanted:
        raise SetupError(
            f"Only {found} of {wanted} jars came.", f"See {log_of(venv)}; call again when the network is there."
        )
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def run(command: Sequence[str], venv: Path) -> None:
    """Runs a tool with its output in a log, shows that it is alive, and tells what its failure means."""
    venv.mkdir(exist_ok=True)
    log = log_of(venv)
    begun = spoken = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            while process.poll() is None:
                if time.monotonic() - spoken > ALIVE_SECONDS:
                    spoken = time.monotonic()
                    say(f"  {spoken - begun:4.0f} s  {last_line(log)}")
                time.sleep(0.05)
        finally:
            process.kill()
            process.wait()
    if process.returncode != 0:
        raise meaning(log.read_text(errors="replace"), log)


def meaning(output: str, log: Path) -> SetupError:
    for pattern, problem, remedy in SYMPTOMS:
        if found := re.search(pattern, output):
            line = next(line for line in output[found.start() :].splitlines() if line.strip())
            return SetupError(f"{problem} ({line.strip()[:160]})", f"{remedy} All of it: {log}")
    tail = "\n".join(f"    {line}" for line in output.splitlines()[-10:])
    return SetupError(f"A step failed. The end of {log}:\n{tail}", "Correct what it names, then call again.")


def log_of(venv: Path) -> Path:
    return venv / "setup.log"


def last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:100] if lines else ""


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    try:
        set_up(PROJECT, for_tests="--tests" in sys.argv[1:])
    except SetupError as error:
        print(f"Error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("Interrupted; the next call goes on from here.", file=sys.stderr)
    except OSError as error:
        print(
            f"Error: {error}\n  → Make room or give access to {error.filename or PROJECT}, then call again.",
            file=sys.stderr,
        )
    else:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
