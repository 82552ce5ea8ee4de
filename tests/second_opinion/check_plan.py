"""A second opinion on plans: is this plan exact attention?

Reads plans as JSON (armillary/plan/json.h) from standard input, one a line, or a list of those that run
together, and prints a line for each: `ok` or `error RANK OP MESSAGE` (-1: none). Plays all ranks op by op
without any buffering; each (block, head) of a partial holds the explicit set of (query head, query, key)
triples that it sums."""

import json
import sys
from itertools import chain, product

ACCESS = {  # Access of each operand: r reads, w writes, u updates (reads and writes).
    "send": dict(src="r"), "recv": dict(dst="w"), "copy": dict(dst="w", src="r"), "clear": dict(dst="w"),
    "attend": dict(q="r", k="r", v="r", out="u", lse="u"),
    "attend_grad": dict(q="r", k="r", v="r", dout="r", lse="r", delta="r", dq="u", dk="u", dv="u"),
    "merge": dict(out="u", lse="u", part_out="r", part_lse="r"), "add": dict(acc="u", part="r"),
    "finish": dict(out="w", lse="w", part_out="r", part_lse="r"),
    "delta": dict(delta="w", dout="r", out="r", lse="r"),
    "attend_all": dict(q="r", k="r", v="r", out="w", lse="w"),
    "attend_grad_all": dict(q="r", k="r", v="r", dout="r", lse="r", delta="r", dq="w", dk="w", dv="w"),
}  # fmt: skip
SIDE = dict(q="q", out="q", lse="q", dout="q", delta="q", dq="q", k="kv", v="kv", dk="kv", dv="kv")
MOVES = ("send", "recv", "copy")  # Ops that take any tile.
STARTS = {
    ("attend", "init_q"): ("out", "lse"),
    ("attend_grad", "init_q"): ("dq",),
    ("attend_grad", "init_kv"): ("dk", "dv"),
}  # Sums that an op writes in place of adding to them.
IN_PLACE = ("copydst src", "finishout part_out", "finishlse part_lse")
FINAL = "final"  # Value of a cell that is no partial: its tensor, block and head say it all.


def need(condition, place, message):
    if not condition:
        raise ValueError(f"{place[0]} {place[1]} {message}")


def cells(part):
    return [(block, head) for block in part["blocks"] for head in range(*part["heads"])]


def count_triples(problem, blocks):
    """of[query head, query block, key block]: KV head, triples; whole[side, block, head]: all of a cell."""
    mask, tokens, visible, of, whole = problem["mask"], {}, set(), {}, {}
    ratio = problem["heads"] // problem["kv_heads"]
    for band in mask["bands"]:
        lo, hi, keys = band["lo"], band["hi"], range(*band["k"])
        visible |= {(q, k) for q in range(*band["q"]) for k in keys if lo <= k - q <= hi}
    for side, heads in ("q", problem["heads"]), ("kv", problem["kv_heads"]):
        tokens[side] = [[r["begin"] + i * r["step"] + w for r in block["runs"] for i in range(r["count"])
                         for w in range(r["width"])] for block in blocks[side]]  # fmt: skip
        need(sorted(chain(*tokens[side])) == [*range(mask[side + "_len"])], (-1, -1), "no partition")
        whole |= {(side, b, head): set() for b in range(len(tokens[side])) for head in range(heads)}
    for (_, q, head), k in product([cell for cell in whole if cell[0] == "q"], range(len(tokens["kv"]))):
        group, every = head // ratio, product(tokens["q"][q], tokens["kv"][k])
        of[head, q, k] = group, {(head, *pair) for pair in every if pair in visible}
        whole["q", q, head] |= of[head, q, k][1]
        whole["kv", k, group] |= of[head, q, k][1]
    return of, whole


