// The data of the page, with names for the fields of its short arrays (report.h).
const DATA = JSON.parse(document.getElementById("data").textContent);
const KINDS = DATA.kinds;
const TENSORS = DATA.tensors;

function decodeOp(op, index) {
  const kind = KINDS[op[0]];
  const decoded = { index, kind, lane: op[1], step: op[2], start: op[3], end: op[4], word: "" };
  if (kind === "send" || kind === "recv") {
    [decoded.peer, decoded.bytes, decoded.tiles] = op.slice(5);
  } else if (op.length > 5) {
    [decoded.pairs, decoded.q, decoded.k] = op.slice(5);
  }
  return decoded;
}

function decodeTile(tile) {
  const [tensor, partial, headsBegin, headsEnd, blocks, firstOp, lastStep, end, atBegin, atEnd] = tile;
  return { tensor: TENSORS[tensor], partial, headsBegin, headsEnd, blocks, firstOp, lastStep, end, atBegin, atEnd };
}

function decodeRank(rank) {
  const ops = rank.ops.map(decodeOp);
  for (const [, text, members] of rank.words) {
    for (const op of members) ops[op].word = text;
  }
  return { ...rank, ops, tiles: rank.tiles.map(decodeTile) };
}

function decodePass(pass) {
  const ranks = pass.ranks.map(decodeRank);
  const steps = [...new Set(ranks.flatMap((rank) => rank.ops.map((op) => op.step)))].sort((a, b) => a - b);
  let pairs = 0;
  for (const rank of ranks) for (const op of rank.ops) pairs += op.pairs || 0;
  return { ...pass, ranks, steps, pairs };
}

const PASSES = DATA.passes.map(decodePass);

// Calls f(id) for each id of runs that are written as first, last, first, last ..
function eachId(runs, f, from = 0) {
  for (let i = from; i < runs.length; i += 2) {
    for (let id = runs[i]; id <= runs[i + 1]; ++id) f(id);
  }
}

function idsText(runs, from = 0) {
  const parts = [];
  for (let i = from; i < runs.length; i += 2) {
    parts.push(runs[i] === runs[i + 1] ? `${runs[i]}` : `${runs[i]}-${runs[i + 1]}`);
  }
  return parts.join(",");
}

const isKv = (tensor) => ["k", "v", "dk", "dv"].includes(tensor);
const blocksOf = (tensor) => (isKv(tensor) ? DATA.kv_blocks : DATA.q_blocks);

function timeText(us) {
  if (us === 0) return "0";
  if (us >= 1e6) return `${(us / 1e6).toFixed(3)} s`;
  if (us >= 1e3) return `${(us / 1e3).toFixed(3)} ms`;
  return `${us.toFixed(us < 10 ? 2 : 1)} µs`;
}

function bytesText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < 4) {
    bytes /= 1024;
    ++unit;
  }
  return `${unit === 0 ? bytes : bytes.toFixed(bytes < 10 ? 2 : 1)} ${units[unit]}`;
}
