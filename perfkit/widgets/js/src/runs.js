// The Lab's table of runs. All figures come as text from the kernel; only text is put in the page.

import { h } from "./parts.js";

const COLUMNS = [
  ["changed", "Settings"],
  ["step", "Step, median"],
  ["wait", "Data wait"],
  ["rate", "Samples/s"],
  ["peak", "Peak memory"],
  ["ratio", "Speed against run 1 (time per step)"],
];

export function createRuns() {
  const body = h("tbody");
  const table = h(
    "table",
    { class: "pk-table pk-runs" },
    h(
      "caption",
      {},
      "Runs. Figures come from quiet windows (shaded in the plot), in which nothing is sent to the " +
        "browser; the curve between them is live and a little slower for being watched. Speed is run 1’s " +
        "mean time per step ÷ the run’s, per sample where batches differ.",
    ),
    h(
      "thead",
      {},
      h("tr", {}, h("th", { scope: "col" }, "Run"), ...COLUMNS.map(([, head]) => h("th", { scope: "col" }, head))),
    ),
    body,
  );
  const element = h("div", { class: "pk-scroll" }, table);
  element.hidden = true;
  const show = (rows) => {
    element.hidden = rows.length === 0;
    const open = new Set([...body.querySelectorAll("details[open]")].map((d) => d.dataset.run));
    body.replaceChildren(...rows.flatMap((row) => [...lines(row, open)]));
  };
  return { element, show };
}

function* lines(row, open) {
  const failed = !["done", "stopped"].includes(row.state);
  const cells = COLUMNS.map(([key, head]) => {
    const cell = h("td", { "data-label": head, class: `pk-${key}` }, row[key].text);
    if (row[key].detail) cell.append(h("small", {}, row[key].detail));
    return cell;
  });
  yield h(
    "tr",
    { "data-run": row.run, "data-state": row.state, class: failed ? "pk-failed" : null },
    h(
      "th",
      { scope: "row" },
      String(row.run),
      row.state === "done" ? null : h("small", { class: "pk-tag" }, row.state),
    ),
    ...cells,
  );
  if (row.message || row.traceback || row.notes) {
    const trace = row.traceback
      ? h("details", { "data-run": row.run }, h("summary", {}, "Traceback"), h("pre", {}, row.traceback))
      : null;
    if (trace && open.has(String(row.run))) trace.open = true;
    yield h(
      "tr",
      { class: `pk-message${failed ? " pk-failed" : ""}` },
      h(
        "td",
        { colspan: COLUMNS.length + 1 },
        row.message ? h("div", {}, row.message) : null,
        row.notes ? h("div", { class: "pk-muted" }, row.notes) : null,
        trace,
      ),
    );
  }
}
