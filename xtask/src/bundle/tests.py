"""The test programs of a bundle: runs them side by side, and sums them up in one line.

A program passes where it ends with status 0 and prints a result; one that crashes, prints none or runs out of time
fails, whatever else passed.
"""

import argparse
import concurrent.futures
import datetime
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
RESULT = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored;", re.M)
SKIPPED = re.compile(r"^(?:(\d+) .*)?skipped, ", re.M)
WARNING = re.compile(r"^\[W\d{4} .*\n", re.M)
FAILED = re.compile(r"^(?:test (\S+) \.\.\. FAILED|FAILED (.*))$", re.M)
SANITIZED = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")


def commit():
    """The commit that the bundle was built from; `-dirty` where files were changed."""
    file = HERE / "COMMIT"
    return file.read_text().strip() if file.exists() else "unknown"


def card():
    """The names of the GPUs."""
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        said = ""
    names = [line.strip() for line in said.splitlines() if line.strip()]
    return f"{len(names)} x {names[0]}" if len(names) > 1 else (names or ["no GPU"])[0]


def environment():
    own = {"TILEFUSE_TEST_FILES": HERE / "files", "TILEFUSE_TEST_PROGRAM": HERE / "bin" / "tilefuse"}
    return os.environ | {name: str(path) for name, path in own.items()}


class Unit:
    """A program with the arguments that choose its tests."""

    def __init__(self, name, arguments, output=None):
        self.name, self.arguments, self.output = name, arguments, output
        self.counts = [0, 0, 0]
        self.skipped, self.problem, self.failures = 0, None, []

    def run(self, prefix, deadline):
        """Runs it, by another program where there is a prefix, no longer than until the deadline."""
        command = [*prefix, str(HERE / "tests" / self.name), *self.arguments]
        left = deadline - time.monotonic()
        if left <= 0:
            self.problem = "was not started: the time was up"
            return self
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment(), cwd=HERE,
                start_new_session=True,
            )
            try:
                status = child.wait(left)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
                status = None
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
        self.read(status, *texts)
        return self

    def read(self, status, out, err):
        results = RESULT.findall(out)
        self.counts = [sum(int(result[i]) for result in results) for i in range(3)]
        self.skipped = sum(int(n or 1) for text in (out, err) for n in SKIPPED.findall(text))
        self.failures = [a or b for a, b in FAILED.findall(out)]
        self.text = out + err
        if status is None:
            self.problem = "ran out of time"
        elif status < 0:
            self.problem = f"was ended by signal {-status}"
        elif not results:
            self.problem = f"printed no result, status {status}"
        elif status != 0 and self.counts[1] == 0:
            self.problem = f"ended with status {status}"


def tests_of(name):
    listed = subprocess.run(
        [str(HERE / "tests" / name), "--list"], capture_output=True, text=True, env=environment(), cwd=HERE
    ).stdout
    return [line.removesuffix(": test") for line in listed.splitlines() if line.endswith(": test")]


def units(programs, shard, arguments):
    part, parts = shard
    for name in programs:
        if parts == 1:
            yield Unit(name, arguments)
            continue
        # Every so-many-th, so that no part has all of the large ones.
        chosen = tests_of(name)[part - 1 :: parts]
        if chosen:
            yield Unit(name, ["--exact", *chosen, *arguments])


def counted(n, what):
    return f"{n} {what}{'' if n == 1 else 's'}"


def finish(row, words, failed, options):
    """Keeps the row where that was asked for, and prints the line."""
    row = {"date": datetime.date.today().isoformat(), "card": card(), "commit": commit(), **row}
    if options.json:
        with open(options.json, "a") as file:
            file.write(json.dumps(row) + "\n")
    where = f"{row['date']}, {row['card']}, commit {row['commit'][:12]}"
    print(f"{'FAILED' if failed else 'ok'}: {words} in {row['seconds']} s; {where}", flush=True)
    return 1 if failed else 0


def last_of(text):
    """The end of what a program said, without libtorch's warnings, which would hide what failed."""
    return WARNING.sub("", text)[-20000:]


def report(unit, show_all):
    for failure in unit.failures:
        print(f"FAILED {unit.name}: {failure}")
    if unit.problem:
        print(f"FAILED {unit.name} {unit.problem}")
    if show_all or unit.problem or unit.counts[1]:
        print(last_of(unit.text), flush=True)
    passed, failed, ignored = unit.counts
    print(f"== {unit.name}: {passed} passed, {failed} failed, {ignored} ignored, {unit.skipped} skipped", flush=True)


