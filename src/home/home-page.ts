import { createHash } from 'node:crypto';
import { boardLook } from 'nestjs-fencing/board';
import { HOME_SCRIPT } from './home-script.js';

const style = `${boardLook.style}
.top h1 { font-size: 26px; }
.lead { font-size: 17px; }
.sides { display: grid; grid-template-columns: 1fr 1fr; gap: 16px; }
.sides .panel { margin: 0; min-width: 0; }
pre { margin: 0 0 12px; padding: 10px 12px; background: var(--bg); border-radius: 6px; overflow-x: auto; font-size: 13px; line-height: 1.45; }
.outcome { margin: 12px 0 0; min-height: 3em; }
.run { display: flex; gap: 16px; align-items: center; margin: 0 0 16px; flex-wrap: wrap; }
.below { margin-top: 16px; }
@media (max-width: 900px) { .sides { grid-template-columns: 1fr; } }
`;
const script = `${boardLook.timeline}\n${HOME_SCRIPT}`;
const sha256 = (text: string) => `'sha256-${createHash('sha256').update(text).digest('base64')}'`;

export const HOME_POLICY = [
  "default-src 'none'",
  `script-src ${sha256(script)}`,
  `style-src ${sha256(style)}`,
  "connect-src 'self'",
  'img-src data:',
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join('; ');

const side = (id: string, title: string, code: string) => `
  <section class="panel" aria-labelledby="title-${id}">
    <h2 id="title-${id}">${title}</h2>
    <pre><code>${code}</code></pre>
    <svg class="timeline" id="line-${id}"></svg>
    <p class="outcome" id="outcome-${id}" role="status"></p>
  </section>`;

export const HOME_HTML = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>nestjs-fencing: a stale worker must not win</title>
<link rel="icon" href="data:,">
<style>${style}</style>
</head>
<body>
<header class="top"><h1>A stale worker must not win</h1></header>
<main>
  <p class="lead">Two processes, A and B, rebuild the same report. A takes the lease, reads three entries, and is stopped (SIGSTOP) for longer than its lease lasts. A fourth entry arrives; B takes over and publishes it. Then A goes on, and its clock tells it nothing.</p>
  <div class="run">
    <button type="button" class="main" id="run" disabled>Run it again</button>
    <span class="quiet" id="state">connecting</span>
    <a href="/fencing#key=report%3Aexercise-with-fence">See it on the board</a>
  </div>
  <div class="sides">${side('lock', 'With a lock alone', "@Leased('report:{0}')\nasync rebuild(id) { …\n  await this.reports.save(report);\n}")}${side(
    'fence',
    'With the fence',
    '@FencedWrite()\nasync publish(report) {\n  await this.reports.save(report);\n}',
  )}
  </div>
  <ul class="legend" aria-hidden="true">
    <li id="sign-activated">lease granted, and activated in the database</li><li id="sign-accepted">report written</li>
    <li id="sign-overwrote">newer report overwritten</li><li id="sign-stale">write refused, and who it gave way to</li>
  </ul>
  <section class="panel below" aria-label="Steps">
    <div class="scroll"><table>
      <caption>What happened, step by step</caption>
      <thead><tr><th scope="col">time</th><th scope="col">who</th><th scope="col">with</th><th scope="col">what</th><th scope="col">generation</th></tr></thead>
      <tbody id="steps"></tbody>
    </table></div>
  </section>
  <p class="quiet">Real processes, real signals, the PostgreSQL and lease store of this application. The whole exercise, with Redis killed and networks cut: <code>npm run drill</code>. The application itself: <code>curl -X POST <span id="origin"></span>/reports/alice/rebuild</code></p>
</main>
<script>${script}</script>
</body>
</html>
`;
