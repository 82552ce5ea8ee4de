// Lanes over time. A lane of messages has its sends above and its receives below. With a measured
// run, each lane has a second row for it.
const ganttLayers = makeLayers("gantt");
const gantt = { begin: 0, end: 1, rows: [], left: 74, top: 4, rowHigh: 8, drag: null };

const measured = () => pass().measured;
const ganttEnd = () => Math.max(pass().end_us, measured() ? measured().end_us : 0);

// Rows: simulated and measured lanes of each rank, with their ops by start.
function makeRows() {
  const rows = [];
  pass().ranks.forEach((rank, r) => {
    const lanes = [...new Set(rank.ops.map((op) => op.lane))].sort((a, b) => a - b);
    for (const lane of lanes) {
      const ops = rank.ops.filter((op) => op.lane === lane);
      rows.push({ rank: r, lane, measured: false, spans: spansOf(ops, (op) => [op.start, op.end]) });
      if (!measured()) continue;
      const times = measured().ranks[r];
      rows.push({ rank: r, lane, measured: true, spans: spansOf(ops, (op) => times.slice(2 * op.index, 2 * op.index + 2)) });
    }
  });
  return rows;
}

function spansOf(ops, timesOf) {
  const spans = ops.map((op) => {
    const [start, end] = timesOf(op);
    return { op, start, end };
  });
  return spans.sort((a, b) => a.start - b.start);
}

function drawGantt() {
  gantt.rows = makeRows();
  const most = gantt.rows.length > 150 ? 6 : gantt.rows.length > 60 ? 9 : gantt.rows.length > 24 ? 13 : 17;
  gantt.rowHigh = most;
  const gaps = DATA.world * (DATA.world > 16 ? 1 : 4);
  gantt.height = gantt.rows.length * most + gaps + gantt.top + 22;
  const { context, width } = fit(ganttLayers.below, gantt.height);
  gantt.width = width - gantt.left - 8;
  let y = gantt.top;
  let last = 0;
  for (const row of gantt.rows) {
    if (row.rank !== last) y += DATA.world > 16 ? 1 : 4;
    last = row.rank;
    row.y = y;
    y += most;
    drawRowName(context, row);
    drawRow(context, row);
  }
  drawTimeAxis(context, { left: gantt.left, width: gantt.width, y: gantt.height - 6, begin: gantt.begin, end: gantt.end });
  drawLegend();
}

function drawRowName(context, row) {
  const first = row.lane === 0 && !row.measured;
  context.fillStyle = palette.faint;
  context.textAlign = "right";
  context.textBaseline = "middle";
  if (gantt.rowHigh >= 13) {
    const lane = row.lane === 0 ? "compute" : `lane ${row.lane}`;
    const name = row.measured ? "measured" : first ? `${row.rank} ${lane}` : lane;
    context.fillText(name, gantt.left - 6, row.y + gantt.rowHigh / 2);
  } else if (first && (gantt.rowHigh >= 8 || row.rank % 4 === 0)) {
    context.fillText(`rank ${row.rank}`, gantt.left - 6, row.y + gantt.rowHigh / 2);
  }
}

const xOf = (time) => gantt.left + gantt.width * (time - gantt.begin) / (gantt.end - gantt.begin);

// Spans that begin and end in one pixel are drawn once.
function drawRow(context, row) {
  const high = gantt.rowHigh - (gantt.rowHigh > 8 ? 2 : 1);
  const half = row.lane === 0 ? high : high / 2;
  context.save();
  context.beginPath();
  context.rect(gantt.left, row.y, gantt.width, gantt.rowHigh);
  context.clip();
  context.fillStyle = palette.hidden;
  context.fillRect(gantt.left, row.y, gantt.width, high);
  let painted = -1;
  for (const { op, start, end } of row.spans) {
    if (end < gantt.begin || start > gantt.end) continue;
    const x = xOf(start);
    const wide = Math.max(0.6, xOf(end) - x);
    if (wide < 1 && Math.floor(x) === painted) continue;
    if (wide < 1) painted = Math.floor(x);
    context.fillStyle = kindColour(op.kind);
    context.globalAlpha = row.measured ? 0.6 : 1;
    const gap = wide > 3 ? 0.7 : 0;
    context.fillRect(x, row.y + (op.kind === "recv" ? half : 0), wide - gap, half);
    if (high >= 11 && row.lane === 0 && wide > 60) {
      context.fillStyle = palette.card;
      context.textAlign = "left";
      context.textBaseline = "middle";
      const room = Math.floor((wide - 6) / 6.2);
      const text = op.word.length > room ? op.word.slice(0, room) : op.word;
      context.fillText(text, Math.max(x, gantt.left) + 3, row.y + high / 2 + 0.5);
    }
  }
  context.restore();
}

function drawLegend() {
  const legend = document.getElementById("gantt-legend");
  legend.replaceChildren();
  const kinds = [["attend", "attend"], ["gradient", "attend_grad"], ["merge, add, finish", "merge"], ["other", "copy"], ["send", "send"], ["receive", "recv"]];
  for (const [name, kind] of kinds) {
    const item = document.createElement("span");
    const swatch = document.createElement("i");
    swatch.style.background = kindColour(kind);
    item.append(swatch, name);
    legend.append(item);
  }
  let text = `A message lasts from the time when it is posted until it has arrived. Simulated: ${timeText(pass().end_us)}.`;
  if (measured()) {
    const error = 100 * (pass().end_us / measured().end_us - 1);
    text += ` Measured, in paler rows: ${timeText(measured().end_us)}, step ${measured().step}, call ${measured().call} of ${measured().run};` +
      ` the simulation takes ${Math.abs(error).toFixed(1)} % ${error < 0 ? "less" : "more"}. ${DATA.machines}`;
  }
  document.getElementById("gantt-note").textContent = text;
}