def run(programs, options):
    start = time.monotonic()
    deadline = start + options.seconds
    everything = list(units(programs, options.shard, options.arguments))
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for done in concurrent.futures.as_completed([pool.submit(u.run, [], deadline) for u in everything]):
            report(done.result(), options.verbose)
    passed, failed, ignored = (sum(u.counts[i] for u in everything) for i in range(3))
    crashed = sum(u.problem is not None for u in everything)
    row = {
        "programs": len(everything),
        "passed": passed,
        "failed": failed,
        "ignored": ignored,
        "skipped": sum(u.skipped for u in everything),
        "crashed": crashed,
        "seconds": round(time.monotonic() - start),
    }
    if options.shard[1] > 1:
        row["shard"] = "/".join(map(str, options.shard))
    words = counted(row["programs"], "program") + ": "
    words += ", ".join(f"{row[key]} {key}" for key in ("passed", "failed", "ignored", "skipped", "crashed"))
    if "shard" in row:
        words += f", part {row['shard']}"
    return finish(row, words, failed or crashed or not passed, options)


def sanitizer():
    """compute-sanitizer, from `COMPUTE_SANITIZER`, `PATH`, a CUDA toolkit or a Python package."""
    places = [os.environ.get("COMPUTE_SANITIZER"), shutil.which("compute-sanitizer")]
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    places += [f"{home}/bin/compute-sanitizer", f"{home}/compute-sanitizer/compute-sanitizer"]
    for folder in sys.path:
        places += glob.glob(f"{folder}/nvidia/**/compute-sanitizer", recursive=True)
    return next((place for place in places if place and os.access(place, os.X_OK) and Path(place).is_file()), None)


def sanitize(options):
    tool = sanitizer()
    if tool is None:
        print("FAILED: there is no compute-sanitizer: install a CUDA toolkit, or name it in COMPUTE_SANITIZER")
        return 1
    start = time.monotonic()
    tools = options.tool or ["memcheck", "racecheck"]
    row, words, bad = {}, [], False
    os.environ["TILEFUSE_TEST_DEVICE"] = "cuda:0"
    for index, check in enumerate(tools):
        left = options.seconds - (time.monotonic() - start)
        share = left / (len(tools) - index)
        prefix = [tool, "--tool", check, "--target-processes", "application-only", "--print-limit", "20"]
        # The program begins no case after three quarters of its time, and says how many it left out.
        limit = [f"--seconds={int(share * 0.75)}"] if options.program == PROGRAM else []
        unit = Unit(options.program, [*limit, *options.arguments]).run(prefix, time.monotonic() + share)
        report(unit, options.verbose)
        found = SANITIZED.findall(unit.text)
        errors = sum(int(a or b) for a, b in found)
        if errors or not found:
            print(last_of(unit.text), flush=True)
        passed, failed, ignored = unit.counts
        bad |= bool(errors or not found or failed or unit.problem or not passed)
        row[check] = {"errors": errors if found else None, "passed": passed, "failed": failed, "not_run": ignored}
        said = counted(errors, "error") if found else "no summary"
        words.append(f"{check} {said}, {passed} passed, {failed} failed, {ignored} not run")
    row = {"program": options.program, **row, "seconds": round(time.monotonic() - start)}
    return finish(row, "; ".join(words), bad, options)


def shard(text):
    part, parts = map(int, text.split("/"))
    if not 1 <= part <= parts:
        raise ValueError(text)
    return part, parts


PROGRAM = "tilefuse-codegen-gpu"


def main():
    parser = argparse.ArgumentParser(prog="run.sh")
    which = parser.add_subparsers(dest="what", required=True)
    for what in ("tests", "sanitize"):
        own = which.add_parser(what)
        own.add_argument("--json", metavar="FILE", help="append the counts to this file, as a line of JSON")
        own.add_argument("--seconds", type=float, default=570, help="end everything after this time (570)")
        own.add_argument("--verbose", action="store_true", help="show what programs print that pass, too")
        own.add_argument("--program", metavar="NAME", help="run this test program alone")
        if what == "tests":
            own.add_argument("--shard", type=shard, default=(1, 1), metavar="K/N", help="the K-th of N parts of the tests")
            own.add_argument("--jobs", type=int, default=3, help="programs at a time (3)")
        else:
            own.add_argument("--tool", action="append", help="a tool of compute-sanitizer (memcheck and racecheck)")
        own.add_argument("arguments", nargs="*", help="arguments of the test programs, after --")
    options = parser.parse_args()
    if options.what == "sanitize":
        options.program = options.program or PROGRAM
        return sanitize(options)
    programs = sorted(path.name for path in (HERE / "tests").iterdir() if os.access(path, os.X_OK))
    if options.program:
        programs = [name for name in programs if name == options.program]
    return run(programs, options)


sys.exit(main())