def check_tiles(plan, me, program, inputs):
    """Checks the tiles of the caller and those beside them, and adds to tiles what ops need to know."""
    slots, problem = [tile["slot"] for tile in program["tiles"]], plan["problem"]
    results, rounds = set(program["outputs"]), problem["dtype"] in ("bf16", "fp16")
    callers = results | inputs | {*program["saved"]}
    program["callers_slots"] = {slots[t] for t in callers}
    for s, slot in enumerate(program["slots"]):
        need(slot["external"] == (s in program["callers_slots"]), (me, -1), f"slot {s} is not what it says")
    for t, tile in enumerate(program["tiles"]):
        side, statistic = SIDE[tile["tensor"]], tile["tensor"] in ("lse", "delta")
        brought = plan["pass"] == "replay" and t in program["saved"] and tile["tensor"] in ("out", "lse")
        home = t in results or (t in program["inputs"] and not brought)
        tile["wire"] = rounds and problem["wire"] == "input" and tile["partial"] and not statistic
        tile["wide"] = rounds and (statistic or (tile["partial"] and not tile["narrow"]))
        tile["at"], tile["given"], table = (me, tile["slot"]), t in inputs, plan["blocks"][side]
        tile["held"] = [b for b in tile["blocks"] if table[b]["runs"]]  # Blocks that take memory.
        heads = [0, problem["heads" if side == "q" else "kv_heads"]]
        own = tile["heads"] == heads and {table[b]["owner"] for b in tile["blocks"]} <= {me}
        need(own or not home, (me, -1), f"tile {t} is not as tiles of the caller must be")
        need(tile["narrow"] <= tile["wire"], (me, -1), f"tile {t} cannot be narrow")
    for t, tile in enumerate(program["tiles"]):
        hosts = [program["tiles"][c] for c in callers if slots[c] == slots[t]]
        need(len(hosts) <= 1, (me, -1), f"tile {t} lies where it should not")
        for host in hosts:  # A result may have another tile before it, if that is as large.
            alike = all(tile[key] == host[key] for key in ("tensor", "heads", "blocks", "wide"))
            need(not host["partial"] and alike, (me, -1), f"tile {t} does not fit a tile of the caller")
            need(tile is host or not host["given"], (me, -1), f"tile {t} lies on what the caller gives")


def read_program(plan, me, program, inputs, lanes):
    """Checks the ops, and sorts them into batches: lanes[rank, lane][batch][op]."""
    check_tiles(plan, me, program, inputs)
    touched = {}
    for i, op in enumerate(program["ops"]):
        op["id"], op["comm"] = (me, i), op["op"] in MOVES[:2]
        read_op(op, program["tiles"], touched)
        batches = lanes.setdefault((me, op["lane"]), [])
        step = batches[-1][0]["step"] if batches else -1
        need(step <= op["step"] >= 0, op["id"], "steps of a lane decrease, or begin below 0")
        batches.extend([[]] if step != op["step"] or not op["comm"] else [])
        need(all(other["id"] not in op["waits"] for other in batches[-1]), op["id"], "conflict in a batch")
        batches[-1].append(op)
    check_zero_copy(program, touched)


def access_of(op):
    """The access of each operand of an op; a message has any number of operands."""
    access = dict(ACCESS[op["op"]])
    if op["comm"]:
        access = dict.fromkeys(op["operands"], *access.values())
    for flag in [flag for flag in ("init_q", "init_kv") if op.get(flag)]:
        need((op["op"], flag) in STARTS, op["id"], f"{flag} of {op['op']}")
        access |= dict.fromkeys(STARTS[op["op"], flag], "w")
    return access


def read_op(op, tiles, touched):
    """Checks the form of an op, and finds the earlier ops that it must wait for."""
    kind, shapes, op["waits"], op["use"] = op["op"], {}, set(), {}
    need((op["lane"] > 0) == op["comm"] and op.get("peer") != op["id"][0], op["id"], "wrong lane or peer")
    op["access"], once = access_of(op), "all" in kind or op.get("init_q") or op.get("init_kv")
    for name, access in op["access"].items():
        view, writes, tensor = op["operands"][name], access != "r", name.removeprefix("part_")
        need(0 <= view["tile"] < len(tiles), op["id"], f"{name} has no tile")
        tile, mine = tiles[view["tile"]], cells(view)
        inside = mine and set(mine) <= set(cells(tile)) and view["blocks"] == sorted(set(view["blocks"]))
        need(inside, op["id"], f"{name} is no part of its tile")
        sums = ACCESS[kind].get(name) == "u" or "part" in name or kind == "clear"
        rounded = kind == "attend_grad_all" and writes and tile["narrow"]
        fits = kind in MOVES or tile["partial"] == (sums or rounded)
        fits &= op["comm"] or tensor in (tile["tensor"], "src", "dst", "acc", "part")
        fits &= not op["comm"] or tile["narrow"] == tile["wire"]
        fits &= tile["narrow"] <= (op["comm"] or rounded or kind + name in "copydst addpart mergepart_out")
        need(fits and not (writes and tile["given"]), op["id"], f"{name} cannot be this tile")
        shape = mine, kind in ("add", "copy") and tile["tensor"]
        same = op["comm"] or shapes.setdefault(SIDE[tile["tensor"]], shape) == shape
        need(same, op["id"], f"{name} shows another part")
        shown = [i for i, block in enumerate(tile["held"]) if block in view["blocks"]]
        piece = shown and shown == [*range(shown[0], shown[-1] + 1)]
        need(piece or not once, op["id"], f"{name} is not in one piece")
        for other, its_tile, its_cells, wrote, its_name in touched.setdefault(tile["slot"], []):
            there = set(cells(tile)) == set(mine) == its_cells and tile["wide"] == its_tile["wide"]
            whole = there and set(cells(its_tile)) == its_cells and other == op["id"]
            meet = (writes or wrote) and (tile is not its_tile or its_cells & set(mine))
            if meet and not (whole and f"{kind}{its_name} {name}" in IN_PLACE):
                op["waits"].add(other)
        touched[tile["slot"]].append((op["id"], tile, set(mine), writes, name))
        op["use"][name] = tile, mine
    need(not op.get("zero_copy") or (op["comm"] and len(op["use"]) == 1), op["id"], "cannot be a zero_copy")
    need(op["id"] not in op["waits"], op["id"], "operands are in each other's way")


