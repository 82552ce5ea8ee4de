// Bytes in slots that hold a live tile, for every rank.
const memoryLayers = makeLayers("memory");
const memoryView = { left: 70, top: 8, bottom: 22 };

function bytesAt(memory, time) {
  let bytes = 0;
  for (let i = 0; i < memory.length && memory[i] <= time; i += 2) bytes = memory[i + 1];
  return bytes;
}

function drawMemory() {
  const { context, width, height } = fit(memoryLayers.below, 180);
  const most = Math.max(1, ...pass().ranks.map((rank) => rank.peak_bytes));
  Object.assign(memoryView, { width: width - memoryView.left - 8, height: height - memoryView.top - memoryView.bottom, most });
  const x = (time) => memoryView.left + memoryView.width * time / pass().end_us;
  const y = (bytes) => memoryView.top + memoryView.height * (1 - bytes / most);
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const share of [0, 0.5, 1]) {
    context.fillStyle = palette.faint;
    context.fillText(bytesText(most * share), memoryView.left - 6, y(most * share));
    context.fillStyle = palette.line;
    context.fillRect(memoryView.left, Math.round(y(most * share)), memoryView.width, 1);
  }
  drawTimeAxis(context, { left: memoryView.left, width: memoryView.width, y: height - 6, begin: 0, end: pass().end_us });
  context.lineWidth = 1;
  context.globalAlpha = DATA.world > 16 ? 0.35 : 0.7;
  pass().ranks.forEach((rank, r) => traceMemory(context, rank.memory, rankColour(r), x, y));
  context.globalAlpha = 1;
}

function traceMemory(context, memory, colour, x, y) {
  context.strokeStyle = colour;
  context.beginPath();
  let bytes = 0;
  context.moveTo(x(0), y(0));
  for (let i = 0; i < memory.length; i += 2) {
    context.lineTo(x(memory[i]), y(bytes));
    bytes = memory[i + 1];
    context.lineTo(x(memory[i]), y(bytes));
  }
  context.lineTo(x(pass().end_us), y(bytes));
  context.stroke();
}

panels.push({
  draw: drawMemory,
  move() {
    const { context, height } = fit(memoryLayers.above, 180);
    const x = (time) => memoryView.left + memoryView.width * time / pass().end_us;
    const y = (bytes) => memoryView.top + memoryView.height * (1 - bytes / memoryView.most);
    context.lineWidth = 2;
    const rank = pass().ranks[state.rank];
    traceMemory(context, rank.memory, palette.ink, x, y);
    context.fillStyle = palette.accent;
    context.fillRect(x(state.time), memoryView.top, 1.5, height - memoryView.top - memoryView.bottom);
    document.getElementById("memory-note").textContent =
      `Bytes of slots with a live tile; the dark line is rank ${state.rank}: ${bytesText(bytesAt(rank.memory, state.time))} now, ` +
      `${bytesText(rank.peak_bytes)} at most, beside ${bytesText(rank.external_bytes)} of the caller's tensors. ` +
      `A device has ${bytesText(DATA.cluster.memory_bytes)}.`;
  },
});
