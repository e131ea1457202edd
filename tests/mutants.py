"""Break each guard of an invariant in a copy of the program, and see that some test fails.

    python tests/mutants.py              all mutants of tests/guards.py
    python tests/mutants.py fence stop   those with one of these words in their name
    python tests/mutants.py --list       what there is
    python tests/mutants.py --json       the result as JSON

A mutant is killed when a test fails with it that passes without. The tests of its list come
first; when all of them pass, those of its room follow. Everything else is a fault of the list,
told apart:

    survives    every test passes: the guard is not tested, or is none
    hangs       the tests come to no end, so nothing says what is wrong
    crashes     the edit is no program, or is nowhere imported without an error
    unsure      the test that failed fails without the mutant as well

Exit status 0 if all are killed, 1 if not, and 2 if a guard is not where the list says. Each
copy is mended before its next mutant; the tree itself is never touched.
"""

import argparse
import itertools
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TextIO
from xml.etree import ElementTree

from guards import MUTANTS, Mutant

ROOT = Path(__file__).parent.parent
ROOMS = ("actors", "doors", "messages", "providers", "rules", "stores", "supervisors")
DEADLINE_S = 300
"""Seconds for one file of tests, or one room, that takes a tenth of it on an idle machine."""

SEEDS = 60

NO_PROGRAM = re.compile(
    r"^(?:E| *\|) +(?:\w+\.)*"
    r"((?:Name|UnboundLocal|Attribute|Type|Syntax|Indentation|Import|ModuleNotFound)Error: .*)$",
    re.MULTILINE,
)
"""How a failure reads that comes from an edit that makes no sense."""

FAILED_TEST = re.compile(r"^(tests/.+) FAILED +\[", re.MULTILINE)


class Verdict(StrEnum):
    KILLED = "killed"
    SURVIVES = "survives"
    HANGS = "hangs"
    CRASHES = "crashes"
    UNSURE = "unsure"


@dataclass(frozen=True, slots=True)
class Judgement:
    """`test` is the one that failed, or did not end; `why` in a line."""

    verdict: Verdict
    test: str = ""
    why: str = ""
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Run:
    """How a run of tests ended: `status` is pytest's, None after the deadline."""

    status: int | None
    output: str
    report: ElementTree.Element | None


class Stopped(Exception):
    """No more tests are run."""


