"""What a machine needs: a Java, and the jars that were locked. Jars that are there are left alone; two set-ups at once
take turns; a download that fails leaves nothing half done.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from lake_assets.connections.spark import jars, jvm_conf, kept_classes, spark_environment, spark_home
from lake_assets.errors import ServiceError, UsageError
from lake_assets.services.servers import conf_options
from lake_assets.services.service import check_java, java_version
from lake_assets.services.setup import (
    LOCK_FILE,
    changed_jars,
    check_jars,
    keep_classes,
    locked_checksums,
    one_at_a_time,
    set_up,
)
from lake_assets.settings import Settings, settings

PATIENCE = 120
HOLDER = """
import sys
from pathlib import Path
from lake_assets.services.setup import one_at_a_time
with one_at_a_time(print, Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize(
    "said", ['openjdk version "17.0.15" 2025-04-15', 'openjdk version "21" 2023-09-19', 'java version "25.0.1"']
)
def test_a_java_that_will_do(said: str) -> None:
    check_java(said)


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
        check_java(said)


def test_a_java_home_without_java_is_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java_version() is None


def test_jars_that_are_there_and_sound_are_not_downloaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))  # where there is no Java, so nothing can be downloaded
    made = Settings(home=tmp_path, jars=tmp_path / "made" / "jars", kafka_jars=tmp_path / "made" / "kafka-jars")
    with pytest.raises(ServiceError, match=r"There is no Java(.|\n)*Install Java 17 or 21"):
        set_up(made, say=print)
    shutil.copytree(settings().jars, made.jars)
    shutil.copytree(settings().kafka_jars, made.kafka_jars)
    assert set_up(made, say=print) == [made.jars, made.kafka_jars]
    with pytest.raises(UsageError, match=r"no jars for 'nfs'(.|\n)*postgresql, s3"):
        set_up(made, ["nfs"], say=print)
    with pytest.raises(ServiceError, match="There is no Java"):
        set_up(made, ["s3"], say=print)
    extra = tmp_path / "made" / "jars-postgresql"
    shutil.copytree(settings().jars.with_name("jars-postgresql"), extra)
    assert set_up(made, ["postgresql"], say=print) == [made.jars, made.kafka_jars, extra]
    assert jars(made) == sorted(made.jars.glob("*.jar")) + list(extra.glob("*.jar"))
    damaged = next(made.jars.glob("commons-pool2-*.jar"))
    jar = bytearray(damaged.read_bytes())
    jar[len(jar) // 2] ^= 1
    damaged.write_bytes(jar)
    with pytest.raises(ServiceError, match="There is no Java"):
        set_up(made, say=print)


@pytest.fixture
def java_that_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A function that has JAVA_HOME name a folder whose Java is a script of sh."""

    def write(script: str) -> None:
        java = tmp_path / "bin" / "java"
        java.parent.mkdir()
        java.write_text(f"#!/bin/sh\n{script}\n")
        java.chmod(0o755)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    return write


def test_a_download_that_fails_is_told_with_the_last_lines_and_leaves_no_folder(
    tmp_path: Path, java_that_says: Callable[[str], None]
) -> None:
    java_that_says(
        "[ \"$1\" = -version ] && { echo 'openjdk version \"17\"'; exit; }\necho 'module not found: no route'; exit 1"
    )
    made = Settings(home=tmp_path, jars=tmp_path / "made" / "jars", kafka_jars=tmp_path / "made" / "kafka-jars")
    said: list[str] = []
    with pytest.raises(ServiceError, match=r"jars of ivy\.xml (.|\n)*module not found: no route(.|\n)*JAVA_TOOL_OPT"):
        set_up(made, say=said.append)
    assert said == ["Downloading the jars of ivy.xml"]
    assert not made.jars.exists()


def first_words_of_spark(made: Settings, *options: str) -> subprocess.CompletedProcess[str]:
    """What a Spark prints that only tells its version, started with the classes that the folder of jars keeps."""
    quick = made.model_copy(update={"spark_java_options": " ".join(options)})
    command = [str(spark_home() / "bin" / "spark-submit"), *conf_options(jvm_conf(quick)), "--version"]
    environment = {**os.environ, **spark_environment(), "JDK_JAVA_OPTIONS": ""}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=PATIENCE)


def test_a_spark_reads_the_classes_that_were_kept() -> None:
    said = first_words_of_spark(settings(), "-Xlog:class+load")
    assert re.search(r"org\.apache\.spark\.deploy\.SparkSubmit source: shared objects file \(top\)", said.stdout)


def test_classes_of_another_java_are_passed_over_without_a_word(tmp_path: Path) -> None:
    made = Settings(home=tmp_path, jars=tmp_path / "jars")
    made.jars.mkdir()
    (made.jars / next(settings().jars.glob("hadoop-bare-*.jar")).name).touch()
    kept_classes(made).write_bytes(b"of another Java" * 1000)
    assert first_words_of_spark(made).stdout == ""


def test_a_set_up_goes_on_without_classes_and_says_so(tmp_path: Path, java_that_says: Callable[[str], None]) -> None:
    java_that_says("exit 1")
    made = Settings(home=tmp_path, jars=tmp_path / "jars")
    made.jars.mkdir()
    (made.jars / "any.jar").touch()
    kept_classes(made).touch()
    said: list[str] = []
    keep_classes(made, say=said.append)
    assert re.fullmatch(r"The classes of Spark were not kept: .+\. Spark works without, and starts slower\.", said[-1])
    assert [file.name for file in made.jars.iterdir()] == ["any.jar"]


def test_classes_that_were_kept_are_kept_once() -> None:
    said: list[str] = []
    keep_classes(settings(), say=said.append)
    assert said == []


def lock_of(folder: Path, **contents: bytes) -> Path:
    lines = [f"org:{name}:1.0 {hashlib.sha256(content).hexdigest()}" for name, content in contents.items()]
    lock = folder / "jars.lock"
    lock.write_text("\n".join(["# comment", *lines, ""]))
    return lock


def test_a_jar_that_is_not_the_locked_one_is_refused(tmp_path: Path) -> None:
    lock = lock_of(tmp_path, one=b"first", other=b"second")
    (tmp_path / "one-1.0.jar").write_bytes(b"first")
    (tmp_path / "other-1.0.jar").write_bytes(b"second")
    check_jars(tmp_path, lock)
    assert changed_jars(tmp_path, lock) == []
    (tmp_path / "other-1.0.jar").write_bytes(b"Second")
    with pytest.raises(ServiceError, match=r"other-1\.0\.jar is not the one that was locked(.|\n)*Remove Ivy's copy"):
        check_jars(tmp_path, lock)
    assert changed_jars(tmp_path, lock) == ["other-1.0.jar"]
    (tmp_path / "other-1.0.jar").rename(tmp_path / "more-1.0.jar")
    with pytest.raises(ServiceError, match=r"has no checksum of more-1\.0\.jar"):
        check_jars(tmp_path, lock)
    assert changed_jars(tmp_path, lock) == []  # somebody's own


def test_jars_of_one_name_and_a_classifier(tmp_path: Path) -> None:
    lock = tmp_path / "jars.lock"
    lock.write_text("a:x:1 00\nb:x:1 11\na:x:1:linux 22\n")
    assert locked_checksums(lock) == {"x-1.jar": {"00", "11"}, "x-1-linux.jar": {"22"}}


def test_every_jar_that_is_installed_here_is_locked() -> None:
    for folder in (settings().jars, settings().kafka_jars):
        check_jars(folder)
    assert "://" not in LOCK_FILE.read_text()


def test_two_processes_take_turns(tmp_path: Path) -> None:
    first = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert first.stdin
    assert first.stdout
    assert first.stdout.readline() == "held\n"
    said = threading.Event()
    entered = threading.Event()

    def second() -> None:
        with one_at_a_time(lambda line: said.set(), tmp_path):
            entered.set()

    thread = threading.Thread(target=second)
    thread.start()
    try:
        assert said.wait(PATIENCE)  # it found the lock taken
        assert not entered.is_set()
    finally:
        first.stdin.close()
        first.wait(PATIENCE)
        thread.join(PATIENCE)
        first.stdout.close()
    assert entered.is_set()
