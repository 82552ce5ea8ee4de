// The head of the page, the bar with the cursor, keys, and changes of size and palette.
function drawHead() {
  document.getElementById("title").textContent = `${DATA.strategy} on ${DATA.world} ranks`;
  document.getElementById("summary").textContent =
    DATA.cluster.summary ? `${DATA.cluster.name}: ${DATA.cluster.summary}` : DATA.cluster.name;
  const kv = DATA.kv_len === DATA.q_len ? "" : ` x ${DATA.kv_len}`;
  const facts = [["tokens", `${DATA.q_len}${kv}`], ["batch", DATA.batch], ["heads", `${DATA.heads} / ${DATA.kv_heads} kv`],
    ["head dim", DATA.head_dim === DATA.value_dim ? DATA.head_dim : `${DATA.head_dim} / ${DATA.value_dim}`],
    ["dtype", DATA.dtype], ["mask", DATA.mask.length > 60 ? `${DATA.mask.slice(0, 59)}…` : DATA.mask], ["layout", DATA.layout], ["device", DATA.cluster.device]];
  for (const one of PASSES) facts.push([one.pass, timeText(one.end_us) + (one.measured ? ` (measured ${timeText(one.measured.end_us)})` : "")]);
  document.getElementById("facts").replaceChildren(...facts.map(([name, value]) => fact(name, value)));
}

function makeBar() {
  PASSES.forEach((one, index) => {
    const button = document.createElement("button");
    button.textContent = one.pass;
    button.onclick = () => choosePass(index);
    document.getElementById("passes").append(button);
  });
  const ranks = document.getElementById("rank");
  for (let rank = 0; rank < DATA.world; ++rank) ranks.add(new Option(rank, rank));
  ranks.onchange = () => chooseRank(Number(ranks.value));
  document.getElementById("play").onclick = () => play(!state.playing);
  document.getElementById("by-step").onclick = () => chooseCursor(false);
  document.getElementById("by-time").onclick = () => chooseCursor(true);
  const slider = document.getElementById("slider");
  slider.oninput = () => goTo(state.byTime ? slider.value / 1000 * pass().end_us : Number(slider.value));
}

function moveBar() {
  const slider = document.getElementById("slider");
  slider.max = state.byTime ? 1000 : pass().steps.length - 1;
  slider.value = state.byTime ? 1000 * state.time / pass().end_us : state.step;
  document.getElementById("position").textContent = state.byTime
    ? timeText(state.time) : `step ${stepNumber()} (${state.step + 1} of ${pass().steps.length})`;
  document.getElementById("rank").value = state.rank;
  document.getElementById("play").textContent = state.playing ? "Pause" : "Play";
  const press = (element, on) => element.setAttribute("aria-pressed", on);
  [...document.getElementById("passes").children].forEach((button, index) => press(button, index === state.pass));
  press(document.getElementById("by-step"), !state.byTime);
  press(document.getElementById("by-time"), state.byTime);
}

const KEYS = {
  ArrowRight: () => moveBy(1),
  ArrowLeft: () => moveBy(-1),
  ArrowDown: () => chooseRank(state.rank + 1),
  ArrowUp: () => chooseRank(state.rank - 1),
  Home: () => goTo(0),
  End: () => goTo(state.byTime ? pass().end_us : pass().steps.length - 1),
  " ": () => play(!state.playing),
  p: () => choosePass((state.pass + 1) % PASSES.length),
  t: () => chooseCursor(!state.byTime),
  "+": () => zoomGantt(0.5, state.time),
  "-": () => zoomGantt(2),
  0: () => zoomGantt(Infinity),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (["SELECT", "BUTTON"].includes(event.target.tagName) && [" ", "ArrowUp", "ArrowDown", "Enter"].includes(event.key)) return;
  const action = KEYS[event.key];
  if (!action) return;
  event.preventDefault();
  action();
});

function setPrinting(on) {
  document.documentElement.classList.toggle("printing", on);
  redraw();
  show();
}

function redraw() {
  readPalette();
  want(true);
}

panels.push({ draw: drawHead, move: moveBar });
// #pass=1&step=3&rank=2, or #time=0.5 as a share: a place in the page that a link can name. What
// is no such place becomes the nearest.
function goToLink() {
  const link = new URLSearchParams(location.hash.slice(1));
  const index = (name, count) => Math.min(count - 1, Math.max(0, Math.round(Number(link.get(name)) || 0)));
  if (link.has("pass")) choosePass(index("pass", PASSES.length));
  if (link.has("rank")) state.rank = index("rank", DATA.world);
  if (link.has("time")) state.byTime = true;
  if (link.has("time")) goTo(pass().end_us * (Number(link.get("time")) || 0));
  else goTo(link.has("step") ? index("step", pass().steps.length) : openingStep());
}

makeBar();
readPalette();
goToLink();
want(true);
window.addEventListener("hashchange", goToLink);
window.addEventListener("resize", () => want(true));
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
window.addEventListener("beforeprint", () => setPrinting(true));
window.addEventListener("afterprint", () => setPrinting(false));
