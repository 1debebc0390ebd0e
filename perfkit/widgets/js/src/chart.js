// uPlot as perfkit uses it: theme-aware, never animated, drawn only while visible.

import uPlot from "uplot";
import { format, h } from "./parts.js";
import { picture } from "./picture.js";
import { summary } from "./points.js";
import { onThemeChange, readTheme } from "./theme.js";

const NARROW = 480; // px: narrower plots have no axis titles and fewer ticks

// Steps are counted, so their axis has only whole numbers.
const WHOLE = [1, 2, 5].flatMap((n) => [...Array(10).keys()].map((e) => n * 10 ** e)).sort((a, b) => a - b);

/**
 * @param {object} options
 *   series: [{label, unit, axis: "left"|"right", color: "c1"…, dash, ghost, fill, width}]
 *   xLabel, name: text for the axis and the readers; fromZero: the x axis begins at 0
 *   bandLabel: what the shaded ranges are, for the legend
 */
export function createChart({ series, xLabel, name, fromZero = false, bandLabel = "" }) {
  const canvasHost = h("div", { class: "pk-canvas", role: "img", "aria-label": `${name}: no data yet` });
  const legend = h("ul", { class: "pk-legend", "aria-hidden": "true" });
  const note = h("p", { class: "pk-note" });
  const empty = h("div", { class: "pk-empty" }, "The curves appear here.");
  const card = h("div", { class: "pk-card", "aria-hidden": "true", hidden: true });
  const element = h("div", { class: "pk-chart" }, legend, empty, h("div", { class: "pk-plot" }, canvasHost, card), note);

  let theme = {};
  let data = [[], ...series.map(() => [])];
  let bands = [];
  let tops = { left: 1, right: 1 };
  let plot = null;
  let visible = true;
  let dirty = false;
  let frame = 0;
  let medians = null; // of each series, if the caller knows better than the plotted points

  const values = series.map((one) => {
    const value = h("span", { class: "pk-value" });
    if (!one.ghost) legend.append(h("li", {}, swatch(one), h("span", {}, one.label), value));
    return value;
  });
  // one legend entry for all ghosts; each has the colour of its curve
  const ghostLabel = h("span");
  const ghosts = series.filter((one) => one.ghost);
  if (ghosts.length)
    legend.append(h("li", { class: "pk-ghost" }, ...ghosts.map(swatch), ghostLabel));
  if (bandLabel)
    legend.append(h("li", { class: "pk-shaded" }, h("i"), h("span", {}, bandLabel)));

  const sides = ["left", "right"].filter((side) => series.some((one) => one.axis === side));

  function options(width) {
    const narrow = width < NARROW;
    const font = `11px ${theme.font || "system-ui, sans-serif"}`;
    const stroke = () => theme.muted;
    const axis = {
      stroke,
      font,
      labelFont: font,
      labelSize: 18,
      labelGap: 2,
      ticks: { stroke: () => theme.grid, size: 4, width: 1 },
      grid: { stroke: () => theme.grid, width: 1 },
      border: { show: false },
    };
    return {
      width,
      height: height(width),
      padding: [10, sides.includes("right") ? 2 : 14, 0, 2],
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, points: { size: 6 }, y: false },
      scales: {
        x: {
          time: false,
          range: (_, low, high) => {
            const from = fromZero ? 0 : (low ?? 0);
            return [from, high > from ? high : from + 1];
          },
        },
        left: { range: () => [0, tops.left] },
        right: { range: () => [0, tops.right] },
      },
      axes: [
        {
          ...axis,
          label: narrow ? undefined : xLabel,
          space: narrow ? 60 : 70,
          size: 26,
          ...(xLabel === "step" ? { incrs: WHOLE } : {}),
        },
        ...sides.map((side) => ({
          ...axis,
          scale: side,
          side: side === "left" ? 3 : 1,
          size: 46,
          space: 34,
          label: narrow ? undefined : axisTitle(side),
          grid: side === sides[0] ? axis.grid : { show: false },
          values: (_, splits) => splits.map((v) => (v === null ? "" : v.toLocaleString("en"))),
        })),
      ],
      series: [
        {},
        ...series.map((one) => ({
          label: one.label,
          scale: one.axis,
          stroke: () => theme[one.color],
          alpha: one.ghost ? 0.6 : 1,
          width: one.width ?? (one.ghost ? 1.25 : 2),
          dash: one.dash,
          fill: one.fill ? () => `${theme[one.color]}2e` : undefined,
          spanGaps: true,
          points: { show: () => !one.ghost && data[0].length <= 24, size: 5 },
        })),
      ],
      hooks: {
        drawClear: [drawBands],
        setCursor: [showCard],
      },
    };
  }

  const axisTitle = (side) => {
    const own = series.filter((one) => one.axis === side && !one.ghost);
    const units = [...new Set(own.map((one) => one.unit))].join(", ");
    return own.length === 1 ? `${own[0].label} (${units})` : units;
  };

  function drawBands(u) {
    if (!bands.length) return;
    const { ctx, bbox } = u;
    ctx.save();
    ctx.fillStyle = theme.band;
    for (const [from, to] of bands) {
      const left = Math.max(bbox.left, u.valToPos(from, "x", true));
      const right = Math.min(bbox.left + bbox.width, u.valToPos(to, "x", true));
      if (right > left) ctx.fillRect(left, bbox.top, right - left, bbox.height);
    }
    ctx.restore();
  }

  /** The legend shows medians. */
  function showValues() {
    series.forEach((one, i) => {
      if (one.ghost) return;
      const median = medians?.[i] ?? summary(data[i + 1])?.median;
      values[i].textContent = median === undefined || median === null ? "" : `median ${format(median, one.unit)}`;
    });
  }

  /** Beside the pointer: the values of all curves there. */
  function showCard({ cursor: { idx, left }, over }) {
    card.hidden = idx === null || idx === undefined || left < 0;
    if (card.hidden) return;
    const rows = series.map((one, i) => {
      // a joined table has holes where only the other run has a point: take the previous one
      let k = idx;
      while (k > 0 && (data[i + 1][k] ?? null) === null) k--;
      const value = data[i + 1][k] ?? null;
      if (value === null) return null;
      const of = one.ghost ? ` (${ghostLabel.textContent})` : "";
      return h("li", {}, swatch(one), h("span", {}, one.label + of), h("b", {}, format(value, one.unit)));
    });
    const at = data[0][idx];
    const head = xLabel === "step" ? `step ${at}` : `${at.toFixed(1)} ${xLabel}`;
    card.replaceChildren(h("strong", {}, head), h("ul", {}, ...rows));
    const x = over.offsetLeft + left;
    const onLeft = left > over.clientWidth / 2;
    card.style.left = onLeft ? "" : `${x + 12}px`;
    card.style.right = onLeft ? `${canvasHost.clientWidth - x + 12}px` : "";
  }

  /** The axis ends slightly above almost all points; higher points are counted, not hidden. */
  function fitAxes() {
    const cut = [];
    for (const side of sides) {
      const all = [];
      let unit = "";
      series.forEach((one, i) => {
        if (one.axis !== side) return;
        unit = one.unit;
        for (const v of data[i + 1]) if (v !== null && v !== undefined) all.push(v);
      });
      if (!all.length) {
        tops[side] = 1;
        continue;
      }
      all.sort((a, b) => a - b);
      const highest = all[all.length - 1];
      const usual = all[Math.floor((all.length - 1) * 0.97)];
      tops[side] = nice(highest > 3 * usual && usual > 0 ? 1.6 * usual : highest * 1.08);
      const above = all.filter((v) => v > tops[side]).length;
      if (above)
        cut.push(
          `${above} point${above > 1 ? "s" : ""} above the axis, highest ${format(highest, unit)}`,
        );
    }
    return cut.join(" · ");
  }

  function draw() {
    frame = 0;
    if (!dirty || !visible || document.hidden) return;
    const width = Math.floor(canvasHost.clientWidth);
    if (width < 60) return;
    dirty = false;
    empty.hidden = data[0].length > 0;
    if (!empty.hidden) return;
    const cut = fitAxes();
    if (plot === null) {
      theme = readTheme(element);
      plot = new uPlot(options(width), data, canvasHost);
    } else {
      plot.setData(data, true);
    }
    element.classList.toggle("pk-has-bands", bands.length > 0);
    note.textContent = [cut, noteText].filter(Boolean).join(" · ");
    note.hidden = !note.textContent;
    showValues();
  }
  let noteText = "";

  function request() {
    dirty = true;
    if (!frame && visible && !document.hidden) frame = requestAnimationFrame(draw);
  }

  function rebuild() {
    theme = readTheme(element);
    if (plot) plot.destroy();
    plot = null;
    request();
  }

  let lastWidth = 0;
  const sizes = new ResizeObserver(() => {
    const width = Math.floor(canvasHost.clientWidth);
    if (width === lastWidth || width < 60) return;
    const crossed = width < NARROW !== lastWidth < NARROW;
    lastWidth = width;
    if (!plot) request();
    else if (crossed) rebuild();
    else plot.setSize({ width, height: height(width) });
  });
  sizes.observe(canvasHost);
  const sight = new IntersectionObserver((entries) => {
    visible = entries[entries.length - 1].isIntersecting;
    if (visible && dirty) request();
  });
  sight.observe(canvasHost);
  const shown = () => {
    if (!document.hidden && dirty) request();
  };
  document.addEventListener("visibilitychange", shown);
  const stopTheme = onThemeChange(rebuild);

  return {
    element,
    /** Draw these columns (x first), shade the x ranges of `bands`, say `text` under the plot;
     * `medians` of the series are for the legend. */
    set(columns, { bands: shaded = [], text = "", medians: known = null } = {}) {
      data = columns;
      medians = known;
      bands = shaded;
      noteText = text;
      request();
    },
    /** What the faint dashed curves are; empty if there are none. */
    showGhost(text) {
      ghostLabel.textContent = text;
      element.classList.toggle("pk-has-ghost", text !== "");
    },
    /** The colours have changed. */
    recolor() {
      const now = readTheme(element);
      if (plot && (now.c1 !== theme.c1 || now.g1 !== theme.g1)) rebuild();
    },
    describe(text) {
      canvasHost.setAttribute("aria-label", text);
    },
    /** The plot as a PNG on an opaque background, with title lines above it. */
    png(lines) {
      if (!plot) return null;
      const told = [
        ghostLabel.textContent && `dashed: ${ghostLabel.textContent}`,
        bands.length && bandLabel && `shaded: ${bandLabel}`,
      ];
      const curves = series
        .filter((one) => !one.ghost)
        .map(({ label, unit, color, dash }) => ({ text: `${label} (${unit})`, color, dash }));
      const words = told.filter(Boolean).map((text) => ({ text }));
      return picture(plot.ctx.canvas, devicePixelRatio || 1, theme, lines, [...curves, ...words]);
    },
    destroy() {
      cancelAnimationFrame(frame);
      sizes.disconnect();
      sight.disconnect();
      document.removeEventListener("visibilitychange", shown);
      stopTheme();
      if (plot) plot.destroy();
      plot = null;
    },
  };
}

const height = (width) => Math.round(Math.min(250, Math.max(160, width * 0.3)));

/** The next 1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8 × 10^k above a number. */
function nice(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  for (const step of [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10])
    if (value <= step * power * 1.0000001) return step * power;
  return 10 * power;
}

function swatch({ color, dash, ghost, fill, width }) {
  const ns = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(ns, "svg");
  svg.setAttribute("viewBox", "0 0 22 10");
  svg.setAttribute("width", "22");
  svg.setAttribute("height", "10");
  if (fill) {
    const area = document.createElementNS(ns, "rect");
    for (const [k, v] of Object.entries({ x: 0, y: 5, width: 22, height: 5 })) area.setAttribute(k, v);
    area.style.fill = `var(--pk-${color})`;
    area.style.opacity = "0.25";
    svg.append(area);
  }
  const line = document.createElementNS(ns, "line");
  for (const [k, v] of Object.entries({ x1: 0, x2: 22, y1: 5, y2: 5 })) line.setAttribute(k, v);
  line.style.stroke = `var(--pk-${color})`;
  line.style.strokeWidth = `${width ?? (ghost ? 1.5 : 2.5)}`;
  if (dash) line.style.strokeDasharray = dash.join(" ");
  svg.append(line);
  return svg;
}
