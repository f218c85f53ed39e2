"""The one script of a bench's page: tables that sort by a click on a heading. It loads nothing."""

import base64
import hashlib

SCRIPT = """
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  table.querySelectorAll("thead th").forEach((head, column) => {
    const button = head.querySelector("button");
    if (!button) return;
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      table.querySelectorAll("th[aria-sort]").forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = row => row.cells[column].dataset.v ?? row.cells[column].textContent.trim();
      const compare = (a, b) => {
        const x = value(a), y = value(b), m = parseFloat(x), n = parseFloat(y);
        if (Number.isNaN(m) !== Number.isNaN(n)) return Number.isNaN(m) ? 1 : -1;
        const order = Number.isNaN(m) ? x.localeCompare(y) : m - n;
        return down ? -order : order;
      };
      body.append(...[...body.rows].sort(compare));
    });
  });
}
"""
"""What was not measured stays at the end, whichever way the rest is sorted."""

DIGEST = "sha256-" + base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
"""What the page's security policy lets run: this text and no other."""

SORT_STYLE = """
th button {
  font: inherit; color: inherit; background: none; border: 0; padding: 0; cursor: pointer;
  text-align: inherit; white-space: nowrap;
}
th button::after { content: " \\2195"; opacity: 0.45; }
th[aria-sort="descending"] button::after { content: " \\2193"; opacity: 1; }
th[aria-sort="ascending"] button::after { content: " \\2191"; opacity: 1; }
th button:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.scroll table { min-width: max-content; }
tbody th small { display: block; color: var(--muted); font-weight: 400; }
.keeps { color: var(--accent); } .loses { color: var(--alarm); }
ul.refused { color: var(--muted); font-size: 0.93rem; padding-left: 1.2em; overflow-wrap: anywhere; }
details summary { cursor: pointer; font-weight: 560; padding: 14px 18px; }
"""
