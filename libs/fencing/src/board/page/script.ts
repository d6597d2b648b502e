/** JavaScript of the board's page. Keys and reasons are anybody's text: they are only ever set as text. */
export const SCRIPT = String.raw`
'use strict';
const $ = (id) => document.getElementById(id);
const base = location.pathname.replace(/\/+$/, '');
const look = { search: '', show: 'all', page: 0, key: '' };
let view, source, arrived = 0;

const el = (name, text, className) => {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  if (className) node.className = className;
  return node;
};
const say = (id, text) => { const node = $(id); if (node.textContent !== String(text)) node.textContent = text; };
const clock = (at) => new Date(at).toLocaleTimeString('en-GB');
const lasting = (ms) => ms < 950 ? Math.round(ms) + ' ms' : ms < 99500 ? (ms / 1000).toFixed(1) + ' s' : ms < 5.4e6 ? Math.round(ms / 6e4) + ' min' : (ms / 36e5).toFixed(1) + ' h';
const short = (owner) => owner.slice(0, 8);

function watch() {
  if (source) source.close();
  const query = new URLSearchParams({ search: look.search, show: look.show, page: look.page, key: look.key });
  source = new EventSource(base + '/api/events?' + query);
  source.onopen = () => { $('state').className = 'state on'; say('state', 'live'); };
  source.onerror = () => { $('state').className = 'state'; say('state', 'not connected, trying again'); };
  source.onmessage = (message) => {
    view = JSON.parse(message.data);
    arrived = performance.now();
    if (view.page >= view.pages) { look.page = view.pages - 1; return watch(); }
    render();
  };
}

function render() {
  const { totals } = view;
  for (const name of ['live', 'accepted', 'refused', 'lost', 'unknown']) say('n-' + name, totals[name].toLocaleString('en'));
  say('where', 'process ' + view.pid + (view.instance === 'default' ? '' : ', instance ' + view.instance));
  const silent = Object.entries(view.silent).filter(([, at]) => view.at - at < 60000).map(([store, at]) => 'The ' + store + ' did not answer at ' + clock(at) + '.');
  $('alarm').hidden = silent.length === 0;
  say('alarm', silent.join(' '));
  renderLeases();
  renderRefusals();
  renderKey();
}

/** One element per item, kept while the item is there: what has the focus keeps it. */
function list(body, items, keyOf, make, update) {
  const known = new Map([...body.children].map((node) => [node.itemKey, node]));
  const wanted = new Set(items.map(keyOf));
  for (const [key, node] of known) if (!wanted.has(key)) node.remove();
  items.forEach((item, i) => {
    const key = keyOf(item);
    let node = known.get(key);
    if (!node) { node = make(item); node.itemKey = key; }
    if (body.children[i] !== node) body.insertBefore(node, body.children[i] || null);
    update(node, item);
  });
}
function keyButton(key) {
  const button = el('button', key, 'plain mono');
  button.type = 'button';
  button.dataset.key = key;
  button.addEventListener('click', () => choose(key, true));
  return button;
}
function row(cells) {
  const tr = el('tr');
  for (const cell of cells) { const td = el('td', undefined, cell.className); td.append(cell.node || ''); tr.append(td); }
  return tr;
}
const set = (tr, i, text) => { const td = tr.children[i]; if (td.textContent !== String(text)) td.textContent = text; };

function renderLeases() {
  const filtered = look.search || look.show !== 'all';
  say('found', view.found.toLocaleString('en') + (filtered ? ' of ' + view.totals.live.toLocaleString('en') : ''));
  say('pages', 'page ' + (view.page + 1) + ' of ' + view.pages);
  $('back').disabled = view.page === 0;
  $('next').disabled = view.page + 1 >= view.pages;
  $('none').hidden = view.leases.length > 0;
  say('none', filtered ? 'No lease of this process matches.' : 'This process holds no lease now.');
  list($('leases'), view.leases, (lease) => lease.owner, (lease) => {
    const left = el('span', undefined, 'left'), time = el('span');
    left.append(el('i'));
    const both = el('span');
    both.append(left, time);
    return row([{ node: keyButton(lease.key), className: 'wide' }, { className: 'mono' }, { className: 'mono' }, { className: 'num' }, { node: both }, {}, { className: 'num' }, { className: 'num' }]);
  }, (tr, lease) => {
    tr.className = (lease.doubtful ? 'doubtful ' : '') + (lease.key === look.key ? 'here' : '');
    set(tr, 1, short(lease.owner));
    set(tr, 2, lease.generation);
    set(tr, 5, lease.doubtful ? '⚠ in doubt' : 'held');
    set(tr, 6, lease.waiting);
    set(tr, 7, lease.accepted + (lease.refused ? ' / ' + lease.refused + ' refused' : ''));
  });
  tick();
}
/** Time goes on between two views. */
function tick() {
  if (!view) return;
  const since = performance.now() - arrived;
  const rows = $('leases').children;
  view.leases.forEach((lease, i) => {
    const left = Math.max(0, lease.remainingMs - since);
    set(rows[i], 3, lasting(lease.heldMs + since));
    const [bar, text] = rows[i].children[4].firstChild.children;
    bar.firstChild.style.width = Math.min(100, 100 * left / (lease.ttlMs || 1)) + '%';
    const words = lasting(left);
    if (text.textContent !== words) text.textContent = words;
  });
}

const because = ({ cause, code }) =>
  cause.revoked ? 'revoked by ' + (cause.revoked.by || 'an operator') + (cause.revoked.reason ? ': ' + cause.revoked.reason : '')
  : cause.owner ? 'generation ' + cause.generation + ' of owner ' + short(cause.owner) + ' took over at ' + clock(cause.at)
  : cause.generation ? 'generation ' + cause.generation + ', of another process or an operator'
  : code === 'STALE_GENERATION' ? 'a newer grant' : 'its lease had ended or was in doubt; no newer grant is known here';

function renderRefusals() {
  $('no-refusals').hidden = view.refusals.length > 0;
  $('refusal-table').hidden = view.refusals.length === 0;
  list($('refusals'), view.refusals, (one) => one.at + one.owner + one.code, (one) =>
    row([{}, { node: keyButton(one.key), className: 'wide' }, { className: 'mono' }, { className: 'bad' }, { className: 'wide' }]),
  (tr, one) => {
    set(tr, 0, clock(one.at));
    set(tr, 2, one.generation + ' · ' + short(one.owner));
    set(tr, 3, '✕ ' + one.code);
    set(tr, 4, because(one));
  });
}

function renderKey() {
  const key = view.key;
  $('detail').hidden = !key;
  if (!key) return;
  const { report, problem } = key.asked || {};
  const lease = report && report.lease, fence = report && report.fence;
  say('key', key.key);
  say('holder', lease ? 'owner ' + short(lease.owner) : report ? 'nobody' : '…');
  say('held-generation', lease ? lease.generation : '–');
  say('held-left', lease ? lasting(lease.remainingMs) : '–');
  say('fence', fence ? fence.generation + ' · ' + (fence.owner ? short(fence.owner) : 'nobody') : report ? 'none' : '…');
  say('fence-at', fence ? new Date(fence.activatedAt).toLocaleString('en-GB') : '–');
  say('waiting', key.waiting);
  $('problem').hidden = !problem;
  say('problem', problem || '');
  const model = modelOf(key);
  $('no-history').hidden = model.lanes.length > 0;
  $('line').toggleAttribute('hidden', model.lanes.length === 0);
  if (model.lanes.length) drawTimeline($('line'), model);
  const rows = model.lanes.flatMap((lane) => lane.signs.map((sign) => ({ lane, sign }))).sort((a, b) => b.sign.at - a.sign.at).slice(0, 15);
  list($('marks'), rows, ({ lane, sign }) => lane.title + sign.at + sign.kind, () => row([{}, {}, { className: 'wide' }]), (tr, { lane, sign }) => {
    set(tr, 0, clock(sign.at));
    set(tr, 1, lane.title);
    set(tr, 2, sign.text);
  });
}

const WORDS = { accepted: 'write accepted', stale: 'write refused by the database', refused: 'write refused', unknown: 'outcome of a write unknown', duplicate: 'operation was accepted before', healed: 'the lease store had lost its counter, and goes on' };
function modelOf(key) {
  const lanes = key.tracks.map((track) => {
    const live = track.to === undefined;
    return {
      generation: track.generation, owner: track.owner,
      title: 'generation ' + track.generation, sub: (live ? 'held' : track.end === 'released' ? 'released' : 'lost: ' + track.end) + ' · owner ' + short(track.owner),
      from: track.from, to: live ? view.at : track.to, live, lost: !live && track.end !== 'released', doubts: track.doubtfulSince ? [...track.doubts, [track.doubtfulSince, view.at]] : track.doubts,
      signs: [
        ...(track.activated ? [{ at: track.from, kind: 'activated', text: 'granted and activated' + (track.waitedMs >= 100 ? ', after a wait of ' + lasting(track.waitedMs) : '') }] : []),
        ...track.marks.map((mark) => ({ at: mark.at, kind: mark.kind, code: mark.code, current: mark.current, text: WORDS[mark.kind] + (mark.code ? ' (' + mark.code + ')' : '') })),
      ],
    };
  });
  const report = key.asked && key.asked.report;
  const held = report && report.lease, fence = report && report.fence;
  for (const one of key.revoked) lanes.push({ generation: one.generation, title: 'revoked', sub: (one.by || '') + (one.reason ? ': ' + one.reason : ''), signs: [{ at: one.at, kind: 'revoked', text: 'revoked' + (one.by ? ' by ' + one.by : '') + (one.reason ? ': ' + one.reason : '') }] });
  if (held && !lanes.some((lane) => lane.generation === held.generation)) {
    const from = fence && fence.generation === held.generation ? new Date(fence.activatedAt).getTime() : key.asked.at;
    lanes.push({ generation: held.generation, title: 'generation ' + held.generation, sub: 'another process · owner ' + short(held.owner), from, to: view.at, live: true, signs: [{ at: from, kind: 'activated', text: 'activated' }] });
  }
  lanes.sort((a, b) => (a.generation || 0) - (b.generation || 0));
  const links = [];
  lanes.forEach((lane, i) => lane.signs.forEach((sign) => {
    if (sign.kind !== 'stale' && sign.kind !== 'refused') return;
    const to = lanes.findIndex((other) => sign.current === undefined ? other.generation > lane.generation : other.generation === sign.current);
    if (to >= 0) links.push({ at: sign.at, from: i, to, cause: lanes[to].from || lanes[to].signs[0].at });
  }));
  const moments = lanes.flatMap((lane) => [...(lane.from ? [lane.from] : []), ...lane.signs.map((sign) => sign.at)]);
  const from = Math.min(view.at - 2000, ...moments);
  const refused = lanes.reduce((sum, lane) => sum + lane.signs.filter((sign) => sign.kind === 'stale' || sign.kind === 'refused').length, 0);
  return { from, to: view.at, ticks: clock, lanes, links, summary: lanes.length + ' grants and revocations since ' + clock(from) + ', ' + refused + ' refused writes. The table below has the same.' };
}

function choose(key, focus) {
  look.key = key;
  history.replaceState(null, '', key ? '#key=' + encodeURIComponent(key) : '#');
  watch();
  if (focus && key) { $('detail').hidden = false; say('key', key); $('key').focus(); }
}
function typed() {
  look.search = $('search').value; look.show = $('show').value; look.page = 0;
  $('ask').disabled = !look.search;
  clearTimeout(typed.later);
  typed.later = setTimeout(watch, 150);
}
$('search').addEventListener('input', typed);
$('show').addEventListener('change', typed);
$('find').addEventListener('submit', (event) => { event.preventDefault(); if ($('search').value) choose($('search').value, true); });
$('skip').addEventListener('click', (event) => { event.preventDefault(); $('search').focus(); });
$('back').addEventListener('click', () => { look.page--; watch(); });
$('next').addEventListener('click', () => { look.page++; watch(); });
$('close').addEventListener('click', () => { choose(''); $('search').focus(); });
$('revoke').addEventListener('click', () => {
  say('revoke-key', look.key);
  $('reason').value = '';
  say('refusal', '');
  $('dialog').showModal();
  $('reason').focus();
});
$('cancel').addEventListener('click', () => $('dialog').close());
$('revoke-form').addEventListener('submit', async (event) => {
  event.preventDefault();
  const key = $('revoke-key').textContent;
  $('do-revoke').disabled = true;
  const answer = await fetch(base + '/api/revoke', {
    method: 'POST', headers: { 'content-type': 'application/json', 'x-fencing-board': '1' }, body: JSON.stringify({ key, reason: $('reason').value }),
  }).then(async (response) => ({ ok: response.ok, ...await response.json().catch(() => ({})) }), () => ({ problem: 'The application did not answer.' }));
  $('do-revoke').disabled = false;
  if (!answer.ok) return say('refusal', answer.problem || answer.message || 'The key was not revoked.');
  $('dialog').close();
  say('said', 'The key was revoked' + (answer.supersededGeneration ? '; generation ' + answer.supersededGeneration + ' is refused from here on.' : '.'));
});
addEventListener('hashchange', () => fromHash());
addEventListener('resize', () => { if (view) renderKey(); });
function fromHash() {
  try { look.key = decodeURIComponent((/^#key=(.+)$/.exec(location.hash) || ['', ''])[1]); } catch { look.key = ''; }
  watch();
}
for (const kind of ['activated', 'accepted', 'stale', 'unknown', 'duplicate', 'revoked']) {
  const svg = svgNode('svg', { viewBox: '-8 -8 16 16', 'aria-hidden': 'true' });
  drawSign(kind, svg);
  $('sign-' + kind).prepend(svg);
}
setInterval(tick, 500);
fromHash();
`.trim();
