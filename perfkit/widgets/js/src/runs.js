// The Lab's table of runs. All figures come from the kernel as text, and enter the page as text.

import { bar, barReach, pinIcon, spark, sparkTop, stack } from "./bars.js";
import { morph } from "./morph.js";
import { colorOf, lookOf } from "./palette.js";
import { canPress, h, letPress } from "./parts.js";

/** `send(content)` reports a click on Pin or Confirm to the kernel. */
export function createRuns(send) {
  const speedHead = h("th", { scope: "col" });
  // the buttons' keys say what they ask for: "pin-2", "confirm-3"
  const pressed = ({ target }) => {
    const button = target.closest("button");
    if (!button || button.getAttribute("aria-pressed") === "true" || !canPress(button)) return;
    const [type, run] = button.dataset.key.split("-");
    send({ type, run: Number(run) });
  };
  const body = h("tbody", { onclick: pressed });
  const heads = ["Run", "Settings", "Step time", "Mean step", "Data wait", "Samples/s", "Peak memory"];
  const table = h(
    "table",
    { class: "pk-table pk-runs" },
    h("caption", { class: "pk-hidden" }, "Runs"),
    h("thead", {}, h("tr", {}, ...heads.map((head) => h("th", { scope: "col" }, head)), speedHead)),
    body,
  );
  const key = h("ul", { class: "pk-legend pk-phase-key", "aria-hidden": "true" });
  const element = h("div", {}, h("div", { class: "pk-scroll" }, table), key);
  element.hidden = true;
  let shown = [];
  let idle = true; // whether a comparison can be started

  const show = (rows) => {
    shown = rows;
    element.hidden = rows.length === 0;
    const pinned = rows.find((row) => row.pinned);
    const speed = pinned ? `Speed against run ${pinned.run}` : "Speed";
    speedHead.textContent = speed;
    const scale = { top: sparkTop(rows), reach: barReach(rows), speed, pinned };
    const left = body.contains(document.activeElement) && document.activeElement.closest("tr");
    morph(body, h("tbody", {}, ...rows.flatMap((row) => lines(row, scale))));
    // a Confirm goes away when it is done: the focus stays in its row
    if (left && !body.contains(document.activeElement))
      left.querySelector(".pk-pin")?.focus({ preventScroll: true });
    showKey(rows);
    enable(idle);
  };

  /** What the colours of the phases mean; of those alone that some run has. */
  const showKey = (rows) => {
    const labels = new Map(rows.flatMap((row) => row.phases.parts.map((p) => [p.phase, p.label])));
    key.hidden = labels.size === 0;
    key.replaceChildren(
      h("li", { class: "pk-muted" }, "Where a step's time goes:"),
      ...[...labels].map(([phase, label]) =>
        h("li", {}, h("span", { class: "pk-swatch", style: `background:${lookOf(phase)[0]}` }), label),
      ),
    );
  };

  const enable = (on) => {
    idle = on;
    for (const button of body.querySelectorAll(".pk-confirm")) letPress(button, on);
  };

  function lines(row, { top, reach, speed, pinned }) {
    const failed = !["done", "stopped"].includes(row.state);
    const cell = (key, label, ...more) =>
      h(
        "td",
        { "data-label": label, class: `pk-${key}`, title: row[key].title || null },
        ...more,
        h("span", {}, row[key].text),
        row[key].detail ? h("small", {}, row[key].detail) : null,
      );
    const line = h(
      "tr",
      {
        "data-key": `run-${row.run}`,
        "data-run": row.run,
        "data-state": row.state,
        "data-pinned": row.pinned,
        style: `--pk-c1:${colorOf(row.run)}`,
        class: [
          failed ? "pk-failed" : "",
          row.pinned ? "pk-pinned" : "",
          row.pinnable ? "" : "pk-unmeasured",
        ].join(" "),
      },
      h(
        "th",
        { scope: "row" },
        row.pinnable ? pin(row) : h("span", { class: "pk-no-pin" }),
        h("span", { class: "pk-run-dot", "aria-hidden": "true" }),
        String(row.run),
        row.state === "done" ? null : h("small", { class: "pk-tag" }, row.state),
      ),
      settingsCell(row),
      h(
        "td",
        { "data-label": "Step time", class: "pk-course", title: row.phases.words || null },
        spark(row.spark, top),
        stack(row.phases.parts, row.phases.words) ?? unseen(row),
      ),
      cell("step", "Mean step"),
      cell("wait", "Data wait"),
      cell("rate", "Samples/s"),
      cell("peak", "Peak memory"),
      speedCell(row, speed, reach, pinned),
    );
    return row.message || row.traceback ? [line, below(row, failed)] : [line];
  }

  function settingsCell(row) {
    const notes = row.notes.map((note) => h("li", {}, note));
    const summary = notes.length === 1 ? "1 note" : `${notes.length} notes`;
    return h(
      "td",
      { "data-label": "Settings", class: "pk-changed" },
      h("span", {}, row.changed.text),
      notes.length ? fold(row, "notes", summary, h("ul", {}, ...notes)) : null,
    );
  }

  function fold(row, key, summary, content) {
    const details = { class: "pk-fold", "data-key": `${key}-${row.run}` };
    return h("details", details, h("summary", {}, summary), content);
  }

  /** In place of the bar of where a step's time goes. */
  function unseen(row) {
    const { why_not } = row.phases;
    if (!why_not) return null;
    const words = `Where a step's time goes was not seen: ${why_not}`;
    return fold(row, "unseen", "no phases", h("p", {}, words));
  }

  function pin(row) {
    const words = row.pinned
      ? `Run ${row.run} is pinned: everything refers to it`
      : `Pin run ${row.run}: compare everything with it`;
    return h(
      "button",
      {
        type: "button",
        class: "pk-pin",
        "data-key": `pin-${row.run}`,
        "aria-pressed": String(row.pinned),
        "aria-label": words,
        title: words,
      },
      pinIcon(),
    );
  }

  function speedCell(row, label, reach, pinned) {
    const { kind, text, detail, why } = row.ratio;
    const measured = row.ratio.value !== null;
    return h(
      "td",
      { "data-label": label, class: "pk-ratio", "data-kind": kind, title: why || null },
      h("div", { class: "pk-speed" }, measured ? bar(row.ratio, reach) : null, h("span", {}, text)),
      detail || kind === "unconfirmed"
        ? h(
            "small",
            {},
            detail,
            kind === "unconfirmed"
              ? h(
                  "button",
                  {
                    type: "button",
                    class: "pk-confirm",
                    "data-key": `confirm-${row.run}`,
                    "aria-label": `Confirm: alternate run ${row.run} and run ${pinned.run}`,
                    title: `Alternates run ${row.run} and run ${pinned.run}, in fresh processes (30 s or more)`,
                  },
                  "Confirm",
                )
              : null,
          )
        : null,
    );
  }

  function below(row, failed) {
    return h(
      "tr",
      { class: `pk-message${failed ? " pk-failed" : ""}`, "data-key": `below-${row.run}`, "data-of": row.run },
      h(
        "td",
        { colspan: heads.length + 1 },
        row.message ? h("div", {}, row.message) : null,
        row.traceback ? fold(row, "traceback", "Traceback", h("pre", {}, row.traceback)) : null,
      ),
    );
  }

  return { element, show, enable, row: (run) => shown.find((one) => one.run === run) };
}
