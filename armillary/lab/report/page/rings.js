// Nested rings. A sector is a rank; a ring is a side of attention: queries, keys and values, sums.
// Within a ring the inner track holds the tiles of the rank itself, the next ones those that came
// from others. A colour is the rank that owns the tokens, so tiles that walk are seen to walk.
const RING_GROUPS = {
  forward: [["Q", ["q"]], ["K V", ["k", "v"]], ["out", ["out"]]],
  backward: [["Q dO", ["q", "dout"]], ["K V", ["k", "v"]], ["dQ", ["dq"]], ["dK dV", ["dk", "dv"]]],
};
const ringsCanvas = document.getElementById("rings");
let ringShapes = [];  // For the tooltip: {from, to, inner, outer, text}
let ringCentre = 0;

const groupsOf = () => RING_GROUPS[pass().pass] || RING_GROUPS.forward;

// Distinct tiles of a group that a rank holds: K and V of the same blocks are drawn as one.
function groupTiles(held, tensors) {
  const seen = new Map();
  for (const { tile, how } of held) {
    if (!tensors.includes(tile.tensor)) continue;
    const key = `${tile.blocks} ${tile.headsBegin} ${tile.partial}`;
    if (!seen.has(key)) seen.set(key, { tile, how });
    else if (how === "held") seen.get(key).how = "held";
  }
  return [...seen.values()];
}

// The angle at which the sector of a rank begins; nodes are a little apart.
function sectorAngle(rank, nodes) {
  const gap = nodes > 1 ? 0.05 * Math.min(1, 16 / nodes) : 0;
  const each = (2 * Math.PI - gap * nodes) / DATA.world;
  return -Math.PI / 2 + rank * each + gap * Math.floor(rank / DATA.cluster.devices_per_node);
}

function sector(context, { from, to, inner, outer }) {
  context.beginPath();
  context.arc(ringCentre, ringCentre, outer, from, to);
  context.arc(ringCentre, ringCentre, inner, to, from, true);
  context.closePath();
}

// One tile: slices of the colours of its owners.
function drawTile(context, shape, { tile, how }) {
  const owners = ownersOf(tile);
  const each = (shape.to - shape.from) / owners.length;
  context.globalAlpha = how === "arriving" ? 0.45 : 1;
  owners.forEach((owner, i) => {
    sector(context, { ...shape, from: shape.from + i * each, to: shape.from + (i + 1) * each });
    context.fillStyle = rankColour(owner);
    context.fill();
  });
  context.globalAlpha = 1;
  ringShapes.push({ ...shape, text: `${tileName(tile)}${how === "arriving" ? ", arriving" : ""}` });
}

// The tracks of one ring in one sector: at least two, so that a ring has room for what comes.
function drawTracks(context, shape, tiles, tracks) {
  const high = (shape.outer - shape.inner) / tracks;
  tiles.slice(0, tracks).forEach((held, i) => {
    const inner = shape.inner + i * high;
    drawTile(context, { ...shape, inner, outer: inner + high - Math.min(1, high * 0.15) }, held);
  });
}

function drawArrow(context, from, to, colour, radius) {
  const at = (angle, r) => [ringCentre + r * Math.cos(angle), ringCentre + r * Math.sin(angle)];
  const [x0, y0] = at(from, radius);
  const [x1, y1] = at(to, radius);
  const apart = Math.abs(Math.sin((to - from) / 2));
  const middle = Math.atan2(Math.sin(from) + Math.sin(to), Math.cos(from) + Math.cos(to));
  const [cx, cy] = at(middle, radius * (0.82 - 0.8 * apart));
  context.strokeStyle = context.fillStyle = colour;
  context.beginPath();
  context.moveTo(x0, y0);
  context.quadraticCurveTo(cx, cy, x1, y1);
  context.stroke();
  const heading = Math.atan2(y1 - cy, x1 - cx);
  const size = DATA.world > 32 ? 4 : 7;
  context.beginPath();
  context.moveTo(x1, y1);
  for (const side of [-0.4, 0.4]) context.lineTo(x1 - size * Math.cos(heading + side), y1 - size * Math.sin(heading + side));
  context.fill();
}

// Messages of the step or of the time, one arrow for each pair of ranks and group of tensors.
function drawMessages(context, middles, radius) {
  const drawn = new Set();
  pass().ranks.forEach((rank, r) => {
    for (const op of rank.ops) {
      if (op.kind !== "send" || !isActive(op)) continue;
      const tile = rank.tiles[op.tiles[0]];
      const key = `${r} ${op.peer} ${isKv(tile.tensor)}`;
      if (drawn.has(key)) continue;
      drawn.add(key);
      const nudge = isKv(tile.tensor) ? 0 : (middles[1] - middles[0] || 0.3) * 0.12;
      drawArrow(context, middles[r] + nudge, middles[op.peer] + nudge, isKv(tile.tensor) ? palette.send : palette.attend, radius);
    }
  });
  return drawn.size;
}

