"""Runs of `armillary train` on several ranks: a peer of lab/bench/mesh.py and finetune.py.

The side NAME is one run of a recipe from its start, whose value is the median of the seconds of its steps
but for the first, which warms it up. Facts: "losses" of the steps, the same in every run; "memory_bytes", the
peaks of private memory of all processes together, and "before_bytes", that memory before parameters are made
(process_memory.py); "exposed_s", the seconds of a step in which ranks wait for gathers and sums of
parameters; "sent_bytes", what hosts send, over the steps of a run."""

import argparse
import json
import shlex
import statistics
import subprocess

from bench.contest import ROOT, short
from bench.peers.hosts import sent_bytes
from bench.peers.protocol import UnableError, claim_stdout, serve
from bench.process_memory import Watch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True, help="of the side")
    parser.add_argument("--program", required=True, help="with its launcher")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--tokens", type=float, required=True, help="of a rank in one step")
    parser.add_argument("--folder", required=True, help="of the run; no other run has it")
    parser.add_argument("--init-from", help="as for `armillary train`")
    parser.add_argument("--hosts", nargs="*", default=[], help="names, if the ranks are on several")
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], help="as for `armillary train`"
    )
    args = parser.parse_args()
    command = [*shlex.split(args.program), "train", str(ROOT / "recipes" / "default.toml"), "--json"]
    for setting in [*args.settings, f"job.dump_folder={args.folder}"]:
        command += ["--set", setting]
    if args.init_from:
        command += ["--init-from", args.init_from]
    facts = {}

    def run(_):
        sent_before = sent_bytes(args.hosts)
        with Watch("armillary-torch", args.folder, args.processes, run_folder=args.folder) as memory:
            result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            told = [line for line in result.stderr.splitlines() if line.startswith("armillary: ")]
            raise UnableError(short((told or result.stderr.splitlines() or ["no step"])[0]))
        lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
        steps = [line for line in lines if "step" in line]
        facts.update(losses=[step["loss"] for step in steps], steps=len(steps))
        facts["memory_bytes"] = max(facts.get("memory_bytes", 0), memory.private_peak_bytes())
        if (before_bytes := memory.before_bytes()) is not None:
            facts["before_bytes"] = min(facts.get("before_bytes", before_bytes), before_bytes)
        facts["sent_bytes"] = (sent_bytes(args.hosts) - sent_before) / len(steps)
        if "exposed_s" in steps[-1]:
            facts["exposed_s"] = statistics.median(step["exposed_s"] for step in steps[1:])
        return statistics.median(args.tokens / step["tps"] for step in steps[1:]), facts

    serve(claim_stdout(), {"sides": [args.name]}, run)


if __name__ == "__main__":
    main()
