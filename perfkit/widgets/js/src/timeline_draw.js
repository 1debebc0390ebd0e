// The timeline's canvas. Names are drawn as text; nothing here becomes markup.

import { fmtUs, plural } from "./numbers.js";
import { HEAD, ROW, RULER } from "./lanes.js";
import { lookOf } from "./palette.js";

function makePattern(context, kind) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const pen = tile.getContext("2d");
  pen.strokeStyle = pen.fillStyle = "rgba(0,0,0,0.32)";
  if (kind === "dots") {
    pen.fillRect(1, 1, 2, 2);
    pen.fillRect(5, 5, 2, 2);
  } else {
    pen.lineWidth = 2;
    pen.beginPath();
    for (const x of [-8, 0, 8]) {
      pen.moveTo(x, 8);
      pen.lineTo(x + 8, 0);
    }
    pen.stroke();
  }
  return context.createPattern(tile, "repeat");
}

/** A time in the unit that reads best, with enough digits to tell neighbours `step` apart. */
export function formatTime(us, step = 0) {
  if (!step) return fmtUs(us);
  const [unit, size] = Math.max(Math.abs(us), step) >= 1e6 ? ["s", 1e6] : Math.max(Math.abs(us), step) >= 1e3 ? ["ms", 1e3] : ["µs", 1];
  const value = us / size;
  const digits = Math.min(6, Math.max(0, Math.ceil(-Math.log10(step / size) - 1e-9)));
  return `${value.toFixed(digits)} ${unit}`;
}

function tickStep(span, width) {
  const least = (span / Math.max(width, 1)) * 95;
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((m) => m * power).find((s) => s >= least);
}

// common prefixes, which would hide the rest of a name if there is little room
const PREFIX = /^(aten::|autograd::engine::evaluate_function: |torch::autograd::|void )+/;

const clip = (name, width) => {
  const text = name.length * 6.1 + 6 > width ? name.replace(PREFIX, "") : name;
  const room = Math.floor((width - 6) / 6.1);
  if (room < 2) return "";
  return text.length <= room ? text : `${text.slice(0, room - 1)}…`;
};

/** Draw everything; return the number of visible boxes and events. */
export function draw(context, size, state) {
  const { width, height, ratio } = size;
  const { theme, lanes, boxes, view, scroll, kinds, steps, selected, query } = state;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.fillStyle = theme.bg;
  context.fillRect(0, 0, width, height);
  const x = (time) => ((time - view.start) / (view.end - view.start)) * width;
  const y = (row) => RULER + lanes.rowY(row) - scroll;
  context.font = `11px ${theme.font}`;
  context.textBaseline = "middle";
  const patterns = (state.patterns ??= {
    dots: makePattern(context, "dots"),
    stripes: makePattern(context, "stripes"),
  });

  drawSteps(context, { x, width, height, theme, steps });
  for (const place of lanes.places) {
    const top = RULER + place.y - scroll;
    if (top > height || top + HEAD + place.shown * ROW < RULER) continue;
    context.fillStyle = theme.band;
    context.fillRect(0, top, width, HEAD - 2);
    context.fillStyle = theme.fg;
    const mark = lanes.canFold(place.index) ? (lanes.isOpen(place.index) ? "▾ " : "▸ ") : "";
    const more = place.hidden ? ` · ${place.hidden} deeper rows folded` : "";
    context.fillText(clip(`${mark}${place.label} · ${plural(place.events, "event")}${more}`, width), 6, top + HEAD / 2);
  }

  const seen = drawBoxes(context, { x, y, width, height, theme, lanes, boxes, kinds, query, patterns });
  if (selected) drawSelected(context, { x, y, width, height, theme, selected });
  drawRuler(context, { x, width, theme, view, steps });
  return seen;
}

function drawSteps(context, { x, width, height, theme, steps }) {
  context.fillStyle = theme.band;
  steps.forEach(([start, end], i) => {
    const [a, b] = [Math.max(x(start), 0), Math.min(x(end), width)];
    if (b > a && i % 2 === 0) context.fillRect(a, RULER, b - a, height);
  });
}

function drawRuler(context, { x, width, theme, view, steps }) {
  context.fillStyle = theme.bg;
  context.fillRect(0, 0, width, RULER);
  context.fillStyle = theme.muted;
  context.strokeStyle = theme.muted;
  context.lineWidth = 1;
  const step = tickStep(view.end - view.start, width);
  context.beginPath();
  const last = Math.ceil(view.end / step);
  for (let k = Math.ceil(view.start / step); k <= last; k++) {
    const at = Math.round(x(k * step)) + 0.5;
    context.moveTo(at, RULER - 5);
    context.lineTo(at, RULER);
    const text = formatTime(k * step, step);
    if (at + 4 + text.length * 6.2 < width) context.fillText(text, at + 4, 8);
  }
  context.moveTo(0, RULER - 0.5);
  context.lineTo(width, RULER - 0.5);
  context.stroke();
  context.lineWidth = 1;
  context.strokeStyle = theme.fg;
  context.beginPath();
  for (const [start] of steps) {
    const at = Math.round(x(start)) + 0.5;
    if (at < 0 || at > width) continue;
    context.moveTo(at, RULER - 9);
    context.lineTo(at, RULER);
  }
  context.stroke();
}

