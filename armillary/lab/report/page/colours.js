// Colours of the style sheet for canvases, and a hue for each rank.
let palette = {};

function readPalette() {
  const style = getComputedStyle(document.documentElement);
  palette = {};
  for (const name of ["paper", "card", "ink", "faint", "line", "accent", "mark", "hidden", "open", "attend",
    "gradient", "merge", "other", "send", "recv", "cold", "hot"]) {
    palette[name] = style.getPropertyValue(`--${name}`).trim();
  }
  palette.dark = style.colorScheme === "dark";
}

function rankHsl(rank) {
  return [(360 * rank / DATA.world + 205) % 360, palette.dark ? 52 : 58, palette.dark ? 58 : 52];
}

function rankColour(rank, alpha = 1) {
  const [hue, saturation, lightness] = rankHsl(rank);
  return `hsl(${hue} ${saturation}% ${lightness}% / ${alpha})`;
}

function rgbOf(hue, saturation, lightness) {
  const s = saturation / 100;
  const l = lightness / 100;
  const part = (n) => {
    const k = (n + hue / 30) % 12;
    return Math.round(255 * (l - s * Math.min(l, 1 - l) * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  };
  return [part(0), part(8), part(4)];
}

// The numbers of a colour `#rrggbb` of the style sheet.
function rgbOfHex(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

function kindColour(kind) {
  if (kind === "attend" || kind === "attend_all") return palette.attend;
  if (kind === "attend_grad" || kind === "attend_grad_all") return palette.gradient;
  if (kind === "merge" || kind === "add" || kind === "finish") return palette.merge;
  if (kind === "send") return palette.send;
  if (kind === "recv") return palette.recv;
  return palette.other;
}

// The colour between cold and hot of a share from 0 to 1.
function heat(share) {
  const cold = rgbOfHex(palette.cold);
  const hot = rgbOfHex(palette.hot);
  const mixed = cold.map((c, i) => Math.round(c + (hot[i] - c) * Math.min(1, share)));
  return `rgb(${mixed.join(" ")})`;
}
