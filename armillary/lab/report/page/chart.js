// Lines over steps on a canvas: axes, a legend, and the values under the pointer. A chart is
// { id, lines, text, log, zero }: lines are { name, colour, steps, values, dashed }, `text` writes a
// value, `log` says whether its axis may be logarithmic, `zero` whether it begins at 0.
const CHART = { height: 220, left: 64, right: 12, top: 8, bottom: 22 };

const isShown = (value, log) => value !== null && Number.isFinite(value) && (!log || value > 0);

// The least and the largest of the numbers that are shown, or null.
function extent(lists, log) {
  let low = Infinity;
  let high = -Infinity;
  for (const list of lists) {
    for (const value of list) {
      if (!isShown(value, log)) continue;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  return low <= high ? { low, high } : null;
}

// Values of the vertical axis with a number beside them.
function valueTicks({ low, high }, log) {
  if (!log) return ticks(low, high, 5);
  const all = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); ++power) {
    for (const digit of [1, 2, 5]) all.push(digit * 10 ** power);
  }
  const inside = all.filter((value) => value >= low && value <= high);
  if (inside.length < 2) return ticks(low, high, 5);
  return inside.length > 6 ? inside.filter((value) => /^1/.test(value.toExponential())) : inside;
}

function axesOf(chart, log, width) {
  const values = extent(chart.lines.map((line) => line.values), log);
  const steps = extent(chart.lines.map((line) => line.steps), false);
  if (!values || !steps) return null;
  if (log) {
    values.low /= 1.05;
    values.high *= 1.05;
  } else {
    // Values that differ by their last bit have no round numbers between them.
    const spread = values.high - values.low;
    const most = Math.max(Math.abs(values.low), Math.abs(values.high));
    const room = (spread > most * 1e-9 ? spread : most) * 0.05 || 1;
    values.low = chart.zero ? Math.min(0, values.low) : values.low - room;
    values.high += room;
  }
  if (steps.low === steps.high) steps.high += 1;
  const share = (value, { low, high }) =>
    log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
  const across = width - CHART.left - CHART.right;
  const down = CHART.height - CHART.top - CHART.bottom;
  return {
    values, steps,
    x: (step) => CHART.left + across * (step - steps.low) / (steps.high - steps.low),
    y: (value) => CHART.top + down * (1 - share(value, values)),
    stepAt: (x) => steps.low + (x - CHART.left) / across * (steps.high - steps.low),
  };
}

function drawAxes(context, chart, axes, log, width) {
  context.strokeStyle = palette.line;
  context.fillStyle = palette.faint;
  context.lineWidth = 1;
  context.setLineDash([]);
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const value of valueTicks(axes.values, log)) {
    const y = Math.round(axes.y(value)) + 0.5;
    context.beginPath();
    context.moveTo(CHART.left, y);
    context.lineTo(width - CHART.right, y);
    context.stroke();
    context.fillText(chart.text(value), CHART.left - 6, y);
  }
  context.textAlign = "center";
  context.textBaseline = "alphabetic";
  for (const step of ticks(axes.steps.low, axes.steps.high, Math.max(2, width / 130))) {
    if (Number.isInteger(step)) context.fillText(step, axes.x(step), CHART.height - 6);
  }
}

function drawLine(context, line, axes, log) {
  context.strokeStyle = palette[line.colour];
  context.lineWidth = 1.5;
  context.setLineDash(line.dashed ? [6, 4] : []);
  context.beginPath();
  let isOpen = false;
  line.values.forEach((value, i) => {
    if (!isShown(value, log)) {
      isOpen = false;
      return;
    }
    const place = [axes.x(line.steps[i]), axes.y(value)];
    if (isOpen) context.lineTo(...place);
    else context.moveTo(...place);
    isOpen = true;
  });
  context.stroke();
  context.setLineDash([]);
  // A line of one point, and the few points of validation, are seen as dots.
  if (line.dashed || line.values.length > 40) return;
  context.fillStyle = palette[line.colour];
  line.values.forEach((value, i) => {
    if (!isShown(value, log)) return;
    context.beginPath();
    context.arc(axes.x(line.steps[i]), axes.y(value), 2.2, 0, 2 * Math.PI);
    context.fill();
  });
}

function drawLegend(chart) {
  const items = chart.lines.filter((line) => line.values.length > 0).map((line) => {
    const item = document.createElement("span");
    const swatch = document.createElement("i");
    swatch.style.background = palette[line.colour];
    item.append(swatch, line.name);
    return item;
  });
  document.getElementById(`${chart.id}-legend`).replaceChildren(...(items.length > 1 ? items : []));
}

function drawChart(chart, log) {
  const canvas = document.getElementById(chart.id);
  const { context, width } = fit(canvas, CHART.height);
  chart.axes = axesOf(chart, log, width);
  drawLegend(chart);
  if (!chart.axes) {
    context.fillStyle = palette.faint;
    context.fillText("nothing yet", CHART.left, CHART.height / 2);
    return;
  }
  drawAxes(context, chart, chart.axes, log, width);
  for (const line of chart.lines) drawLine(context, line, chart.axes, log);
}

// The place in ascending steps that is nearest to one.
function nearest(steps, step) {
  let low = 0;
  let high = steps.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] < step) low = middle + 1;
    else high = middle;
  }
  return low > 0 && step - steps[low - 1] < steps[low] - step ? low - 1 : low;
}

// The values of all lines at a place of the canvas.
function chartTip(chart, x) {
  if (!chart.axes) return "";
  return chart.lines.filter((line) => line.values.length > 0).map((line) => {
    const at = nearest(line.steps, chart.axes.stepAt(x));
    const value = line.values[at];
    const place = line.dashed ? "" : `step ${line.steps[at]}, `;
    return `${place}${line.name}: ${value === null ? "none" : chart.text(value)}`;
  }).join("\n");
}
