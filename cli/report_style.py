"""The style sheet of report.html: no file, font or address outside the page."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f6f3; --card: #ffffff; --ink: #1b2024; --muted: #626b74; --grid: #e6e7e4;
  --accent: #0b7a6f; --warm: #b4541a; --neutral: #8d97a1; --wash: #e3f1ee; --alarm: #b3261e;
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", sans-serif;
  --mono: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171a; --card: #1c2024; --ink: #e7e9ea; --muted: #9aa4ad; --grid: #2e3439;
    --accent: #4fc9b8; --warm: #f0a25e; --neutral: #7f8b96; --wash: #1b3431; --alarm: #ff8a80;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 var(--sans); overflow-wrap: break-word;
}
main { max-width: 1120px; margin: 0 auto; padding: 48px 28px 72px; }
h1, h2, h3, p, dl, figure, table { margin: 0; }
h1 {
  font-size: clamp(1.75rem, 1.15rem + 2.6vw, 2.75rem); line-height: 1.14; font-weight: 680;
  letter-spacing: -0.022em; max-width: 22em; text-wrap: balance; overflow-wrap: anywhere;
}
h2 { font-size: 1.3rem; line-height: 1.3; font-weight: 650; letter-spacing: -0.01em; }
h3 { font-size: 1rem; font-weight: 650; }
code, pre { font-family: var(--mono); font-size: 0.86em; }
.kicker { color: var(--muted); font-size: 0.9rem; margin-bottom: 14px; }
.lead { color: var(--muted); font-size: 1.1rem; margin-top: 14px; max-width: 46em; }
.verdict { margin-top: 10px; font-weight: 560; color: var(--accent); }
.verdict.differs { color: var(--alarm); }
section { margin-top: 56px; }
section > p { color: var(--muted); margin-top: 6px; max-width: 46em; }
.tiles {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px;
  margin-top: 32px;
}
.tile, .card {
  background: var(--card); border: 1px solid var(--grid); border-radius: 12px;
}
.tile {
  padding: 16px 18px 14px; display: grid; grid-template-rows: 1fr auto auto; align-content: start;
}
.tile dt { color: var(--muted); font-size: 0.86rem; }
.tile dd { margin: 2px 0 0; }
.tile .figure { font-size: 1.7rem; line-height: 1.25; font-weight: 650; letter-spacing: -0.02em; }
.tile .note { min-height: 2.8em; color: var(--muted); font-size: 0.84rem; line-height: 1.4; }
.figure, td, .num { font-variant-numeric: tabular-nums; }
.card { margin-top: 18px; }
.scroll { overflow-x: auto; }
table { border-collapse: separate; border-spacing: 0; width: 100%; font-size: 0.93rem; }
th, td {
  padding: 11px 14px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--grid);
}
tr > :first-child { text-align: left; padding-left: 18px; }
tr > :last-child { padding-right: 18px; }
tbody tr:last-child > * { border-bottom: 0; }
thead th { color: var(--muted); font-weight: 500; font-size: 0.84rem; vertical-align: bottom; }
th small, td small { display: block; font-size: 0.92em; opacity: 0.85; }
td small { color: var(--muted); font-size: 0.82em; opacity: 1; }
tbody th { font-weight: 560; white-space: normal; overflow-wrap: break-word; min-width: 7em; }
.scroll tr > :first-child { position: sticky; left: 0; background: var(--card); max-width: 45vw; }
.scroll tr.adaptive > * { background: var(--wash); }
tr.adaptive > th { color: var(--accent); }
.text { text-align: left; white-space: normal; min-width: 15em; overflow-wrap: anywhere; }
.differs { color: var(--alarm); }
.plots {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr));
  gap: 18px; margin-top: 18px; align-items: stretch;
}
.plots .card { margin: 0; }
.plots figure { padding: 18px 20px 18px; }
.plots > div {
  display: grid; gap: 18px; align-content: start; grid-template-columns: minmax(0, 1fr);
}
.plots h3 { margin-bottom: 10px; }
.plots svg { display: block; width: 100%; height: auto; }
.plots svg * { stroke-linejoin: round; }
.plots svg text { font-family: var(--sans) !important; }
figcaption { color: var(--muted); font-size: 0.9rem; line-height: 1.5; margin-top: 12px; }
.bars { width: 120px; }
.bar { display: block; height: 4px; border-radius: 2px; background: var(--neutral); }
.facts {
  display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 230px), 1fr));
  gap: 16px 28px; padding: 20px;
}
.facts dt, .words dt { color: var(--muted); font-size: 0.86rem; }
.facts dd { margin: 1px 0 0; overflow-wrap: anywhere; }
.words { display: grid; grid-template-columns: 9.5em 1fr; gap: 10px 20px; padding: 20px; }
.words dt { font-size: 0.95rem; color: var(--ink); font-weight: 560; }
.words dd { margin: 0; color: var(--muted); }
pre { margin: 0; padding: 16px 20px; white-space: pre-wrap; overflow-wrap: anywhere; }
footer { margin-top: 48px; color: var(--muted); font-size: 0.88rem; }
@media (max-width: 560px) {
  main { padding: 28px 16px 48px; }
  section { margin-top: 42px; }
  .lead { font-size: 1.02rem; }
  .tiles { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 10px; margin-top: 24px; }
  .tile { padding: 12px 14px; }
  .tile .figure { font-size: 1.4rem; }
  .tile:last-child:nth-child(odd) { grid-column: 1 / -1; }
  .tile .note { min-height: 0; }
  th, td { padding: 9px 10px; }
  tr > :first-child { padding-left: 14px; }
  .bars { display: none; }
  .text { min-width: 8em; }
  .plots figure { padding: 14px 12px 16px; }
  .words { grid-template-columns: 1fr; gap: 2px; }
  .words dd { margin-bottom: 12px; }
}
@media print {
  main { max-width: none; padding: 0; }
  .card, .tile, tr { break-inside: avoid; }
}
"""
