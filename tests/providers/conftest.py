"""The recorded streams, for the tests that need them.

They lie beside the repository (`../shared/fixtures`, or where `MIDSTREAM_FIXTURES` points) and
are not part of it; without them these tests are skipped. A test that takes `recording` runs
once for each file of the folders named in its mark: `@pytest.mark.recordings("openai-chat")`.
"""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECORDINGS = Path(os.environ.get("MIDSTREAM_FIXTURES", ROOT.parent / "shared" / "fixtures"))
ABSENT = f"no recorded streams at {RECORDINGS} (set MIDSTREAM_FIXTURES)"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "recordings(*folders): the folders `recording` comes from")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "recording" not in metafunc.fixturenames:
        return
    mark = metafunc.definition.get_closest_marker("recordings")
    folders = mark.args if mark else ()
    paths = sorted(
        path
        for folder in folders
        for path in (RECORDINGS / folder).glob("*")
        if path.name.endswith((".sse", ".chunks.jsonl"))
    )
    if paths:
        ids = [f"{path.parent.name}/{path.name}" for path in paths]
        metafunc.parametrize("recording", paths, ids=ids)
    else:
        absent = pytest.param(None, marks=pytest.mark.skip(reason=ABSENT))
        metafunc.parametrize("recording", [absent], ids=["absent"])


@pytest.fixture
def recordings() -> Path:
    if not RECORDINGS.is_dir():
        pytest.skip(ABSENT)
    return RECORDINGS