class Runner:
    """Runs tests, and stops them with all that they have started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def run(self, place: Path, tests: Sequence[str], seeds: int) -> Run:
        """Run these tests of the copy at `place` until one fails. Raises `Stopped`."""
        report, said = place / "report.xml", place / "output.txt"
        report.unlink(missing_ok=True)
        command = [sys.executable, "-P", "-m", "pytest", "-vx", "-p", "no:cacheprovider"]
        command += ["-o", "junit_family=xunit1", "--junit-xml", str(report)]
        command += ["--races-seeds", str(seeds), "--races-shrinks", "0", *tests]
        with said.open("w") as output:
            status = self._wait(self._start(command, place, output))
        has_report = status is not None and report.exists()
        parsed = ElementTree.parse(report).getroot() if has_report else None
        return Run(status, said.read_text(encoding="utf-8", errors="replace"), parsed)

    def stop(self) -> None:
        """End what runs; nothing is started any more."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                _kill(process)

    def _start(self, command: list[str], place: Path, output: TextIO) -> "subprocess.Popen[str]":
        environment = {**os.environ, "PYTHONPATH": str(place / "package")}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        with self._lock:
            if self._stopped:
                raise Stopped
            process = subprocess.Popen(
                command,
                cwd=place,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            self._running.add(process)
        return process

    def _wait(self, process: "subprocess.Popen[str]") -> int | None:
        try:
            status = process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            status = None
        with self._lock:
            _kill(process)
            process.wait()
            self._running.discard(process)
            if self._stopped:
                raise Stopped
        return status


def _kill(process: "subprocess.Popen[str]") -> None:
    """End it and its group, unless it has ended: then its number may be somebody else's."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


class Copy:
    """A copy of the program, with its tests, that mutants are made in."""

    _moments = itertools.count(int(time.time()))
    """Each edit gets another time: Python knows old bytecode by the second."""

    def __init__(self, place: Path) -> None:
        self.place = place
        ignore = shutil.ignore_patterns("__pycache__", ".venv", ".git", "build", "*.egg-info")
        shutil.copytree(ROOT / "midstream", place / "package/midstream", ignore=ignore)
        for room in ROOMS:
            shutil.copytree(ROOT / room, place / "package/midstream" / room, ignore=ignore)
        shutil.copytree(ROOT / "tests", place / "tests", ignore=ignore)
        for name in ("pyproject.toml", "README.md", "docs", "examples"):
            if (ROOT / name).exists():
                (place / name).symlink_to(ROOT / name)

    @contextmanager
    def broken(self, mutant: Mutant) -> Generator[None]:
        """With the guard taken away."""
        path = self.place / "package/midstream" / mutant.file.removeprefix("midstream/")
        text = path.read_text(encoding="utf-8")
        self._write(path, text.replace(mutant.old, mutant.new))
        try:
            yield
        finally:
            self._write(path, text)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        moment = next(self._moments)
        os.utime(path, (moment, moment))


class Judge:
    """Finds out what becomes of mutants."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._sound: set[str] = set()
        """Tests that were seen to pass without a mutant."""

    def judge(self, mutant: Mutant, copy: Copy) -> Judgement:
        """What becomes of the mutant. Raises `Stopped`."""
        with copy.broken(mutant):
            found = self._first_failure(mutant, copy)
        if found.verdict is not Verdict.KILLED or found.test in self._sound:
            return found
        if self._runner.run(copy.place, [found.test], SEEDS).status != 0:
            return Judgement(Verdict.UNSURE, found.test, "fails without the mutant as well")
        self._sound.add(found.test)
        return found

    def _first_failure(self, mutant: Mutant, copy: Copy) -> Judgement:
        for tests in _in_order(mutant):
            found = _judgement(self._runner.run(copy.place, tests, SEEDS))
            if found.verdict is not Verdict.SURVIVES:
                return found
        return Judgement(Verdict.SURVIVES, why="every test passes")


def _in_order(mutant: Mutant) -> Iterator[Sequence[str]]:
    """Name by name, so that the first list to fail ends it."""
    for test in mutant.tests:
        yield [test]
    yield [f"tests/{mutant.file.partition('/')[0]}"]


def _judgement(run: Run) -> Judgement:
    """What a run with a mutant says of it."""
    if run.status == 0:
        return Judgement(Verdict.SURVIVES)
    if run.status is None:
        begun = [line for line in run.output.splitlines() if "::" in line]
        test = begun[-1].split(" ")[0] if begun else ""
        return Judgement(Verdict.HANGS, test, f"no end within {DEADLINE_S} s")
    cases = [] if run.report is None else list(run.report.iter("testcase"))
    failed = [(case, failure) for case in cases if (failure := case.find("failure")) is not None]
    if run.status != 1 or not failed:
        lines = [line for line in run.output.splitlines() if line.startswith(("E  ", "ERROR"))]
        return Judgement(Verdict.CRASHES, why=lines[0] if lines else run.output[-300:])
    case, failure = failed[0]
    named = FAILED_TEST.search(run.output)
    test = named[1] if named else f"{case.get('file')}::{case.get('name')}"
    if nonsense := NO_PROGRAM.search(failure.text or ""):
        return Judgement(Verdict.CRASHES, test, nonsense[1])
    return Judgement(Verdict.KILLED, test, (failure.get("message") or "").partition("\n")[0])


# --- the command


def main() -> int:
    arguments = _arguments()
    misplaced = [problem for mutant in MUTANTS if (problem := misplaced_in(mutant))]
    for problem in misplaced:
        print(problem, file=sys.stderr)
    chosen = {number: m for number, m in enumerate(MUTANTS, 1) if _is_wanted(m, arguments)}
    if misplaced or not chosen:
        return 2
    if arguments.list:
        for number, mutant in chosen.items():
            print(f"{number:3} {mutant.invariant or '-':>3}  {mutant.name}")
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    judgements: dict[int, Judgement] = {}
    try:
        _judge_all(chosen, judgements, arguments)
    except KeyboardInterrupt:
        print(f"stopped after {len(judgements)} of {len(chosen)} mutants", file=sys.stderr)
        return 130
    if arguments.json:
        print(json.dumps([_row(n, chosen[n], j) for n, j in judgements.items()], indent=1))
    return 0 if all(j.verdict is Verdict.KILLED for j in judgements.values()) else 1


def misplaced_in(mutant: Mutant) -> str | None:
    """What is wrong with a mutant whose guard is not where it says; None if it is."""
    count = (ROOT / mutant.file).read_text(encoding="utf-8").count(mutant.old)
    if count == 1 and mutant.old != mutant.new:
        return None
    return f"{mutant.name!r} does not apply: its guard is {count} times in {mutant.file}"


def _arguments() -> argparse.Namespace:
    description = __doc__ and __doc__.partition("\n")[0]
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("word", nargs="*", help="only mutants with one of these in their name")
    parser.add_argument("--jobs", type=int, default=2, help="so many at a time (default 2)")
    parser.add_argument("--json", action="store_true", help="the result as JSON, at the end")
    parser.add_argument("--list", action="store_true", help="only say what there is")
    return parser.parse_args()


def _is_wanted(mutant: Mutant, arguments: argparse.Namespace) -> bool:
    return not arguments.word or any(word in mutant.name for word in arguments.word)


def _judge_all(
    chosen: dict[int, Mutant], judgements: dict[int, Judgement], arguments: argparse.Namespace
) -> None:
    """Judge the mutants, and print one after the other."""
    began_at = time.monotonic()
    out = sys.stderr if arguments.json else sys.stdout
    runner = Runner()
    judge = Judge(runner)
    copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()

    def work(mutant: Mutant) -> Judgement:
        copy = copies.get()
        mutant_began_at = time.monotonic()
        try:
            judged = judge.judge(mutant, copy)
        finally:
            copies.put(copy)
        took_s = time.monotonic() - mutant_began_at
        return Judgement(judged.verdict, judged.test, judged.why, took_s)

    with tempfile.TemporaryDirectory(prefix="midstream-mutants-") as place:
        for number in range(arguments.jobs):
            copies.put(Copy(Path(place) / str(number)))
        with ThreadPoolExecutor(arguments.jobs) as pool:
            futures: dict[int, Future[Judgement]] = {
                number: pool.submit(work, mutant) for number, mutant in chosen.items()
            }
            try:
                print(HEADINGS, file=out)
                for number, future in futures.items():
                    judgements[number] = future.result()
                    print(_line(number, chosen[number], judgements[number]), file=out, flush=True)
            except BaseException:
                runner.stop()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    verdicts = Counter(judgement.verdict for judgement in judgements.values())
    others = "".join(f", {verdicts[v]} {v}" for v in Verdict if v is not Verdict.KILLED)
    took_s = time.monotonic() - began_at
    print(f"{verdicts[Verdict.KILLED]} of {len(chosen)} killed{others}; {took_s:.0f} s", file=out)


HEADINGS = f"{'no':>3} inv  {'verdict':8} {'s':>5}  {'guard':65} by"


def _line(number: int, mutant: Mutant, judged: Judgement) -> str:
    by = judged.test.removeprefix("tests/")
    if judged.verdict is not Verdict.KILLED:
        by = f"{by} ({judged.why})"
    return (
        f"{number:3} {mutant.invariant or '-':>3}  {judged.verdict:8} {judged.took_s:5.1f}"
        f"  {mutant.name:65} {by}"
    )


def _row(number: int, mutant: Mutant, judged: Judgement) -> dict[str, object]:
    return {
        "number": number,
        "guard": mutant.name,
        "invariant": mutant.invariant,
        "file": mutant.file,
        "verdict": judged.verdict,
        "test": judged.test,
        "why": judged.why,
        "seconds": round(judged.took_s, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
