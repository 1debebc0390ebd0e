// Formats numbers like perfkit/base/words.py; both are tested against tests/base/words_cases.json.

const MINUS = "−";
const BYTE_UNITS = ["KiB", "MiB", "GiB", "TiB", "PiB"];
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

/** A count, exact; a mean count that is not whole has three digits. */
export function fmtCount(n) {
  if (n < 0) return MINUS + fmtCount(-n);
  if (Number.isInteger(n)) return n.toLocaleString("en");
  return fmtNumber(n).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
}

/** A count and the word for what is counted. */
export function plural(n, one, many = `${one}s`) {
  return `${fmtCount(n)} ${n === 1 ? one : many}`;
}

/** Bytes in binary units. */
export function fmtBytes(n) {
  if (n < 0) return MINUS + fmtBytes(-n);
  if (n < 999.5) return `${n === 0 || n > 0.5 ? n.toFixed(0) : fmtNumber(n)} B`;
  let [size, unit] = [n / 1024, 0];
  while (rounded(size) >= 1000 && unit < BYTE_UNITS.length - 1) [size, unit] = [size / 1024, unit + 1];
  return `${fmtNumber(size)} ${BYTE_UNITS[unit]}`;
}

/** A measured share of 1 in per cent. */
export function fmtShare(x) {
  if (x < 0) return x > -0.001 ? "> −0.1 %" : MINUS + fmtShare(-x);
  const percent = 100 * x;
  if (percent === 0) return "0 %";
  if (percent < 0.1) return "< 0.1 %";
  if (percent < 9.95) return `${percent.toFixed(1)} %`;
  if (percent < 99.5 || percent >= 100) return `${fmtCount(Math.round(percent))} %`;
  return percent < 99.95 ? `${percent.toFixed(1)} %` : "> 99.9 %";
}

function rounded(size) {
  return Number(size.toPrecision(3));
}
