// The plan as a table: a row for each step, a column for each rank. Only as many columns as fit are
// made, around the chosen rank.
let gridFirst = 0;
let gridColumns = 0;
let gridDrawn = "";

function gridWords(rank) {
  const bySteps = new Map();
  for (const [step, text, ops] of pass().ranks[rank].words) {
    if (!bySteps.has(step)) bySteps.set(step, []);
    bySteps.get(step).push({ text, ops });
  }
  return bySteps;
}

// The width of a column in which no op is broken, in characters of the table.
function widestWord() {
  const one = pass();
  one.widest ||= Math.max(...one.ranks.map(({ words }) => Math.max(0, ...words.map(([, text]) => text.length))));
  return one.widest;
}

function drawGrid() {
  const width = document.getElementById("grid-scroll").clientWidth;
  const column = Math.max(165, 7.3 * widestWord() + 26);
  gridColumns = Math.max(1, Math.min(DATA.world, Math.floor((width - 64) / column)));
  gridFirst = Math.max(0, Math.min(state.rank - Math.floor(gridColumns / 2), DATA.world - gridColumns));
  const now = `${state.pass} ${gridFirst} ${gridColumns}`;
  if (now === gridDrawn) return;
  gridDrawn = now;
  const table = document.getElementById("grid");
  table.replaceChildren();
  const head = table.createTHead().insertRow();
  head.append(document.createElement("th"));
  const words = [];
  for (let rank = gridFirst; rank < gridFirst + gridColumns; ++rank) {
    const cell = document.createElement("th");
    cell.textContent = `rank ${rank}`;
    cell.dataset.rank = rank;
    cell.onclick = () => chooseRank(rank);
    head.append(cell);
    words.push(gridWords(rank));
  }
  const body = table.createTBody();
  for (const step of pass().steps) {
    const row = body.insertRow();
    row.dataset.step = step;
    const label = document.createElement("th");
    label.textContent = `step ${step}`;
    row.append(label);
    words.forEach((bySteps, column) => {
      const cell = row.insertCell();
      for (const { text, ops } of bySteps.get(step) || []) {
        const word = document.createElement("span");
        word.textContent = text;
        word.ops = ops.map((op) => pass().ranks[gridFirst + column].ops[op]);
        cell.append(word, " ");
      }
      if (!cell.firstChild) cell.textContent = ".";
    });
  }
  document.getElementById("grid-note").textContent =
    `kv1>r3 sends K and V of block 1 to rank 3, kv0<r1 receives, q2*kv1 attends.` +
    (gridColumns < DATA.world ? ` Ranks ${gridFirst} to ${gridFirst + gridColumns - 1} of ${DATA.world}; ↑ and ↓ move.` : "");
}

panels.push({
  draw() {
    gridDrawn = "";
  },
  move() {
    drawGrid();
    const table = document.getElementById("grid");
    for (const cell of table.querySelectorAll("thead th")) {
      cell.classList.toggle("chosen", Number(cell.dataset.rank) === state.rank);
    }
    for (const row of table.tBodies[0].rows) {
      const now = Number(row.dataset.step) === stepNumber();
      if (now && !row.classList.contains("now")) scrollTo(row);
      row.classList.toggle("now", now);
    }
    for (const word of table.querySelectorAll("td span")) {
      word.classList.toggle("active", state.byTime && word.ops.some(isActive));
    }
  },
});

// Scrolls the table alone, and not the page.
function scrollTo(row) {
  const place = document.getElementById("grid-scroll");
  const top = row.offsetTop;
  if (top < place.scrollTop + 30) place.scrollTop = top - 30;
  const below = top + row.offsetHeight - place.clientHeight;
  if (below > place.scrollTop) place.scrollTop = below;
}
