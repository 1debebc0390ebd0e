// Formats numbers like perfkit/base/words.py; both are tested against tests/base/words_cases.json.

const MINUS = "−";
const TIME_UNITS = [["ns", 1e-3, 1e3], ["µs", 1, 1e3], ["ms", 1e3, 1e3], ["s", 1e6, 600], ["min", 6e7, 600], ["h", 3.6e9, Infinity]];

/** Three significant digits, no unit. */
export function fmtNumber(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = rounded(Math.abs(value));
  const power = Math.floor(Math.log10(size));
  const digits = Math.max(2 - power, 0);
  const text = power < -6 || power >= 15
    ? size.toExponential(2)
    : size.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return value < 0 ? MINUS + text : text;
}

/** A time given in microseconds, in the unit that reads best. */
export function fmtUs(us) {
  if (us === 0) return "0 ms";
  const [unit, size] = TIME_UNITS.find(([, one, end]) => rounded(Math.abs(us) / one) < end);
  return `${fmtNumber(us / size)} ${unit}`;
}

function rounded(size) {
  return Number(size.toPrecision(3));
}
