import { createHash } from 'node:crypto';
import { SCRIPT } from './script.js';
import { STYLE } from './style.js';
import { TIMELINE } from './timeline.js';

const script = `${TIMELINE}\n${SCRIPT}`;
const sha256 = (text: string) => `'sha256-${createHash('sha256').update(text).digest('base64')}'`;

/** Headers of the page: only its own script and style run, it talks to its own origin only, and nobody frames it. */
export const PAGE_HEADERS: Readonly<Record<string, string>> = {
  'Content-Type': 'text/html; charset=utf-8',
  'Content-Security-Policy': [
    "default-src 'none'",
    `script-src ${sha256(script)}`,
    `style-src ${sha256(STYLE)}`,
    "connect-src 'self'",
    'img-src data:',
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    // Text that is put in as markup is an error, even here.
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
  ].join('; '),
  'Cache-Control': 'no-store',
  'Cross-Origin-Opener-Policy': 'same-origin',
  'Cross-Origin-Resource-Policy': 'same-origin',
  'Referrer-Policy': 'no-referrer',
  'X-Content-Type-Options': 'nosniff',
  'X-Frame-Options': 'DENY',
};

/** The page is the same for everybody: what it shows comes by its script. */
export const PAGE_HTML = String.raw`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Fencing board</title>
<link rel="icon" href="data:,">
<style>${STYLE}</style>
</head>
<body>
<a class="skip" id="skip" href="#search">To the search</a>
<header class="top">
  <h1>Fencing board</h1>
  <span class="quiet small" id="where"></span>
  <span class="quiet small state" id="state" role="status">connecting</span>
</header>
<main>
  <ul class="figures quiet">
    <li><b id="n-live">0</b>leases held</li>
    <li><b id="n-accepted">0</b>writes accepted</li>
    <li><b id="n-refused">0</b>refused</li>
    <li><b id="n-lost">0</b>leases lost</li>
    <li><b id="n-unknown">0</b>outcomes unknown</li>
  </ul>
  <p class="panel alarm" id="alarm" hidden></p>
  <p id="said" role="status"></p>

  <section class="panel" id="detail" aria-labelledby="key" hidden>
    <div class="head">
      <h2 id="key" class="mono" tabindex="-1"></h2>
      <div class="acts">
        <button type="button" class="danger" id="revoke">Revoke …</button>
        <button type="button" id="close">Close</button>
      </div>
    </div>
    <p class="bad" id="problem" hidden></p>
    <dl class="facts">
      <div><dt>held by</dt><dd class="mono" id="holder"></dd></div>
      <div><dt>generation</dt><dd class="mono" id="held-generation"></dd></div>
      <div><dt>left</dt><dd id="held-left"></dd></div>
      <div><dt>waiting here</dt><dd id="waiting"></dd></div>
      <div><dt>the database accepts</dt><dd class="mono" id="fence"></dd></div>
      <div><dt>since</dt><dd id="fence-at"></dd></div>
    </dl>
    <svg class="timeline" id="line"></svg>
    <p class="empty" id="no-history" hidden>This process has heard nothing of this key yet.</p>
    <ul class="legend" aria-hidden="true">
      <li id="sign-activated">activated</li><li id="sign-accepted">write accepted</li><li id="sign-stale">write refused, and who it gave way to</li>
      <li id="sign-unknown">outcome unknown</li><li id="sign-duplicate">accepted before</li><li id="sign-revoked">revoked</li>
    </ul>
    <details><summary>The same as a table</summary>
      <div class="scroll"><table><thead><tr><th scope="col">time</th><th scope="col">grant</th><th scope="col">what</th></tr></thead><tbody id="marks"></tbody></table></div>
    </details>
  </section>

  <section class="panel" aria-label="Leases">
    <form class="tools" id="find" role="search">
      <label>Search keys<br><input type="search" id="search" autocomplete="off" spellcheck="false" maxlength="1024"></label>
      <label>Show<br><select id="show"><option value="all">all leases</option><option value="doubtful">in doubt</option><option value="waited">waited for</option></select></label>
      <button id="ask" disabled>Look up this exact key</button>
    </form>
    <div class="scroll">
      <table>
        <caption>Leases held by this process: <span id="found">0</span></caption>
        <thead><tr><th scope="col">key</th><th scope="col">owner</th><th scope="col">generation</th><th scope="col" class="num">held for</th><th scope="col">left</th><th scope="col">state</th><th scope="col" class="num">waiting</th><th scope="col" class="num">writes</th></tr></thead>
        <tbody id="leases"></tbody>
      </table>
    </div>
    <p class="empty" id="none"></p>
    <div class="pager"><button type="button" id="back">Previous</button><span class="small quiet" id="pages"></span><button type="button" id="next">Next</button></div>
  </section>

  <section class="panel" aria-label="Refused writes">
    <p class="empty" id="no-refusals">No write was refused.</p>
    <div class="scroll" id="refusal-table" hidden>
      <table>
        <caption>Refused writes, newest first</caption>
        <thead><tr><th scope="col">time</th><th scope="col">key</th><th scope="col">generation · owner</th><th scope="col">refused with</th><th scope="col">gave way to</th></tr></thead>
        <tbody id="refusals"></tbody>
      </table>
    </div>
  </section>

  <p class="quiet small">A process hears of its own leases only: another instance of the application has a board of its own. A key that is looked up is asked of the lease store and the database, whoever holds it. History is kept in memory, for the keys that were last in use.</p>
</main>

<dialog id="dialog" aria-labelledby="dialog-title">
  <form id="revoke-form">
    <h2 id="dialog-title">Revoke <span class="mono" id="revoke-key"></span></h2>
    <p>From then on the database refuses the holder's writes, and the key is free. Whoever waits for it gets it next.</p>
    <label for="reason">Reason, kept in the audit</label>
    <input id="reason" required maxlength="1000" autocomplete="off">
    <p class="bad" id="refusal" role="alert"></p>
    <div class="acts"><button class="danger" id="do-revoke">Revoke</button><button type="button" id="cancel">Cancel</button></div>
  </form>
</dialog>
<script>${script}</script>
</body>
</html>
`;
