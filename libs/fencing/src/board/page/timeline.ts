/**
 * JavaScript for the browser: `drawTimeline(svg, model)` draws grants as lanes over time, and what happened under them as signs.
 *
 * model: `{ from, to, now?, zero?, ticks: (at) => string, summary, lanes, links? }`; times in ms.
 * lane: `{ title, sub?, from, to, live?, lost?, expires?, doubts?: [from, to][], halts?: [from, to][], signs, verdict?, tone? }`;
 * sign: `{ at, kind, text }`; link: `{ at, from, cause, to }`: from a sign in one lane to what caused it in another. All text is put in as text, never as markup.
 */
export const TIMELINE = String.raw`
function svgNode(name, attributes, parent) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (parent) parent.append(node);
  return node;
}
const SIGNS = {
  activated: 'M0-6 6 0 0 6-6 0Z', accepted: 'M-5.5 0a5.5 5.5 0 1 0 11 0a5.5 5.5 0 1 0-11 0Z', stale: 'M-5-5 5 5M5-5-5 5', refused: 'M-5-5 5 5M5-5-5 5',
  unknown: 'M0-6 6 5-6 5Z', duplicate: 'M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0Z', healed: 'M-5-5H5V5H-5Z', overwrote: 'M-6-3.5V3.5L-2.5 6H2.5L6 3.5V-3.5L2.5-6H-2.5Z', revoked: 'M-6-5H6L0 6Z',
};
function drawSign(kind, parent) {
  return svgNode('path', { class: 'sign ' + kind, d: SIGNS[kind] }, parent);
}
function drawTimeline(svg, model) {
  const width = Math.max(280, svg.clientWidth || svg.parentNode.clientWidth);
  const laneHeight = 50, top = 24, barTop = 22, barHeight = 16;
  const height = top + model.lanes.length * laneHeight + 6;
  const span = Math.max(1, model.to - model.from);
  const x = (at) => 8 + (Math.min(Math.max(at, model.from), model.to) - model.from) / span * (width - 16);
  svg.setAttribute('viewBox', '0 0 ' + width + ' ' + height);
  svg.setAttribute('height', height);
  svg.setAttribute('role', 'img');
  svg.setAttribute('aria-label', model.summary);
  const root = document.createDocumentFragment();
  // Whole seconds, as many as have room.
  const most = width > 700 ? 9 : 4, zero = model.zero || 0;
  const seconds = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400];
  const step = 1000 * (seconds.find((one) => span / 1000 / one <= most) || span / 4000);
  for (let at = zero + Math.ceil((model.from - zero) / step) * step; at <= model.to; at += step) {
    svgNode('line', { class: 'grid', x1: x(at), x2: x(at), y1: top - 4, y2: height }, root);
    const anchor = x(at) < 30 ? 'start' : x(at) > width - 30 ? 'end' : 'middle';
    svgNode('text', { class: 'tick', x: x(at), y: 12, 'text-anchor': anchor }, root).textContent = model.ticks(at);
  }
  if (model.now !== undefined) svgNode('line', { class: 'now', x1: x(model.now), x2: x(model.now), y1: top - 4, y2: height }, root);
  const y = (lane) => top + lane * laneHeight;
  const middle = (lane) => y(lane) + barTop + barHeight / 2;
  for (const link of model.links || [])
    svgNode('path', { class: 'because', d: 'M' + x(link.at) + ' ' + middle(link.from) + 'V' + middle(link.to) + 'H' + x(link.cause) }, root);
  model.lanes.forEach((lane, index) => {
    const group = svgNode('g', { class: 'lane' }, root);
    const title = svgNode('text', { x: 8, y: y(index) + 15 }, group);
    title.textContent = lane.title + ' ';
    if (lane.sub) svgNode('tspan', { class: 'sub' }, title).textContent = lane.sub;
    const at = y(index) + barTop;
    const box = (name, from, to) => svgNode('rect', { class: name, x: x(from), y: at, width: Math.max(2, x(to) - x(from)), height: barHeight, rx: 3 }, group);
    if (lane.from !== undefined) {
      box('bar' + (lane.live ? ' live' : ''), lane.from, lane.to);
      if (lane.expires !== undefined && lane.expires > lane.to) box('expired', lane.to, lane.expires);
      for (const [from, to] of lane.doubts || []) box('doubted', from, to);
      for (const [from, to, text] of lane.halts || []) {
        box('halt', from, to);
        if (x(to) - x(from) > 60) svgNode('text', { class: 'tick', x: (x(from) + x(to)) / 2, y: at + 12, 'text-anchor': 'middle' }, group).textContent = text;
      }
      if (!lane.live) svgNode('line', { class: 'end' + (lane.lost ? ' lost' : ''), x1: x(lane.to), x2: x(lane.to), y1: at - 3, y2: at + barHeight + 3 }, group);
    }
    for (const sign of lane.signs) {
      const place = svgNode('g', { transform: 'translate(' + x(sign.at) + ' ' + middle(index) + ')' }, group);
      drawSign(sign.kind, place);
      svgNode('title', {}, place).textContent = sign.text;
    }
    if (lane.verdict) svgNode('text', { class: 'verdict ' + lane.tone, x: width - 8, y: y(index) + 15, 'text-anchor': 'end' }, group).textContent = lane.verdict;
  });
  svg.replaceChildren(root);
}
`.trim();
