// Lab: settings, a live curve of the run in the child process, the pinned run behind it, a table.

import uPlot from "uplot";
import { createChart } from "./chart.js";
import { createControls } from "./controls.js";
import { isDisconnected, watchKernel } from "./kernel.js";
import { replaceOutput } from "./notebook.js";
import { colorOf } from "./palette.js";
import { announcer, canPress, dataTable, errorBox, format, frame, h, letPress, throttle } from "./parts.js";
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
const ANSWER_WITHIN_MS = 5000;
const NO_KERNEL =
  "The kernel behind this Lab was restarted or has ended. The figures stay; run the cell again for a new Lab.";
const NO_ANSWER = "No answer from the kernel yet: it is busy, or it is gone.";
const GHOSTS = CURVES.map((one, i) => ({
  ...one,
  color: i ? one.color : "g1",
  ghost: true,
  fill: false,
  width: 1.25,
  dash: [6, 4],
}));

const COPY = "Copy as Markdown";

export default () => {
  let live = new Points(WIDTH);
  let ghost = new Points(WIDTH);
  let run = 0;
  let ghostRun = 0;
  const views = new Set();
  let alive = true;
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
      // a page opened on a Lab that has already run: earlier displays cannot be updated
      if (model.get("status").started) model.send({ type: "reopened" });
      const message = (content, buffers) => {
        if (content.type === "file") {
          const file = () => download(content.name, new Blob([buffers[0]], { type: content.mime }));
          if (!content.copy) file();
          else if (!navigator.clipboard?.writeText) file();
          else
            navigator.clipboard
              .writeText(new TextDecoder().decode(buffers[0]))
              .then(() => all("copied"), file);
          return;
        }
        if (content.type === "static") {
          replaceOutput(model, `pk-static-${model.get("lab_id")}`, content.bundle);
          return;
        }
        if (content.type === "heard") {
          all("heard");
          return;
        }
        if (content.type === "ghost") {
          ghostRun = content.run;
          ghost = new Points(WIDTH);
          if (ghostRun) ghost.restore({ ...content, data: buffers[0] });
          all("changed");
        }
        if (content.type === "run" && content.run !== run) {
          live = new Points(WIDTH);
          run = content.run;
          all("changed");
        }
        if (content.type === "points" && content.run === run) {
          if (live.append(content.first, content.rows, buffers[0])) all("changed");
        }
      };
      model.on("msg:custom", message);
      const stopWatching = watchKernel(model, {
        disconnected: () => [...views].some((view) => view.disconnected()),
        busy: () => model.get("status").busy,
        gone: () => {
          alive = false;
          all("kernelGone");
        },
      });
      return () => {
        model.off("msg:custom", message);
        stopWatching();
      };
    },

    render({ model, el }) {
      const root = frame("lab");
      root.dataset.lab = model.get("lab_id");
      const errors = errorBox();
      const { guard } = errors;
      let waiting = 0; // for the kernel to acknowledge a click
      const send = guard((content) => {
        if (!alive) return;
        model.send(content);
        clearTimeout(waiting);
        waiting = setTimeout(() => silent(true), ANSWER_WITHIN_MS);
      });
      const silence = h("p", { class: "pk-warning pk-silence", role: "status", hidden: true }, NO_ANSWER);
      const silent = (on) => {
        clearTimeout(waiting);
        silence.hidden = !on;
      };
      const title = model.get("title");
      const name = title || "Lab";

      const state = h("span", { class: "pk-state" });
      const line = h("span", { class: "pk-line" });
      const newControls = () =>
        createControls(model.get("controls"), (name, index) => send({ type: "set", name, index }));
      let controls = newControls();
      const button = (text, content, kind) => {
        const press = ({ currentTarget: pressed }) => {
          if (canPress(pressed)) send(content());
        };
        return h("button", { type: "button", class: `pk-button ${kind ?? ""}`, onclick: press }, text);
      };
      const startNow = () => {
        controls.flush(); // the run has what is chosen, also a moment ago
        return { type: "start" };
      };
      const start = button("Start", startNow, "pk-primary pk-start");
      const pause = button("Pause", () => ({ type: model.get("status").state === "paused" ? "resume" : "pause" }), "pk-pause");
      const stop = button("Stop", () => ({ type: "stop" }), "pk-stop");
      const savePng = guard(() => {
        const canvas = chart.png([model.get("shared_title"), model.get("status").shared, model.get("origin")]);
        if (!canvas) {
          errors.show("there is no plot to export yet: press Start first");
          return;
        }
        canvas.toBlob((blob) => download(`${model.get("file_stem")}.png`, blob), "image/png");
      });
      const exports = [
        h("button", { type: "button", class: "pk-button", onclick: savePng, "data-export": "png" }, "PNG"),
        ...["json", "md", "copy"].map((format) =>
          h(
            "button",
            {
              type: "button",
              class: "pk-button",
              onclick: () => send({ type: "export", format }),
              "data-export": format,
            },
            { json: "JSON", md: "Markdown", copy: COPY }[format],
          ),
        ),
      ];
      const warning = h("p", { class: "pk-warning", role: "status" });
      const bar = h("div", { class: "pk-bar" });
      const track = h("div", { class: "pk-track", "aria-hidden": "true" }, bar);
      const narrowing = h("div", { class: "pk-narrowing" });
      const chart = createChart({
        series: [...CURVES, ...GHOSTS],
        xLabel: "seconds of training",
        name,
        fromZero: true,
        bandLabel: "the steps that count",
      });
      const runs = createRuns(send);
      const stats = () => [
        ...CURVES.map((one, i) => ({
          label: `run ${run || "–"}: ${one.label}`,
          unit: one.unit,
          stats: summary(live.columns[i + 1]),
        })),
        ...(ghost.total
          ? CURVES.map((one, i) => ({
              label: `run ${ghostRun}, pinned: ${one.label}`,
              unit: one.unit,
              stats: summary(ghost.columns[i + 1]),
            }))
          : []),
      ];
      // the table's figures once the run has ended, else the median of the quiet steps
      const medians = () => {
        const known = runs.row(run)?.medians;
        if (known?.step) return [known.step, known.wait, known.memory];
        const quiet = live.columns[QUIET];
        if (!quiet.includes(1)) return null;
        return CURVES.map((_, i) => summary(live.columns[i + 1].filter((_, k) => quiet[k] === 1))?.median);
      };
      const table = dataTable("Every point of the plot, also those outside of quiet windows", stats);
      const origin = h("p", { class: "pk-note" });
      const speaker = announcer();
      const about = h(
        "details",
        { class: "pk-about" },
        h("summary", {}, "About the figures"),
        h("p", {}, "Figures come from quiet windows (shaded in the plot), in which nothing is sent to the browser. Between them the curve is live, and a little slower for being watched."),
        h("p", {}, "Figures of a run are those steps’ mean, with their median beside it. Speed is the pinned run’s mean ÷ this run’s, per sample where batches differ. A hollow bar is unconfirmed: the two runs took place one after the other, and the machine may have changed between them. Confirm alternates the two, in fresh processes; the bar is then solid, with a 95 % interval."),
      );
      root.append(
        h("div", { class: "pk-head" }, h("strong", { class: "pk-title" }, name)),
        controls.element,
        h(
          "div",
          { class: "pk-actions" },
          h("div", { class: "pk-buttons", role: "group", "aria-label": "Run" }, start, pause, stop),
          h("div", { class: "pk-statusline" }, state, line),
        ),
        warning,
        silence,
        track,
        narrowing,
        chart.element,
        runs.element,
        origin,
        h(
          "div",
          { class: "pk-foot" },
          table.element,
          about,
          h(
            "div",
            { class: "pk-buttons pk-export", role: "group", "aria-label": "Export" },
            h("span", { class: "pk-muted" }, "Export"),
            ...exports,
          ),
        ),
        speaker.element,
        errors.element,
      );
      el.append(root);
      // the static picture in a saved notebook is not needed beside the live one
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
          for (const [name, of] of [["c1", run], ["g1", ghostRun]])
            root.style.setProperty(`--pk-${name}`, colorOf(of));
          chart.recolor();
          chart.showGhost(ghost.total ? `run ${ghostRun}, pinned` : "");
          chart.set(aligned(live, ghost), {
            bands: quietBands(live),
            text: text.filter(Boolean).join(" · "),
            medians: medians(),
          });
          table.update();
          describe();
        }),
        heard: () => silent(false),
        copied: () => {
          const button = exports.at(-1);
          button.textContent = "Copied";
          speaker.say("Copied");
          setTimeout(() => (button.textContent = COPY), 2000);
        },
        disconnected: () => isDisconnected(root),
        kernelGone: guard(() => {
          silent(false);
          statusChanged();
          controls.enable(false);
          runs.enable(false);
          root.classList.add("pk-dead");
          for (const one of root.querySelectorAll("button"))
            if (one.dataset.export !== "png") one.disabled = true;
        }),
      };
      const statusChanged = guard(() => {
        const status = alive ? model.get("status") : { state: "no kernel", line: NO_KERNEL };
        root.dataset.state = status.state;
        root.dataset.confirming = status.confirming ?? "";
        state.dataset.state = status.state;
        state.textContent = status.state;
        line.textContent = status.line;
        bar.style.width = `${Math.round(100 * (status.progress ?? 0))}%`;
        narrowing.innerHTML = status.picture ?? ""; // an SVG of the kernel's own, of numbers alone
        narrowing.hidden = !status.picture;
        start.textContent = status.started ? "Run again" : "Start";
        start.classList.toggle("pk-primary", !status.busy);
        controls.say(
          !alive
            ? ""
            : status.started
            ? "Change a setting to start the next run."
            : "Choose the settings of run 1, then press Start.",
        );
        pause.textContent = status.state === "paused" ? "Resume" : "Pause";
        start.disabled = !alive;
        letPress(pause, status.busy && status.state !== "confirming");
        letPress(stop, status.busy);
        runs.enable(alive && !status.busy);
        speaker.say(`${status.state}. ${status.line}`);
      });
      const controlsChanged = guard(() => {
        // a value rules out another one, or a run from a cell used one that was not offered;
        // keyboard users keep the focus on the setting that they changed
        const focused = controls.focused();
        controls.flush();
        const next = newControls();
        controls.element.replaceWith(next.element);
        controls = next;
        controls.focus(focused);
        choiceChanged();
        statusChanged();
      });
      const choiceChanged = guard(() => controls.show(model.get("choice")));
      const rowsChanged = guard(() => {
        runs.show(model.get("rows"));
        root.dataset.runs = model.get("rows").length;
        root.dataset.pinned = model.get("rows").find((row) => row.pinned)?.run ?? "";
        view.changed(); // the legend has the table's medians
        for (const one of exports) one.disabled = model.get("rows").length === 0 && live.total === 0;
      });
      const originChanged = guard(() => {
        origin.textContent = model.get("origin");
        origin.hidden = !origin.textContent;
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
        "change:origin": originChanged,
        "change:warning": warningChanged,
        "change:problem": problem,
      };
      for (const [event, listener] of Object.entries(listeners)) model.on(event, listener);
      views.add(view);
      view.changed();
      for (const listener of Object.values(listeners))
        if (listener !== controlsChanged) listener();
      if (!alive) view.kernelGone();
      return () => {
        views.delete(view);
        clearTimeout(waiting);
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

/** The x ranges of quiet windows. */
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
