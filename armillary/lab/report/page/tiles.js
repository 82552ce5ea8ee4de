// The tiles that a rank holds at the cursor, and the table of one rank's.

// Whether the tile is there: "held", "arriving", or "" if it is not.
function presence(tile, ops) {
  if (tile.firstOp < 0) return tile.atBegin ? "held" : "";
  const first = ops[tile.firstOp];
  const begun = tile.atBegin || (state.byTime ? first.start <= state.time : first.step <= stepNumber());
  const gone = !tile.atEnd && (state.byTime ? tile.end <= state.time : tile.lastStep < stepNumber());
  if (!begun || gone) return "";
  const arriving = !tile.atBegin && first.kind === "recv" && isActive(first);
  return arriving ? "arriving" : "held";
}

function heldTiles(rank) {
  const { tiles, ops } = pass().ranks[rank];
  const held = [];
  for (const tile of tiles) {
    const how = presence(tile, ops);
    if (how) held.push({ tile, how });
  }
  return held;
}

function tileName(tile) {
  const blocks = idsText(tile.blocks);
  const many = tile.blocks.length > 2 || tile.blocks[0] !== tile.blocks[1];
  const all = isKv(tile.tensor) ? DATA.kv_heads : DATA.heads;
  const heads = tile.headsBegin === 0 && tile.headsEnd === all ? "" : `[${tile.headsBegin}:${tile.headsEnd}]`;
  return `${tile.partial && !tile.tensor.startsWith("d") ? "partial " : ""}${tile.tensor}${many ? `{${blocks}}` : blocks}${heads}`;
}

// Ranks that own blocks of a tile, each once, in order.
function ownersOf(tile) {
  const owners = [];
  const blocks = blocksOf(tile.tensor);
  eachId(tile.blocks, (id) => {
    const owner = blocks[id][0];
    if (owners[owners.length - 1] !== owner && !owners.includes(owner)) owners.push(owner);
  });
  return owners;
}

panels.push({
  move() {
    document.getElementById("tiles-rank").textContent = state.rank;
    const byTensor = new Map();
    for (const { tile, how } of heldTiles(state.rank)) {
      if (!byTensor.has(tile.tensor)) byTensor.set(tile.tensor, []);
      byTensor.get(tile.tensor).push({ tile, how });
    }
    const table = document.getElementById("tiles");
    table.replaceChildren();
    for (const [tensor, held] of byTensor) {
      const row = table.insertRow();
      const head = document.createElement("th");
      head.textContent = tensor;
      row.append(head);
      for (const { tile, how } of held) {
        const cell = row.insertCell();
        for (const owner of ownersOf(tile).slice(0, 8)) {
          const swatch = document.createElement("i");
          swatch.className = "swatch";
          swatch.style.background = rankColour(owner);
          swatch.title = `owned by rank ${owner}`;
          cell.append(swatch);
        }
        cell.append(tileName(tile) + (how === "arriving" ? " arriving" : ""));
        cell.className = how === "arriving" ? "active" : "";
      }
    }
  },
});
