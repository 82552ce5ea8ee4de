// Coverage: a picture of queries x keys. Visible pairs are grey until they are attended, and then
// take the colour of the rank that attended them; half the heads give half the colour.
const coverageCanvas = document.getElementById("coverage");
const coverage = { side: 0, qBlock: null, kBlock: null, seen: null, image: null, order: "" };

// The tokens of a side in the order of the picture: [block, position] of pixel i of n. Blocks that
// are intervals lie by position; stripes lie by owner.
function pixelsOf(blocks, length, n) {
  const intervals = blocks.every(([, runs]) => runs.length === 4 && (runs[2] === runs[3] || runs[1] === 1));
  const list = blocks.map(([, runs], id) => {
    let tokens = 0;
    for (let i = 0; i < runs.length; i += 4) tokens += runs[i + 1] * runs[i + 3];
    return { id, runs, tokens };
  });
  if (intervals) list.sort((a, b) => a.runs[0] - b.runs[0]);
  const block = new Int32Array(n);
  const position = new Float64Array(n);
  let at = 0;
  let before = 0;
  for (let i = 0; i < n; ++i) {
    const token = Math.min(length - 1, Math.floor((i + 0.5) * length / n));
    while (at < list.length - 1 && token >= before + list[at].tokens) before += list[at++].tokens;
    if (!list.length) break;
    block[i] = list[at].id;
    position[i] = positionIn(list[at].runs, token - before);
  }
  return { block, position, intervals };
}

function positionIn(runs, offset) {
  for (let i = 0; i < runs.length; i += 4) {
    const [begin, count, step, width] = runs.slice(i, i + 4);
    if (offset < count * width) return begin + Math.floor(offset / width) * step + offset % width;
    offset -= count * width;
  }
  return 0;
}

// Which pixels the mask shows.
function seenPixels(q, k, n) {
  const seen = new Uint8Array(n * n);
  for (let y = 0; y < n; ++y) {
    const at = q.position[y];
    for (const [q0, q1, k0, k1, lo, hi] of DATA.bands) {
      if (at < q0 || at >= q1) continue;
      for (let x = 0; x < n; ++x) {
        const key = k.position[x];
        if (key >= k0 && key < k1 && key - at >= lo && key - at <= hi) seen[y * n + x] = 1;
      }
    }
  }
  return seen;
}

// Attended heads of each pair of blocks, and the rank that attended it last.
function attendedPairs() {
  const columns = DATA.kv_blocks.length;
  const heads = new Float32Array(DATA.q_blocks.length * columns);
  const by = new Int16Array(heads.length);
  let pairs = 0;
  pass().ranks.forEach((rank, r) => {
    for (const op of rank.ops) {
      if (!op.pairs || !isDone(op)) continue;
      pairs += op.pairs;
      const count = (op.q[1] - op.q[0]) / DATA.heads;
      eachId(op.q, (q) => eachId(op.k, (k) => {
        heads[q * columns + k] += count;
        by[q * columns + k] = r;
      }, 2), 2);
    }
  });
  return { heads, by, pairs };
}

function prepareCoverage() {
  const side = Math.min(520, coverageCanvas.parentElement.clientWidth - 28 - 44);
  if (side === coverage.side) return;
  const q = pixelsOf(DATA.q_blocks, DATA.q_len, side);
  const k = pixelsOf(DATA.kv_blocks, DATA.kv_len, side);
  Object.assign(coverage, { side, qBlock: q.block, kBlock: k.block, seen: seenPixels(q, k, side),
    order: q.intervals && k.intervals ? "in order of position" : "by owner",
    image: new ImageData(side, side) });
}

function drawCoverage() {
  prepareCoverage();
  const n = coverage.side;
  const { context, width } = fit(coverageCanvas, n + 22);
  const { heads, by, pairs } = attendedPairs();
  const columns = DATA.kv_blocks.length;
  const hidden = rgbOfHex(palette.hidden);
  const open = rgbOfHex(palette.open);
  const colours = pass().ranks.map((_, rank) => rgbOf(...rankHsl(rank)));
  const data = coverage.image.data;
  for (let y = 0; y < n; ++y) {
    const row = coverage.qBlock[y] * columns;
    for (let x = 0; x < n; ++x) {
      const pixel = y * n + x;
      const pair = row + coverage.kBlock[x];
      const share = Math.min(1, heads[pair]);
      const full = coverage.seen[pixel] ? colours[by[pair]] : hidden;
      const none = coverage.seen[pixel] ? open : hidden;
      for (let c = 0; c < 3; ++c) data[4 * pixel + c] = none[c] + (full[c] - none[c]) * share;
      data[4 * pixel + 3] = 255;
    }
  }
  // The image goes through a bitmap of its own, for putImageData knows no scale.
  const bitmap = document.createElement("canvas");
  bitmap.width = bitmap.height = n;
  bitmap.getContext("2d").putImageData(coverage.image, 0, 0);
  const left = Math.max(40, (width - n) / 2);
  context.drawImage(bitmap, left, 18, n, n);
  context.fillStyle = palette.faint;
  context.fillText(`keys 0 to ${DATA.kv_len}`, left, 12);
  context.save();
  context.translate(left - 8, 18 + n);
  context.rotate(-Math.PI / 2);
  context.fillText(`queries 0 to ${DATA.q_len}, from the top`, Math.max(0, n - 180), 0);
  context.restore();
  const share = pass().pairs ? 100 * pairs / pass().pairs : 100;
  document.getElementById("coverage-note").textContent =
    `${share.toFixed(1)} % of the visible pairs are attended. Colours are the ranks that attended; tokens ${coverage.order}.`;
}

panels.push({ move: drawCoverage });
