"""The wheel works by itself: built, installed into an empty environment, and used."""

import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").exists(), reason="needs the source tree to build from"
)


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", out, ROOT]
    run(*build, cwd=out)
    [file] = out.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty environment with the wheel and its `cli` extra, and the folder of its programs."""
    place = tmp_path_factory.mktemp("venv")
    venv.create(place)
    programs = place / ("Scripts" if sys.platform == "win32" else "bin")
    pip(programs, "install", "-q", "--no-compile", f"{wheel}[cli]")
    return programs


def pip(programs: Path, *arguments: str) -> str:
    """What our own pip does to that environment: one of its own would take seconds to make."""
    into = ("--python", programs / "python")
    return run(sys.executable, "-m", "pip", *into, *arguments, cwd=programs)


def test_the_demo_runs_from_an_installed_wheel(environment: Path, tmp_path: Path) -> None:
    shown = run(environment / "midstream", "demo", "--speed", "20", cwd=tmp_path)
    assert "cut by ts-no-any" in shown
    assert "cut by no-untested-claims" in shown


def test_the_wheel_installs_one_top_level_package(environment: Path) -> None:
    listing = pip(environment, "show", "-f", "midstream")
    files = [line.strip() for line in listing.split("Files:")[1].splitlines() if line.strip()]
    tops = {file.split("/")[0] for file in files if not file.startswith("..")}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"midstream"}
    assert "midstream/py.typed" in files
    assert any(file.startswith("midstream/rules/builtin/") for file in files)


@pytest.mark.parametrize(
    ("missing", "program", "extra"),
    [
        ("anyio", "from midstream.embedding import aio", "embedding"),
        ("anyio", "from midstream.embedding import sync", "embedding"),
        ("typer", "from midstream.cli import main; main()", "cli"),
        ("starlette", "from midstream.cli import main; sys.argv[1:] = ['serve']; main()", "cli"),
        ("hypercorn", "from midstream.cli import main; sys.argv[1:] = ['gateway']; main()", "cli"),
        ("hypercorn", "from midstream.cli import main; sys.argv[1:] = ['demo']; main()", "cli"),
    ],
)
def test_what_an_extra_would_have_brought_is_missed_by_name(
    missing: str, program: str, extra: str, tmp_path: Path
) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; {program}"
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert f"needs {missing}, which is not installed" in said
    assert said.endswith(f"install it with: pip install 'midstream[{extra}]'")
