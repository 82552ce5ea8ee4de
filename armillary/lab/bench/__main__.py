"""Runs a program of this folder: python3 armillary/lab/bench NAME [FLAG VALUE...]"""

import pathlib
import runpy
import sys

FOLDER = pathlib.Path(__file__).resolve().parent


def main():
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if not name or not FOLDER.joinpath(*name.split(".")).with_suffix(".py").is_file():
        names = sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))
        print(f"bench: {name!r} given; one of {', '.join(names)} is required", file=sys.stderr)
        sys.exit(2)
    # Modules of this folder are those of the package `bench`, and hide no others.
    sys.path[0] = str(FOLDER.parent)
    del sys.argv[1]
    runpy.run_module(f"bench.{name}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
