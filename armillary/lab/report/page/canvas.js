// Parts of both pages: canvases that fit their place at the resolution of the screen, the one tooltip, facts.

// Sizes a canvas to its width on the page and the given height; returns its context in CSS pixels.
function fit(canvas, height) {
  const ratio = Math.max(window.devicePixelRatio || 1, document.documentElement.classList.contains("printing") ? 2 : 1);
  const width = Math.max(40, canvas.parentElement.clientWidth - paddingOf(canvas.parentElement));
  const wide = Math.round(width * ratio);
  const high = Math.round(height * ratio);
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "11px system-ui, 'DejaVu Sans', sans-serif";
  return { context, width, height };
}

function paddingOf(element) {
  const style = getComputedStyle(element);
  return parseFloat(style.paddingLeft) + parseFloat(style.paddingRight);
}

// Two canvases on top of each other: a picture, and the cursor over it.
function makeLayers(id) {
  const place = document.getElementById(id);
  const below = document.createElement("canvas");
  const above = document.createElement("canvas");
  place.append(below, above);
  return { place, below, above };
}

const tip = document.getElementById("tip");

function showTip(event, text) {
  if (!text) return hideTip();
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = Math.min(event.clientX + 14, window.innerWidth - box.width - 6);
  const top = event.clientY + 18 + box.height > window.innerHeight ? event.clientY - box.height - 10 : event.clientY + 18;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${top}px`;
}

function hideTip() {
  tip.hidden = true;
}

// A term and its value in the head of a page.
function fact(name, value) {
  const place = document.createElement("div");
  const term = document.createElement("dt");
  const text = document.createElement("dd");
  term.textContent = name;
  text.textContent = value;
  place.append(term, text);
  return place;
}

function tipOn(element, textAt) {
  element.addEventListener("pointermove", (event) => {
    const box = element.getBoundingClientRect();
    showTip(event, textAt(event.clientX - box.left, event.clientY - box.top));
  });
  element.addEventListener("pointerleave", hideTip);
}

// Round numbers between 0 and `end`, about `count` of them.
function ticks(begin, end, count) {
  const raw = (end - begin) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const unit = [1, 2, 5, 10].find((u) => u * power >= raw) * power;
  const all = [];
  for (let t = Math.ceil(begin / unit) * unit; t <= end; t += unit) all.push(t);
  return all;
}

// Times from `begin` to `end` along a line of `width` pixels.
function drawTimeAxis(context, { left, width, y, begin, end }) {
  context.fillStyle = palette.faint;
  context.textBaseline = "alphabetic";
  for (const time of ticks(begin, end, Math.max(2, width / 110))) {
    const x = left + width * (time - begin) / (end - begin);
    // A number at the right edge would be cut off.
    const half = context.measureText(timeText(time)).width / 2;
    context.textAlign = x + half > left + width ? "right" : "center";
    context.fillText(timeText(time), Math.min(x + (context.textAlign === "right" ? half : 0), left + width), y);
  }
}
