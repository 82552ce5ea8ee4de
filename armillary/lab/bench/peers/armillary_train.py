"""Runs of `armillary train`: a peer of lab/bench/train.py.

The side NAME is one run of a recipe from its start, whose value is the seconds of its last step; the steps
before warm it up. Facts: "loss" and "grad_norm" of the first step, which are the same in every run, and
"memory_bytes", the most that any run held."""

import argparse
import json

from bench.contest import PROGRAM, ROOT, RefusedError, output
from bench.peers.protocol import UnableError, claim_stdout, serve


def steps_of(settings):
    """The lines of the steps of one run."""
    command = [str(PROGRAM), "train", str(ROOT / "recipes" / "default.toml"), "--json"]
    for setting in settings:
        command += ["--set", setting]
    try:
        lines = [json.loads(line) for line in output(command).splitlines()]
    except RefusedError as refused:
        raise UnableError(str(refused)) from refused
    return [line for line in lines if "step" in line]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True, help="of the side")
    parser.add_argument("--tokens", type=float, required=True, help="of a rank in one step")
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], help="as for `armillary train`"
    )
    args = parser.parse_args()
    facts = {}

    def run(_):
        steps = steps_of(args.settings)
        if not facts:
            facts.update({key: steps[0][key] for key in ("loss", "grad_norm")})
        facts["memory_bytes"] = max(facts.get("memory_bytes", 0), steps[-1]["memory_bytes"])
        return args.tokens / steps[-1]["tps"], facts

    serve(claim_stdout(), {"sides": [args.name]}, run)


if __name__ == "__main__":
    main()
