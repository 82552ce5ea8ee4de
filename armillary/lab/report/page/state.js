// The cursor: a pass, a step of the plan or a time, and a rank. Panels follow it.
const state = { pass: 0, byTime: false, step: 0, time: 0, rank: 0, playing: false };
// A panel has draw(), for a new pass, size or palette, and move(), for a new place of the cursor.
const panels = [];
let drawWanted = true;
let frameWanted = false;

const pass = () => PASSES[state.pass];
const stepNumber = () => pass().steps[state.step];

// An op that has been done at the cursor, in the step itself or before.
const isDone = (op) => (state.byTime ? op.end <= state.time : op.step <= stepNumber());
const isActive = (op) => (state.byTime ? op.start <= state.time && state.time < op.end : op.step === stepNumber());

function want(draw) {
  drawWanted = drawWanted || draw;
  if (frameWanted) return;
  frameWanted = true;
  requestAnimationFrame(show);
}

function show() {
  const draw = drawWanted;
  frameWanted = drawWanted = false;
  for (const panel of panels) {
    if (draw && panel.draw) panel.draw();
    if (panel.move) panel.move();
  }
}

// The step in which most ranks are at a time, and the first time at which a rank is in a step: the
// two kinds of cursor follow each other.
function stepAt(time) {
  let found = 0;
  for (const rank of pass().ranks) {
    for (const op of rank.ops) {
      if (op.start <= time && op.lane === 0) found = Math.max(found, op.step);
    }
  }
  return Math.max(0, pass().steps.indexOf(found));
}

function timeOf(step) {
  let time = Infinity;
  for (const rank of pass().ranks) {
    for (const op of rank.ops) {
      if (op.step === pass().steps[step] && op.lane === 0) time = Math.min(time, op.start);
    }
  }
  return time === Infinity ? 0 : time;
}

function goTo(place) {
  if (state.byTime) {
    state.time = Math.min(pass().end_us, Math.max(0, place));
    state.step = stepAt(state.time);
  } else {
    state.step = Math.min(pass().steps.length - 1, Math.max(0, place));
    state.time = timeOf(state.step);
  }
  want(false);
}

function moveBy(count) {
  goTo(state.byTime ? state.time + count * pass().end_us / 200 : state.step + count);
}

// The first step in which any rank attends: before it the coverage is empty.
function openingStep() {
  const attends = pass().ranks.flatMap((rank) => rank.ops.filter((op) => op.pairs).map((op) => op.step));
  return Math.max(0, pass().steps.indexOf(attends.reduce((a, b) => Math.min(a, b), Infinity)));
}

function choosePass(index) {
  state.pass = index;
  state.step = openingStep();
  state.time = state.byTime ? 0 : timeOf(state.step);
  want(true);
}

function chooseRank(rank) {
  state.rank = (rank + DATA.world) % DATA.world;
  want(false);
}

function chooseCursor(byTime) {
  state.byTime = byTime;
  want(false);
}

function play(on) {
  state.playing = on;
  let last = performance.now();
  const tick = (now) => {
    if (!state.playing) return;
    const wait = state.byTime ? 0 : Math.max(60, 8000 / pass().steps.length);
    if (now - last >= wait) {
      if (state.byTime) goTo(state.time + pass().end_us * (now - last) / 10000);
      else goTo(state.step + 1);
      last = now;
    }
    const atEnd = state.byTime ? state.time >= pass().end_us : state.step >= pass().steps.length - 1;
    if (atEnd) play(false);
    else requestAnimationFrame(tick);
  };
  if (on) {
    if (state.byTime ? state.time >= pass().end_us : state.step >= pass().steps.length - 1) goTo(0);
    requestAnimationFrame(tick);
  }
  want(false);
}