def check_zero_copy(program, touched):
    """The tile of a zero-copy message is written by nobody but its sender before, or its receive."""
    for op in [op for op in program["ops"] if op.get("zero_copy")]:
        ((tile, part),) = op["use"].values()
        others = [use for use in touched[tile["slot"]] if use[3] and use[0] != op["id"]]
        if op["op"] == "send":
            after = [use for use in others if use[0] > op["id"]]
            free = all(other is tile and not cells & set(part) for _, other, cells, *_ in after)
        else:
            free = tile["slot"] not in program["callers_slots"] and set(part) == set(cells(tile))
            free &= all(use[1] is not tile for use in others)
        need(free, op["id"], "is written over while it is read")


def match(ops):
    """The n-th send of a lane from a rank to another meets the n-th receive: id -> (send, recv)."""
    queues, partner = {}, {}
    for op in [op for op in ops if op["comm"]]:
        ends = (op["id"][0], op["peer"]) if op["op"] == "send" else (op["peer"], op["id"][0])
        queues.setdefault((op["lane"], *ends), ([], []))[op["op"] == "recv"].append(op)
    for (_, me, peer), (sends, recvs) in queues.items():
        need(len(sends) == len(recvs), (me, -1), f"not every message to rank {peer} is met")
        for send, recv in zip(sends, recvs, strict=True):
            ends = [[([tile[key] for key in ("tensor", "partial", "narrow")], part)
                     for tile, part in end["use"].values()] for end in (send, recv)]  # fmt: skip
            need(ends[0] == ends[1], send["id"], f"unlike op {recv['id'][1]} of rank {peer}")
            partner[send["id"]] = partner[recv["id"]] = send, recv
    return partner


def play(lanes, partner):
    """Starts what can start until nothing moves, and yields what happens: (send, recv), or (op, op)."""
    started, moved, complete, before = set(), set(), set(), -1
    while before != len(started) + len(complete):
        before = len(started) + len(complete)
        for batches in [batches for batches in lanes.values() if batches]:
            ids = {op["id"] for op in batches[0]}
            if not ids & started and all(op["waits"] <= complete for op in batches[0]):
                started |= ids
                for ends in [partner.get(op["id"], (op, op)) for op in batches[0]]:
                    if {end["id"] for end in ends} <= started:  # The batches of both ends.
                        yield ends
                        moved |= {end["id"] for end in ends}
            if ids <= moved:  # A batch is done as a whole.
                complete |= {op["id"] for op in batches.pop(0)}
    for op in chain(*chain(*lanes.values())):
        need(False, op["id"], "waits for ever")


def read(memory, place, tile, part):
    there, cells = memory.get(tile["at"], (None, {}))
    need(there is tile and set(part) <= cells.keys(), place, f"{tile['tensor']} is not all there")
    return {cell: cells[cell] for cell in part}


def write(memory, tile, values):
    there, cells = memory.get(tile["at"], (None, {}))
    memory[tile["at"]] = tile, {**(cells if there is tile else {}), **values}


