// Small page elements shared by the widgets.

import { fmtBytes, fmtNumber, fmtUs } from "./numbers.js";
import { CURVES } from "./palette.js";

/** An element; properties that start with "on" are listeners, null children are left out. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

let lastId = 0;
export const freshId = (stem) => `pk-${stem}-${++lastId}`;

/** The frame of a widget. JupyterLab's shortcuts and the notebook's keys are disabled inside:
 * Enter, Space and the arrow keys go to our controls while one of them has the focus. */
export function frame(kind) {
  return h("div", {
    class: `pk pk-${kind}`,
    style: Object.entries(CURVES).map((pair) => pair.join(":")).join(";"),
    "data-lm-suppress-shortcuts": "true",
    onkeydown: (event) => event.stopPropagation(),
  });
}

/** Whether a button can be pressed now. While it cannot, it keeps the focus, which `disabled` would
 * take away: a reader without a mouse who has just pressed it goes on from there. */
export function letPress(button, on) {
  button.setAttribute("aria-disabled", String(!on));
}
export const canPress = (button) => button.getAttribute("aria-disabled") !== "true";

/** Shows errors of JavaScript and of Python callbacks under the widget. */
export function errorBox() {
  const list = h("div", { class: "pk-errors", role: "alert" });
  const shown = new Set();
  const show = (text) => {
    if (!text || shown.has(text) || shown.size >= 5) return;
    shown.add(text);
    const [first, ...rest] = text.split("\n");
    list.append(
      h(
        "div",
        { class: "pk-error" },
        h("strong", {}, "perfkit: "),
        first,
        rest.length
          ? h("details", {}, h("summary", {}, "Details"), h("pre", {}, rest.join("\n")))
          : null,
      ),
    );
  };
  const guard =
    (action) =>
    (...args) => {
      try {
        return action(...args);
      } catch (error) {
        show(`error in the browser: ${error.message}\n${error.stack ?? ""}`);
        return undefined;
      }
    };
  return { element: list, show, guard };
}

/** At most one call every `ms`; the last one is never lost. */
export function throttle(action, ms) {
  let timer = 0;
  let last = -Infinity;
  const run = () => {
    timer = 0;
    last = performance.now();
    action();
  };
  const call = () => {
    if (timer) return;
    const wait = last + ms - performance.now();
    if (wait <= 0) run();
    else timer = setTimeout(run, wait);
  };
  call.cancel = () => clearTimeout(timer);
  return call;
}

/** A line for screen readers, announced at most every five seconds. */
export function announcer() {
  const element = h("div", { class: "pk-hidden", role: "status", "aria-live": "polite" });
  let text = "";
  const speak = throttle(() => {
    if (element.textContent !== text) element.textContent = text;
  }, 5000);
  const say = (next) => {
    text = next;
    speak();
  };
  return { element, say, cancel: speak.cancel };
}

const SCALED = { ms: (value) => fmtUs(1000 * value), MiB: (value) => fmtBytes(value * 2 ** 20) };

/** A number with three significant digits, and its unit: for times and bytes the one that reads best. */
export function format(value, unit) {
  if (SCALED[unit] && Number.isFinite(value)) return SCALED[unit](value);
  const text = fmtNumber(value);
  return unit && text !== "–" ? `${text} ${unit}` : text;
}

/** "Data as a table": the data behind the plot, computed only while it is open. */
export function dataTable(caption, read) {
  const body = h("tbody");
  const heads = ["Curve", "Points", "Last", "Median", "Lowest", "Highest"];
  const details = h(
    "details",
    { class: "pk-data" },
    h("summary", {}, "Data as a table"),
    h(
      "table",
      { class: "pk-table" },
      h("caption", {}, caption),
      h("thead", {}, h("tr", {}, ...heads.map((head) => h("th", { scope: "col" }, head)))),
      body,
    ),
  );
  const fill = () => {
    if (!details.open) return;
    body.replaceChildren(
      ...read().map(({ label, unit, stats }) => {
        const numbers = stats
          ? [stats.n, ...[stats.last, stats.median, stats.low, stats.high].map((v) => format(v, unit))]
          : ["0", "–", "–", "–", "–"];
        return h(
          "tr",
          {},
          h("th", { scope: "row" }, label),
          ...numbers.map((text, i) => h("td", { "data-label": heads[i + 1] }, String(text))),
        );
      }),
    );
  };
  const update = throttle(fill, 1000);
  details.addEventListener("toggle", fill);
  return { element: details, update, cancel: update.cancel };
}
