"""Runs the C++ tests with some sources built with the address and undefined-behaviour sanitizers.

python tools/sanitize_sources.py --build build/cp311-… --tests build/tests-cpp SOURCE...

The other objects are taken from the build folder, so this takes a fraction of the time of `bash run test-sanitize`,
which instruments all of them.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize=vptr", "-fno-omit-frame-pointer", "-O1", "-g1"]
SETTINGS = {
    # PyTorch is not instrumented: its own leaks and its allocations across libraries are not reported.
    "ASAN_OPTIONS": "detect_leaks=0:detect_container_overflow=0",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
}


def compile_commands(build: Path) -> dict[str, list[str]]:
    """The compile command of each library source, by path from the project root."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = Path(entry["directory"], entry["file"]).resolve()
        if "CMakeFiles/torchfake.dir" in entry["command"] and path.is_relative_to(ROOT.resolve()):
            found[str(path.relative_to(ROOT.resolve()))] = shlex.split(entry["command"])
    return found


def instrument(command: list[str], build: Path, objects: Path) -> tuple[str, Path]:
    """Compiles one source with the sanitizers. Returns the object that it replaces, and the new one."""
    plain = command[command.index("-o") + 1]
    new = objects / plain
    new.parent.mkdir(parents=True, exist_ok=True)
    # The precompiled header was built with other flags, so its text is read instead.
    changed = [str(new) if word == plain else word for word in command if word != "-Winvalid-pch"]
    changed = [word for word in changed if not word.startswith("-flto")]
    subprocess.run([*changed, *SANITIZERS], cwd=build, check=True)
    return plain, new


def link_command(build: Path) -> list[str]:
    shown = subprocess.run(
        ["ninja", "-C", str(build), "-t", "commands", "-s", "libtorchfake.so"],
        capture_output=True,
        text=True,
        check=True,
    )
    command = shown.stdout.strip().splitlines()[-1]
    parts = [part for part in command.split(" && ") if "-shared" in part]
    if len(parts) != 1:
        raise RuntimeError(f"no single command links libtorchfake.so: {command}")
    return shlex.split(parts[0])


def build_library(sources: list[str], build: Path, folder: Path) -> Path:
    """Builds libtorchfake.so with those sources instrumented."""
    commands = compile_commands(build)
    missing = [source for source in sources if source not in commands]
    if missing:
        raise SystemExit(f"error: not part of the library in {build}: {', '.join(missing)}")
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        replaced = dict(pool.map(lambda s: instrument(commands[s], build, folder / "objects"), sources))
    library = folder / "libtorchfake.so"
    words = [str(replaced.get(word, word)) for word in link_command(build)]
    words[words.index("-o") + 1] = str(library)
    subprocess.run([*words, "-fsanitize=address,undefined"], cwd=build, check=True)
    return library


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True, help="the folder that the library was built in")
    parser.add_argument("--tests", type=Path, required=True, help="the folder that the C++ tests were built in")
    parser.add_argument("sources", nargs="+")
    options = parser.parse_args()
    folder = options.build.resolve().parent / "sanitize-sources"
    library = build_library(options.sources, options.build.resolve(), folder)
    runtime = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    test = options.tests.resolve() / "torchfake_tests"
    environment = os.environ | SETTINGS | {"LD_LIBRARY_PATH": str(library.parent), "LD_PRELOAD": runtime.stdout.strip()}
    loaded = subprocess.run(["ldd", str(test)], env=environment | {"LD_PRELOAD": ""}, capture_output=True, text=True)
    if str(library) not in loaded.stdout:
        raise SystemExit(f"error: {test} does not load {library}:\n{loaded.stdout}")
    sys.exit(subprocess.run([str(test), "--gtest_brief=1"], env=environment).returncode)


if __name__ == "__main__":
    main()
