"""The page's style and script: no fonts, images or code from elsewhere, so that it reads the same offline."""

from __future__ import annotations

from gpuloom.report.axis import PALETTE


def style(policies: int) -> str:
    """The CSS for a page of `policies` results. Hiding policies needs no script: it hangs on the checkboxes."""
    light = "".join(f"--s{i}:{color};" for i, (color, _) in enumerate(PALETTE))
    dark = "".join(f"--s{i}:{color};" for i, (_, color) in enumerate(PALETTE))
    toggles = "".join(
        f"body:has(#p{i}:not(:checked)) .s{i}{{display:none}}"
        f"body:has(#g{i}:checked) .gantt:not(#for-g{i}){{display:none}}"
        for i in range(policies)
    )
    return f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}{_STYLE}{toggles}"


_STYLE = """
:root{color-scheme:light dark;--ground:#f5f6f8;--card:#fff;--ink:#1d2329;--soft:#5b6570;--rule:#dfe3e8;
--grid:#e8ebef;--axis:#aeb6bf;--best:#dff3ea;--best-ink:#00563f;--focus:#0072b2;--wait:#8a939d}
@media (prefers-color-scheme:dark){:root{--ground:#12161a;--card:#1b2026;--ink:#e8ebee;--soft:#a3adb7;
--rule:#323a43;--grid:#2a3138;--axis:#5b6570;--best:#123c30;--best-ink:#7fe0bd;--focus:#4aa8e0;--wait:#77818c}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1280px;margin:0 auto;padding:28px 20px 48px}
h1{font-size:26px;line-height:1.25;margin:0 0 6px;overflow-wrap:anywhere}
h2{font-size:17px;margin:0 0 4px}
section,.tile{background:var(--card);border:1px solid var(--rule);border-radius:10px}
section{padding:18px 20px;margin-top:18px;min-width:0}
p{margin:0}
.facts{color:var(--soft);overflow-wrap:anywhere}
.hint,.none{color:var(--soft);font-size:13.5px;margin-bottom:10px}
.warn{margin-top:14px;padding:10px 14px;border-left:4px solid var(--s1);background:var(--card);border-radius:4px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(210px,1fr));gap:14px;margin-top:20px}
.tile{padding:14px 16px}
.tile b{display:block;font-size:24px;line-height:1.3;font-weight:650}
.tile span{display:block;color:var(--soft);font-size:13.5px;overflow-wrap:anywhere}
.grid2{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:18px;margin-top:18px}
.grid2 section{margin:0}
@media (max-width:900px){.grid2{grid-template-columns:minmax(0,1fr)}}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:14px}
th,td{padding:7px 10px;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}
tbody tr:last-child>*{border-bottom:0}
th:first-child,td:first-child{text-align:left;padding-left:4px}
tbody th{font-weight:600}
thead th{color:var(--soft);font-weight:600;font-size:13px;vertical-align:bottom}
thead button{all:unset;cursor:pointer}
thead button:focus-visible,.pick input:focus-visible+span{outline:2px solid var(--focus);outline-offset:2px;
border-radius:3px}
th[aria-sort=ascending] button::after{content:" \\2191"}
th[aria-sort=descending] button::after{content:" \\2193"}
tbody tr:hover{background:var(--ground)}
td.best{font-weight:650}
td.best span{background:var(--best);color:var(--best-ink);border-radius:5px;padding:2px 6px;margin-right:-6px}
.small{color:var(--soft);font-weight:400;font-size:12.5px}
.key{display:inline-block;width:24px;height:10px;margin-right:7px;vertical-align:baseline}
.key path{fill:none;stroke-width:3}
.pick{border:0;margin:0;padding:0;display:flex;flex-wrap:wrap;gap:6px 16px;min-width:0}
.pick legend{float:left;padding:0;margin-right:16px;color:var(--soft);font-size:13.5px}
.pick label{cursor:pointer;white-space:nowrap;font-size:14px}
.pick input{margin:0 6px 0 0;vertical-align:-1px;accent-color:var(--focus)}
.toggles{position:sticky;top:0;z-index:2;padding:10px 20px;box-shadow:0 2px 8px #0000000f}
.chart{display:block;width:100%;height:auto;min-width:440px;font-size:12px}
.gantt .chart{min-width:900px;font-size:11px}
.chart text{fill:var(--soft)}
.chart .row{fill:var(--ink)}
.chart .title{font-size:12.5px}
.gantt .chart .title{font-size:12px}
.grid{stroke:var(--grid)}
.axis{stroke:var(--axis)}
.line{fill:none;stroke-linejoin:round}
.one{stroke:var(--soft);stroke-dasharray:4 3}
.wait{stroke:var(--wait);fill:none}
.cross{stroke:var(--soft);visibility:hidden}
.gantt{margin-top:12px}
.node{fill:var(--ground)}
.run{stroke:var(--card);stroke-width:.6}
.gantt h3{font-size:14px;margin:0 0 4px}
dl{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:6px 18px;margin:8px 0 0;font-size:14px}
dt{font-weight:600}
dd{margin:0;color:var(--soft)}
@media (max-width:600px){dl{grid-template-columns:minmax(0,1fr)}dd{margin-bottom:6px}}
.settings th{width:1%;min-width:170px;padding-right:24px}
.settings td,.settings th{vertical-align:top;white-space:normal;overflow-wrap:anywhere;text-align:left}
footer{color:var(--soft);font-size:13px;margin-top:20px}
#tip{position:fixed;z-index:9;pointer-events:none;background:var(--card);color:var(--ink);
border:1px solid var(--axis);border-radius:6px;padding:7px 10px;font-size:13px;line-height:1.45;
box-shadow:0 4px 14px #0003;max-width:360px;white-space:pre-line;overflow-wrap:anywhere}
#tip[hidden]{display:none}
#tip div{display:flex;justify-content:space-between;gap:18px;white-space:nowrap}
#tip i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:6px}
#tip b{font-variant-numeric:tabular-nums}
@media print{.toggles{position:static}section{break-inside:avoid}}
"""

