// The table of strategies, sorted by the column that was clicked.
let sortColumn = 1;

function strategyColumns() {
  const columns = [["strategy", (row) => row.name, (v) => v], ["total", (row) => row.total_us, timeText]];
  PASSES.forEach((one, p) => {
    columns.push([one.pass, (row) => row.passes[p][0], timeText]);
    columns.push(["exposed", (row) => row.passes[p][1], timeText]);
    columns.push(["sent", (row) => row.passes[p][2], bytesText]);
  });
  columns.push(["memory", (row) => row.memory_bytes, bytesText]);
  return columns;
}

function drawStrategies() {
  const rows = [...DATA.strategies];
  document.getElementById("strategies-card").hidden = rows.length === 0;
  if (!rows.length) return;
  const columns = strategyColumns();
  const value = columns[sortColumn][1];
  rows.sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0));
  const longest = Math.max(...rows.map((row) => row.total_us));
  const table = document.getElementById("strategies");
  table.replaceChildren();
  const head = table.createTHead().insertRow();
  columns.forEach(([name], c) => {
    const cell = document.createElement("th");
    cell.textContent = name + (c === sortColumn ? " ▾" : "");
    cell.tabIndex = 0;
    cell.onclick = () => {
      sortColumn = c;
      drawStrategies();
    };
    cell.onkeydown = (event) => event.key === "Enter" && cell.onclick();
    head.append(cell);
  });
  const body = table.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    line.classList.toggle("chosen", row.name === DATA.strategy);
    columns.forEach(([name, of, text], c) => {
      const cell = line.insertCell();
      cell.textContent = text(of(row));
      if (c === 1) {
        const bar = document.createElement("span");
        bar.className = "bar";
        bar.style.width = `${90 * row.total_us / longest}px`;
        bar.style.marginLeft = "8px";
        bar.style.marginRight = `${90 - 90 * row.total_us / longest}px`;
        cell.append(bar);
      }
      if (name === "memory" && !row.fits) cell.append(" does not fit");
    });
  }
}

panels.push({ draw: drawStrategies });
