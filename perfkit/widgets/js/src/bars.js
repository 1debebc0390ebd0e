// Small pictures for table cells: a run's sparkline, and a ratio on a logarithmic scale.

import { lookOf } from "./palette.js";

const NS = "http://www.w3.org/2000/svg";

function svg(width, height, kind, ...children) {
  const element = shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height });
  element.setAttribute("class", `pk-${kind}`);
  element.setAttribute("aria-hidden", "true");
  element.append(...children);
  return element;
}

function shape(tag, attributes) {
  const element = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

/** The common maximum of several rows' sparklines; outliers are cut off. */
export function sparkTop(rows) {
  const all = rows.flatMap((row) => row.spark).sort((a, b) => a - b);
  return all.length ? all[Math.floor((all.length - 1) * 0.97)] * 1.1 : 1;
}

/** The values as a line from 0 to `top`; null if there are none. */
export function spark(values, top) {
  if (values.length < 2 || !(top > 0)) return null;
  const [width, height] = [64, 20];
  const x = (k) => 1 + ((width - 2) * k) / (values.length - 1);
  const y = (v) => height - 1 - (height - 3) * Math.min(v / top, 1);
  const points = values.map((v, k) => `${x(k).toFixed(1)},${y(v).toFixed(1)}`).join(" ");
  return svg(
    width,
    height,
    "spark",
    shape("line", { x1: 0, x2: width, y1: height - 0.5, y2: height - 0.5, class: "pk-axis" }),
    shape("polyline", { points, class: "pk-spark-line" }),
  );
}

/** The common range of several rows' bars: the largest ratio, but at least 1.5×. */
export function barReach(rows) {
  const values = rows.flatMap(({ ratio }) => [ratio.value, ratio.low, ratio.high]);
  return Math.max(Math.log(1.5), ...values.filter((v) => v > 0).map((v) => Math.abs(Math.log(v))));
}

/** A bar to the right of 1 for faster, to the left for slower; hollow while unconfirmed. */
export function bar({ kind, value, low, high }, reach) {
  const [width, height] = [72, 16];
  const middle = width / 2;
  const at = (v) => middle + (Math.log(v) / reach) * (middle - 3);
  const parts = [shape("line", { x1: middle, x2: middle, y1: 0, y2: height, class: "pk-axis" })];
  if (value > 0) {
    const [from, to] = [Math.min(middle, at(value)), Math.max(middle, at(value))];
    const solid = kind === "confirmed";
    const side = value >= 1 ? "faster" : "slower";
    const sure = solid && !(low <= 1 && 1 <= high);
    parts.push(
      shape("rect", {
        x: from,
        y: 4.5,
        width: Math.max(to - from, 1),
        height: 7,
        class: `pk-bar-${solid ? "solid" : "hollow"} pk-bar-${sure || !solid ? side : "none"}`,
      }),
    );
    if (solid && low > 0) {
      const end = high > 0 ? Math.min(at(high), width - 1) : width - 1;
      const start = Math.max(at(low), 1);
      const d = `M${start} 8H${end}M${start} 4V12M${end} 4V12`;
      parts.push(shape("path", { d, class: "pk-whisker" }));
    }
  }
  return svg(width, height, "ratio-bar", ...parts);
}

/** A pin, filled or hollow. */
export function pinIcon() {
  return svg(
    14,
    14,
    "pin-icon",
    shape("path", { d: "M5 1.5h4l-.6 4 2.1 2v1.2h-7V7.5l2.1-2zM7 8.7V13" }),
  );
}

/** Parts of a whole, side by side, in the order of the phases; null if there are none.
 * `words` is what a screen reader says and a pointer shows. */
export function stack(parts, words) {
  if (!parts.length) return null;
  const [width, height] = [64, 7];
  let x = 0;
  const rects = parts.map(({ phase, share }) => {
    const wide = share * width;
    // a thin gap between neighbours, so that they are told apart without their colours
    const rect = shape("rect", {
      x: x.toFixed(2),
      y: 0,
      width: Math.max(wide - 0.75, 0.25).toFixed(2),
      height,
      fill: lookOf(phase)[0],
    });
    x += wide;
    return rect;
  });
  const element = svg(width, height, "phases", ...rects);
  element.removeAttribute("aria-hidden");
  element.setAttribute("role", "img");
  element.setAttribute("aria-label", words);
  const title = shape("title", {});
  title.textContent = words;
  element.prepend(title);
  return element;
}
