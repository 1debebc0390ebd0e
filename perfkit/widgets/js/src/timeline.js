// Timeline: a trace on a canvas. Python holds the events; the browser requests what it shows.

import { boxAt, unpack } from "./boxes.js";
import { isDisconnected, watchKernel } from "./kernel.js";
import { createLanes, ROW, RULER } from "./lanes.js";
import { plural } from "./numbers.js";
import { announcer, errorBox, frame, freshId, h, throttle } from "./parts.js";
import { onThemeChange, readTheme } from "./theme.js";
import { lookOf } from "./palette.js";
import { draw, formatTime } from "./timeline_draw.js";

const BUSY_AFTER_MS = 800;
const LOST_AFTER_MS = 20_000;
const MARGIN = 0.5; // of the viewport, requested on each side so that panning finds boxes there
const KEPT = 12; // replies to keep
const NARROWEST_US = 0.05;
const TALLEST = 460;
const TABLE_ROWS = 12;
const NO_KERNEL = "no kernel: showing what was loaded; run the cell again for the rest";
const KEYS =
  "Drag to pan, Ctrl or ⌘ and the wheel or W and S (+ and −) to zoom, A and D (← and →) to pan, ↑ and ↓ for other lanes, " +
  "Home and End for the ends, 0 for all. Tab goes to the next event of the lane, Enter opens it, Escape closes it. " +
  "/ searches, N and P go through what was found. C folds the lane.";

export default () => {
  const views = new Set();
  let alive = true;
  return {
    initialize({ model }) {
      const message = (content, buffers) => {
        for (const view of views) view.message(content, buffers);
      };
      model.on("msg:custom", message);
      const stopWatching = watchKernel(model, {
        disconnected: () => [...views].some((view) => view.disconnected()),
        busy: () => false, // a request without an answer says so by itself
        gone: () => {
          alive = false;
          for (const view of views) view.kernelGone();
        },
      });
      return () => {
        model.off("msg:custom", message);
        stopWatching();
      };
    },
    render({ model, el }) {
      const view = createView(model, el);
      views.add(view);
      if (!alive) view.kernelGone();
      return () => {
        views.delete(view);
        view.destroy();
      };
    },
  };
};

