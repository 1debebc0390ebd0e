// Lab: toggles, a live curve of the run in the child process, the last run as a ghost, a table.

import uPlot from "uplot";
import { createChart } from "./chart.js";
import { createControls } from "./controls.js";
import { announcer, dataTable, errorBox, format, frame, h, throttle } from "./parts.js";
import { Points, summary } from "./points.js";
import { createRuns } from "./runs.js";

// columns of a curve, as perfkit/widgets/lab.py sends them
const WIDTH = 5; // seconds, step ms, data wait ms, memory MiB, quiet (1 or 0)
const QUIET = 4;
const CURVES = [
  { label: "step time", unit: "ms", axis: "left", color: "c1" },
  { label: "data wait", unit: "ms", axis: "left", color: "c2", fill: true, width: 1.5 },
  { label: "memory", unit: "MiB", axis: "right", color: "c3", dash: [2, 3], width: 1.5 },
];
const GHOSTS = CURVES.map((one) => ({ ...one, ghost: true, fill: false, width: 1.25, dash: [6, 4] }));

export default () => {
  let live = new Points(WIDTH);
  let ghost = new Points(WIDTH);
  let run = 0;
  let ghostRun = 0;
  const views = new Set();
  const all = (action) => {
    for (const view of views) view[action]();
  };

  return {
    initialize({ model }) {
      const restore = () => {
        const kept = model.get("curves");
        if (kept?.live) {
          run = kept.live.run;
          live.restore(kept.live);
        }
        if (kept?.ghost) {
          ghostRun = kept.ghost.run;
          ghost.restore(kept.ghost);
        }
      };
      restore();
      const message = (content, buffers) => {
        if (content.type === "file") {
          download(content.name, new Blob([buffers[0]], { type: content.mime }));
          return;
        }
        if (content.type === "run" && content.run !== run) {
          if (live.total) {
            ghost = live;
            ghostRun = run;
          }
          live = new Points(WIDTH);
          run = content.run;
          all("changed");
        }
        if (content.type === "points" && content.run === run) {
          if (live.append(content.first, content.rows, buffers[0])) all("changed");
        }
      };
      model.on("msg:custom", message);
      return () => model.off("msg:custom", message);
    },

    render({ model, el }) {
      const root = frame("lab");
      root.dataset.lab = model.get("lab_id");
      const errors = errorBox();
      const { guard } = errors;
      const send = guard((content) => model.send(content));
      const title = model.get("title");
      const name = title || "Lab";

      const state = h("span", { class: "pk-state" });
      const line = h("span", { class: "pk-line" });
      const newControls = () =>
        createControls(model.get("controls"), (name, index) => send({ type: "set", name, index }));
      let controls = newControls();
      const button = (text, content, kind) =>
        h(
          "button",
          { type: "button", class: `pk-button ${kind ?? ""}`, onclick: () => send(content()) },
          text,
        );
      const start = button("Start", () => ({ type: "start" }), "pk-primary pk-start");
      const pause = button("Pause", () => ({ type: model.get("status").state === "paused" ? "resume" : "pause" }), "pk-pause");
      const stop = button("Stop", () => ({ type: "stop" }), "pk-stop");
      const savePng = guard(() => {
        const canvas = chart.png([title, model.get("status").line]);
        if (!canvas) {
          errors.show("there is no plot to export yet: press Start first");
          return;
        }
        canvas.toBlob((blob) => download(`${model.get("file_stem")}.png`, blob), "image/png");
      });
      const exports = [
        h("button", { type: "button", class: "pk-button", onclick: savePng, "data-export": "png" }, "PNG"),
        ...["json", "md"].map((format) =>
          h(
            "button",
            {
              type: "button",
              class: "pk-button",
              onclick: () => send({ type: "export", format }),
              "data-export": format,
            },
            { json: "JSON", md: "Markdown" }[format],
          ),
        ),
      ];
      const warning = h("p", { class: "pk-warning", role: "status" });
      const bar = h("div", { class: "pk-bar" });
      const track = h("div", { class: "pk-track", "aria-hidden": "true" }, bar);
      const chart = createChart({
        series: [...CURVES, ...GHOSTS],
        xLabel: "seconds of training",
        name,
        fromZero: true,
      });
      const runs = createRuns();
      const stats = () => [
        ...CURVES.map((one, i) => ({
          label: `run ${run || "–"}: ${one.label}`,
          unit: one.unit,
          stats: summary(live.columns[i + 1]),
        })),
        ...(ghost.total
          ? CURVES.map((one, i) => ({
              label: `run ${ghostRun}: ${one.label}`,
              unit: one.unit,
              stats: summary(ghost.columns[i + 1]),
            }))
          : []),
      ];
      const table = dataTable("What the plot shows, live points included", stats);
      const speaker = announcer();
      root.append(
        title ? h("div", { class: "pk-head" }, h("strong", { class: "pk-title" }, title)) : "",
        controls.element,
        h(
          "div",
          { class: "pk-actions" },
          h("div", { class: "pk-buttons", role: "group", "aria-label": "Run" }, start, pause, stop),
          h(
            "div",
            { class: "pk-buttons pk-export", role: "group", "aria-label": "Export" },
            h("span", { class: "pk-muted" }, "Export"),
            ...exports,
          ),
        ),
        h("div", { class: "pk-statusline" }, state, line),
        warning,
        track,
        chart.element,
        table.element,
        runs.element,
        speaker.element,
        errors.element,
      );
      el.append(root);
      // the picture that stays in a saved notebook is not needed beside the living one
      const hide = h("style", {}, `.pk-static-${model.get("lab_id")} { display: none; }`);
      root.append(hide);

      const describe = throttle(() => {
        const words = stats()
          .filter((one) => one.stats)
          .map((one) => `${one.label} median ${format(one.stats.median, one.unit)}`);
        chart.describe(`${name}: step time, data wait and memory over seconds of training. ${words.join(", ")}`);
      }, 1000);

      const view = {
        changed: guard(() => {
          root.dataset.points = live.total;
          root.dataset.run = run;
          root.dataset.ghost = ghost.total;
          const text = [
            live.folded || ghost.folded ? "older points are drawn as the lowest and highest of each group" : "",
          ];
          chart.showGhost(ghost.total ? `run ${ghostRun}, before this one` : "");
          chart.set(aligned(live, ghost), { bands: quietBands(live), text: text.filter(Boolean).join(" · ") });
          table.update();
          describe();
        }),
      };
      const statusChanged = guard(() => {
        const status = model.get("status");
        root.dataset.state = status.state;
        state.dataset.state = status.state;
        state.textContent = status.state;
        line.textContent = status.line;
        bar.style.width = `${Math.round(100 * (status.progress ?? 0))}%`;
        start.textContent = status.started ? "Restart" : "Start";
        pause.textContent = status.state === "paused" ? "Resume" : "Pause";
        pause.disabled = !status.busy;
        stop.disabled = !status.busy;
        speaker.say(`${status.state}. ${status.line}`);
      });
      const controlsChanged = guard(() => {
        // a run from a cell used a value that no control offered yet
        const next = newControls();
        controls.element.replaceWith(next.element);
        controls = next;
        choiceChanged();
      });
      const choiceChanged = guard(() => controls.show(model.get("choice")));
      const rowsChanged = guard(() => {
        runs.show(model.get("rows"));
        root.dataset.runs = model.get("rows").length;
        for (const one of exports) one.disabled = model.get("rows").length === 0 && live.total === 0;
      });
      const warningChanged = guard(() => {
        warning.textContent = model.get("warning");
        warning.hidden = !warning.textContent;
      });
      const problem = guard(() => errors.show(model.get("problem")));
      const listeners = {
        "change:status": statusChanged,
        "change:controls": controlsChanged,
        "change:choice": choiceChanged,
        "change:rows": rowsChanged,
        "change:warning": warningChanged,
        "change:problem": problem,
      };
      for (const [event, listener] of Object.entries(listeners)) model.on(event, listener);
      views.add(view);
      view.changed();
      for (const listener of Object.values(listeners))
        if (listener !== controlsChanged) listener();
      return () => {
        views.delete(view);
        for (const [event, listener] of Object.entries(listeners)) model.off(event, listener);
        for (const part of [speaker, table, describe]) part.cancel();
        chart.destroy();
      };
    },
  };
};

/** One table for uPlot: the live run's columns, then the ghost's, on a common x. */
function aligned(live, ghost) {
  const own = live.columns.slice(0, QUIET);
  if (!ghost.rows) return [...own, ...GHOSTS.map(() => own[0].map(() => null))];
  return uPlot.join([own, ghost.columns.slice(0, QUIET)]);
}

/** The x ranges in which steps were measured in quiet. */
function quietBands(points) {
  const [x, quiet] = [points.columns[0], points.columns[QUIET]];
  const bands = [];
  let from = null;
  for (let k = 0; k < x.length; k++) {
    if (quiet[k] === 1 && from === null) from = k ? x[k - 1] : 0;
    if (quiet[k] !== 1 && from !== null) {
      bands.push([from, x[k - 1]]);
      from = null;
    }
  }
  if (from !== null) bands.push([from, x[x.length - 1]]);
  return bands;
}

function download(name, blob) {
  const url = URL.createObjectURL(blob);
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
