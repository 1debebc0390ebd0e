// A plot as a picture for others: its canvas on an opaque ground, under a head of words.

import { h } from "./parts.js";

const EDGE = 10;
const LINE = 18;
const SWATCH = 28;
const GAP = 18;

/**
 * @param {HTMLCanvasElement} source the plot, `ratio` times as large as it is shown
 * @param {string[]} lines words above it, the first of them its title
 * @param {{text, color, dash}[]} legend what the curves are; without a color, words alone
 */
export function picture(source, ratio, theme, lines, legend) {
  const family = theme.font || "system-ui, sans-serif";
  const out = h("canvas", { width: source.width });
  const ctx = out.getContext("2d");
  const width = source.width / ratio - 2 * EDGE;
  const measure = (text) => ctx.measureText(text).width;
  const head = lines.filter(Boolean).flatMap((text, i) => {
    const font = `${i ? "" : "600 "}13px ${family}`;
    ctx.font = font;
    return wrap(text, width, measure).map((line) => ({ line, font }));
  });
  const small = `12px ${family}`;
  ctx.font = small;
  const items = legend.flatMap((one) =>
    one.color ? [one] : wrap(one.text, width, measure).map((text) => ({ text })),
  );
  const places = inRows(items.map((one) => measure(one.text) + (one.color ? SWATCH : 0)), width, GAP);
  const rows = head.length + (places.at(-1)?.row ?? -1) + 1;
  const top = (rows * LINE + EDGE) * ratio;

  out.height = source.height + top; // this clears the canvas and its settings
  ctx.fillStyle = theme.bg || "#ffffff";
  ctx.fillRect(0, 0, out.width, out.height);
  ctx.scale(ratio, ratio);
  ctx.fillStyle = theme.fg;
  head.forEach(({ line, font }, i) => {
    ctx.font = font;
    ctx.fillText(line, EDGE, LINE * (i + 1));
  });
  ctx.font = small;
  ctx.lineWidth = 2.5;
  items.forEach(({ text, color, dash }, i) => {
    const x = EDGE + places[i].x;
    const y = LINE * (head.length + places[i].row + 1);
    ctx.fillText(text, x + (color ? SWATCH : 0), y);
    if (!color) return;
    ctx.strokeStyle = theme[color];
    ctx.setLineDash(dash ?? []);
    ctx.beginPath();
    ctx.moveTo(x, y - 4);
    ctx.lineTo(x + 22, y - 4);
    ctx.stroke();
  });
  ctx.setTransform(1, 0, 0, 1, 0, 0);
  ctx.drawImage(source, 0, top);
  return out;
}

/** `text` in lines that are no wider than `width`; a word that is wider has its own line. */
export function wrap(text, width, measure) {
  const lines = [];
  for (const word of text.split(" ")) {
    const longer = lines.length ? `${lines.at(-1)} ${word}` : word;
    if (lines.length && measure(longer) <= width) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

/** Where things of these widths go, side by side in rows that are no wider than `width`. */
export function inRows(widths, width, gap) {
  let [x, row] = [0, 0];
  return widths.map((own) => {
    if (x > 0 && x + own > width) [x, row] = [0, row + 1];
    const place = { x, row };
    x += own + gap;
    return place;
  });
}
