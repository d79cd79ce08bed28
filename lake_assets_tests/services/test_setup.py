"""`lake setup` downloads jars once; what is missing is named. The download itself is that of `make setup`."""

from __future__ import annotations

import hashlib
import shutil
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest

from lake_assets.connections.spark import jars
from lake_assets.errors import ServiceError, UsageError
from lake_assets.services.setup import CONFIGURATION, set_up
from lake_assets.settings import Settings, settings

if TYPE_CHECKING:
    from pathlib import Path


def test_jars_that_are_there_are_not_downloaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))  # where there is no Java, so nothing can be downloaded
    chosen = Settings(home=tmp_path, jars=tmp_path / "made" / "jars", kafka_jars=tmp_path / "made" / "kafka-jars")
    with pytest.raises(ServiceError, match=r"There is no Java(.|\n)*Install Java 17 or 21"):
        set_up(chosen)
    for name, ivy in (("jars", "ivy.xml"), ("kafka-jars", "ivy-kafka.xml")):
        stamp, jar = tmp_path / "made" / "stamps" / f"setup-{name}", tmp_path / "made" / name / "one.jar"
        for file in (stamp, jar):
            file.parent.mkdir(parents=True, exist_ok=True)
        jar.touch()
        content = f"pyspark {version('pyspark')}\n".encode() + (CONFIGURATION / ivy).read_bytes()
        stamp.write_text(hashlib.sha256(content).hexdigest())
    assert set_up(chosen) == [chosen.jars, chosen.kafka_jars]
    with pytest.raises(ServiceError, match="There is no Java"):
        set_up(chosen, ["s3"])
    extra = tmp_path / "made" / "jars-s3" / "client.jar"
    extra.parent.mkdir()
    extra.touch()
    content = f"pyspark {version('pyspark')}\n".encode() + (CONFIGURATION / "ivy-s3.xml").read_bytes()
    (tmp_path / "made" / "stamps" / "setup-jars-s3").write_text(hashlib.sha256(content).hexdigest())
    assert set_up(chosen, ["s3"]) == [chosen.jars, chosen.kafka_jars, extra.parent]
    assert jars(chosen) == [chosen.jars / "one.jar", extra]
    with pytest.raises(UsageError, match=r"no jars for 'nfs'(.|\n)*postgresql, s3"):
        set_up(chosen, ["nfs"])
    (chosen.kafka_jars / "one.jar").unlink()
    with pytest.raises(ServiceError, match="There is no Java"):
        set_up(chosen)


def test_a_damaged_jar_is_downloaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))  # where there is no Java, so nothing can be downloaded
    monkeypatch.setattr("lake_assets.services.setup.installed", lambda extra: False)
    made = Settings(home=tmp_path, jars=tmp_path / "made" / "jars")
    shutil.copytree(settings().jars, made.jars)
    content = f"pyspark {version('pyspark')}\n".encode() + (CONFIGURATION / "ivy.xml").read_bytes()
    (made.jars.parent / "stamps").mkdir()
    (made.jars.parent / "stamps" / "setup-jars").write_text(hashlib.sha256(content).hexdigest())
    assert set_up(made) == [made.jars]
    damaged = next(made.jars.glob("commons-pool2-*.jar"))
    jar = bytearray(damaged.read_bytes())
    jar[len(jar) // 2] ^= 1
    damaged.write_bytes(jar)
    with pytest.raises(ServiceError, match="There is no Java"):
        set_up(made)
