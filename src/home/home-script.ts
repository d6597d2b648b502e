/** JavaScript of the home page: draws a run while it goes on. */
export const HOME_SCRIPT = String.raw`
'use strict';
const $ = (id) => document.getElementById(id);
const say = (id, text) => { if ($(id).textContent !== text) $(id).textContent = text; };
const WORDS = { idle: 'about to begin', starting: 'starting two worker processes …', running: 'running', done: 'done' };
const STEPS = {
  granted: () => 'is granted the lease', stopped: () => 'is stopped: SIGSTOP', resumed: () => 'goes on: SIGCONT', added: () => 'a fourth entry arrives',
  read: (step) => 'reads ' + figures(step), wrote: (step) => 'writes its report: ' + figures(step), refused: (step) => 'is refused: ' + step.code,
  ended: () => 'its call ends', found: (step) => 'the report that stands: ' + figures(step),
};
const SIDES = { lock: 'a lock alone', fence: 'the fence' };
const figures = ({ figures: { entries, totalCents } }) => entries + ' entries, ' + (totalCents / 100).toFixed(2);
let record, arrived = 0;

function laneOf(side, who, now) {
  const steps = record.steps.filter((step) => (!step.side || step.side === side) && (!step.who || step.who === who));
  const of = (kind) => steps.find((step) => step.kind === kind);
  const granted = of('granted'), ended = of('ended'), stopped = of('stopped'), resumed = of('resumed'), wrote = of('wrote'), refused = of('refused');
  const lane = { title: 'worker ' + who, sub: granted ? 'generation ' + granted.generation : 'waiting', signs: [], generation: granted && granted.generation };
  if (granted) {
    Object.assign(lane, { from: granted.atMs, to: ended ? ended.atMs : now, live: !ended });
    lane.signs.push({ at: granted.atMs, kind: 'activated', text: 'granted and activated' });
  }
  if (stopped) lane.halts = [[stopped.atMs, resumed ? resumed.atMs : now, 'stopped']];
  if (refused) lane.lost = true;
  return { lane, wrote, refused };
}

function draw() {
  if (!record) return;
  const now = record.state === 'running' ? record.atMs + performance.now() - arrived : record.atMs;
  for (const side of ['lock', 'fence']) {
    const A = laneOf(side, 'A', now), B = laneOf(side, 'B', now);
    const links = [];
    if (B.wrote) B.lane.signs.push({ at: B.wrote.atMs, kind: 'accepted', text: 'writes ' + figures(B.wrote) });
    if (A.wrote) A.lane.signs.push({ at: A.wrote.atMs, kind: B.wrote ? 'overwrote' : 'accepted', text: 'overwrites the newer report with ' + figures(A.wrote) });
    if (A.refused) {
      A.lane.signs.push({ at: A.refused.atMs, kind: 'stale', text: 'refused: ' + A.refused.code });
      links.push({ at: A.refused.atMs, from: 0, to: 1, cause: B.lane.from });
    }
    const found = record.steps.find((step) => step.kind === 'found' && step.side === side);
    const kept = found && B.wrote && found.figures.totalCents === B.wrote.figures.totalCents;
    const outcome = !found ? '' : kept
      ? 'PostgreSQL refused A (' + (A.refused ? A.refused.code : 'no write') + '). The report is B’s: ' + figures(found) + '.'
      : 'A overwrote B. The report is ' + figures(found) + ': the fourth entry is lost, and nobody was told.';
    say('outcome-' + side, outcome);
    $('outcome-' + side).className = 'outcome word ' + (!found ? '' : kept ? 'good' : 'bad');
    drawTimeline($('line-' + side), {
      from: 0, to: Math.max(4000, now), ticks: (at) => at / 1000 + ' s', lanes: [A.lane, B.lane], links,
      summary: 'Worker A and worker B over time. ' + (outcome || 'The run is not over.'),
    });
  }
}

function row(step) {
  const tr = document.createElement('tr');
  const cells = [(step.atMs / 1000).toFixed(2) + ' s', step.who || '', step.side ? SIDES[step.side] : '', STEPS[step.kind](step), step.generation || ''];
  for (const cell of cells) { const td = document.createElement('td'); td.textContent = cell; tr.append(td); }
  tr.children[3].className = step.kind === 'refused' ? 'wide word' : 'wide';
  tr.children[4].className = 'mono';
  return tr;
}
function show() {
  say('state', record.state === 'failed' ? 'It broke off: ' + record.problem : WORDS[record.state]);
  $('run').disabled = record.state === 'starting' || record.state === 'running';
  const steps = $('steps');
  if (steps.children.length > record.steps.length) steps.replaceChildren();
  for (const step of record.steps.slice(steps.children.length)) steps.append(row(step));
  draw();
}
const run = () => fetch('/exercise', { method: 'POST', headers: { 'x-exercise': '1' } });

$('run').addEventListener('click', run);
$('origin').textContent = location.origin;
for (const kind of ['activated', 'accepted', 'overwrote', 'stale']) {
  const svg = svgNode('svg', { viewBox: '-8 -8 16 16', 'aria-hidden': 'true' });
  drawSign(kind, svg);
  $('sign-' + kind).prepend(svg);
}
const source = new EventSource('/exercise/events');
source.onmessage = ({ data }) => {
  const first = !record;
  record = JSON.parse(data);
  arrived = performance.now();
  show();
  if (first && record.state === 'idle') run();
};
source.onerror = () => say('state', 'not connected, trying again');
addEventListener('resize', draw);
const calm = matchMedia('(prefers-reduced-motion: reduce)');
setInterval(() => { if (record && record.state === 'running' && !calm.matches) draw(); }, 100);
`.trim();
