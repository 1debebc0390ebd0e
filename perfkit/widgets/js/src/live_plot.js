// LivePlot: the curves of a loop that runs in the kernel, pushed as float32 rows.

import { createChart } from "./chart.js";
import { isDisconnected, watchKernel } from "./kernel.js";
import { plural } from "./numbers.js";
import { announcer, dataTable, errorBox, format, frame, h, throttle } from "./parts.js";
import { Points, summary } from "./points.js";
import { runLine } from "./run_line.js";

const STYLES = [
  { color: "c1" },
  { color: "c2", fill: true },
  { color: "c3", dash: [2, 3] },
  { color: "c4", dash: [8, 3] },
  { color: "c5", dash: [8, 3, 2, 3] },
];
const NO_KERNEL = "ended: the kernel was restarted or is gone";

export default () => {
  let points = null;
  let alive = true;
  const views = new Set();

  return {
    // here, not in render: the first messages arrive before the first view
    initialize({ model }) {
      points = new Points(1 + model.get("series").length);
      const restore = () => {
        const kept = model.get("history");
        if (kept?.rows && kept.total > points.total) points.restore(kept);
        for (const view of views) view.changed();
      };
      restore();
      const message = (content, buffers) => {
        if (content.type !== "points") return;
        if (content.facts) model.set("status", runLine(content.facts));
        else if (content.status) model.set("status", content.status);
        if (points.append(content.first, content.rows, buffers[0]))
          for (const view of views) view.changed();
      };
      model.on("msg:custom", message);
      model.on("change:history", restore);
      const stopWatching = watchKernel(model, {
        disconnected: () => [...views].some((view) => view.disconnected()),
        busy: () => false, // a loop may be silent for longer than any question should wait
        gone: () => {
          alive = false;
          for (const view of views) view.kernelGone();
        },
      });
      return () => {
        stopWatching();
        model.off("msg:custom", message);
        model.off("change:history", restore);
      };
    },

    render({ model, el }) {
      const root = frame("live");
      const errors = errorBox();
      const { guard } = errors;
      const speaker = announcer();
      const series = model
        .get("series")
        .map((one, i) => ({ ...one, ...STYLES[i % STYLES.length] }));
      const xLabel = model.get("x_label");
      const title = model.get("title");
      const chart = createChart({ series, xLabel, name: title });
      const status = h("span", { class: "pk-status" });
      const bar = h("div", { class: "pk-bar" });
      const track = h(
        "div",
        { class: "pk-track", role: "progressbar", "aria-label": "progress", "aria-valuemin": 0, "aria-valuemax": 100 },
        bar,
      );
      const stats = () =>
        series.map((one, i) => ({
          label: one.label,
          unit: one.unit,
          stats: summary(points.columns[i + 1]),
        }));
      const table = dataTable(title, stats);
      root.append(
        h("div", { class: "pk-head" }, h("strong", { class: "pk-title" }, title), status),
        track,
        chart.element,
        table.element,
        speaker.element,
        errors.element,
      );
      el.append(root);

      const describe = throttle(() => {
        const words = stats()
          .filter((one) => one.stats)
          .map((one) => `${one.label} now ${format(one.stats.last, one.unit)}, median ${format(one.stats.median, one.unit)}`);
        chart.describe(`${title}, ${plural(points.total, "point")} over ${xLabel}. ${words.join(". ")}`);
      }, 1000);

      const changed = guard(() => {
        root.dataset.points = points.total;
        chart.set(points.columns, {
          text: points.folded ? "older points are drawn as the lowest and highest of each group" : "",
        });
        table.update();
        describe();
      });
      const statusChanged = guard(() => {
        const { text, progress, state } = toldBy(model.get("status"), alive);
        root.dataset.state = state;
        status.textContent = text;
        track.hidden = progress === null;
        if (progress !== null) {
          bar.style.width = `${Math.round(100 * progress)}%`;
          track.setAttribute("aria-valuenow", Math.round(100 * progress));
        }
        speaker.say(text);
      });
      const problem = guard(() => errors.show(model.get("problem")));

      const view = { changed, kernelGone: statusChanged, disconnected: () => isDisconnected(root) };
      views.add(view);
      model.on("change:status", statusChanged);
      model.on("change:problem", problem);
      changed();
      statusChanged();
      problem();
      return () => {
        views.delete(view);
        model.off("change:status", statusChanged);
        model.off("change:problem", problem);
        for (const part of [speaker, table, describe]) part.cancel();
        chart.destroy();
      };
    },
  };
};

/** A loop that had not ended when its kernel went is not running any more. */
function toldBy(status, alive) {
  if (alive || status.state === "done") return status;
  const text = [status.text, NO_KERNEL].filter(Boolean).join(" · ");
  return { text, progress: null, state: "no kernel" };
}