SCRIPT = """
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip");
  const place = (event) => {
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    let x = event.clientX + 16, y = event.clientY + 16;
    if (x + box.width > innerWidth - 8) x = event.clientX - box.width - 16;
    if (y + box.height > innerHeight - 8) y = event.clientY - box.height - 16;
    tip.style.left = Math.max(8, x) + "px";
    tip.style.top = Math.max(8, y) + "px";
  };
  const duration = (s) => {
    const two = (n) => String(n).padStart(2, "0");
    if (s < 60) return (s >= 10 || s === Math.floor(s) ? Math.round(s) : s.toPrecision(2)) + "s";
    const whole = Math.round(s), minutes = Math.round(s / 60), hours = Math.round(s / 3600);
    if (whole < 3600) return Math.floor(whole / 60) + "m " + two(whole % 60) + "s";
    if (minutes < 1440) return Math.floor(minutes / 60) + "h " + two(minutes % 60) + "m";
    return Math.floor(hours / 24) + "d " + two(hours % 24) + "h";
  };
  const written = {
    percent: (value) => (100 * value).toFixed(1) + "%",
    number: (value) => value >= 100 ? Math.round(value).toLocaleString("en") : value.toFixed(1),
  };
  const valueAt = (series, x) => {
    if (series.dx) return x > series.end ? null : series.y[Math.min(Math.floor(x / series.dx), series.y.length - 1)];
    let low = 0, high = series.x.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (series.x[middle] <= x) low = middle + 1; else high = middle;
    }
    return low ? series.y[low - 1] : series.x.length ? 0 : null;
  };
  for (const [key, chart] of Object.entries(data.charts)) {
    const svg = document.getElementById(key), cross = svg.querySelector(".cross"), axis = chart.x;
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const px = (event.clientX - box.left) / box.width * chart.width;
      if (px < axis.from || px > axis.to) { tip.hidden = true; cross.style.visibility = ""; return; }
      const part = (px - axis.from) / (axis.to - axis.from);
      const x = axis.log ? axis.low * Math.pow(axis.high / axis.low, part) : axis.low + part * (axis.high - axis.low);
      const head = document.createElement("div");
      head.append((axis.log ? "within " : "after ") + duration(x));
      tip.replaceChildren(head);
      chart.series.map((series, i) => [i, valueAt(series, x)])
        .filter(([i, value]) => value !== null && document.getElementById("p" + i).checked)
        .sort((a, b) => b[1] - a[1])
        .forEach(([i, value]) => {
          const row = document.createElement("div"), name = document.createElement("span");
          const swatch = document.createElement("i"), number = document.createElement("b");
          swatch.style.background = "var(--s" + i % data.colors + ")";
          name.append(swatch, data.names[i]);
          number.append(written[chart.kind](value));
          row.append(name, number);
          tip.append(row);
        });
      cross.setAttribute("transform", "translate(" + px.toFixed(1) + ")");
      cross.style.visibility = "visible";
      place(event);
    });
    svg.addEventListener("pointerleave", () => { tip.hidden = true; cross.style.visibility = ""; });
  }
  for (const svg of document.querySelectorAll("svg.chart")) {  // the browser's own tooltip would cover ours
    const title = svg.querySelector(":scope>title");
    svg.setAttribute("aria-label", title.textContent);
    svg.setAttribute("aria-describedby", svg.querySelector(":scope>desc").id);
    svg.removeAttribute("aria-labelledby");
    title.remove();
  }
  document.addEventListener("pointermove", (event) => {
    const title = event.target.querySelector && event.target.querySelector(":scope>title");
    if (title && event.target.matches("rect,text")) { event.target.dataset.tip = title.textContent; title.remove(); }
    if (event.target.dataset && event.target.dataset.tip) { tip.textContent = event.target.dataset.tip; place(event); }
    else if (!event.target.closest || !event.target.closest("svg.chart:has(.cross)")) tip.hidden = true;
  });
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const key = (row) => row.cells[column].dataset.v;
        const rows = [...table.tBodies[0].rows];
        rows.sort((a, b) => {
          const [u, v] = [key(a), key(b)];
          if (u === "" || v === "") return (u === "") - (v === "");
          const order = column ? u - v : u.localeCompare(v, "en", {numeric: true});
          return down ? -order : order;
        });
        table.tBodies[0].append(...rows);
      });
    });
  }
})();
"""