function drawBoxes(context, { x, y, width, height, theme, lanes, boxes, kinds, query, patterns }) {
  let count = 0;
  let events = 0;
  if (!boxes) return { count, events };
  context.save();
  context.beginPath();
  context.rect(0, RULER, width, height - RULER);
  context.clip();
  const matches = boxes.names.map((name) => query !== "" && name.toLowerCase().includes(query));
  for (const [row, first] of boxes.first) {
    if (!lanes.isShown(row)) continue;
    const top = y(row);
    if (top + ROW < RULER || top > height) continue;
    for (let i = first; i < boxes.n && boxes.row[i] === row; i++) {
      const start = boxes.origin + boxes.start[i];
      const left = x(start);
      const right = x(start + boxes.dur[i]);
      if (right < 0) continue;
      if (left > width) break;
      count += 1;
      events += boxes.count[i];
      const a = Math.max(left, -2);
      const b = Math.min(Math.max(right, left + 1), width + 2);
      const [fill, ink, pattern] = lookOf(kinds[boxes.kind[i]]);
      const merged = boxes.count[i] > 1;
      const gap = b - a > 3 ? 0.5 : 0;
      // a merged box is as dense as its contents
      context.globalAlpha = merged ? 0.3 + (0.7 * boxes.fill[i]) / 255 : 1;
      context.fillStyle = fill;
      context.fillRect(a, top + 1, b - a - gap, ROW - 2);
      context.globalAlpha = 1;
      if (pattern === "line" && b - a > 2) {
        context.strokeStyle = theme.muted;
        context.strokeRect(a + 0.5, top + 1.5, b - a - 1 - gap, ROW - 3);
      } else if (patterns[pattern] && b - a > 3) {
        context.fillStyle = patterns[pattern];
        context.fillRect(a, top + 1, b - a - gap, ROW - 2);
      }
      if (b - a >= 24) {
        const name = merged ? `${boxes.count[i].toLocaleString("en")} events` : boxes.names[boxes.name[i]];
        const text = clip(name, b - a);
        if (patterns[pattern] && text) {
          context.fillStyle = fill; // a plain background for text
          context.fillRect(a + 2, top + 3, Math.min(text.length * 6.3 + 4, b - a - 4), ROW - 6);
        }
        context.fillStyle = merged && boxes.fill[i] < 160 ? theme.fg : ink;
        context.fillText(text, a + 4, top + ROW / 2);
      }
      if (!merged && matches[boxes.name[i]]) {
        context.fillStyle = theme.fg; // search results are underlined
        context.fillRect(a, top + ROW - 3, Math.max(b - a - gap, 1), 3);
      }
    }
  }
  context.restore();
  return { count, events };
}

function drawSelected(context, { x, y, width, height, theme, selected }) {
  context.save();
  context.beginPath();
  context.rect(0, RULER, width, height - RULER);
  context.clip();
  const box = (one) => {
    const a = Math.max(x(one.start), -4);
    const b = Math.min(Math.max(x(one.start + one.dur), x(one.start) + 2), width + 4);
    return [a, y(one.row), b - a];
  };
  context.strokeStyle = theme.fg;
  context.fillStyle = theme.fg;
  for (const flow of selected.flows ?? []) {
    const [from, to] = flow.role === "launches" ? [selected, flow] : [flow, selected];
    // for an op, the line starts at the launch, because an op has many
    const [x1, y1] = [Math.min(Math.max(x(from.start), -1e4), 1e4), y(from.row) + ROW];
    const [x2, y2] = [Math.min(Math.max(x(to.start), -1e4), 1e4), y(to.row) + ROW / 2];
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(x1, y1);
    const bend = Math.max(20, Math.abs(x2 - x1) / 2);
    context.bezierCurveTo(x1 + bend, y1, x2 - bend, y2, x2, y2);
    context.stroke();
    context.beginPath();
    context.moveTo(x2, y2);
    context.lineTo(x2 - 7, y2 - 4);
    context.lineTo(x2 - 7, y2 + 4);
    context.fill();
    const [a, top, w] = box(flow);
    context.setLineDash([3, 2]);
    context.strokeRect(a, top + 1, w, ROW - 2);
    context.setLineDash([]);
  }
  const [a, top, w] = box(selected);
  context.lineWidth = 3;
  context.strokeStyle = theme.bg;
  context.strokeRect(a - 1, top, w + 2, ROW);
  context.lineWidth = 2;
  context.strokeStyle = theme.fg;
  context.strokeRect(a - 0.5, top + 0.5, w + 1, ROW - 1);
  context.restore();
}
