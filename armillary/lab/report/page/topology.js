// Links: the graph of the channels that moved bytes, and their load over time.
const loadLayers = makeLayers("loads");
const topologyCanvas = document.getElementById("topology");
const loads = { left: 150, rowHigh: 12, rows: [] };
let graph = null;

const isDevice = (name) => /^n\d+\.d\d+$/.test(name);
const deviceNumber = (name) => {
  const [, node, place] = name.match(/^n(\d+)\.d(\d+)$/);
  return Number(node) * DATA.cluster.devices_per_node + Number(place);
};

// Vertices by level: devices are level 0, a switch is one above the lowest vertex it is linked to.
function makeGraph() {
  const vertices = new Map();
  const links = pass().channels.map((channel) => {
    const [from, to] = channel.name.split(">");
    for (const name of [from, to]) {
      if (!vertices.has(name)) vertices.set(name, { name, level: isDevice(name) ? 0 : Infinity, near: [] });
    }
    vertices.get(from).near.push(to);
    vertices.get(to).near.push(from);
    return { from, to, channel };
  });
  for (let changed = true; changed;) {
    changed = false;
    for (const vertex of vertices.values()) {
      for (const name of vertex.near) {
        const level = vertices.get(name).level + 1;
        if (level < vertex.level) {
          vertex.level = level;
          changed = true;
        }
      }
    }
  }
  return { vertices, links };
}

// Devices stand in a row, switches above the middle of what they link.
function placeGraph(width, height) {
  const levels = Math.max(1, ...[...graph.vertices.values()].map((v) => v.level));
  const down = (level) => height - 34 - level * (height - 64) / Math.max(1, levels);
  for (const vertex of graph.vertices.values()) {
    if (vertex.level === 0) vertex.x = 16 + (width - 32) * (deviceNumber(vertex.name) + 0.5) / DATA.world;
    vertex.y = down(vertex.level);
  }
  for (let level = 1; level <= levels; ++level) {
    const row = [...graph.vertices.values()].filter((v) => v.level === level);
    for (const vertex of row) {
      const below = vertex.near.map((name) => graph.vertices.get(name)).filter((v) => v.level < level);
      vertex.x = below.reduce((sum, v) => sum + v.x, 0) / below.length;
    }
    row.sort((a, b) => a.x - b.x);
    const crowded = row.some((v, i) => i > 0 && v.x - row[i - 1].x < 12);
    if (crowded) row.forEach((v, i) => (v.x = 16 + (width - 32) * (i + 0.5) / row.length));
  }
}

// Share of the capacity that a channel uses: at the cursor's time, or on average.
function loadOf(channel) {
  const parts = channel.load;
  if (state.byTime) return parts[Math.min(parts.length - 1, Math.floor(parts.length * state.time / pass().end_us))] / 100;
  return parts.reduce((sum, part) => sum + part, 0) / parts.length / 100;
}

function drawLink(context, { from, to, channel }) {
  const a = graph.vertices.get(from);
  const b = graph.vertices.get(to);
  const load = loadOf(channel);
  context.strokeStyle = heat(load);
  context.lineWidth = 1 + 4 * Math.min(1, load);
  context.beginPath();
  if (a.level === b.level) {
    // Links between devices are arcs below them, the other direction a little deeper.
    const deep = Math.min(30, 8 + Math.abs(a.x - b.x) * 0.25);
    context.moveTo(a.x, a.y + 5);
    context.bezierCurveTo(a.x, a.y + deep, b.x, b.y + deep, b.x, b.y + 5);
  } else {
    const long = Math.hypot(b.x - a.x, b.y - a.y) || 1;
    const dx = -(b.y - a.y) / long * 2;
    const dy = (b.x - a.x) / long * 2;
    context.moveTo(a.x + dx, a.y + dy);
    context.lineTo(b.x + dx, b.y + dy);
  }
  context.stroke();
}

function drawTopology() {
  if (!pass().channels.length) return;
  const { context, width, height } = fit(topologyCanvas, 230);
  placeGraph(width, height);
  const byLoad = [...graph.links].sort((a, b) => loadOf(a.channel) - loadOf(b.channel));
  for (const link of byLoad) drawLink(context, link);
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (const vertex of graph.vertices.values()) drawVertex(context, vertex);
}

function drawVertex(context, { name, x, y, level }) {
  const rank = level === 0 ? deviceNumber(name) : -1;
  context.fillStyle = level === 0 ? rankColour(rank) : palette.faint;
  context.beginPath();
  if (level === 0) context.arc(x, y, rank === state.rank ? 7 : DATA.world > 32 ? 4 : 5.5, 0, 7);
  else context.rect(x - 6, y - 4, 12, 8);
  context.fill();
  context.fillStyle = rank >= 0 && rank === state.rank ? palette.accent : palette.ink;
  if (level === 0 && (DATA.world <= 40 || rank % 4 === 0)) context.fillText(`${rank}`, x, y + (DATA.world > 32 ? 14 : 16));
  if (level > 0 && graph.vertices.size < 120) context.fillText(name, x, y - 12);
}

// The busiest channels, a row each, over time.
function drawLoads() {
  const channels = [...pass().channels].sort((a, b) => meanLoad(b) - meanLoad(a) || (a.name < b.name ? -1 : 1));
  loads.rows = channels.slice(0, 24);
  const { context, width, height } = fit(loadLayers.below, loads.rows.length * loads.rowHigh + 26);
  loads.width = width - loads.left - 8;
  loads.height = height;
  context.textBaseline = "middle";
  loads.rows.forEach((channel, i) => {
    const y = 4 + i * loads.rowHigh;
    context.fillStyle = palette.faint;
    context.textAlign = "right";
    context.fillText(channel.name, loads.left - 6, y + loads.rowHigh / 2);
    const each = loads.width / channel.load.length;
    channel.load.forEach((part, p) => {
      context.fillStyle = heat(part / 100);
      context.fillRect(loads.left + p * each, y, each + 0.5, loads.rowHigh - 1);
    });
  });
  drawTimeAxis(context, { left: loads.left, width: loads.width, y: height - 6, begin: 0, end: pass().end_us });
  const more = pass().channels.length - loads.rows.length;
  document.getElementById("links-note").textContent = !pass().channels.length ? "No bytes were moved." :
    `${pass().channels.length} directions of links move bytes${more > 0 ? `; the ${loads.rows.length} busiest are listed` : ""}. ` +
    "Colour and width: the share of the capacity in use, on average with the cursor on steps, at the time otherwise.";
}

const meanLoad = (channel) => channel.bytes / channel.bytes_per_s / pass().end_us;

tipOn(loadLayers.above, (x, y) => {
  const channel = loads.rows[Math.floor((y - 4) / loads.rowHigh)];
  if (!channel || y < 4) return "";
  const part = Math.floor(channel.load.length * (x - loads.left) / loads.width);
  const now = part >= 0 && part < channel.load.length ? `\n${channel.load[part]} % of it here` : "";
  return `${channel.name}: ${bytesText(channel.bytes)} in all\n${(channel.bytes_per_s / 1e9).toFixed(1)} GB/s, ` +
    `${(100 * 1e6 * meanLoad(channel)).toFixed(1)} % used${now}`;
});

panels.push({
  draw() {
    document.getElementById("topology").hidden = !pass().channels.length;
    graph = makeGraph();
    drawLoads();
  },
  move() {
    drawTopology();
    const { context, height } = fit(loadLayers.above, loads.height);
    context.fillStyle = palette.accent;
    if (loads.rows.length) context.fillRect(loads.left + loads.width * state.time / pass().end_us, 4, 1.5, height - 26);
  },
});
