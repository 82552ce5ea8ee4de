"""Puts one-line mistakes into the sources, one at a time, and says which of them the tests notice.

    python3 tools/mutate.py BUILD_FOLDER [FOLDER...] [--count N] [--seed S]

BUILD_FOLDER is a build of the preset `mutate`, tests included. A mutant counts once it compiles to another
program. It is killed when a test program of the folders that link its file fails, crashes or does not end:
its folder's own tests run first, then the others, the fastest first. The checkout is not touched. Results are
kept in BUILD_FOLDER/mutants.jsonl. Exit code: 0 done, 1 a test fails without any mistake, 2 bad input.
"""

import argparse
import concurrent.futures
import difflib
import json
import pathlib
import sys

from mutation import build as building
from mutation import draw
from mutation.mutant import Mutant
from mutation.trial import FailsAnywayError, Trial

ROOT = pathlib.Path(__file__).resolve().parent.parent
LEAST_PER_FOLDER = 10
MOST_OBJECTS = 24  # A header in more of them is mostly declarations and takes minutes to compile again.


def counts(folders, total):
    """How many mutants of each folder: by its lines, but at least LEAST_PER_FOLDER."""
    lines = {}
    for folder in folders:
        files = draw.sources(ROOT, folder)
        lines[folder] = sum(len(p.read_text(encoding="utf-8").splitlines()) for p in files)
    least = min(LEAST_PER_FOLDER, total // len(folders))
    rest = total - least * len(folders)
    shares = {f: least + rest * lines[f] // sum(lines.values()) for f in folders}
    shares[max(lines, key=lines.get)] += total - sum(shares.values())
    return shares


def not_drawn(build):
    """Headers that very many objects include, and those of tests alone; says how many there are."""
    wide = {file for file, objects in build.dependents.items() if len(objects) > MOST_OBJECTS}
    ours = {file for file in build.dependents if file.startswith(("armillary/", "cli/"))}
    of_tests = {f for f in ours - wide if all("_test.dir/" in object_ for object_ in build.dependents[f])}
    of_tests = {file for file in of_tests if not file.endswith("_test.cpp")}
    print(f"not drawn    {len(wide & ours)} headers in over {MOST_OBJECTS} objects, {len(of_tests)} of tests")
    return wide | of_tests


class Report:
    """Prints verdicts as they come, keeps them in a file, and adds them up."""

    def __init__(self, path):
        self.file = open(path, "w", encoding="utf-8")  # noqa: SIM115  # closed with the process
        self.table = {}

    def add(self, folder, verdict):
        row = self.table.setdefault(folder, {})
        row[verdict.kind] = row.get(verdict.kind, 0) + 1
        print(verdict.line(), flush=True)
        self.file.write(json.dumps(verdict.record()) + "\n")
        self.file.flush()

    def counted(self, folder):
        row = self.table.get(folder, {})
        return row.get("killed", 0) + row.get("survived", 0)

    def print_table(self):
        print("\n| folder | killed | survived | same code | not compiled |\n|---|---|---|---|---|")
        total = {}
        for folder, row in sorted(self.table.items()):
            self._print_row(folder, row)
            for kind, count in row.items():
                total[kind] = total.get(kind, 0) + count
        self._print_row("all", total)

    @staticmethod
    def _print_row(name, row):
        cells = [str(row.get(kind, 0)) for kind in ("killed", "survived", "same", "not compiled")]
        print(f"| {name} | {' | '.join(cells)} |")


def folder_of(file):
    parts = pathlib.PurePath(file).parts
    return "/".join(parts[:2]) if parts[0] == "armillary" else parts[0]


def run_drawn(trial, counts_wanted, seed, report):
    """Draws until each folder has its count of mutants that compile to another program."""
    skipped = not_drawn(trial.build)
    drawn = {folder: draw.sequence(ROOT, folder, seed, skipped) for folder in counts_wanted}
    with concurrent.futures.ThreadPoolExecutor(trial.jobs) as pool:
        waiting = {}
        while True:
            for folder, count in counts_wanted.items():
                under_way = sum(1 for f in waiting.values() if f == folder)
                if len(waiting) < trial.jobs and report.counted(folder) + under_way < count:
                    mutant = next(drawn[folder], None)
                    if mutant is not None:
                        waiting[pool.submit(trial.run, mutant)] = folder
            if not waiting:
                return
            finished, _ = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in finished:
                report.add(waiting.pop(future), future.result())


def run_again(trial, mutants, report):
    with concurrent.futures.ThreadPoolExecutor(trial.jobs) as pool:
        for verdict in pool.map(trial.run, mutants):
            report.add(folder_of(verdict.mutant.file), verdict)


def survivors(path):
    """The mutants that survived in an earlier run."""
    mutants = []
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record["kind"] == "survived":
            mutants.append(Mutant(**record["mutant"]))
    return mutants


def all_folders():
    folders = [f"armillary/{p.name}" for p in sorted((ROOT / "armillary").iterdir()) if p.is_dir()]
    return [f for f in [*folders, "cli"] if draw.sources(ROOT, f)]


def folders_named(names):
    """The folders that `names` say, with or without armillary/; exits with 2 at another name."""
    choices = all_folders()
    by_name = {**{f: f for f in choices}, **{f.removeprefix("armillary/"): f for f in choices}}
    folders = []
    for name in names:
        if name.rstrip("/") not in by_name:
            near = difflib.get_close_matches(name, by_name, 1)
            hint = f"; nearest: {near[0]}" if near else ""
            print(f"mutate: '{name}'; a folder of {', '.join(choices)} is required{hint}", file=sys.stderr)
            sys.exit(2)
        folders.append(by_name[name.rstrip("/")])
    return folders or choices


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}; 1 or more is required")
    return value


def main():
    parser = argparse.ArgumentParser(prog="./dev mutate", description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="default: all of armillary/, and cli")
    parser.add_argument(
        "--count", type=positive, default=20, help="mutants that compile, over all folders (20)"
    )
    parser.add_argument("--seed", type=int, default=1, help="another seed draws other mutants (1)")
    parser.add_argument("--jobs", type=positive, default=2, help="mutants at a time (2)")
    parser.add_argument("--own", action="store_true", help="only the tests of the mutant's own folder")
    parser.add_argument(
        "--survivors", type=pathlib.Path, metavar="FILE", help="only those that survived in FILE"
    )
    parser.add_argument("--out", type=pathlib.Path, help="results (BUILD_FOLDER/mutants.jsonl)")
    arguments = parser.parse_args()
    folders = folders_named(arguments.folders)
    if arguments.survivors and not arguments.survivors.is_file():
        print(f"mutate: --survivors {arguments.survivors}: no such file", file=sys.stderr)
        return 2
    again = survivors(arguments.survivors) if arguments.survivors else None

    trial = Trial(building.Build(ROOT, arguments.build.resolve()), arguments.jobs, arguments.own)
    report = Report(arguments.out or arguments.build / "mutants.jsonl")
    try:
        if again is not None:
            run_again(trial, again, report)
        else:
            run_drawn(trial, counts(folders, arguments.count), arguments.seed, report)
    except FailsAnywayError as error:
        print(f"mutate: tests fail without any mistake: {error}", file=sys.stderr)
        return 1
    report.print_table()
    return 0


if __name__ == "__main__":
    sys.exit(main())