def compute(op, kind, memory, of, whole):
    access, place = op["access"], op["id"]
    value = {name: read(memory, place, *op["use"][name]) for name in access if access[name] != "w"}
    for a, b in ("out", "lse"), ("part_out", "part_lse"):
        need(value.get(a, value.get(b)) == value.get(b, value.get(a)), place, f"{a} and {b} differ")
    source = value.get("src", value.get("part_out", value.get("part", value.get("out", {}))))
    if kind == "delta":  # Its rows are added to the gradient of sinks, which is one for all ranks.
        need(memory["deltas"].isdisjoint(source), place, "a row passes delta twice")
        memory["deltas"].update(source)
    terms = [(summed, {"q": cell, "kv": cell}) for cell, summed in source.items()]
    if "q" in value:  # attend and attend_grad
        pairs = [(q, h, k) for q, h in value["q"] for k in op["operands"]["k"]["blocks"]]
        terms = [(of[h, q, k][1], {"q": (q, h), "kv": (k, of[h, q, k][0])}) for q, h, k in pairs]
        need(all(cell["kv"] in value["k"] for _, cell in terms), place, "k lacks a head that is read")
    if "q" in value and "w" in access.values():  # It is one kernel call, which is done.
        need(any(summed for summed, _ in terms), place, "no pair is visible")
    for name in [name for name in access if access[name] != "r"]:
        tile, part = op["use"][name]
        begun = value.get(name) or ("q" not in value and source)
        side, result = SIDE[tile["tensor"]], begun or dict.fromkeys(part, set())
        for summed, cell in terms * (access[name] == "u" or "q" in value):
            need(result[cell[side]].isdisjoint(summed), place, f"{name} sums a pair twice")
            result[cell[side]] = result[cell[side]] | summed
        if not tile["partial"]:
            ends = kind in ("finish", "attend_all") or tile["tensor"] in ("dq", "dk", "dv")
            wholes = {cell: (FINAL, ends and whole[(side, *cell)]) for cell in part}
            need(all(result[cell] in wholes[cell] for cell in part), place, f"{name} is not complete")
            result = dict.fromkeys(part, FINAL)
        need((FINAL in result.values()) != tile["partial"], place, f"{name} was final already")
        write(memory, tile, result)


def check(plan):
    (of, whole), lanes, results = count_triples(plan["problem"], plan["blocks"]), {}, []
    memory = {"deltas": set()}  # And what is in (rank, slot): a tile and its cells.
    need(len(plan["ranks"]) == plan["problem"]["world"], (-1, -1), "a rank has no program")
    for me, program in enumerate(plan["ranks"]):
        inputs = {*program["inputs"], *(program["saved"] if plan["pass"] == "backward" else [])}
        read_program(plan, me, program, inputs, lanes)
        memory |= {t["at"]: (t, dict.fromkeys(cells(t), FINAL)) for t in program["tiles"] if t["given"]}
    for op, recv in play(lanes, match([op for program in plan["ranks"] for op in program["ops"]])):
        if op is recv:
            compute(op, op["op"], memory, of, whole)
        else:
            for (tile, part), (target, _) in zip(op["use"].values(), recv["use"].values(), strict=True):
                write(memory, target, read(memory, op["id"], tile, part))
    for me, program in enumerate(plan["ranks"]):
        for t in {*program["outputs"], *program["saved"]}:
            tile, part = program["tiles"][t], cells(program["tiles"][t])
            final = not part or FINAL in read(memory, (me, -1), tile, part).values()
            need(final, (me, -1), f"tile {t} is partial at the end")
            results += [(tile["tensor"], *cell) for cell in part if t in program["outputs"]]
    backward = plan["pass"] == "backward"
    names = ["dq", "dk", "dv"] if backward else ["out"] + ["lse"] * plan["problem"]["return_lse"]
    every = [(name, *cell) for name in names for side, *cell in whole if side == SIDE[name]]
    need(sorted(results) == sorted(every), (-1, -1), "the outputs are not every result once")
    rows = {(block, head) for side, block, head in whole if side == "q" and backward}
    need(memory["deltas"] == rows, (-1, -1), "a row passes no delta")


def saved_tiles(plan):
    tiles = [[program["tiles"][t] for t in program["saved"]] for program in plan["ranks"]]
    return plan["blocks"], [[(t["tensor"], t["heads"], t["blocks"]) for t in rank] for rank in tiles]


def check_together(plans):
    """Passes of one attention: each is right, and they save and find the same tiles in the same order."""
    for plan in plans:
        check(plan)
    for plan in plans:
        need(saved_tiles(plan) == saved_tiles(plans[0]), (-1, -1), f"{plan['pass']} finds other tiles")


if __name__ == "__main__":
    for line in sys.stdin:
        try:
            plans = json.loads(line)
            check_together(plans if isinstance(plans, list) else [plans])
            print("ok")
        except ValueError as wrong:
            print("error", wrong)
