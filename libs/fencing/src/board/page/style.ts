/** One look for the board and for pages that go with it. No colour says anything that a shape or a word does not say too. */
export const STYLE = String.raw`
:root {
  color-scheme: light dark;
  --bg: #f7f7f5; --panel: #fff; --line: #e0dfda; --ink: #1d2125; --quiet: #61666c; --accent: #0b62c4;
  --bar: #a9b4c0; --live: #4a90e2; --good: #1a7f45; --bad: #c02b2b; --doubt: #a35c00; --doubt-bg: #f4c67a; --wash: #eef4fb;
}
@media (prefers-color-scheme: dark) {
  :root {
    --bg: #14171a; --panel: #1c2024; --line: #32373d; --ink: #e7e9ea; --quiet: #a2a9b0; --accent: #7db6f5;
    --bar: #59636d; --live: #3f7fc9; --good: #5bc98a; --bad: #ff8078; --doubt: #f0b35a; --doubt-bg: #7a5518; --wash: #1f2a36;
  }
}
* { box-sizing: border-box; }
[hidden] { display: none !important; }
body { margin: 0; background: var(--bg); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main, .top { max-width: 1180px; margin: 0 auto; padding: 0 24px; }
.top { display: flex; flex-wrap: wrap; align-items: baseline; gap: 4px 16px; padding-top: 22px; padding-bottom: 12px; }
.skip { position: absolute; left: -999px; }
.skip:focus { left: 24px; top: 8px; background: var(--panel); padding: 6px 10px; }
h1 { font-size: 20px; margin: 0; letter-spacing: -.01em; }
h2 { font-size: 15px; margin: 0 0 10px; }
h3 { font-size: 13px; margin: 18px 0 6px; color: var(--quiet); font-weight: 600; }
p { margin: 0 0 10px; max-width: 72ch; }
a { color: var(--accent); }
code, .mono { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: .92em; overflow-wrap: anywhere; }
.quiet { color: var(--quiet); }
.small { font-size: 13px; }
.panel { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 16px 18px; margin-bottom: 16px; }
.figures { display: flex; flex-wrap: wrap; gap: 8px 30px; margin: 0 0 16px; padding: 0; list-style: none; }
.figures b { font-size: 20px; font-weight: 600; font-variant-numeric: tabular-nums; margin-right: 5px; color: var(--ink); }
.state::before { content: ""; display: inline-block; width: 8px; height: 8px; border-radius: 50%; background: var(--quiet); margin-right: 7px; }
.state.on::before { background: var(--good); }
.alarm { border-left: 4px solid var(--doubt); }
.tools { display: flex; flex-wrap: wrap; gap: 10px 14px; align-items: end; margin-bottom: 12px; }
label { display: block; font-size: 13px; color: var(--quiet); }
input, select, button { font: inherit; color: inherit; border: 1px solid var(--line); border-radius: 6px; background: var(--bg); padding: 6px 10px; min-height: 36px; }
input[type=search] { width: min(300px, 78vw); }
button { cursor: pointer; }
button:hover:not(:disabled) { border-color: var(--quiet); }
button:disabled { opacity: .45; cursor: default; }
button.plain { border: 0; background: none; padding: 4px 0; min-height: 32px; color: var(--accent); text-align: left; }
button.plain:hover { text-decoration: underline; }
button.main { background: var(--accent); border-color: var(--accent); color: var(--panel); font-weight: 600; }
button.danger { border-color: var(--bad); color: var(--bad); }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: 8px; }
th { text-align: left; font-size: 12px; font-weight: 600; color: var(--quiet); white-space: nowrap; }
th, td { padding: 4px 16px 4px 0; border-bottom: 1px solid var(--line); vertical-align: middle; }
td { white-space: nowrap; }
td.wide { white-space: normal; min-width: 180px; }
th:last-child, td:last-child { padding-right: 0; }
tr.here td { background: var(--wash); }
.num { text-align: right; }
.left { display: inline-block; width: 72px; height: 6px; border-radius: 3px; background: var(--line); vertical-align: middle; margin-right: 8px; overflow: hidden; }
.left > i { display: block; height: 100%; background: var(--live); }
.doubtful .left > i { background: var(--doubt); }
.word { font-weight: 600; }
.bad { color: var(--bad); } .good { color: var(--good); } .doubt { color: var(--doubt); }
.facts { display: flex; flex-wrap: wrap; gap: 8px 32px; margin: 0 0 14px; }
.facts dt { font-size: 12px; color: var(--quiet); } .facts dd { margin: 0; }
.pager { display: flex; gap: 12px; align-items: center; margin-top: 12px; }
.empty { color: var(--quiet); padding: 10px 0; }
.head { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 10px; align-items: start; }
.acts { display: flex; gap: 8px; }
dialog { border: 1px solid var(--line); border-radius: 10px; background: var(--panel); color: var(--ink); padding: 22px; max-width: min(520px, 92vw); }
dialog::backdrop { background: rgb(0 0 0 / .45); }
dialog input { width: 100%; margin: 4px 0 14px; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 18px; list-style: none; margin: 8px 0 0; padding: 0; font-size: 13px; color: var(--quiet); }
.legend svg { width: 14px; height: 14px; margin-right: 5px; vertical-align: -2px; }
details { margin-top: 12px; } summary { cursor: pointer; color: var(--quiet); font-size: 13px; }
.timeline { display: block; width: 100%; overflow: hidden; }
.timeline text { fill: var(--ink); font-size: 12px; }
.timeline .sub { fill: var(--quiet); } .timeline .tick { fill: var(--quiet); font-size: 11px; }
.timeline .grid { stroke: var(--line); } .timeline .now { stroke: var(--accent); stroke-dasharray: 2 3; }
.timeline .bar { fill: var(--bar); } .timeline .bar.live { fill: var(--live); }
.timeline .expired { fill: none; stroke: var(--bar); stroke-dasharray: 3 3; }
.timeline .doubted { fill: var(--doubt-bg); } .timeline .halt { fill: var(--panel); stroke: var(--quiet); stroke-dasharray: 2 2; }
.timeline .end { stroke: var(--ink); stroke-width: 2; } .timeline .end.lost { stroke: var(--bad); stroke-width: 3; }
.timeline .because { stroke: var(--bad); stroke-dasharray: 3 3; fill: none; }
.timeline .verdict { font-weight: 600; } .timeline .verdict.bad { fill: var(--bad); } .timeline .verdict.good { fill: var(--good); }
.sign { stroke: var(--panel); stroke-width: 1.5; fill: var(--ink); }
.sign.activated { fill: var(--ink); } .sign.accepted { fill: var(--good); } .sign.stale, .sign.refused { stroke: var(--bad); stroke-width: 3; fill: none; }
.sign.unknown { fill: var(--doubt); } .sign.duplicate { fill: var(--panel); stroke: var(--good); stroke-width: 2; } .sign.healed { fill: var(--accent); }
.sign.overwrote { fill: var(--bad); } .sign.revoked { fill: var(--bad); }
@media (max-width: 640px) { main, .top { padding-left: 14px; padding-right: 14px; } .panel { padding: 14px 12px; } }
@media (prefers-reduced-motion: no-preference) { .left > i { transition: width .25s linear; } }
`.trim();
