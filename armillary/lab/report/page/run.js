// The page of a run: its facts, its charts, and the reload by which it grows. The data are in
// run_page.h.
const DATA = JSON.parse(document.getElementById("data").textContent);
const SERIES = DATA.series;

const shortText = (value) => `${Number(value.toPrecision(4))}`;
const secondsText = (value) => (value >= 0.1 || value === 0 ? `${shortText(value)} s` : `${shortText(value * 1e3)} ms`);
const giText = (value) => `${value.toFixed(2)} GiB`;
const toGi = (bytes) => (bytes === null ? null : bytes / 2 ** 30);
const countText = (value) => Math.round(value).toLocaleString("en");

const measured = (name, values, colour = "attend") => ({ name, colour, steps: SERIES.step, values });

// A simulated number as a line through all steps; none without a simulation.
function simulated(key) {
  const steps = SERIES.step.length > 0 ? [SERIES.step[0], SERIES.step[SERIES.step.length - 1]] : [];
  const value = DATA.simulated ? DATA.simulated[key] : null;
  return { name: "simulated", colour: "send", dashed: true, steps, values: value === null ? [] : steps.map(() => value) };
}

const VALIDATION = { name: "validation", colour: "send", steps: DATA.validation.step, values: DATA.validation.loss };

const CHARTS = [
  { id: "loss", log: true, text: shortText, lines: [measured("training", SERIES.loss), VALIDATION] },
  { id: "norm", log: true, text: shortText, lines: [measured("norm", SERIES.grad_norm)] },
  { id: "rate", text: (value) => value.toExponential(1), lines: [measured("rate", SERIES.lr)] },
  { id: "step", zero: true, text: secondsText, lines: [measured("measured", SERIES.step_s), simulated("step_s")] },
  { id: "exposed", zero: true, text: secondsText, lines: [measured("measured", SERIES.exposed_s), simulated("exposed_s")] },
  { id: "tokens", zero: true, text: countText, lines: [measured("measured", SERIES.tokens_per_s), simulated("tokens_per_s")] },
  { id: "memory", zero: true, text: giText, lines: [measured("memory", SERIES.memory_bytes.map(toGi))] },
];

const last = (values) => (values.length > 0 ? values[values.length - 1] : null);

function drawHead() {
  document.getElementById("title").textContent = DATA.name;
  const step = last(SERIES.step) || 0;
  const written = new Date(DATA.written_s * 1000).toLocaleString();
  document.getElementById("summary").textContent =
    `${DATA.state}${DATA.reason ? `: ${DATA.reason}` : ""}; step ${step} of ${DATA.steps}; written ${written}`;
  const facts = [["model", DATA.model], ["mesh", DATA.mesh], ["ranks", DATA.ranks]];
  const add = (name, value, text) => {
    if (value !== null) facts.push([name, text(value)]);
  };
  add("loss", last(SERIES.loss), shortText);
  add("validation loss", last(DATA.validation.loss), shortText);
  add("tokens/s", last(SERIES.tokens_per_s), countText);
  add("memory", toGi(last(SERIES.memory_bytes)), giText);
  if (DATA.simulated) facts.push(["simulated on", DATA.simulated.cluster]);
  document.getElementById("facts").replaceChildren(...facts.map(([name, value]) => fact(name, value)));
}

function drawNotices() {
  document.getElementById("notices-card").hidden = DATA.notices.length === 0;
  const items = DATA.notices.map(([step, text]) => {
    const item = document.createElement("li");
    item.textContent = step > 0 ? `after step ${step}: ${text}` : text;
    return item;
  });
  document.getElementById("notices").replaceChildren(...items);
}

// Whether axes are logarithmic is in the address, which a reload keeps.
const isLog = () => location.hash === "#log";

function drawCharts() {
  readPalette();
  document.getElementById("log").setAttribute("aria-pressed", isLog());
  for (const chart of CHARTS) drawChart(chart, Boolean(chart.log) && isLog());
}

function switchLog() {
  location.hash = isLog() ? "#" : "#log";
}

drawHead();
drawNotices();
drawCharts();
for (const chart of CHARTS) tipOn(document.getElementById(chart.id), (x) => chartTip(chart, x));
document.getElementById("log").onclick = switchLog;
document.addEventListener("keydown", (event) => {
  if (event.key === "l" && !event.ctrlKey && !event.metaKey && !event.altKey) switchLog();
});
window.addEventListener("hashchange", drawCharts);
window.addEventListener("resize", drawCharts);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);
// The file is written anew while the run goes on.
if (DATA.reload_s > 0) setTimeout(() => location.reload(), DATA.reload_s * 1000);