function moveGantt() {
  const { context } = fit(ganttLayers.above, gantt.height);
  const line = (time, colour) => {
    if (time < gantt.begin || time > gantt.end) return;
    context.fillStyle = colour;
    context.fillRect(xOf(time) - 0.75, gantt.top, 1.5, gantt.height - gantt.top - 22);
  };
  line(state.time, palette.accent);
  line(pass().end_us, palette.ink);
  if (measured()) line(measured().end_us, palette.faint);
  const chosen = gantt.rows.filter((row) => row.rank === state.rank);
  if (!chosen.length) return;
  context.strokeStyle = palette.accent;
  context.strokeRect(gantt.left - 0.5, chosen[0].y - 1, gantt.width + 1, chosen.length * gantt.rowHigh + 1);
}

// Zooms by a factor around a time, and stays within the pass.
function zoomGantt(factor, around = (gantt.begin + gantt.end) / 2) {
  const long = Math.min(ganttEnd(), Math.max(ganttEnd() / 5000, (gantt.end - gantt.begin) * factor));
  const share = (around - gantt.begin) / (gantt.end - gantt.begin);
  placeGantt(around - share * long, long);
}

function placeGantt(begin, long) {
  gantt.begin = Math.min(Math.max(0, begin), ganttEnd() - long);
  gantt.end = gantt.begin + long;
  drawGantt();
  moveGantt();
}

const timeAtX = (x) => gantt.begin + (gantt.end - gantt.begin) * (x - gantt.left) / gantt.width;
const rowAtY = (y) => gantt.rows.find((row) => y >= row.y && y < row.y + gantt.rowHigh);

function spanAt(x, y) {
  const row = rowAtY(y);
  if (!row || x < gantt.left) return null;
  const slack = 2 * (gantt.end - gantt.begin) / gantt.width;
  const time = timeAtX(x);
  const low = row.lane > 0 && y - row.y > gantt.rowHigh / 2;
  const fits = row.spans.filter(({ op, start, end }) =>
    time >= start - slack && time <= end + slack && (row.lane === 0 || (op.kind === "recv") === low));
  return fits.length ? { row, ...fits[fits.length - 1] } : null;
}

tipOn(ganttLayers.above, (x, y) => {
  const span = spanAt(x, y);
  if (!span) return "";
  const { row, op, start, end } = span;
  const lane = row.lane === 0 ? "compute" : `lane ${row.lane}`;
  return `rank ${row.rank}, ${lane}${row.measured ? ", measured" : ""}\n${op.kind} ${op.word} (op ${op.index}, step ${op.step})\n` +
    `${timeText(start)} to ${timeText(end)}: ${timeText(end - start)}` +
    (op.bytes ? `\n${bytesText(op.bytes)} ${op.kind === "send" ? "to" : "from"} rank ${op.peer}, ${(op.bytes / Math.max(1e-3, end - start) / 1e3).toFixed(2)} GB/s` : "");
});

ganttLayers.above.addEventListener("pointerdown", (event) => {
  gantt.drag = { x: event.clientX, begin: gantt.begin, moved: false };
  ganttLayers.above.setPointerCapture(event.pointerId);
});
ganttLayers.above.addEventListener("pointermove", (event) => {
  if (!gantt.drag) return;
  const by = event.clientX - gantt.drag.x;
  if (Math.abs(by) > 3) gantt.drag.moved = true;
  const long = gantt.end - gantt.begin;
  if (gantt.drag.moved && long < ganttEnd()) placeGantt(gantt.drag.begin - by * long / gantt.width, long);
});
ganttLayers.above.addEventListener("pointerup", (event) => {
  const moved = gantt.drag && gantt.drag.moved;
  gantt.drag = null;
  if (moved) return;
  const box = ganttLayers.above.getBoundingClientRect();
  const row = rowAtY(event.clientY - box.top);
  if (row) state.rank = row.rank;
  chooseCursor(true);
  goTo(timeAtX(event.clientX - box.left));
});
ganttLayers.above.addEventListener("wheel", (event) => {
  if (!event.ctrlKey && !event.shiftKey) return;
  event.preventDefault();
  const box = ganttLayers.above.getBoundingClientRect();
  zoomGantt(event.deltaY + event.deltaX > 0 ? 1.25 : 0.8, timeAtX(event.clientX - box.left));
}, { passive: false });
document.getElementById("zoom-in").onclick = () => zoomGantt(0.5, state.time);
document.getElementById("zoom-out").onclick = () => zoomGantt(2);
document.getElementById("zoom-all").onclick = () => zoomGantt(Infinity);

let ganttPass = -1;
panels.push({
  draw() {
    if (ganttPass !== state.pass) Object.assign(gantt, { begin: 0, end: ganttEnd() });
    ganttPass = state.pass;
    drawGantt();
  },
  move: moveGantt,
});