function drawRings() {
  const side = Math.min(560, ringsCanvas.parentElement.clientWidth - 28);
  const { context, width } = fit(ringsCanvas, side);
  context.translate((width - side) / 2, 0);
  ringCentre = side / 2;
  ringShapes = [];
  const nodes = Math.ceil(DATA.world / DATA.cluster.devices_per_node);
  const groups = groupsOf();
  const held = pass().ranks.map((_, rank) => heldTiles(rank));
  const outer = side / 2 - 26;
  const inner = side * 0.2;
  const high = (outer - inner) / groups.length;
  const tracks = groups.map(([, tensors]) =>
    Math.min(6, Math.max(2, ...held.map((tiles) => groupTiles(tiles, tensors).length))));
  const middles = [];
  const each = sectorAngle(1, 1) - sectorAngle(0, 1);
  for (let rank = 0; rank < DATA.world; ++rank) {
    const from = sectorAngle(rank, nodes);
    const next = sectorAngle(rank + 1, nodes) - (nodes > 1 && (rank + 1) % DATA.cluster.devices_per_node === 0 ? 0.05 * Math.min(1, 16 / nodes) : 0);
    const to = DATA.world === 1 ? from + 2 * Math.PI - 1e-6 : next - Math.min(0.012, each * 0.12);
    middles.push((from + to) / 2);
    groups.forEach(([name, tensors], g) => {
      const shape = { from, to, inner: inner + g * high + 4, outer: inner + (g + 1) * high - 2, rank };
      sector(context, shape);
      context.fillStyle = palette.hidden;
      context.fill();
      drawTracks(context, shape, groupTiles(held[rank], tensors), tracks[g]);
    });
    drawRankMark(context, rank, (from + to) / 2, { from, to, inner: outer, outer: outer + 3 });
  }
  drawGroupNames(context, groups, inner, high);
  const messages = drawMessages(context, middles, inner);
  document.getElementById("rings-note").textContent =
    `Sectors are ranks, colours are the owners of the tokens; pale tiles are arriving. ${messages} message` +
    `${messages === 1 ? "" : "s"} now: keys, values and their gradients in orange, others in blue.`;
}

// The number of a rank, and an arc over it while it computes.
function drawRankMark(context, rank, middle, shape) {
  const busy = pass().ranks[rank].ops.some((op) => op.lane === 0 && op.pairs && isActive(op));
  sector(context, shape);
  context.fillStyle = busy ? palette.accent : palette.line;
  context.fill();
  if (DATA.world > 40 && rank % 4 !== 0 && rank !== state.rank) return;
  context.fillStyle = rank === state.rank ? palette.accent : palette.faint;
  context.font = `${rank === state.rank ? "bold " : ""}${DATA.world > 40 ? 10 : 12}px system-ui, 'DejaVu Sans', sans-serif`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(`${rank}`, ringCentre + (shape.outer + 11) * Math.cos(middle), ringCentre + (shape.outer + 11) * Math.sin(middle));
}

function drawGroupNames(context, groups, inner, high) {
  context.font = "bold 11px system-ui, 'DejaVu Sans', sans-serif";
  context.textAlign = "center";
  context.textBaseline = "middle";
  groups.forEach(([name], g) => {
    const y = ringCentre - inner - (g + 0.5) * high;
    const wide = context.measureText(name).width + 8;
    context.fillStyle = palette.card;
    context.globalAlpha = 0.85;
    context.fillRect(ringCentre - wide / 2, y - 8, wide, 16);
    context.globalAlpha = 1;
    context.fillStyle = palette.ink;
    context.fillText(name, ringCentre, y);
  });
}

function ringAt(x, y) {
  const dx = x - ringsCanvas.clientWidth / 2;
  const dy = y - ringCentre;
  const radius = Math.hypot(dx, dy);
  const full = 2 * Math.PI;
  const angle = (Math.atan2(dy, dx) + Math.PI / 2 + full) % full - Math.PI / 2;
  return ringShapes.find((s) => radius >= s.inner && radius <= s.outer && angle >= s.from && angle <= s.to);
}

tipOn(ringsCanvas, (x, y) => {
  const shape = ringAt(x, y);
  return shape ? `rank ${shape.rank}: ${shape.text}` : "";
});
ringsCanvas.addEventListener("click", (event) => {
  const box = ringsCanvas.getBoundingClientRect();
  const shape = ringAt(event.clientX - box.left, event.clientY - box.top);
  if (shape) chooseRank(shape.rank);
});
panels.push({ move: drawRings });
