from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def fixtures() -> dict[str, str]:
    """The texts of the files of other brokers, by name."""
    folder = Path(__file__).parent / "fixtures"
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.iterdir())}