function createView(model, el) {
  const root = frame("timeline");
  const errors = errorBox();
  const { guard } = errors;
  const speaker = announcer();
  const me = freshId("timeline");
  const span = Math.max(model.get("span_us"), NARROWEST_US);
  const kinds = model.get("kinds");
  const steps = model.get("steps");
  const lanes = createLanes(model.get("lanes"));

  const whole = { start: -0.01 * span, end: 1.01 * span };
  let view = { ...whole };
  let scroll = 0;
  let answers = [];
  let selected = null;
  let query = "";
  let found = null;
  let theme = null;
  let size = { width: 600, height: 300, ratio: 1 };
  let waiting = null; // the query in flight
  let wanted = false; // another one is due after it
  let sequence = 0;
  let busyTimer = 0;
  let frameAsked = 0;
  const state = {};
  let alive = true;
  const send = (content) => alive && model.send(content);

  // ---- the page --------------------------------------------------------------------------
  const helpId = freshId("help");
  const canvas = h("canvas", {
    class: "pk-time-canvas",
    tabindex: 0,
    role: "application",
    "aria-roledescription": "timeline",
    "aria-label": `Timeline of ${model.get("title")}`,
    "aria-describedby": helpId,
  });
  const holder = h("div", { class: "pk-time-holder" }, canvas);
  const status = h("span", { class: "pk-status" });
  const notice = h("span", { class: "pk-time-notice", role: "status" });
  const hover = h("div", { class: "pk-time-hover" }, "\u00a0");
  const search = h("input", {
    type: "search",
    class: "pk-time-search",
    placeholder: "Search names",
    "aria-label": "search event names",
    spellcheck: "false",
    autocomplete: "off",
  });
  const count = h("span", { class: "pk-muted pk-time-count", "aria-live": "polite" });
  const button = (text, label, action, name) =>
    h("button", { type: "button", class: "pk-button", "aria-label": label, title: label, "data-do": name, onclick: guard(action) }, text);
  const details = h("section", { class: "pk-time-details", "aria-label": "chosen event" });
  details.hidden = true;
  const legend = h("ul", { class: "pk-legend", "aria-label": "colours" });
  const tableBody = h("tbody");
  const table = h(
    "details",
    { class: "pk-data" },
    h("summary", {}, "Largest events in view as a table"),
    h(
      "table",
      { class: "pk-table" },
      h("thead", {}, h("tr", {}, ...["Event", "Part of", "Start", "Duration", "Lane"].map((x) => h("th", { scope: "col" }, x)))),
      tableBody,
    ),
  );
  root.append(
    // the static picture for readers without a kernel is not needed beside the live widget
    h("style", {}, `.pk-static-${model.get("timeline_id")} { display: none; }`),
    h("div", { class: "pk-head" }, h("strong", { class: "pk-title" }, model.get("title")), h("span", { class: "pk-muted" }, model.get("summary"))),
    h(
      "div",
      { class: "pk-time-bar" },
      h("span", { class: "pk-buttons" }, search, button("‹", "previous match", () => go(-1), "previous"), button("›", "next match", () => go(1), "next"), count),
      h(
        "span",
        { class: "pk-buttons" },
        button("−", "zoom out", () => zoom(2), "out"),
        button("+", "zoom in", () => zoom(0.5), "in"),
        button("Step", "show the next step", nextStep, "step"),
        button("All", "show the whole trace", () => setView(whole.start, whole.end), "all"),
      ),
    ),
    h("div", { class: "pk-statusline" }, status, notice),
    holder,
    hover,
    legend,
    details,
    table,
    h("details", { class: "pk-data" }, h("summary", {}, "Keys and mouse"), h("p", { id: helpId, class: "pk-note" }, KEYS)),
    speaker.element,
    errors.element,
  );
  root.querySelector("[data-do=step]").hidden = steps.length === 0;
  el.append(root);

  // ---- what is shown ---------------------------------------------------------------------
  const width = () => view.end - view.start;
  const bottom = () => Math.max(0, lanes.height + RULER - size.height);

  function setView(start, end) {
    const least = NARROWEST_US;
    let w = Math.min(Math.max(end - start, least), whole.end - whole.start);
    let a = end - start === w ? start : (start + end) / 2 - w / 2;
    a = Math.min(Math.max(a, whole.start), whole.end - w);
    view = { start: a, end: a + w };
    changed();
    ask();
  }
  const pan = (share) => setView(view.start + share * width(), view.end + share * width());
  function zoom(factor, at = 0.5) {
    const w = Math.min(Math.max(width() * factor, NARROWEST_US), whole.end - whole.start);
    const fixed = view.start + at * width();
    setView(fixed - at * w, fixed - at * w + w);
  }
  function scrollTo(y) {
    scroll = Math.min(Math.max(y, 0), bottom());
    changed();
    ask();
  }
  function nextStep() {
    const middle = (view.start + view.end) / 2;
    const within = steps.findIndex(([a, b]) => a <= middle && middle < b && b - a > 0.5 * width());
    const [a, b] = steps[(within + 1) % steps.length];
    setView(a - 0.02 * (b - a), b + 0.02 * (b - a));
  }
  function show(event) {
    // bring an event into view: at least a hundredth of the width, not cut off
    lanes.reveal(event.row);
    const end = event.start + event.dur;
    if (end < view.start || event.start > view.end || event.dur < width() / 100 || event.dur > width()) {
      const w = Math.max(event.dur * 6, NARROWEST_US * 20);
      setView(event.start + event.dur / 2 - w / 2, event.start + event.dur / 2 + w / 2);
    }
    const y = lanes.rowY(event.row);
    if (y < scroll || y + ROW + RULER > scroll + size.height) scrollTo(y - size.height / 3);
  }

  /** The finest reply that covers the viewport and its rows, else the one that covers most. */
  function bestAnswer() {
    const rows = lanes.rowsBetween(scroll, scroll + size.height - RULER);
    let best = null;
    let rank = -1;
    for (const one of answers) {
      const cover = (Math.min(one.to, view.end) - Math.max(one.from, view.start)) / width();
      const inTrace = (Math.min(span, view.end) - Math.max(0, view.start)) / width();
      const full = cover >= inTrace - 1e-6 && (one.all || rows.every((r) => one.rows.has(r)));
      const score = full ? 10 + 1 / (1 + one.pixel) : Math.max(cover, 0);
      if (score > rank) [best, rank] = [one, score];
    }
    return best;
  }

  // ---- asking Python ---------------------------------------------------------------------
  const askSoon = throttle(() => {
    if (!alive) return;
    // a reply that never arrives (after a kernel restart) must not block the next request
    if (waiting && performance.now() - waiting.at < LOST_AFTER_MS) {
      wanted = true;
      return;
    }
    const rows = lanes.rowsBetween(scroll - 120, scroll + size.height + 120);
    const current = bestAnswer();
    const pixel = width() / size.width;
    if (current && covers(current, rows) && (current.pixel <= pixel * 1.5 || current.exact)) {
      settle();
      return;
    }
    sequence += 1;
    waiting = { id: `${me}:q${sequence}`, rows, at: performance.now() };
    const margin = MARGIN * width();
    send({
      type: "query",
      id: waiting.id,
      start: Math.max(view.start - margin, 0),
      end: Math.min(view.end + margin, span),
      pixels: Math.round((size.width * (Math.min(view.end + margin, span) - Math.max(view.start - margin, 0))) / width()),
      rows,
    });
    root.dataset.state = root.dataset.state === "busy" ? "busy" : "loading";
    clearTimeout(busyTimer);
    busyTimer = setTimeout(() => {
      root.dataset.state = "busy";
      notice.textContent = "kernel busy, showing what was loaded";
    }, BUSY_AFTER_MS);
  }, 60);
  const ask = guard(askSoon);
  const covers = (one, rows) =>
    one.from <= Math.max(view.start, 0) + 1e-9 &&
    one.to >= Math.min(view.end, span) - 1e-9 &&
    (one.all || rows.every((r) => one.rows.has(r)));
  function settle() {
    clearTimeout(busyTimer);
    root.dataset.state = "ready";
    notice.textContent = "";
    changed();
  }
  const message = guard((content, buffers) => {
    const id = content.id ?? "";
    if (!id.startsWith(`${me}:`)) return;
    if (content.type === "boxes" && waiting && id === waiting.id) {
      const boxes = unpack(content, buffers[0]);
      boxes.rows = new Set(waiting.rows);
      boxes.exact = boxes.count.every((n) => n === 1);
      answers = [...answers.filter((one) => one.all), ...answers.filter((one) => !one.all).slice(-KEPT), boxes];
      waiting = null;
      settle();
      if (wanted) {
        wanted = false;
        ask();
      }
    } else if (content.type === "details") {
      choose(content.details);
    } else if (content.type === "found" && content.text === query) {
      found = content;
      count.textContent = content.count ? `${(content.index + 1).toLocaleString("en")} of ${content.count.toLocaleString("en")}` : "no match";
      if (content.details) {
        show(content.details);
        choose(content.details);
      }
      changed();
    }
  });

  // ---- choosing --------------------------------------------------------------------------
  function choose(event) {
    selected = event;
    details.hidden = event === null;
    details.replaceChildren();
    if (event) {
      const jump = (flow) =>
        h(
          "button",
          { type: "button", class: "pk-button pk-time-flow", onclick: guard(() => { show(flow); request(flow.event); }) },
          `${flow.role === "launches" ? "→" : "←"} ${flow.name.slice(0, 80)}`,
        );
      details.append(
        h("div", { class: "pk-time-name" }, event.name),
        h("dl", {}, ...event.facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
        h("div", { class: "pk-buttons" }, ...event.flows.slice(0, 6).map(jump)),
      );
      speaker.say(`${event.name}, ${formatTime(event.dur)}`);
    }
    changed();
  }
  const request = (event) => send({ type: "details", id: `${me}:d${++sequence}`, event });
  /** A box was clicked or entered: show the details of a single event, zoom into a merged one. */
  function enter(boxes, i) {
    const start = boxes.origin + boxes.start[i];
    if (boxes.count[i] > 1) {
      const w = Math.max(boxes.dur[i] * 1.2, NARROWEST_US * 20);
      setView(start + boxes.dur[i] / 2 - w / 2, start + boxes.dur[i] / 2 + w / 2);
      speaker.say(`${boxes.count[i]} events`);
      return;
    }
    select(boxes, i);
    request(boxes.event[i]);
  }
  function select(boxes, i) {
    selected = {
      event: boxes.event[i],
      name: boxes.count[i] > 1 ? `${boxes.count[i]} events` : boxes.names[boxes.name[i]],
      row: boxes.row[i],
      start: boxes.origin + boxes.start[i],
      dur: boxes.dur[i],
      count: boxes.count[i],
    };
    speaker.say(`${selected.name}, ${formatTime(selected.dur)}`);
    hover.textContent = describe(boxes, i);
    changed();
  }
  const describe = (boxes, i) => {
    const name = boxes.names[boxes.name[i]];
    const many = boxes.count[i].toLocaleString("en");
    return boxes.count[i] > 1
      ? `${many} events in ${formatTime(boxes.dur[i])}, the longest ${name} · click to open up`
      : `${name} · ${formatTime(boxes.dur[i])} · ${kinds[boxes.kind[i]]}`;
  };
  /** Tab: the next visible box in the chosen one's row; false if there is none. */
  function tab(direction) {
    const boxes = state.boxes;
    if (!boxes) return false;
    const visible = (i) => boxes.origin + boxes.start[i] + boxes.dur[i] >= view.start && boxes.origin + boxes.start[i] <= view.end;
    const row = selected && boxes.first.has(selected.row) ? selected.row : lanes.rowsBetween(scroll, scroll + size.height - RULER).find((r) => boxes.first.has(r));
    if (row === undefined) return false;
    const inRow = [];
    for (let i = boxes.first.get(row); i < boxes.n && boxes.row[i] === row; i++) if (visible(i)) inRow.push(i);
    if (!inRow.length) return false;
    const here = selected ? inRow.findIndex((i) => boxes.event[i] === selected.event) : -1;
    const next = here < 0 ? (selected ? inRow.findIndex((i) => boxes.origin + boxes.start[i] > selected.start) : direction > 0 ? 0 : inRow.length - 1) : here + direction;
    if (next < 0 || next >= inRow.length) return false;
    select(boxes, inRow[next]);
    return true;
  }

  // ---- searching -------------------------------------------------------------------------
  const startSearch = throttle(() => {
    if (!query) {
      count.textContent = "";
      found = null;
      changed();
      return;
    }
    count.textContent = "searching …";
    send({ type: "search", id: `${me}:s${++sequence}`, text: query, from: Math.max(view.start, 0) });
  }, 250);
  search.addEventListener("input", guard(() => {
    query = search.value.trim().toLowerCase();
    found = null;
    startSearch();
  }));
  search.addEventListener("keydown", guard((event) => {
    if (event.key === "Enter") go(event.shiftKey ? -1 : 1);
    if (event.key === "Escape") canvas.focus();
  }));
  function go(direction) {
    if (!query || !found?.count) return;
    send({ type: "search", id: `${me}:s${++sequence}`, text: query, index: found.index + direction + (found.index + direction < 0 ? found.count : 0) });
  }

  // ---- drawing ---------------------------------------------------------------------------
  function changed() {
    if (frameAsked) return;
    frameAsked = requestAnimationFrame(() => {
      frameAsked = 0;
      paint();
    });
  }
  const paint = guard(() => {
    if (!theme?.bg) theme = readTheme(root); // empty until the page has the element and its styles
    scroll = Math.min(scroll, bottom());
    const boxes = bestAnswer();
    Object.assign(state, { theme, lanes, boxes, view, scroll, kinds, steps, selected, query });
    const seen = draw(canvas.getContext("2d"), size, state);
    const { dataset } = root;
    dataset.start = view.start.toFixed(3);
    dataset.end = view.end.toFixed(3);
    dataset.scroll = Math.round(scroll);
    dataset.boxes = seen.count;
    dataset.events = seen.events;
    dataset.selected = selected ? selected.event : "";
    dataset.selectedName = selected ? selected.name : "";
    dataset.flows = selected?.flows?.length ?? 0;
    dataset.matches = found ? found.count : "";
    dataset.match = found ? found.index : "";
    status.textContent = `${formatTime(width())} shown, ${plural(seen.events, "event")}`;
    canvas.setAttribute("aria-label", `Timeline of ${model.get("title")}: ${formatTime(Math.max(view.start, 0))} to ${formatTime(Math.min(view.end, span))}, ${plural(seen.events, "event")} in ${plural(seen.count, "box", "boxes")}${selected ? `, chosen ${selected.name}` : ""}`);
    slowly();
  });
  const slowly = throttle(() => {
    fillLegend();
    fillTable();
  }, 300);
  function fillLegend() {
    const present = new Set(state.boxes ? state.boxes.kind : []);
    legend.replaceChildren(
      ...kinds.flatMap((kind, i) =>
        present.has(i)
          ? [h("li", {}, h("span", { class: `pk-time-swatch pk-time-${lookOf(kind)[2] ?? "plain"}`, style: `background-color:${lookOf(kind)[0]}` }), kind)]
          : [],
      ),
    );
  }
  function fillTable() {
    const boxes = state.boxes;
    if (!table.open || !boxes) return;
    const inView = [];
    for (let i = 0; i < boxes.n; i++) {
      const start = boxes.origin + boxes.start[i];
      if (boxes.count[i] === 1 && start + boxes.dur[i] > view.start && start < view.end) inView.push(i);
    }
    inView.sort((a, b) => boxes.dur[b] - boxes.dur[a]);
    tableBody.replaceChildren(
      ...inView.slice(0, TABLE_ROWS).map((i) =>
        h(
          "tr",
          {},
          h("th", { scope: "row" }, boxes.names[boxes.name[i]]),
          h("td", { "data-label": "Part of" }, kinds[boxes.kind[i]]),
          h("td", { "data-label": "Start" }, formatTime(boxes.origin + boxes.start[i], width() / 1000)),
          h("td", { "data-label": "Duration" }, formatTime(boxes.dur[i])),
          h("td", { "data-label": "Lane" }, lanes.places[lanes.laneOf(boxes.row[i])]?.label ?? ""),
        ),
      ),
    );
  }
  table.addEventListener("toggle", fillTable);

  // ---- mouse, touch and keys -------------------------------------------------------------
  const time = (px) => view.start + (px / size.width) * width();
  let drag = null;
  const hit = (event) => {
    const place = lanes.at(event.offsetY - RULER + scroll);
    if (!place || event.offsetY < RULER) return { place: null, i: -1 };
    const i = place.row < 0 || !state.boxes ? -1 : boxAt(state.boxes, place.row, time(event.offsetX), (3 / size.width) * width());
    return { place, i };
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    canvas.focus({ preventScroll: true });
    canvas.setPointerCapture(event.pointerId);
    drag = { x: event.offsetX, y: event.offsetY, view, scroll, moved: false };
  });
  canvas.addEventListener("pointermove", guard((event) => {
    if (!drag) {
      const { place, i } = hit(event);
      hover.textContent = i >= 0 ? describe(state.boxes, i) : "\u00a0";
      canvas.style.cursor = i >= 0 || (place && place.row < 0 && lanes.canFold(place.lane)) ? "pointer" : "grab";
      return;
    }
    const [dx, dy] = [event.offsetX - drag.x, event.offsetY - drag.y];
    if (!drag.moved && Math.hypot(dx, dy) < 4) return;
    drag.moved = true;
    canvas.style.cursor = "grabbing";
    const w = drag.view.end - drag.view.start;
    scroll = Math.min(Math.max(drag.scroll - dy, 0), bottom());
    setView(drag.view.start - (dx / size.width) * w, drag.view.end - (dx / size.width) * w);
  }));
  canvas.addEventListener("pointerup", guard((event) => {
    const clicked = drag && !drag.moved;
    drag = null;
    canvas.style.cursor = "grab";
    if (!clicked) return;
    const { place, i } = hit(event);
    if (i >= 0) enter(state.boxes, i);
    else if (place && place.row < 0) fold(place.lane);
    else choose(null);
  }));
  canvas.addEventListener("pointercancel", () => (drag = null));
  canvas.addEventListener("dblclick", guard((event) => {
    const { i } = hit(event);
    if (i < 0) return;
    const start = state.boxes.origin + state.boxes.start[i];
    setView(start - 0.05 * state.boxes.dur[i], start + 1.05 * state.boxes.dur[i]);
  }));
  canvas.addEventListener("wheel", guard((event) => {
    // as over a map: the page scrolls, and a line says what zooms
    const aside = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!event.ctrlKey && !event.metaKey && !aside) {
      hover.textContent = `${/Mac/.test(navigator.userAgent) ? "⌘" : "Ctrl"} + wheel zooms`;
      return;
    }
    event.preventDefault();
    const unit = event.deltaMode === 1 ? 16 : 1;
    if (aside) {
      pan(((event.deltaX || event.deltaY) * unit) / size.width);
    } else {
      zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY * unit * 0.003))), event.offsetX / size.width);
    }
  }), { passive: false });
  function fold(lane) {
    if (!lanes.canFold(lane)) return;
    lanes.toggle(lane);
    resize();
    ask();
  }
  const ACTIONS = {
    a: () => pan(-0.15), d: () => pan(0.15), ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15),
    w: () => zoom(0.7), s: () => zoom(1 / 0.7), "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1 / 0.7),
    ArrowUp: () => scrollTo(scroll - 3 * ROW), ArrowDown: () => scrollTo(scroll + 3 * ROW),
    PageUp: () => scrollTo(scroll - size.height / 2), PageDown: () => scrollTo(scroll + size.height / 2),
    Home: () => setView(whole.start, whole.start + width()), End: () => setView(whole.end - width(), whole.end),
    0: () => setView(whole.start, whole.end),
    "/": () => search.focus(), n: () => go(1), p: () => go(-1),
    c: () => selected && fold(lanes.laneOf(selected.row)),
    Escape: () => choose(null),
    Enter: () => {
      if (!selected || !state.boxes) return;
      const i = state.boxes.event.findIndex((one, j) => one === selected.event && state.boxes.row[j] === selected.row);
      if (i >= 0) enter(state.boxes, i);
      else request(selected.event);
    },
  };
  canvas.addEventListener("keydown", guard((event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Tab") {
      // after the last visible event, Tab leaves as usual: no keyboard trap
      if (tab(event.shiftKey ? -1 : 1)) event.preventDefault();
      return;
    }
    const action = ACTIONS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }));

  // ---- size, theme, life -----------------------------------------------------------------
  const resize = guard(() => {
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    const w = Math.max(Math.floor(holder.clientWidth), 120);
    const tall = Math.min(Math.max(lanes.height + RULER, 120), TALLEST);
    size = { width: w, height: tall, ratio };
    if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(tall * ratio)) {
      canvas.width = Math.round(w * ratio);
      canvas.height = Math.round(tall * ratio);
      canvas.style.width = `${w}px`;
      canvas.style.height = `${tall}px`;
    }
    paint();
  });
  const observer = new ResizeObserver(() => {
    resize();
    ask();
  });
  observer.observe(holder);
  const stopTheme = onThemeChange(() => {
    theme = null;
    changed();
  });
  const overview = guard(() => {
    const first = model.get("overview");
    if (!first?.data) return;
    const boxes = unpack(first, first.data);
    boxes.all = true;
    boxes.exact = boxes.count.every((n) => n === 1);
    answers = [boxes];
  });
  const asked = guard(() => {
    const range = model.get("shown_us");
    if (range?.length === 2) setView(range[0], range[1]);
  });
  const problem = guard(() => {
    errors.show(model.get("problem"));
    if (model.get("problem")) waiting = null;
  });
  model.on("change:shown_us", asked);
  model.on("change:problem", problem);
  root.dataset.state = "ready";
  overview();
  asked();
  problem();
  resize();
  ask();

  return {
    message,
    disconnected: () => isDisconnected(root),
    kernelGone: guard(() => {
      alive = false;
      clearTimeout(busyTimer);
      root.dataset.state = "no kernel";
      notice.textContent = NO_KERNEL;
      search.disabled = true;
      count.textContent = "";
      for (const one of root.querySelectorAll("[data-do=previous], [data-do=next]")) one.disabled = true;
    }),
    destroy() {
      observer.disconnect();
      stopTheme();
      model.off("change:shown_us", asked);
      model.off("change:problem", problem);
      cancelAnimationFrame(frameAsked);
      clearTimeout(busyTimer);
      for (const one of [askSoon, startSearch, slowly, speaker]) one.cancel();
    },
  };
}
