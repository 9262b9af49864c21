"""The files of this repository, for tests that read them."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("rqttl", "spark_connectors")


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def lua_files(kind: str) -> list[Path]:
    return sorted((ROOT / "lua" / kind).rglob("*.lua"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
