// What classes look like: the table of the reports, bundled from perfkit/show/palette.json.

import table from "../../../show/palette.json" with { type: "json" };

/** Fill, ink and pattern of a class of time; those of "other" for what is in no table. */
export const lookOf = (name) => table.looks[name.replaceAll("_", " ")] ?? table.looks.other;

/** Colours of curves, as variables of the style sheet; a step, which is the whole, has the text's. */
export const CURVES = {
  "--pk-c2": table.curves["data wait"],
  "--pk-c3": table.curves.memory,
  "--pk-c4": table.series[2],
  "--pk-c5": table.series[1],
};

/** The colour of a run's step time, for a style sheet: clearer on both grounds than the table's. */
export const colorOf = (run) =>
  run ? `color-mix(in srgb, ${table.series[(run - 1) % table.series.length]} 70%, var(--pk-fg))` : "var(--pk-fg)";
