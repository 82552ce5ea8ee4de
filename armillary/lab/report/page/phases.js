// The phases of inference, each with its terms; the longest term of a phase fills its bar.
function drawPhases() {
  document.getElementById("phases-card").hidden = DATA.phases.length === 0;
  const table = document.getElementById("phases");
  table.replaceChildren();
  for (const phase of DATA.phases) {
    const body = table.createTBody();
    const head = body.insertRow();
    head.className = "chosen";
    for (const text of [phase.name, timeText(phase.total_us)]) head.insertCell().textContent = text;
    const longest = Math.max(...phase.terms.map((term) => term[1]), Number.MIN_VALUE);
    for (const [name, time] of phase.terms) {
      const line = body.insertRow();
      line.insertCell().textContent = name;
      const cell = line.insertCell();
      cell.textContent = timeText(time);
      const bar = document.createElement("span");
      bar.className = "bar";
      bar.style.width = `${90 * time / longest}px`;
      bar.style.marginLeft = "8px";
      cell.append(bar);
    }
  }
  document.getElementById("phases-note").textContent = DATA.phase_notes.join(" ");
}

panels.push({ draw: drawPhases });
